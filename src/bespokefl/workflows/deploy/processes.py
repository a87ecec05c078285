"""Processes of one's own: started so that they end with their parent, started again when they die, ended for sure."""

import ctypes
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

log = logging.getLogger("bespokefl")

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
}  # what Flower's processes are told
UP = 300.0  # seconds for a process to come up
END = 15.0  # seconds for a process to end when asked to


class Child:
    """A process that is started again when it dies."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], output: Path) -> None:
        self.name, self.command, self.environment, self.output = name, list(command), dict(environment), output
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.output.parent.mkdir(parents=True, exist_ok=True)
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                self.command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=end_with_parent,  # no orphans, even if this process is killed
            )

    def watch(self) -> None:
        if self.process is not None and self.process.poll() is not None:
            log.warning("%s ended with code %d and is started again", self.name, self.process.returncode)
            self.start()

    def stop(self) -> None:
        if self.process is None:
            return
        end(self.process)
        self.process = None


def end(*processes: subprocess.Popen[bytes]) -> None:
    """Ask processes of one's own to end, and see to it."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def kill(pid: int | None) -> None:
    """End a process at once, if there is one."""
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def end_with_parent() -> None:
    """What a process does first that must not outlive the one that started it."""
    with suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


@contextmanager
def until_signalled() -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets."""
    stopped = threading.Event()
    before = {one: signal.signal(one, lambda *_: stopped.set()) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
