"""The runs of a deployment, on the server's machine: starts, stops, lists and fetches them.

A process that works on a run holds a lock on a file in the run's directory. The operating system releases the lock when
the process ends, however it ends. A request to stop is a file of its own, so that no status update overwrites it.
"""

import json
import logging
import os
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from bespokefl.core.errors import InputError, TrainingError, listing, unknown
from bespokefl.core.system.files import locked, write_text
from bespokefl.core.user_input.plugins import short
from bespokefl.engines.transports.flower import adapter
from bespokefl.engines.transports.flower.adapter import Control, UnconfirmedError
from bespokefl.engines.transports.flower.security.access import read_secret
from bespokefl.engines.transports.flower.security.signing import Signer
from bespokefl.workflows.deploy.layout import Deployment
from bespokefl.workflows.deploy.processes import END_TIMEOUT, kill
from bespokefl.workflows.results import run_directory
from bespokefl.workflows.run import settings as configs
from bespokefl.workflows.run.settings import Mark, RunSettings

log = logging.getLogger("bespokefl")

LOCK, STOP, STATUS = "lock", "stop", "status.json"  # files in the directory of a run
RESULT = "result"  # the directory with a finished run's result
LOCK_TIMEOUT = 1.0  # seconds for another process that only checks the lock to release it
LOCK_POLL = 0.05  # seconds between two attempts
SUBMITTED, UNFINISHED = "submitted", ("gathering", "running")  # states of a run


def connect(deployment: Deployment) -> AbstractContextManager[Control]:
    """Connect to the deployment's SuperLink; raise InputError if this account may not read the secret."""
    signer = Signer(read_secret(deployment.secret)) if deployment.secret.exists() else None  # None: it never ran
    return adapter.connect_control(deployment.local_address, deployment.root_certificate, signer)


def start(deployment: Deployment, config: RunSettings, name: str | None = None) -> str:
    """Start a run, or resume a stopped run of this name; return its name.

    If the SuperLink ends meanwhile, the server submits the run again when the SuperLink is back.
    """
    with connect(deployment) as link:
        directory = _make_directory(deployment, config, name)
        with try_lock(directory, LOCK_TIMEOUT) as acquired:
            if not acquired or is_queued(link, read_status(directory)):
                raise InputError(f"the run {directory.name} is running already; see bespoke deploy status.")
            is_new = not read_status(directory)
            if not is_new:
                _check_resumable(directory, config)
            try:
                if is_new:
                    write_text(directory / "config.toml", config.to_toml({"data": "The data stay at the nodes."}))
                submit(link, deployment, directory)
            except UnconfirmedError:  # it may have been started: without its directory it could not report anything
                update_status(directory, state=SUBMITTED, unconfirmed=True, error="")
                log.warning(
                    "the server ended while it started the run %s: the run begins when the server is back",
                    directory.name,
                )
            except BaseException:
                if is_new:
                    shutil.rmtree(directory, ignore_errors=True)
                raise
            withdraw_stop_request(directory)
    return directory.name


def stop(deployment: Deployment, name: str) -> None:
    """Stop a run and wait until no process works on it. The current round is lost; the run can be resumed."""
    directory, status = _existing(deployment, name)
    if status["state"] in ("done", "failed", "stopped"):
        raise InputError(f"the run {name} is {status['state']} already.")
    if status["state"] == SUBMITTED and "flower" not in status and not is_unconfirmed(status):
        raise InputError(f"the run {name} never reached the server, there is nothing to stop; start it again.")
    request_stop(directory)
    if "flower" in status:
        with suppress(TrainingError), connect(deployment) as link:  # a server that is down runs no app
            link.stop(int(status["flower"]))
    for _ in range(2):
        with try_lock(directory, END_TIMEOUT) as ended:
            if ended:
                if read_status(directory).get("state") == "done":
                    withdraw_stop_request(directory)
                    raise InputError(f"the run {name} was done before it could be stopped.")
                update_status(directory, state="stopped", error="")
                return
        kill(locking_pid(directory))
    pid = locking_pid(directory) or ""
    raise TrainingError(f"the process {pid} of run {name} does not end; end it, then stop the run again.")


def list_runs(deployment: Deployment) -> dict[str, dict[str, Any]]:
    """The status of each run, the latest last."""
    paths = [path for path in (deployment.server / "runs").glob("*") if (path / STATUS).is_file()]
    runs = {path.name: read_status(path) for path in paths}
    return dict(sorted(runs.items(), key=lambda item: item[1].get("time", 0)))


def latest_run(deployment: Deployment) -> str:
    """The name of the run whose status changed last."""
    names = list(list_runs(deployment))
    if not names:
        raise InputError(f"there is no run in {str(deployment.root)!r} yet; start one with bespoke deploy start.")
    return names[-1]


def list_nodes(deployment: Deployment) -> dict[str, str]:
    """Each node that may connect, and its status."""
    try:
        with connect(deployment) as link:
            registered = link.nodes()
    except TrainingError:
        server = {"the server": "does not respond: start it with bespoke deploy server"}
        return server | dict.fromkeys(deployment.node_keys, "unknown")
    return {name: registered.get(name, "unknown") for name in sorted({*deployment.node_keys, *registered})}


def fetch(deployment: Deployment, name: str, out: Path, overwrite: bool = False) -> None:
    """Copy the result of a finished run."""
    directory, status = _existing(deployment, name)
    if status["state"] != "done":
        reason = str(status.get("error") or "wait for it").rstrip(".")
        raise InputError(f"the run {name} is not done but {status['state']}: {reason}.")

    def copy(into: Path) -> None:
        shutil.copytree(directory / RESULT, into, dirs_exist_ok=True)

    run_directory.write(out, copy, overwrite)


def submit(link: Control, deployment: Deployment, directory: Path, attempts: int = 1) -> None:
    """Submit a run to Flower. The caller holds the run's lock.

    `attempts` counts how often this was done without any sign of the run's process.
    """
    previous = read_status(directory).get("flower")
    if previous is not None:
        with suppress(TrainingError):  # it has ended already
            link.stop(int(previous))  # otherwise nodes wait for messages that a killed app was sending
    run_id = link.start(deployment.server / "app", directory.name)
    begun = {"flower": run_id, "pid": None, "unconfirmed": False, "attempts": attempts, "error": ""}
    update_status(directory, state=SUBMITTED, **begun)


def is_queued(link: Control, status: Mapping[str, Any]) -> bool:
    """Whether a run was submitted to Flower and its app has not reported yet."""
    return status.get("state") == SUBMITTED and "flower" in status and link.is_active(int(status["flower"]))


def is_unconfirmed(status: Mapping[str, Any]) -> bool:
    """Whether the SuperLink ended while it started the run: it may run, or have to be submitted again."""
    return status.get("state") == SUBMITTED and bool(status.get("unconfirmed"))


def _existing(deployment: Deployment, name: str) -> tuple[Path, dict[str, Any]]:
    directory = deployment.run_directory(name)
    status = read_status(directory)
    if not status:
        raise unknown("run", name, list_runs(deployment))
    return directory, status


def _make_directory(deployment: Deployment, config: RunSettings, name: str | None) -> Path:
    if name is not None:
        directory = deployment.run_directory(name)
        directory.mkdir(parents=True, exist_ok=True)
        return directory
    while True:
        directory = run_directory.fresh(deployment.server / "runs", short(config.method))
        with suppress(FileExistsError):  # another command has taken this name
            directory.mkdir(parents=True)
            return directory


def _check_resumable(directory: Path, config: RunSettings) -> None:
    """Reject a run that is done, and settings other than those it was started with."""
    if read_status(directory).get("state") == "done":
        raise InputError(
            f"the run {directory.name} is done: fetch it with bespoke deploy fetch --run {directory.name}, or choose "
            "another name."
        )
    file = directory / "config.toml"
    started = RunSettings.of(configs.read(file))
    for one in fields(RunSettings):
        before, now = getattr(started, one.name), getattr(config, one.name)
        if Mark.WRITING not in one.metadata["marks"] and before != now:
            raise InputError(
                f"the run {directory.name} was started with {one.name} = {before!r}, got {now!r}: resume it with "
                f"--method {started.method} --config {shlex.quote(str(file))}, or choose another name."
            )


# -- files of a run


@contextmanager
def try_lock(directory: Path, timeout: float = 0.0, *, record_pid: bool = False) -> Iterator[bool]:
    """Hold the lock on a run; yields False if another process still holds it after `timeout` seconds.

    With `record_pid` the file has the id of this process, so that others can end it.
    """
    deadline = time.monotonic() + timeout
    while (lock := locked(directory / LOCK)) is None:
        if time.monotonic() >= deadline:
            yield False
            return
        time.sleep(LOCK_POLL)
    try:
        os.ftruncate(lock, 0)
        os.write(lock, str(os.getpid()).encode() if record_pid else b"")
        yield True
    finally:
        os.close(lock)


def is_locked(directory: Path) -> bool:
    """Whether a process works on a run."""
    with try_lock(directory) as acquired:
        return not acquired


def locking_pid(directory: Path) -> int | None:
    """The id of the process that works on a run, if it has recorded it."""
    try:
        pid = (directory / LOCK).read_text(encoding="utf-8")
    except OSError:
        return None
    return int(pid) if pid.isdigit() and is_locked(directory) else None


def request_stop(directory: Path) -> None:
    """Ask the server to stop a run."""
    write_text(directory / STOP, "")


def stop_requested(directory: Path) -> bool:
    """Whether the server was asked to stop a run."""
    return (directory / STOP).exists()


def withdraw_stop_request(directory: Path) -> None:
    """Withdraw a request to stop a run, if there is one."""
    (directory / STOP).unlink(missing_ok=True)


def described(status: Mapping[str, Any]) -> str:
    """Return the state of a run in words, with the nodes that it waits for."""
    state, absent = str(status.get("state", "")), status.get("waiting_for")
    return f"{state}, waiting for {listing(absent)}" if state == UNFINISHED[0] and absent else state


def update_status(directory: Path, **changes: Any) -> None:
    """Change entries of a run's status, and its time."""
    status = read_status(directory) | {"time": time.time()} | changes
    write_text(directory / STATUS, json.dumps(status, indent=2) + "\n")


def read_status(directory: Path) -> dict[str, Any]:
    """The status of a run; empty if it has none yet."""
    try:
        status: dict[str, Any] = json.loads((directory / STATUS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return status
