"""An interrupted `bespoke deploy demo` leaves no process and no directory."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

LONGEST = 400.0  # seconds: a machine may be busy with other things


@pytest.mark.slow
def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("bespoke")), "deploy", "demo", "--rounds", "500"]
    demo = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    assert demo.stdout is not None
    try:
        said = ""
        while "round 1 of 500" not in said:  # the server's app is at work, too
            line = demo.stdout.readline()
            assert line, said
            said += line
        found = re.search(r"configurations: (\S+)", said)
        assert found is not None
        place = found[1]
        assert len(processes(place)) >= 6  # server, SuperLink, SuperExec, three nodes
        os.killpg(demo.pid, signal.SIGINT)  # as a terminal does: to all that are in the foreground
        rest, _ = demo.communicate(timeout=LONGEST)
    finally:
        if demo.poll() is None:
            os.killpg(demo.pid, signal.SIGKILL)
    assert demo.returncode == 130 and "Traceback" not in rest, rest
    assert not processes(place) and not Path(place).exists()
    assert not (tmp_path / "runs").exists()


def processes(place: str) -> list[str]:
    """The commands of processes whose command or environment names a directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command, environment = (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
        except OSError:
            continue
        if place.encode() in command or place.encode() in environment:
            found.append(command.decode())
    return found
