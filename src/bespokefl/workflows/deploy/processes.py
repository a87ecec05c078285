"""Child processes: they end with their parent, are restarted when they die, and can be ended reliably."""

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

FLOWER_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
}
START_TIMEOUT = 300.0  # seconds for a process to be ready
END_TIMEOUT = 15.0  # seconds for a process to end on request
Process = subprocess.Popen[bytes]


class Child:
    """A process that is restarted when it dies."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], output: Path) -> None:
        self.name, self.command, self.environment, self.output = name, command, environment, output
        self.process: Process | None = None

    def start(self) -> None:
        """Start the process."""
        self.process = spawn(self.command, self.output, self.environment, append=True)

    def restart_if_dead(self) -> None:
        """Start the process again if it has ended."""
        if self.process is not None and self.process.poll() is not None:
            log.warning("%s ended with code %d and is restarted", self.name, self.process.returncode)
            self.start()

    def was_killed(self) -> bool:
        """Whether a signal has ended the process."""
        return self.process is not None and (self.process.poll() or 0) < 0

    def stop(self) -> None:
        """End the process if it was started."""
        if self.process is not None:
            end(self.process)
            self.process = None


def spawn(
    command: Sequence[str], output: Path, environment: Mapping[str, str] | None = None, *, append: bool = False
) -> Process:
    """Start a process that ends with this one, with additional environment variables; its output goes to a file."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("ab" if append else "wb") as file:
        return subprocess.Popen(
            command,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            preexec_fn=_end_with_parent,
        )


def end(*processes: Process) -> None:
    """Ask child processes to end, and kill those that do not."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def kill(pid: int | None) -> None:
    """Kill a process, if there is one."""
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _end_with_parent() -> None:
    with suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


@contextmanager
def until_signalled() -> Iterator[threading.Event]:
    """Yields an event that Ctrl-C and SIGTERM set."""
    stopped = threading.Event()
    handlers = {one: signal.signal(one, lambda *_: stopped.set()) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for one, handler in handlers.items():
            signal.signal(one, handler)
