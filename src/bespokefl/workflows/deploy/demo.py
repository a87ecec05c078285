"""A deployment on one machine: a server and three nodes, each a process of its own, with TLS and keys."""

import os
import secrets
import shutil
import socket
import subprocess
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
from bespokefl.workflows.deploy import entry as machines
from bespokefl.workflows.deploy import runs
from bespokefl.workflows.deploy.init import init
from bespokefl.workflows.deploy.layout import Deployment
from bespokefl.workflows.deploy.processes import UP, end, end_with_parent
from bespokefl.workflows.deploy.status import RESULT, told
from bespokefl.workflows.results.result import Result, load_run
from bespokefl.workflows.run.settings import Config

HOSPITALS: dict[str, int] = {"hospital-a": 3, "hospital-b": 2, "hospital-c": 1}  # and how many clients each has
SPLIT = "dirichlet(alpha=0.4)"
LONGEST = 600.0  # seconds for the run itself: a busy machine may take long

Say = Callable[[str], None]


def demo(method: str, rounds: int, seed: int, out: Path, say: Say) -> Result:
    """Digits in three hospitals: written, started, trained, fetched, and everything ended and removed."""
    place = Path(tempfile.mkdtemp(prefix="bespoke-deployment-"))
    try:
        folder = place / "deployment"
        deployment = init(folder, list(HOSPITALS), f"127.0.0.1:{free_port()}")
        share_out(load("digits").split(SPLIT, clients=sum(HOSPITALS.values()), seed=seed), folder, HOSPITALS)
        say(f"certificates, keys and configurations: {folder}")
        with running(deployment, list(HOSPITALS)) as processes:
            say(f"server and {len(HOSPITALS)} nodes on {deployment.local}, with TLS and keys")
            name = runs.start(deployment, Config(method=method, rounds=rounds, seed=seed, data="deployment"))
            follow(deployment, name, processes, say)
            shutil.copytree(deployment.run(name) / RESULT, out)
        say("everything is stopped")
        return load_run(out)
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def running(
    deployment: Deployment, nodes: Sequence[str], environment: Mapping[str, str] | None = None
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """The processes of a deployment, all on this machine, for as long as they are needed.

    environment     more variables for the server
    """
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        processes["server"] = launch(deployment, "server", deployment.root, environment)
        for name in nodes:
            processes[name] = launch(deployment, "node", deployment.root / "nodes" / name)
        for name, process in processes.items():
            wait_for(deployment, name, process)
        yield processes
    finally:
        end(*(process for name, process in processes.items() if name != "server"))
        end(*(process for name, process in processes.items() if name == "server"))


def launch(
    deployment: Deployment, what: str, where: Path, environment: Mapping[str, str] | None = None
) -> "subprocess.Popen[bytes]":
    name = "server" if what == "server" else where.name
    with _output(deployment, name).open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", machines.__name__, what, str(where)],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=end_with_parent,
        )


def wait_for(deployment: Deployment, name: str, process: "subprocess.Popen[bytes]", longest: float = UP) -> None:
    """Until a process says that it is ready."""
    began = time.monotonic()
    while True:
        said = _output(deployment, name).read_text(encoding="utf-8", errors="replace")
        if "ready" in said.split():
            return
        if process.poll() is not None or time.monotonic() - began > longest:
            raise TrainingError(f"{name} did not come up: {said.strip().splitlines()[-1] if said.strip() else ''}")
        time.sleep(0.1)


def follow(
    deployment: Deployment,
    name: str,
    processes: Mapping[str, "subprocess.Popen[bytes]"],
    say: Say = lambda _: None,
    longest: float = LONGEST,
    watch: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> None:
    """Until the run is done; says its rounds, and shows whatever is news."""
    began, last = time.monotonic(), ""
    while True:
        news = told(deployment.run(name))
        watch(news)
        state = news.get("state", "")
        line = f"round {news.get('round')} of {news.get('rounds')}" if state == "running" else state
        if line != last:
            say(line)
        last = line
        if state == "done":
            return
        if state in ("failed", "stopped"):
            raise TrainingError(f"the run {state}: {news.get('error', '')}")
        for who, process in processes.items():
            if process.poll() is not None:
                raise TrainingError(f"{who} ended in the middle of the run, with code {process.returncode}.")
        if time.monotonic() - began > longest:
            raise TrainingError(f"the run was not done within {longest:g} seconds.")
        time.sleep(0.1)


def share_out(clients: Clients, folder: Path, counts: Mapping[str, int]) -> None:
    """Put the clients' examples where they would have been all along: into one file at each node."""
    at = 0
    for node, count in counts.items():
        parts = [(i, _examples(clients, i)) for i in range(at, at + count)]
        rows = np.concatenate([own for _, own in parts])
        names = np.concatenate([np.full(len(own), clients.names[i]) for i, own in parts])
        place = folder / "nodes" / node
        np.savez(place / "records.npz", x=clients.x.numpy()[rows], y=clients.y.numpy()[rows], client=names)
        with (place / "node.toml").open("a", encoding="utf-8") as file:
            file.write('\ndata = "records.npz"\n')
        at += count


def free_port() -> int:
    """Below those that the system gives to connections: one of them could be given away before the server has it."""
    while True:
        port = 15_000 + secrets.randbelow(15_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _examples(clients: Clients, client: int) -> np.ndarray:
    own = [getattr(clients, part).of(client).numpy() for part in ("train", "validation", "test")]
    return np.concatenate(own)


def _output(deployment: Deployment, name: str) -> Path:
    place = deployment.server / "logs"
    place.mkdir(parents=True, exist_ok=True)
    return place / f"{name}.txt"
