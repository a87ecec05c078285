"""A deployment of real processes on this machine, with TLS and keys: the results equal those of the simulation, also
if a process is killed.

All tests share one server and its nodes. Nothing here depends on how fast the machine is: a node that is to be caught
during a round holds its answer back until a file is gone (tests/engines/transports/flower/odd_messages.py).
"""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

import bespokefl
from bespokefl import methods
from bespokefl.core.errors import TrainingError
from bespokefl.data import load
from bespokefl.data.clients import Clients
from bespokefl.engines.transports.flower import adapter
from bespokefl.engines.transports.flower.security.signing import Signer
from bespokefl.engines.transports.flower.services import supernode
from bespokefl.workflows.deploy import certificates, demo, runs
from bespokefl.workflows.deploy.init import init, write_app
from bespokefl.workflows.deploy.layout import Deployment
from bespokefl.workflows.deploy.processes import Process, end, spawn
from bespokefl.workflows.deploy.runs import is_locked, read_status
from bespokefl.workflows.deploy.server import supervisor
from bespokefl.workflows.deploy.server.run import LOG
from bespokefl.workflows.results.result import Result, load_run
from bespokefl.workflows.run.settings import RunSettings
from tests.contract.conftest import quick
from tests.disks import small_disk
from tests.trackers.readers import read_tensorboard

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
ODD_NODE = "tests.engines.transports.flower.odd_messages"
PLUGGED = "tests.workflows.deploy.plugged:Plugged"  # found in the working directory of the server
NODES = {"north": 2, "south": 1, "west": 3}
TIMEOUTS = "timeout = 400\ngive_up = 500\ngather = 400\nresend = 300\n"
TIMEOUT = 500.0  # seconds to wait for anything: the machine may be busy
THREE = {"rounds": 3, "eval_every": 0, "precision": "float64"}
LIMIT = {"float32": 1e-5, "float64": 1e-10}


class Running:
    """A deployment and its processes."""

    def __init__(self, deployment: Deployment, processes: dict[str, Process]) -> None:
        self.deployment, self.processes = deployment, processes

    def node_directory(self, node: str) -> Path:
        return self.deployment.root / "nodes" / node

    @contextmanager
    def misbehaving(self, node: str, what: str) -> Iterator[Path]:
        """Make a node misbehave, see odd_messages.py."""
        file = self.node_directory(node) / what
        file.touch()
        try:
            yield file
        finally:
            file.unlink(missing_ok=True)

    @contextmanager
    def timeouts(self, text: str) -> Iterator[None]:
        file = self.deployment.server / "server.toml"
        before = file.read_text()
        file.write_text(re.sub(r"(?m)^(minimum|timeout|give_up|gather|resend) = .*\n", "", before) + text)
        try:
            yield
        finally:
            file.write_text(before)

    def start(self, method: str, **settings: Any) -> str:
        return runs.start(self.deployment, RunSettings(method=method, data="deployment", **settings))

    def wait(self, name: str) -> Result:
        demo.follow(self.deployment, name, {}, timeout=TIMEOUT)
        return load_run(self.deployment.run_directory(name) / "result")

    def until(self, true: Callable[[], Any]) -> None:
        began = time.monotonic()
        while not true():
            assert time.monotonic() - began < TIMEOUT
            time.sleep(0.02)

    def launch(self, node: str, before: tuple[str, ...] = ()) -> None:
        command = [*before, sys.executable, "-m", ODD_NODE, str(self.node_directory(node))]
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        output = self.deployment.server / "logs" / f"{node}.txt"
        self.processes[node] = spawn(command, output, {"PYTHONPATH": path})

    def ready(self, node: str) -> None:
        demo.wait_until_ready(self.deployment, node, self.processes[node], TIMEOUT)

    def output(self, name: str) -> str:
        return (self.deployment.server / "logs" / f"{name}.txt").read_text()

    def log(self, name: str) -> str:
        file = self.deployment.run_directory(name) / LOG
        return file.read_text() if file.exists() else ""

    def models(self, name: str) -> dict[str, dict[str, torch.Tensor]]:
        """The personal models of all clients, from the nodes' disks."""
        found = {}
        for node in NODES:
            with safe_open(self.node_directory(node) / "state" / name / "personal.safetensors", framework="pt") as file:
                for at, client in enumerate(json.loads(file.metadata()["bespoke"])["clients"]):
                    found[client] = {key: file.get_tensor(key)[at] for key in file.keys()}  # noqa: SIM118
        return found


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("deployment") / "hospitals"
    deployment = init(folder, list(NODES), f"127.0.0.1:{demo.free_port()}")
    demo.distribute(load("digits").split("dirichlet(alpha=0.4)", clients=6, seed=0), folder, NODES)
    with (deployment.server / "server.toml").open("a") as file:
        file.write(TIMEOUTS)
    for node in NODES:
        with (folder / "nodes" / node / "node.toml").open("a") as file:
            file.write(f'modules = ["{PLUGGED.partition(":")[0]}"]\n')
    with demo.running(deployment, ()) as processes:
        made = Running(deployment, processes)
        try:
            for node in NODES:
                made.launch(node)
            for node in NODES:
                made.ready(node)
            yield made
        finally:
            end(*(process for name, process in processes.items() if name != "server"))


@pytest.fixture(scope="module")
def expected(running: Running) -> Callable[..., Any]:
    """The result of the simulation with the same clients, divided as the nodes divide them."""
    files = [np.load(running.node_directory(node) / "records.npz") for node in NODES]
    x, y, client = (np.concatenate([file[key] for file in files]) for key in ("x", "y", "client"))
    clients = Clients.from_arrays(x, y, client)

    @cache
    def run(method: str, *, short: bool = False, **settings: Any) -> Result:
        made = quick(methods.REGISTRY[method]) if short else method
        return bespokefl.run(made, clients, workers=1, **settings)

    return run


def assert_equal(running: Running, name: str, result: Result, expected: Result) -> None:
    models = running.models(name)
    assert set(models) == set(expected.names)
    for client in expected.names:
        own = expected.model(client).state_dict()
        apart = sum(float((models[client][key] - own[key]).square().sum()) for key in own) ** 0.5
        size = sum(float(value.square().sum()) for value in own.values()) ** 0.5
        assert apart <= LIMIT[expected.config.precision] * size, client
    order = [result.names.index(client) for client in expected.names]
    np.testing.assert_allclose(result.personal["loss"][order], expected.personal["loss"], rtol=1e-3)


def test_same_numbers_as_in_simulation(running: Running, expected: Callable[..., Result]) -> None:
    """Five runs side by side, which the nodes serve in turn."""
    two = {"rounds": 2, "eval_every": 0}
    runs = {
        method: running.start(method, set=quick(methods.REGISTRY[method]).hyper(), **two)
        for method in ("fedavg", "selffl", "persfl", "ucfl", "pfedvem")
    }
    for method, name in runs.items():
        result = running.wait(name)
        assert not result.about["lost"], method
        assert_equal(running, name, result, expected(method, short=True, **two))


def test_a_method_of_ones_own(running: Running, expected: Callable[..., Result]) -> None:
    two = {"rounds": 2, "eval_every": 0, "precision": "float64"}
    name = running.start(PLUGGED, **two)
    result = running.wait(name)
    assert result.method == PLUGGED and not result.about["lost"]
    assert_equal(running, name, result, expected(PLUGGED, **two))


def test_a_node_is_killed_while_it_trains_and_restarted(running: Running, expected: Callable[..., Result]) -> None:
    with running.misbehaving("west", "die"):
        name = running.start("ditto", **THREE)
        assert running.processes["west"].wait(TIMEOUT) == -signal.SIGKILL
    running.launch("west")
    result = running.wait(name)
    assert not result.about["lost"]
    assert_equal(running, name, result, expected("ditto", **THREE))


def test_the_superlink_is_killed(running: Running, expected: Callable[..., Result]) -> None:
    with running.misbehaving("south", "hold"):
        name = running.start("ditto", **THREE)
        running.until(running.node_directory("south").joinpath("held").exists)
        os.kill(child(running, "bespokefl.engines.transports.flower.services.superlink"), signal.SIGKILL)
    result = running.wait(name)
    assert not result.about["lost"]
    assert_equal(running, name, result, expected("ditto", **THREE))
    assert "the SuperLink ended with code -9 and is restarted" in running.output("server")


def test_the_server_app_is_killed(running: Running, expected: Callable[..., Result]) -> None:
    with running.misbehaving("south", "hold"):
        name = running.start("pfedvem", log="tensorboard", **THREE)
        running.until(running.node_directory("south").joinpath("held").exists)
        killed = read_status(running.deployment.run_directory(name))["pid"]
        os.kill(killed, signal.SIGKILL)
    result = running.wait(name)
    assert not result.about["lost"] and read_status(running.deployment.run_directory(name))["pid"] != killed
    assert "resuming after round 1" in running.log(name)
    assert_equal(running, name, result, expected("pfedvem", **THREE))
    logged = read_tensorboard(running.deployment.run_directory(name) / "tensorboard" / name)
    assert [step for step, _ in logged["round/seconds"]] == [1, 2, 3]
    accuracy = float(np.mean(result.personal["accuracy"]))
    assert logged["final/personal/test_accuracy"] == [(3, pytest.approx(accuracy))]


def test_a_run_can_be_stopped_and_resumed(running: Running, expected: Callable[..., Result]) -> None:
    with running.misbehaving("south", "hold"):
        name = running.start("ditto", **THREE)
        running.until(running.node_directory("south").joinpath("held").exists)
        runs.stop(running.deployment, name)
        assert read_status(running.deployment.run_directory(name))["state"] == "stopped"
    assert runs.start(running.deployment, RunSettings(method="ditto", data="deployment", **THREE), name) == name
    assert_equal(running, name, running.wait(name), expected("ditto", **THREE))


def test_a_stopped_run_stays_stopped_while_its_process_updates_the_status(running: Running) -> None:
    """Its process may be about to write that it is running."""
    name = running.start("pfedvem", rounds=1000, eval_every=0, model="logistic")
    place = running.deployment.run_directory(name)
    running.until(lambda: read_status(place).get("round", 0) >= 3)
    runs.stop(running.deployment, name)
    then = read_status(place)
    assert then["state"] == "stopped" and 3 <= then["round"] < 1000 and not is_locked(place)
    time.sleep(3 * supervisor.POLL)  # the server has looked for killed ones since
    assert read_status(place) == then


def test_the_server_is_killed_with_all_that_it_started(running: Running, expected: Callable[..., Result]) -> None:
    """As in a power failure; nodes wait for the server and are not restarted."""
    nodes = {node: running.processes[node].pid for node in NODES}
    with running.misbehaving("south", "hold"):
        name = running.start("pfedvem", **THREE)
        running.until(running.node_directory("south").joinpath("held").exists)
        server = running.processes["server"]
        others = [
            child(running, "bespokefl.engines.transports.flower.services.superlink"),
            child(running, "bespokefl.engines.transports.flower.services.superexec"),
        ]
        for pid in (server.pid, *others, read_status(running.deployment.run_directory(name))["pid"]):
            with suppress(ProcessLookupError):  # it may have ended with the one before
                os.kill(pid, signal.SIGKILL)
        server.wait(TIMEOUT)
        assert read_status(running.deployment.run_directory(name))["state"] == "running"
        running.until(lambda: not any(alive(pid) for pid in others))
        running.processes["server"] = demo.launch(running.deployment, "server")
        demo.wait_until_ready(running.deployment, "server", running.processes["server"], TIMEOUT)
    result = running.wait(name)
    assert not result.about["lost"] and "resuming after round 1" in running.log(name)
    assert_equal(running, name, result, expected("pfedvem", **THREE))
    assert {node: running.processes[node].pid for node in NODES} == nodes
    assert all(running.processes[node].poll() is None for node in NODES)


def test_a_node_that_answers_too_late_does_not_count(running: Running) -> None:
    """It has one client; a round waits for the other five however slow they are, and for it until the time-out."""
    with (
        running.timeouts("timeout = 3\nminimum = 5\ngive_up = 500\ngather = 400\n"),
        running.misbehaving("south", "hold"),
    ):
        name = running.start("ditto", rounds=4, eval_every=0)
        running.until(lambda: re.search(r"round 2: .*dropped out", running.log(name)))
    result = running.wait(name)
    (late,) = result.about["nodes"]["south"]
    assert result.about["lost"].keys() == {late} and result.about["lost"][late].keys() == {"dropped out"}
    assert result.about["rounds_done"] == 4


def test_a_node_with_another_key_is_rejected_and_the_run_continues(
    running: Running, expected: Callable[..., Result]
) -> None:
    stranger = running.node_directory("stranger")
    stranger.mkdir()
    for file in ("ca.crt", "node.toml", "records.npz"):
        (stranger / file).write_bytes((running.node_directory("north") / file).read_bytes())
    certificates.write_key_pair(stranger / "node.key", stranger / "node.pub")
    running.launch("stranger")
    try:
        running.until(lambda: "rejects this node's key" in running.output("stranger"))
        name = running.start("fedavg", rounds=2, eval_every=0)
        assert_equal(running, name, running.wait(name), expected("fedavg", rounds=2, eval_every=0))
        assert demo.READY not in running.output("stranger")
    finally:
        end(running.processes.pop("stranger"))


def test_uploads_that_are_not_finite_are_rejected_and_counted(running: Running) -> None:
    with running.misbehaving("south", "lie"):
        result = running.wait(running.start("ditto", rounds=2, eval_every=0))
    (liar,) = result.about["nodes"]["south"]
    assert result.about["lost"] == {liar: {"not finite": 2}} and result.about["rounds_done"] == 2


def test_a_node_with_another_model_is_found_before_the_first_round(running: Running) -> None:
    with running.misbehaving("south", "other"):
        name = running.start("ditto", rounds=2, eval_every=0)
        with pytest.raises(TrainingError, match="the model at node south is not the server's"):
            running.wait(name)
    assert read_status(running.deployment.run_directory(name))["round"] == 0
    assert "the model at node south is not the server's" in running.output("south")


def test_a_full_disk_at_a_node(running: Running) -> None:
    """Its states are on a disk of 16 kB, which only its own process has."""
    end(running.processes["south"])
    state = running.node_directory("south") / "state"
    running.launch("south", before=small_disk(state, 16 * 1024))
    try:
        running.ready("south")
        name = running.start("ditto", rounds=2, eval_every=0)
        result = running.wait(name)
        (full,) = result.about["nodes"]["south"]
        assert result.about["lost"] == {full: {"dropped out": 2}}
        sentence = (
            f"cannot write the states of {full} to '{state / name}': No space left on device; free some space there."
        )
        assert sentence in running.output("south") and f"node south: {sentence}" in running.log(name)
    finally:
        end(running.processes["south"])
        running.launch("south")
        running.ready("south")


def test_another_account_of_the_server_s_machine_can_start_nothing(running: Running, tmp_path: Path) -> None:
    """It reaches the port, sees command lines, and claims to come from elsewhere; it cannot read the secret."""
    deployment = running.deployment
    secret = deployment.secret
    assert secret.stat().st_mode & 0o777 == 0o600 and deployment.server.stat().st_mode & 0o077 == 0
    evil = tmp_path / "app"
    write_app(evil)
    proof = tmp_path / "proof"
    (evil / "bespoke_app.py").write_text(f"open({str(proof)!r}, 'w')\n")
    for signer in (
        None,
        Signer(b"a guess"),
        Signer(supernode.read_private_key(running.node_directory("west") / "node.key")),
    ):
        with (
            pytest.raises(TrainingError, match=r"Only the app|signed|may not"),
            adapter.connect_control(deployment.local_address, deployment.root_certificate, signer) as link,
        ):
            link.start(evil, "mine")
    with (
        pytest.raises(TrainingError, match="Only the app of this deployment may be started"),
        adapter.connect_control(
            deployment.local_address, deployment.root_certificate, Signer(secret.read_bytes())
        ) as link,
    ):
        link.start(evil, "mine")
    with running.misbehaving("south", "hold"):
        name = running.start("ditto", rounds=2, eval_every=0)
        running.until(running.node_directory("south").joinpath("held").exists)
        pid = read_status(deployment.run_directory(name))["pid"]
        arguments = (Path("/proc") / str(pid) / "cmdline").read_bytes()
        assert b"app_process" in arguments and b"token" not in arguments
    running.wait(name)
    assert not proof.exists()


def test_nodes_are_listed_as_online(running: Running) -> None:
    assert runs.list_nodes(running.deployment) == dict.fromkeys(NODES, "online")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


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
