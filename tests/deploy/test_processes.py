"""A deployment of real processes on this machine, with TLS and keys: the same numbers as in simulation, whatever is
killed on the way."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

import bespokefl
from bespokefl.data import load
from bespokefl.data.clients import Clients
from bespokefl.experiments.config import Config
from bespokefl.experiments.deployment import demo, keys, machines
from bespokefl.experiments.deployment.place import Deployment, init
from bespokefl.experiments.deployment.serve import LOG, told
from bespokefl.experiments.result import Result, load_run

pytestmark = pytest.mark.slow
NODES = {"north": 2, "south": 1, "west": 3}
PATIENCE = "timeout = 120\ngive_up = 150\ngather = 100\nresend = 60\n"
LONG = {"rounds": 3, "local_epochs": 25, "eval_every": 0, "precision": "float64"}  # rounds that take some seconds
LIMIT = {"float32": 1e-5, "float64": 1e-10}


class Running:
    """A deployment and its processes."""

    def __init__(self, deployment: Deployment, processes: dict[str, "subprocess.Popen[bytes]"]) -> None:
        self.deployment, self.processes = deployment, processes

    def patience(self, text: str) -> None:
        file = self.deployment.server / "server.toml"
        kept = re.sub(r"(?m)^(minimum|timeout|give_up|gather|resend) = .*\n", "", file.read_text())
        file.write_text(kept + text)

    def start(self, method: str, **settings: Any) -> str:
        return machines.start(self.deployment, Config(method=method, data="deployment", **settings))

    def wait(self, name: str) -> Result:
        demo.follow(self.deployment, name, {}, longest=240)
        return load_run(self.deployment.run(name) / "result")

    def until(self, name: str, true: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        began = time.monotonic()
        while not true(told(self.deployment.run(name))):
            assert time.monotonic() - began < 120, told(self.deployment.run(name))
            time.sleep(0.02)
        return told(self.deployment.run(name))

    def restart(self, node: str) -> None:
        place = self.deployment.root / "nodes" / node
        self.processes[node] = demo.launch(self.deployment, "node", place)
        demo.wait_for(self.deployment, node, self.processes[node])

    def models(self, name: str) -> dict[str, dict[str, torch.Tensor]]:
        """Everybody's own, from the nodes' disks."""
        found = {}
        for node in NODES:
            path = self.deployment.root / "nodes" / node / "state" / name / "personal.safetensors"
            with safe_open(path, framework="pt") as file:
                for at, client in enumerate(json.loads(file.metadata()["bespoke"])["clients"]):
                    found[client] = {key: file.get_tensor(key)[at] for key in file.keys()}  # noqa: SIM118
        return found


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("deployment") / "hospitals"
    deployment = init(folder, list(NODES), f"127.0.0.1:{demo.free_port()}")
    demo.share_out(load("digits").split("dirichlet(alpha=0.4)", clients=6, seed=0), folder, NODES)
    with demo.running(deployment, list(NODES)) as processes:
        made = Running(deployment, processes)
        made.patience(PATIENCE)
        yield made


@pytest.fixture(scope="module")
def clients(running: Running) -> Clients:
    """The same clients in one place, as the nodes divide them."""
    files = [np.load(running.deployment.root / "nodes" / node / "records.npz") for node in NODES]
    x, y, client = (np.concatenate([file[key] for file in files]) for key in ("x", "y", "client"))
    return Clients.from_arrays(x, y, client)


def assert_equal(running: Running, name: str, result: Result, clients: Clients, **settings: Any) -> None:
    expected = bespokefl.run(result.method, clients, workers=1, **settings)
    models = running.models(name)
    assert set(models) == set(clients.names)
    for client in clients.names:
        own = expected.model(client).state_dict()
        apart = sum(float((models[client][key] - own[key]).square().sum()) for key in own) ** 0.5
        assert (
            apart
            <= LIMIT[expected.config.precision] * sum(float(value.square().sum()) for value in own.values()) ** 0.5
        ), client
    order = [result.names.index(client) for client in expected.names]
    np.testing.assert_allclose(result.personal["loss"][order], expected.personal["loss"], rtol=1e-3)


@pytest.mark.parametrize("method", ["fedavg", "selffl", "persfl", "ucfl", "pfedvem"])
def test_same_numbers_as_in_simulation(running: Running, clients: Clients, method: str) -> None:
    name = running.start(method, rounds=2, eval_every=0)
    result = running.wait(name)
    assert not result.about["lost"]
    assert_equal(running, name, result, clients, rounds=2, eval_every=0)


def test_a_node_is_killed_while_it_trains_and_comes_back(running: Running, clients: Clients) -> None:
    name = running.start("ditto", **LONG)
    running.until(name, lambda news: news.get("round") == 1)
    time.sleep(0.5)
    running.processes["west"].kill()
    running.processes["west"].wait()
    running.restart("west")
    result = running.wait(name)
    assert not result.about["lost"]
    assert_equal(running, name, result, clients, **LONG)


def test_the_superlink_is_killed(running: Running, clients: Clients) -> None:
    name = running.start("ditto", **LONG)
    running.until(name, lambda news: news.get("round") == 1)
    os.kill(child(running, "bespokefl.engines.flower.link"), signal.SIGKILL)
    result = running.wait(name)
    assert not result.about["lost"]
    assert_equal(running, name, result, clients, **LONG)
    assert "the SuperLink ended with code -9 and is started again" in output(running, "server")


def test_the_server_app_is_killed(running: Running, clients: Clients) -> None:
    name = running.start("pfedvem", **LONG)
    news = running.until(name, lambda news: news.get("round") == 1 and news.get("pid"))
    os.kill(news["pid"], signal.SIGKILL)
    result = running.wait(name)
    assert not result.about["lost"] and told(running.deployment.run(name))["pid"] != news["pid"]
    assert "going on after round 1" in (running.deployment.run(name) / LOG).read_text()
    assert_equal(running, name, result, clients, **LONG)


def test_a_node_that_answers_too_late_does_not_count_and_goes_back(running: Running) -> None:
    running.patience("timeout = 25\ngive_up = 100\ngather = 60\nresend = 60\n")
    try:
        name = running.start("ditto", rounds=4, eval_every=0)
        running.until(name, lambda news: news.get("round") == 1)
        running.processes["south"].send_signal(signal.SIGSTOP)
        log = running.deployment.run(name) / LOG
        running.until(name, lambda _: "dropped out" in log.read_text())
        running.processes["south"].send_signal(signal.SIGCONT)
        result = running.wait(name)
    finally:
        running.processes["south"].send_signal(signal.SIGCONT)
        running.patience(PATIENCE)
    assert list(result.about["lost"].values()) == [{"dropped out": 1}] and result.about["rounds_done"] == 4


def test_a_node_with_another_key_is_refused_and_the_run_goes_on(running: Running, clients: Clients) -> None:
    stranger = running.deployment.root / "nodes" / "stranger"
    stranger.mkdir()
    north = running.deployment.root / "nodes" / "north"
    for file in ("ca.crt", "node.toml", "records.npz"):
        (stranger / file).write_bytes((north / file).read_bytes())
    keys.write_pair(stranger / "node.key", stranger / "node.pub")
    process = demo.launch(running.deployment, "node", stranger)
    try:
        name = running.start("fedavg", rounds=2, eval_every=0)
        result = running.wait(name)
        said = output(running, "stranger")
        assert "refuses this node's key" in said and "ready" not in said.split()
        assert_equal(running, name, result, clients, rounds=2, eval_every=0)
    finally:
        machines.end(process)


def test_a_lying_node_is_refused_and_counted(running: Running) -> None:
    place = running.deployment.root / "nodes" / "south"
    machines.end(running.processes["south"])
    liar = subprocess.Popen([sys.executable, "-m", "tests.deploy.liar", str(place)], stdout=subprocess.DEVNULL)
    try:
        result = running.wait(running.start("ditto", rounds=2, eval_every=0))
        assert list(result.about["lost"].values()) == [{"not finite": 2}]
        assert result.about["rounds_done"] == 2
    finally:
        machines.end(liar)
        running.restart("south")


def test_a_run_can_be_stopped_and_goes_on(running: Running, clients: Clients) -> None:
    name = running.start("ditto", **LONG)
    running.until(name, lambda news: news.get("round") == 1)
    machines.stop(running.deployment, name)
    assert told(running.deployment.run(name))["state"] == "stopped"
    assert machines.start(running.deployment, Config(method="ditto", data="deployment", **LONG), name) == name
    assert_equal(running, name, running.wait(name), clients, **LONG)


def test_who_is_there(running: Running) -> None:
    assert machines.present(running.deployment) == dict.fromkeys(NODES, "online")


def child(running: Running, what: str) -> int:
    """The process that the server started for this."""
    parent = running.processes["server"].pid
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command = (place / "cmdline").read_bytes().decode()
            above = (place / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if what in command and int(above) == parent:
            return int(place.name)
    raise AssertionError(f"{what} is not running")


def output(running: Running, name: str) -> str:
    return (running.deployment.server / "logs" / f"{name}.txt").read_text()
