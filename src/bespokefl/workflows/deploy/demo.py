"""A deployment on one machine: a server and three nodes in separate processes, with TLS and keys."""

import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl.core.errors import TrainingError
from bespokefl.data import load
from bespokefl.data.clients import Clients
from bespokefl.workflows.deploy import runs
from bespokefl.workflows.deploy.init import init
from bespokefl.workflows.deploy.layout import Deployment
from bespokefl.workflows.deploy.processes import START_TIMEOUT, Process, end, spawn
from bespokefl.workflows.results.result import Result, load_run
from bespokefl.workflows.run.settings import RunSettings

CLIENTS_BY_NODE: dict[str, int] = {"hospital-a": 3, "hospital-b": 2, "hospital-c": 1}
SPLIT = "dirichlet(alpha=0.4)"
RUN_TIMEOUT = 600.0  # seconds: a busy machine may be slow
READY = "is ready"  # `bespoke deploy server` and `node` print it

Say = Callable[[str], None]


def demo(method: str, rounds: int, seed: int, out: Path, say: Say) -> Result:
    """Deploy the digits on three nodes, train, fetch the result, and remove everything else."""
    directory = Path(tempfile.mkdtemp(prefix="bespoke-deployment-"))
    try:
        deployment = init(directory / "deployment", list(CLIENTS_BY_NODE), f"127.0.0.1:{free_port()}")
        clients = load("digits").split(SPLIT, clients=sum(CLIENTS_BY_NODE.values()), seed=seed)
        distribute(clients, deployment.root, CLIENTS_BY_NODE)
        say(f"certificates, keys and configurations: {deployment.root}")
        with running(deployment, list(CLIENTS_BY_NODE)) as processes:
            say(f"server and {len(CLIENTS_BY_NODE)} nodes on {deployment.local_address}, with TLS and keys")
            name = runs.start(deployment, RunSettings(method=method, rounds=rounds, seed=seed, data="deployment"))
            follow(deployment, name, processes, say)
            shutil.copytree(deployment.run_directory(name) / runs.RESULT, out)
        say("all processes have ended")
        return load_run(out)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def running(
    deployment: Deployment, nodes: Sequence[str], environment: Mapping[str, str] | None = None
) -> Iterator[dict[str, Process]]:
    """Run the server and nodes of a deployment on this machine; `environment` is for the server."""
    processes: dict[str, Process] = {}
    try:
        processes["server"] = launch(deployment, "server", environment=environment)
        for name in nodes:
            processes[name] = launch(deployment, "node", name)
        for name, process in processes.items():
            wait_until_ready(deployment, name, process)
        yield processes
    finally:
        end(*(process for name, process in processes.items() if name != "server"))
        end(*(process for name, process in processes.items() if name == "server"))


def launch(
    deployment: Deployment, kind: str, name: str = "server", environment: Mapping[str, str] | None = None
) -> Process:
    """Start the server, or the node of this name, in a process of its own."""
    directory = deployment.root if kind == "server" else deployment.root / "nodes" / name
    command = [sys.executable, "-m", "bespokefl.cli", "deploy", kind, str(directory)]
    return spawn(command, _output(deployment, name), environment)


def wait_until_ready(deployment: Deployment, name: str, process: Process, timeout: float = START_TIMEOUT) -> None:
    """Wait until a process prints that it is ready."""
    started = time.monotonic()
    while True:
        output = _output(deployment, name).read_text(encoding="utf-8", errors="replace")
        if READY in output:
            return
        if process.poll() is not None or time.monotonic() - started > timeout:
            reason = output.strip().splitlines()[-1] if output.strip() else ""
            raise TrainingError(f"{name} did not start: {reason}")
        time.sleep(0.1)


def follow(
    deployment: Deployment,
    name: str,
    processes: Mapping[str, Process],
    say: Say = lambda _: None,
    timeout: float = RUN_TIMEOUT,
    watch: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> None:
    """Wait until a run is done; report its rounds to `say`, and each status to `watch`."""
    started, last = time.monotonic(), ""
    while True:
        status = runs.read_status(deployment.run_directory(name))
        watch(status)
        state = status.get("state", "")
        line = (
            f"round {status.get('round')} of {status.get('rounds')}" if state == "running" else runs.described(status)
        )
        if line != last:
            say(line)
        last = line
        if state == "done":
            return
        if state in ("failed", "stopped"):
            raise TrainingError(f"the run {state}: {status.get('error', '')}")
        for who, process in processes.items():
            if process.poll() is not None:
                raise TrainingError(f"{who} ended during the run with code {process.returncode}.")
        if time.monotonic() - started > timeout:
            raise TrainingError(f"the run was not done within {timeout:g} seconds.")
        time.sleep(0.1)


def distribute(clients: Clients, directory: Path, counts: Mapping[str, int]) -> None:
    """Write the examples of so many clients to each node of a deployment."""
    start = 0
    for node, count in counts.items():
        indices = [
            np.concatenate([getattr(clients, part).of(client).numpy() for part in ("train", "validation", "test")])
            for client in range(start, start + count)
        ]
        rows = np.concatenate(indices)
        names = np.repeat(clients.names[start : start + count], [len(own) for own in indices])
        own = directory / "nodes" / node
        np.savez(own / "records.npz", x=clients.x.numpy()[rows], y=clients.y.numpy()[rows], client=names)
        with (own / "node.toml").open("a", encoding="utf-8") as file:
            file.write('\ndata = "records.npz"\n')
        start += count


def write_example(directory: Path, nodes: Sequence[str]) -> None:
    """Give each node of a deployment two clients with a part of the digits."""
    clients = load("digits").split(SPLIT, clients=2 * len(nodes), seed=0)
    distribute(clients, directory, dict.fromkeys(nodes, 2))


def free_port() -> int:
    """A free port below those that the system assigns to connections, so that it stays free until it is used."""
    while True:
        port = 15_000 + secrets.randbelow(15_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _output(deployment: Deployment, name: str) -> Path:
    return deployment.server / "logs" / f"{name}.txt"
