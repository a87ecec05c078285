"""The work of `bespoke deploy server`: it runs Flower's SuperLink and SuperExec, and restarts what was killed.

The SuperLink passes messages between nodes and server apps; the SuperExec starts a server app for each run.
"""

import logging
import os
import secrets
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bespokefl.core.errors import BespokeError, InputError, TrainingError
from bespokefl.engines.transports.flower import adapter
from bespokefl.engines.transports.flower.security.access import Access
from bespokefl.engines.transports.flower.services import superexec, superlink
from bespokefl.workflows.deploy import certificates, runs
from bespokefl.workflows.deploy.init import write_app
from bespokefl.workflows.deploy.layout import DEPLOYMENT_VARIABLE, Deployment, ServerSettings, is_loopback
from bespokefl.workflows.deploy.processes import FLOWER_ENVIRONMENT, START_TIMEOUT, Child, kill

log = logging.getLogger("bespokefl")

POLL = 0.5  # seconds between two checks of the processes
MAX_ATTEMPTS = 3  # to start the process of a run
RESUBMIT_DELAY = 20.0  # seconds before a run whose process died again is submitted once more


def run_server(deployment: Deployment, stopped: threading.Event, ready: Callable[[], None] = lambda: None) -> None:
    """Run the server of a deployment until `stopped` is set; call `ready` when nodes can connect."""
    settings = deployment.settings
    _check_server(deployment, settings)
    write_app(deployment.server / "app")
    if not deployment.secret.exists():
        certificates.write_secret(deployment.secret, secrets.token_bytes(32))
    link, executor = _superlink(deployment, settings), _superexec(deployment, settings)
    try:
        link.start()
        _bring_up(deployment, link, stopped)
        executor.start()
        ready()
        submitted: dict[str, float] = {}
        _resume_killed(deployment, submitted, (runs.SUBMITTED, *runs.UNFINISHED))
        while not stopped.wait(POLL):
            link.restart_if_dead()
            executor.restart_if_dead()
            _resume_killed(deployment, submitted)
            _fail_unstarted(deployment)
    finally:
        executor.stop()
        _kill_server_apps(deployment)
        link.stop()


def _check_server(deployment: Deployment, settings: ServerSettings) -> None:
    if settings.insecure and not is_loopback(settings.listen):
        raise InputError(f"insecure = true is for listen = '127.0.0.1' only, got {settings.listen!r}.")
    if not settings.insecure:
        certificate = deployment.server / "certificates" / "server.crt"
        renew = f"bespoke deploy renew {shlex.quote(str(deployment.root))}"
        certificates.check_certificate(certificate, renew, deployment.local_host)
    with socket.socket(socket.AF_INET6 if ":" in settings.listen else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.listen, settings.port))
        except OSError as error:
            raise InputError(
                f"cannot listen on {settings.listen}:{settings.port}: {error.strerror or error}; is a server running "
                "already? Otherwise change the port in server.toml and in each node.toml."
            ) from None


def _superlink(deployment: Deployment, settings: ServerSettings) -> Child:
    server = deployment.server
    folder = server / "certificates"
    tls = (
        *("--ssl-ca-certfile", str(folder / "ca.crt"), "--ssl-certfile", str(folder / "server.crt")),
        *("--ssl-keyfile", str(folder / "server.key"), "--enable-supernode-auth"),
    )
    command = [
        *(sys.executable, "-m", superlink.__name__),
        *("--host", settings.listen, "--port", str(settings.port)),
        *("--isolation", "process", "--database", str(server / "flower.db")),
        *("--superexec-auth-secret-file", str(deployment.secret)),
        *(("--insecure",) if settings.insecure else tls),
    ]
    return Child("the SuperLink", command, _environment(deployment), server / "logs" / "superlink.log")


def _superexec(deployment: Deployment, settings: ServerSettings) -> Child:
    command = [
        *(sys.executable, "-m", superexec.__name__),
        *("--runtime-api-address", deployment.local_address),
        *("--superexec-auth-secret-file", str(deployment.secret)),
        *("--parent-pid", str(os.getpid())),
        *(("--insecure",) if settings.insecure else ("--root-certificates", str(deployment.root_certificate))),
    ]
    return Child("the SuperExec", command, _environment(deployment), _app_log(deployment))


def _environment(deployment: Deployment) -> dict[str, str]:
    keys = None if deployment.settings.insecure else str(deployment.server / "keys")
    access = Access(str(deployment.secret), keys, adapter.hash_of_app(deployment.server / "app"))
    return {
        **FLOWER_ENVIRONMENT,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "FLWR_HOME": str(deployment.server / "flower"),
        DEPLOYMENT_VARIABLE: str(deployment.root),
        **access.environment(),
    }


def _app_log(deployment: Deployment) -> Path:
    return deployment.server / "logs" / "serverapp.log"


def _bring_up(deployment: Deployment, link: Child, stopped: threading.Event) -> None:
    """Wait until the SuperLink responds, and register the nodes."""
    while True:
        _wait_until_up(deployment, link, stopped)
        try:
            if not deployment.settings.insecure:
                _register_nodes(deployment)
            return
        except TrainingError:
            if not link.was_killed():
                raise


def _wait_until_up(deployment: Deployment, link: Child, stopped: threading.Event) -> None:
    """Wait until the SuperLink responds. One that is killed meanwhile is restarted; one that ends by itself is not."""
    started = time.monotonic()
    while True:
        with suppress(TrainingError), runs.connect(deployment) as control:
            control.nodes()
            return
        if link.was_killed():
            link.restart_if_dead()
        process = link.process
        if (process is not None and process.poll() is not None) or time.monotonic() - started > START_TIMEOUT:
            raise TrainingError(f"the SuperLink did not start; see {str(link.output)!r}.")
        if stopped.wait(POLL):
            raise KeyboardInterrupt


def _register_nodes(deployment: Deployment) -> None:
    with runs.connect(deployment) as control:
        for name, key in deployment.node_keys.items():
            control.register(name, key)
        control.unregister_others(deployment.node_keys)


def _resume_killed(
    deployment: Deployment, submitted: dict[str, float], states: Sequence[str] = runs.UNFINISHED
) -> None:
    """Submit runs again whose process died, which resume from their last checkpoint, and those that the SuperLink may
    not have received."""

    def is_waiting(status: Mapping[str, Any]) -> bool:
        if runs.is_unconfirmed(status):
            return runs.SUBMITTED in states or not _is_recent(status)
        if status.get("state") == runs.SUBMITTED and "flower" not in status:  # the command that started it has failed
            return False
        return status.get("state") in states

    for name, status in runs.list_runs(deployment).items():
        directory = deployment.run_directory(name)
        if not is_waiting(status) or runs.stop_requested(directory) or runs.is_locked(directory):
            continue
        if time.monotonic() - submitted.get(name, -RESUBMIT_DELAY) < RESUBMIT_DELAY:
            continue
        submitted[name] = time.monotonic()
        try:
            with runs.connect(deployment) as control, runs.try_lock(directory) as acquired:
                # Another process may have changed the run since.
                if acquired and is_waiting(runs.read_status(directory)) and not runs.stop_requested(directory):
                    if status["state"] != runs.SUBMITTED:
                        log.warning("the process of run %s has died: the run resumes from its last checkpoint", name)
                    runs.submit(control, deployment, directory)
        except BespokeError as error:
            log.warning("%s", error)


def _is_recent(status: Mapping[str, Any]) -> bool:
    """Whether the status of a run changed a moment ago; not if that time is yet to come, as clocks may be set back."""
    return 0 <= time.time() - float(status["time"]) < RESUBMIT_DELAY


def _fail_unstarted(deployment: Deployment) -> None:
    """Submit runs again whose process ended before it reported anything; mark them as failed if that happens often."""
    for name, status in runs.list_runs(deployment).items():
        directory = deployment.run_directory(name)
        if status.get("state") != runs.SUBMITTED or runs.is_unconfirmed(status):
            continue
        if _is_recent(status):
            continue
        with suppress(BespokeError), runs.connect(deployment) as control, runs.try_lock(directory) as acquired:
            if not acquired or runs.read_status(directory) != status or runs.is_queued(control, status):
                continue
            attempts = int(status.get("attempts", 1))
            if attempts < MAX_ATTEMPTS:  # it may have been killed
                runs.submit(control, deployment, directory, attempts + 1)
            else:
                error = f"its process ended {attempts} times before the run started; see {str(_app_log(deployment))!r}"
                runs.update_status(directory, state="failed", error=error)


def _kill_server_apps(deployment: Deployment) -> None:
    """Kill the server apps of this deployment, including those that have not reported yet; their runs resume with the
    server."""
    variable = f"{DEPLOYMENT_VARIABLE}={deployment.root}".encode()
    for process in Path("/proc").glob("[0-9]*"):  # Linux only
        with suppress(OSError):
            is_own = variable in (process / "environ").read_bytes().split(b"\0")
            if is_own and superexec.APP_MODULE.encode() in (process / "cmdline").read_bytes():
                kill(int(process.name))
    for name in runs.list_runs(deployment):
        kill(runs.locking_pid(deployment.run_directory(name)))
