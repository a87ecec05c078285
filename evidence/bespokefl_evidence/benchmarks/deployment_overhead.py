"""Measure the overhead of a deployed round: three nodes on this machine, with Bespoke and with plain Flower.

Every client makes one training step on the digits, so that mostly communication is timed. Both use the same SuperLink,
with TLS, keys and a database; Flower's nodes are an unmodified `flower-supernode`, its server app the FedAvg strategy.
"""

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from bespokefl.core.errors import InputError, TrainingError, unknown
from bespokefl.data import load
from bespokefl.workflows.deploy import demo, runs
from bespokefl.workflows.deploy.init import init
from bespokefl.workflows.deploy.layout import Deployment
from bespokefl.workflows.deploy.processes import FLOWER_ENVIRONMENT, Process, end, spawn
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
        stack.enter_context(demo.running(deployment, (), settings))
        for node in NODES:
            stack.callback(end, _supernode(deployment, node, settings))
        with runs.connect(deployment) as link:
            number = link.start(app, "")
        started = time.monotonic()
        while not times.is_file():
            with runs.connect(deployment) as link:
                active = link.is_active(number)
            if (not active and not times.is_file()) or time.monotonic() - started > TIMEOUT:
                raise TrainingError("Flower's own rounds failed or took too long.")
            time.sleep(1.0)
        seconds: list[float] = json.loads(times.read_text(encoding="utf-8"))
        return seconds


def _supernode(deployment: Deployment, node: str, settings: dict[str, str]) -> Process:
    place = deployment.root / "nodes" / node
    command = [
        str(Path(sys.executable).with_name("flower-supernode")),
        *("--superlink", deployment.local_address, "--root-certificates", str(place / "ca.crt")),
        *("--auth-supernode-private-key", str(place / "node.key"), "--port", str(demo.free_port())),
        *("--node-config", f'records="{place / "records.npz"}"'),
    ]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**settings, "FLWR_HOME": str(place / "flower"), "PATH": path}
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
