"""A comparison on a cluster: whole trainings side by side, with the results of this machine."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.transports.cluster.nodes import cluster, listening, workers
from tests.processes import is_alive, wait_for, working_in

pytestmark = pytest.mark.slow

COMMAND = ["compare", "fedavg", "local", "--no-tune", "--quiet"]
SETTINGS = ["--clients", "6", "--seeds", "1", "--model", "logistic"]


def bespoke(*words: Any) -> list[str]:
    return [str(Path(sys.executable).with_name("bespoke")), *COMMAND, *SETTINGS, *map(str, words)]


def compare(out: Path, *words: Any) -> list[bytes]:
    """Run it in a process that has not used Ray, and return the scores of all clients."""
    command = bespoke("--rounds", 2, "--out", out, *words)
    ended = subprocess.run(command, timeout=240, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == str(out) and not ended.stderr
    return [file.read_bytes() for file in sorted(out.rglob("clients.csv"))]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    with cluster(1, 1) as made:
        yield made


def test_trainings_run_side_by_side_on_a_cluster(nodes: Any, tmp_path: Path) -> None:
    here = compare(tmp_path / "here", "--workers", 1)
    assert compare(tmp_path / "there", "--cluster", nodes.address) == here
    assert len(here) == 3  # of both runs, and of the comparison


def test_ctrl_c_ends_all_trainings_and_their_workers(nodes: Any, tmp_path: Path) -> None:
    """Both trainings keep a checkpoint, and no process is left, here or on the nodes."""

    def begun() -> set[Path]:
        return {record.parents[2] for record in tmp_path.rglob("record.json")}

    command = bespoke("--rounds", 1_000_000, "--checkpoint-every", 1, "--out", "out", "--cluster", nodes.address)
    going = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: len(begun()) == 2)
        assert len(workers(nodes)) == 2
        going.send_signal(signal.SIGINT)
        said = going.communicate(timeout=60)[1]
    finally:
        going.kill()
    assert going.returncode == 130 and "Interrupted. To resume: bespoke compare" in said, said
    assert "Traceback" not in said and len(begun()) == 2
    assert not [pid for pid in working_in(tmp_path) if is_alive(pid)]
    wait_for(lambda: not workers(nodes), 10)


def test_the_nodes_of_tests_are_on_the_loopback_interface(nodes: Any) -> None:
    """Whoever reaches a port of Ray can run code: tests must not open one to a network."""
    found = listening(nodes)
    assert len(found) > 2 and all(one.is_loopback for one in found), found
