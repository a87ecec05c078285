"""Starting is quick: measured in processor time and relative to importing torch, as machines differ and are shared."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.speed import TRIES

pytestmark = [pytest.mark.slow, pytest.mark.alone]

BESPOKE = (sys.executable, "-m", "bespokefl.cli")
ROUND = (*BESPOKE, "run", "fedavg", "--data", "digits", "--rounds", "1", "--workers", "1")
TORCH_ON_A_TYPICAL_MACHINE = 1.6  # seconds


def processor_time(command: tuple[str, ...], directory: Path) -> float:
    """The seconds of a command that must succeed."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=directory)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return usage.ru_utime + usage.ru_stime


def test_first_round_and_help_come_soon(tmp_path: Path) -> None:
    """A round takes at most 1.5 times as long as importing torch and 0.7 s, help 0.3 s (more where torch is slower)."""
    tried = []
    for attempt in range(TRIES):
        directory = tmp_path / str(attempt)
        directory.mkdir()
        torch = processor_time((sys.executable, "-c", "import torch"), directory)
        first, help = (processor_time(one, directory) for one in (ROUND, (*BESPOKE, "--help")))
        tried.append((torch, first, help))
        if first <= 1.5 * torch + 0.7 and help <= 0.3 * max(1.0, torch / TORCH_ON_A_TYPICAL_MACHINE):
            return
    raise AssertionError(f"seconds of torch, a round and help: {tried}")
