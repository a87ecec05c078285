"""Lost workers and nodes, interruptions and clusters that cannot be used: same bits, or one sentence."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bespokefl.core.errors import InputError, TrainingError
from bespokefl.core.method import Message, Round, State
from bespokefl.core.task import Task
from bespokefl.engines.outcome import Outcome
from bespokefl.engines.storage.checkpoints import CheckpointInterval, Checkpoints
from bespokefl.engines.transports.cluster import connection, worker
from bespokefl.methods import Ditto
from tests.engines.transports.cluster.nodes import cluster
from tests.federations import federation, same_bits, simulation
from tests.processes import is_alive, wait_for, working_in

pytestmark = pytest.mark.slow

DATA = federation((30, 17, 8, 12, 5, 9, 21, 14), dtype=torch.float64)
SETTINGS: dict[str, Any] = {"rounds": 8, "chunk": 1, "participation": 0.8}


class Killing(Ditto):
    """Ditto that kills the worker of client dan in a round, as often as there are files in a directory."""

    folder = ""

    def local_update(self, task: Task, message: Message, state: State, work: Any, round: Round) -> Any:
        if round.number == 4 and self.folder and "dan" in work.names:
            for file in Path(self.folder).iterdir():
                file.unlink(missing_ok=True)
                os.kill(os.getpid(), signal.SIGKILL)
        return super().local_update(task, message, state, work, round)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    with cluster(2, 1, 1) as made:
        yield made


@pytest.fixture(scope="module")
def alone() -> Outcome:
    return simulation(Ditto(), DATA, **SETTINGS).run()


def deadly(folder: Path, times: int) -> Killing:
    folder.mkdir()
    for number in range(times):
        (folder / str(number)).touch()
    method = Killing()
    object.__setattr__(method, "folder", str(folder))  # not a hyper-parameter
    return method


def assert_same(found: Outcome, expected: Outcome) -> None:
    assert same_bits(found.server, expected.server) and same_bits(found.personal, expected.personal)
    assert same_bits(found.models, expected.models) and found.communication == expected.communication


def test_workers_that_are_killed_while_they_train_cost_no_bit(nodes: Any, alone: Outcome, tmp_path: Path) -> None:
    found = simulation(deadly(tmp_path / "kill", 2), DATA, cluster=nodes.address, workers=0, **SETTINGS).run()
    assert_same(found, alone)
    assert found.workers == 4 and sum(found.placement) == len(DATA) and not list((tmp_path / "kill").iterdir())


def test_without_workers_the_run_stops_and_resumes_on_this_machine(nodes: Any, alone: Outcome, tmp_path: Path) -> None:
    def checkpoints() -> Checkpoints:
        return Checkpoints(tmp_path / "checkpoints", CheckpointInterval(rounds=100), {})

    with pytest.raises(TrainingError, match="no worker of the cluster is left: a worker on the node 127"):
        simulation(deadly(tmp_path / "kill", 9), DATA, cluster=nodes.address, workers=2, **SETTINGS).run(
            None, checkpoints()
        )
    assert checkpoints().load_latest(8, len(DATA)).number == 3  # type: ignore[union-attr]
    assert_same(simulation(Ditto(), DATA, **SETTINGS).run(None, checkpoints()), alone)


def test_a_job_that_kills_three_workers_ends_the_run(nodes: Any, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"was lost while it worked on clients dan .*for the third time"):
        simulation(deadly(tmp_path / "kill", 9), DATA, cluster=nodes.address, workers=4, **SETTINGS).run()


def test_nodes_with_other_versions_or_small_stores_are_refused(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = simulation(Ditto(), DATA, cluster=nodes.address, workers=1)
    with monkeypatch.context() as patch:
        patch.setattr(connection, "versions", lambda: worker.versions() | {"torch": "1.0"})
        with pytest.raises(
            InputError, match=r"the node 127.0.0.1 has torch .*, and this machine 1.0: install the same"
        ):
            made.run()
    big = federation((3000, 3000), width=4000)
    with pytest.raises(InputError, match=r"need 96,[\d,]+ bytes, and its object store has 83,886,080: start it with"):
        made.side.data, made.transport._sizes = big, [3000, 3000]
        made.run()


def test_a_node_that_is_killed_at_a_random_instant_costs_no_bit(nodes: Any, alone: Outcome) -> None:
    rng = random.Random(7)
    killed = list(nodes.worker_nodes)[-1]
    (raylet,) = killed.all_processes["raylet"]
    made = simulation(Ditto(), DATA, cluster=nodes.address, workers=0, **SETTINGS)
    when = rng.randrange(1, 7)

    def report(progress: Any) -> None:
        if progress.done == when:
            threading.Timer(0.02 * rng.random(), os.kill, (raylet.process.pid, signal.SIGKILL)).start()

    found = made.run(report)
    assert_same(found, alone)
    nodes.worker_nodes.remove(killed)


def bespoke(*words: object, folder: Path) -> "subprocess.Popen[str]":
    command = [str(Path(sys.executable).with_name("bespoke")), *map(str, words)]
    return subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_command_is_interrupted_and_loses_the_cluster(nodes: Any, tmp_path: Path) -> None:
    run = "run", "ditto", "--clients", 8, "--rounds", 4000, "--eval-every", 0, "--checkpoint-every", 5, "--chunk", 2
    first = bespoke(*run, "--out", "run", "--cluster", nodes.address, "--workers", 2, folder=tmp_path)
    checkpoints = tmp_path / "run" / "checkpoints"
    wait_for(lambda: checkpoints.is_dir() and any(checkpoints.glob("*/*")))
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 130
    assert not [pid for pid in working_in(tmp_path) if is_alive(pid)]

    again = bespoke("resume", "run", "--workers", 1, folder=tmp_path)
    before = {one.name for one in checkpoints.iterdir()}
    wait_for(lambda: {one.name for one in checkpoints.iterdir()} != before)
    (raylet,) = nodes.head_node.all_processes["raylet"]
    raylet.process.kill()
    said = again.communicate(timeout=60)[1]  # Ray ends this process, or tells it first that its only worker is lost
    lost = "the node of this machine was lost", "no worker of the cluster is left"
    assert any(sentence in said for sentence in lost) and "Traceback" not in said

    last = bespoke("resume", "run", "--cluster", "none", folder=tmp_path)
    wait_for(lambda: "resuming" in (last.stderr.readline() if last.stderr else ""))
    last.send_signal(signal.SIGINT)
    assert last.wait(60) == 130
