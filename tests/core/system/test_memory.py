"""The memory that counts is the smaller one: of the machine, or of a control group around this process."""

import math
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from bespokefl.core.system import memory

MACHINE = 4096 * 1000.0


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {"memory.max": "max\n"}, MACHINE),
        ("0::/\n", {"memory.max": "5000\n"}, 5000),
        ("0::/\n", {"memory.max": "50000000000\n"}, MACHINE),
        ("0::/user/mine\n", {"user/memory.max": "7000\n", "user/mine/memory.max": "max\n"}, 7000),
        ("0::/user/mine\n", {"user/memory.max": "7000\n", "user/mine/memory.max": "6000\n"}, 6000),
        ("5:cpu,memory:/d\n0::/\n", {"memory/d/memory.limit_in_bytes": "8000\n"}, 8000),
        ("5:memory:/docker/abc\n", {"memory/memory.limit_in_bytes": "9000\n"}, 9000),  # the container's own
        ("5:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, MACHINE),
        ("3:cpuset:/\n", {"memory.max": "1\n"}, MACHINE),
        (None, {"memory.max": "1\n"}, MACHINE),
    ],
)
def test_the_smaller_one(
    groups: str | None, files: dict[str, str], expected: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}.__getitem__)
    monkeypatch.setattr(memory, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(memory, "LIMITS", tmp_path / "limits")
    if groups is not None:
        (tmp_path / "groups").write_text(groups)
    for name, text in files.items():
        (tmp_path / "limits" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "limits" / name).write_text(text)
    assert memory.limit() == expected


def test_a_system_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sysconf")
    assert memory.limit() == math.inf


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such setting")
def test_freed_memory_is_kept() -> None:
    """In a new process, as the setting is for a whole process."""
    script = (
        "import resource, torch; from bespokefl.core.system import memory; assert memory.keep_freed()\n"
        "faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "step = lambda: [torch.ones(1 << 20) for _ in range(30)]\n"  # 120 MB, in allocations that glibc maps one by one
        "step(); before = faults(); step(); print(faults() - before)"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 15_000  # of 30,720 pages
