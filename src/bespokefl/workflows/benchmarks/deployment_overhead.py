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
from bespokefl.workflows.run.settings import Config

NODES = ("first", "second", "third")
WIDTHS = {"100 kB": 333, "10 MB": 33_333}  # of the hidden layer: 64 → width → 10, four bytes a weight
BATCH = 32
TIMEOUT = 1800.0  # seconds for the rounds of one model
TIMES_FILE = "seconds.json"
PROJECT = """[project]
name = "plain"
version = "1.0.0"
description = "FedAvg as in Flower's documentation"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "bespoke"

[tool.flwr.app.components]
serverapp = "plain:server"
clientapp = "plain:client"

[tool.flwr.app.config]
run = ""
"""
APP = f'''
import json
import os
import time

import numpy as np
import torch
from flwr.app import ArrayRecord, MetricRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

client, server = ClientApp(), ServerApp()


def model():
    width = int(os.environ["PLAIN_WIDTH"])
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


@client.train()
def train(message, context):
    torch.set_num_threads(1)
    net = model()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    records = np.load(context.node_config["records"])
    x = torch.as_tensor(records["x"][:{BATCH}], dtype=torch.float32).flatten(1)
    y = torch.as_tensor(records["y"][:{BATCH}])
    nn.functional.cross_entropy(net(x), y).backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    metrics = MetricRecord({{"num-examples": len(y)}})
    answer = RecordDict({{"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}})
    return Message(content=answer, reply_to=message)


class Timed(FedAvg):
    started, seconds = 0.0, []

    def configure_train(self, *given):
        self.started = time.perf_counter()
        return super().configure_train(*given)

    def aggregate_train(self, *given):
        found = super().aggregate_train(*given)
        self.seconds.append(time.perf_counter() - self.started)
        return found


@server.main()
def main(grid, context):
    strategy = Timed(fraction_evaluate=0.0, min_train_nodes={len(NODES)}, min_available_nodes={len(NODES)})
    strategy.start(grid, ArrayRecord(model().state_dict()), num_rounds=int(os.environ["PLAIN_ROUNDS"]))
    path = os.path.join(os.environ["BESPOKE_DEPLOYMENT"], "{TIMES_FILE}")
    with open(path + ".new", "w") as file:
        json.dump(strategy.seconds, file)
    os.replace(path + ".new", path)
'''


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
        config = Config(
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
        settings = {"PLAIN_WIDTH": str(width), "PLAIN_ROUNDS": str(rounds), **FLOWER_ENVIRONMENT}
        app = deployment.root / "plain"
        app.mkdir()
        (app / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
        (app / "plain.py").write_text(APP, encoding="utf-8")
        stack.enter_context(demo.running(deployment, (), settings))
        for node in NODES:
            stack.callback(end, _supernode(deployment, node, settings))
        with runs.connect(deployment) as link:
            number = link.start(app, "")
        times, started = deployment.root / TIMES_FILE, time.monotonic()
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
