"""Measure the overhead of a deployed round: three nodes on this machine, with Bespoke and with plain Flower.

Every client makes one training step on the digits, so that mostly communication is timed. Both use TLS, keys and a
database. Plain Flower is an unmodified `flower-superlink`, `flower-superexec` and `flower-supernode`; its server app is
the FedAvg strategy.
"""

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from bespokefl.core.errors import InputError, TrainingError, unknown
from bespokefl.data import load
from bespokefl.engines.transports.flower.adapter import Control, connect_control
from bespokefl.workflows.deploy import demo, runs
from bespokefl.workflows.deploy.init import init
from bespokefl.workflows.deploy.layout import Deployment
from bespokefl.workflows.deploy.processes import FLOWER_ENVIRONMENT, START_TIMEOUT, Process, end, spawn
from bespokefl.workflows.run.settings import RunSettings

NODES = ("first", "second", "third")
WIDTHS = {"100 kB": 333, "10 MB": 33_333}  # of the hidden layer: 64 → width → 10, four bytes a weight
BATCH = 32
TIMEOUT = 1800.0  # seconds for the rounds of one model
APP = Path(__file__).with_name("plain_flower")  # FedAvg as in Flower's documentation


def overhead(
    rounds: int, show: Callable[[str], None], sizes: Sequence[str] = tuple(WIDTHS), *, flower: bool = True
) -> dict[str, dict[str, float]]:
    """Return, by model, the median seconds of a round of Bespoke and of plain Flower, without the first round."""
    if rounds < 2:
        raise InputError(f"rounds must be at least 2, because the first is not counted, got {rounds}.")
    for size in sizes:
        if size not in WIDTHS:
            raise unknown("size", size, WIDTHS)
    found: dict[str, dict[str, float]] = {}
    for size in sizes:
        found[size] = {}
        for name, measure in (("bespoke", bespoke_rounds), *((("flower", flower_rounds),) if flower else ())):
            seconds = measure(WIDTHS[size], rounds)
            found[size][name] = statistics.median(seconds[1:])
            show(f"{size}, {name}: {', '.join(f'{one:.2f}' for one in seconds)} seconds per round")
    return found


def bespoke_rounds(width: int, rounds: int) -> list[float]:
    """Return the seconds of each round of Bespoke, its checkpoint included."""
    with _deployment() as deployment, demo.running(deployment, NODES) as processes:
        config = RunSettings(
            method="fedavg",
            data="deployment",
            model=f"mlp(hidden=({width},))",
            rounds=rounds,
            batch_size=BATCH,
            local_steps=1,
            eval_every=0,
        )
        name = runs.start(deployment, config)
        ends: dict[int, float] = {}  # when each round ended

        def watch(status: Mapping[str, Any]) -> None:
            if status.get("state") == "running":
                ends.setdefault(int(status["round"]), float(status["time"]))

        demo.follow(deployment, name, processes, timeout=TIMEOUT, watch=watch)
        return [(end - start) / (last - first) for (first, start), (last, end) in pairwise(ends.items())]


def flower_rounds(width: int, rounds: int) -> list[float]:
    """Return the seconds of each round of plain Flower."""
    with _deployment() as deployment, ExitStack() as stack:
        times, app = deployment.root / "seconds.json", deployment.root / "plain"
        given = {"WIDTH": width, "ROUNDS": rounds, "BATCH": BATCH, "NODES": len(NODES), "TIMES": times}
        settings = {f"PLAIN_{name}": str(value) for name, value in given.items()} | FLOWER_ENVIRONMENT
        app.mkdir()
        shutil.copyfile(APP / "pyproject.toml", app / "pyproject.toml")
        shutil.copyfile(APP / "plain.py.txt", app / "plain.py")
        _start_superlink(deployment, settings, stack)
        for node in NODES:
            stack.callback(end, _supernode(deployment, node, settings))
        with _connect(deployment) as link:
            number = link.start(app, "")
        started = time.monotonic()
        while not times.is_file():
            with _connect(deployment) as link:
                active = link.is_active(number)
            if (not active and not times.is_file()) or time.monotonic() - started > TIMEOUT:
                raise TrainingError("Flower's own rounds failed or took too long.")
            time.sleep(1.0)
        seconds: list[float] = json.loads(times.read_text(encoding="utf-8"))
        return seconds


def _connect(deployment: Deployment) -> AbstractContextManager[Control]:
    """Connect to Flower's own SuperLink, which authenticates no administrator."""
    return connect_control(deployment.local_address, deployment.root_certificate, None)


def _start_superlink(deployment: Deployment, settings: dict[str, str], stack: ExitStack) -> None:
    """Start Flower's SuperLink and SuperExec until the stack ends, and register the nodes."""
    server, folder = deployment.server, deployment.server / "certificates"
    certificate_files = ("--ssl-ca-certfile", str(folder / "ca.crt"), "--ssl-certfile", str(folder / "server.crt"))
    address = ("--host", deployment.settings.listen, "--port", str(deployment.settings.port))
    commands = {
        "flower-superlink": [
            *(*address, "--isolation", "process", "--database", str(server / "flower.db")),
            *(*certificate_files, "--ssl-keyfile", str(folder / "server.key"), "--enable-supernode-auth"),
        ],
        "flower-superexec": [
            *("--runtime-api-address", deployment.local_address, "--root-certificates", str(folder / "ca.crt"))
        ],
    }
    environment = {**settings, "FLWR_HOME": str(server / "flower"), "PATH": _path()}
    for name, arguments in commands.items():
        command = [str(Path(sys.executable).with_name(name)), *arguments]
        stack.callback(end, spawn(command, server / "logs" / f"{name}.log", environment))
    started = time.monotonic()
    while True:
        with suppress(TrainingError), _connect(deployment) as link:
            for name, key in deployment.node_keys.items():
                link.register(name, key)
            return
        if time.monotonic() - started > START_TIMEOUT:
            raise TrainingError("Flower's own SuperLink did not start.")
        time.sleep(0.5)


def _path() -> str:
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def _supernode(deployment: Deployment, node: str, settings: dict[str, str]) -> Process:
    place = deployment.root / "nodes" / node
    command = [
        str(Path(sys.executable).with_name("flower-supernode")),
        *("--superlink", deployment.local_address, "--root-certificates", str(place / "ca.crt")),
        *("--auth-supernode-private-key", str(place / "node.key"), "--port", str(demo.free_port())),
        *("--node-config", f'records="{place / "records.npz"}"'),
    ]
    environment = {**settings, "FLWR_HOME": str(place / "flower"), "PATH": _path()}
    return spawn(command, deployment.server / "logs" / f"{node}.txt", environment)


@contextmanager
def _deployment() -> Iterator[Deployment]:
    """Create a temporary deployment with one client of the digits at each node."""
    path = Path(tempfile.mkdtemp(prefix="bespoke-overhead-"))
    try:
        deployment = init(path / "deployment", list(NODES), f"127.0.0.1:{demo.free_port()}")
        clients = load("digits").split("iid", clients=len(NODES), seed=0)
        demo.distribute(clients, deployment.root, dict.fromkeys(NODES, 1))
        yield deployment
    finally:
        shutil.rmtree(path, ignore_errors=True)
