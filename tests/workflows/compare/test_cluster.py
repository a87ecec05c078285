"""A comparison on a cluster: whole trainings side by side, with the results of this machine."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engines.transports.cluster.nodes import cluster

pytestmark = pytest.mark.slow

COMMAND = ["compare", "fedavg", "local", "--no-tune", "--quiet"]
SETTINGS = ["--clients", "6", "--seeds", "1", "--rounds", "2", "--model", "logistic"]


def compare(out: Path, *words: Any) -> list[bytes]:
    """Run it in a process that has not used Ray, and return the scores of all clients."""
    command = [str(Path(sys.executable).with_name("bespoke")), *COMMAND, *SETTINGS, "--out", str(out), *map(str, words)]
    ended = subprocess.run(command, timeout=240, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == str(out) and not ended.stderr
    return [file.read_bytes() for file in sorted(out.rglob("clients.csv"))]


def test_trainings_run_side_by_side_on_a_cluster(tmp_path: Path) -> None:
    here = compare(tmp_path / "here", "--workers", 1)
    with cluster(1, 1) as made:
        assert compare(tmp_path / "there", "--cluster", made.address) == here
    assert len(here) == 3  # of both runs, and of the comparison
