"""What `bespoke deploy server` does: it keeps the SuperLink and whoever runs server apps up, and lets no run die."""

import logging
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from bespokefl.core.errors import BespokeError, InputError, TrainingError
from bespokefl.workflows.deploy import certificates as keys
from bespokefl.workflows.deploy.addresses import is_loopback
from bespokefl.workflows.deploy.layout import PLACE, Deployment, ServerSettings
from bespokefl.workflows.deploy.lock import alone, asked_to_stop, worked_on, worker_of
from bespokefl.workflows.deploy.processes import QUIET, UP, Child, kill
from bespokefl.workflows.deploy.runs import SUBMITTED, UNFINISHED, known, submit, waits
from bespokefl.workflows.deploy.status import tell, told

log = logging.getLogger("bespokefl")

TURN = 0.5  # seconds between two looks at the processes
AGAIN = 20.0  # seconds before a run whose process died is started once more, if that dies too


def run_server(deployment: Deployment, stopped: threading.Event, ready: Callable[[], None] = lambda: None) -> None:
    """The SuperLink, whoever runs server apps, and an eye on both and on the runs."""
    settings = deployment.settings
    _check_server(deployment, settings)
    secret = deployment.server / "secret"
    if not secret.exists():
        keys.write_secret(secret, secrets.token_bytes(32))
    link, worker = _link(deployment, settings, secret), _worker(deployment, settings, secret)
    try:
        link.start()
        _wait_until_up(deployment, link, stopped)
        if not settings.insecure:
            _register(deployment)
        worker.start()
        ready()
        submitted: dict[str, float] = {}
        _resume_killed(deployment, submitted, (SUBMITTED, *UNFINISHED))
        while not stopped.wait(TURN):
            link.watch()
            worker.watch()
            _resume_killed(deployment, submitted)
            _give_up_unstarted(deployment)
    finally:
        worker.stop()
        _end_runs(deployment)
        link.stop()


def _check_server(deployment: Deployment, settings: ServerSettings) -> None:
    if settings.insecure and not is_loopback(settings.listen):
        raise InputError(f"insecure = true is for listen = '127.0.0.1' only, got {settings.listen!r}.")
    if not settings.insecure:
        again = f"bespoke deploy renew {deployment.root}"
        keys.check_certificate(deployment.server / "certificates" / "server.crt", again)
    with socket.socket(socket.AF_INET6 if ":" in settings.listen else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.listen, settings.port))
        except OSError as error:
            raise InputError(
                f"cannot listen on {settings.listen}:{settings.port}: {error.strerror or error}; is a server running "
                "already? Else change the port in server.toml and in every node.toml."
            ) from None


def _link(deployment: Deployment, settings: ServerSettings, secret: Path) -> Child:
    server = deployment.server
    certificates = server / "certificates"
    secure = (
        "--ssl-ca-certfile",
        str(certificates / "ca.crt"),
        "--ssl-certfile",
        str(certificates / "server.crt"),
        "--ssl-keyfile",
        str(certificates / "server.key"),
        "--enable-supernode-auth",
    )
    command = [
        *(sys.executable, "-m", "bespokefl.engines.transports.flower.superlink"),
        *("--host", settings.listen, "--port", str(settings.port)),
        *("--isolation", "process", "--database", str(server / "flower.db")),
        *("--superexec-auth-secret-file", str(secret)),
        *(("--insecure",) if settings.insecure else secure),
    ]
    return Child("the SuperLink", command, _environment(deployment), server / "logs" / "superlink.log")


def _worker(deployment: Deployment, settings: ServerSettings, secret: Path) -> Child:
    command = [
        str(Path(sys.executable).with_name("flower-superexec")),
        *("--runtime-api-address", deployment.local, "--superexec-auth-secret-file", str(secret)),
        *("--parent-pid", str(os.getpid())),
        *(("--insecure",) if settings.insecure else ("--root-certificates", str(deployment.authority))),
    ]
    return Child("the SuperExec", command, _environment(deployment), deployment.server / "logs" / "serverapp.log")


def _environment(deployment: Deployment) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    own = {"PATH": path, "FLWR_HOME": str(deployment.server / "flower"), PLACE: str(deployment.root)}
    return {**os.environ, **QUIET, **own}


def _wait_until_up(deployment: Deployment, link: Child, stopped: threading.Event) -> None:
    from bespokefl.engines.transports.flower.control import control

    began = time.monotonic()
    while True:
        with suppress(TrainingError), control(deployment.local, deployment.authority) as asked:
            asked.nodes()
            return
        process = link.process
        if (process is not None and process.poll() is not None) or time.monotonic() - began > UP:
            raise TrainingError(f"the SuperLink did not come up; see {str(link.output)!r}.")
        if stopped.wait(TURN):
            raise KeyboardInterrupt


def _register(deployment: Deployment) -> None:
    from bespokefl.engines.transports.flower.control import control

    with control(deployment.local, deployment.authority) as asked:
        for name, key in deployment.nodes.items():
            asked.register(name, key)
        if not deployment.settings.insecure:
            asked.shut_out_others(deployment.nodes)


def _resume_killed(deployment: Deployment, submitted: dict[str, float], states: Sequence[str] = UNFINISHED) -> None:
    """A run whose process died goes on from its last checkpoint."""
    from bespokefl.engines.transports.flower.control import control

    for name, news in known(deployment).items():
        place = deployment.run(name)
        if news.get("state") not in states or asked_to_stop(place) or worked_on(place):
            continue
        if news["state"] == SUBMITTED and "flower" not in news:  # whoever started it was told that it could not be
            continue
        if time.monotonic() - submitted.get(name, -AGAIN) < AGAIN:
            continue
        submitted[name] = time.monotonic()
        try:
            with control(deployment.local, deployment.authority) as link, alone(place) as mine:
                # somebody may have been quicker
                if mine and told(place).get("state") in states and not asked_to_stop(place):
                    log.warning("the process of run %s is gone: it goes on from its last checkpoint", name)
                    submit(link, deployment, place)
        except BespokeError as error:
            log.warning("%s", error)


def _give_up_unstarted(deployment: Deployment) -> None:
    """A run whose process ended before it could say anything is not started again and again."""
    from bespokefl.engines.transports.flower.control import control

    for name, news in known(deployment).items():
        place = deployment.run(name)
        if news.get("state") != SUBMITTED or time.time() - news["time"] < AGAIN:
            continue
        with suppress(BespokeError), control(deployment.local, deployment.authority) as link, alone(place) as mine:
            if mine and told(place) == news and not waits(link, news):
                where = deployment.server / "logs" / "serverapp.log"
                tell(place, state="failed", error=f"its process ended before it began; see {str(where)!r}")


def _end_runs(deployment: Deployment) -> None:
    """End the server apps of this deployment, also one that has not said anything yet; runs go on with the server."""
    for process in Path("/proc").glob("[0-9]*"):  # there is none but on Linux
        if _is_app(process, deployment):
            kill(int(process.name))
    for name in known(deployment):
        kill(worker_of(deployment.run(name)))


def _is_app(process: Path, deployment: Deployment) -> bool:
    """Whether this is a server app of Flower's, of this deployment; process: its folder in /proc."""
    with suppress(OSError):
        own = f"{PLACE}={deployment.root}".encode() in (process / "environ").read_bytes().split(b"\0")
        return own and b"flwr-serverapp" in (process / "cmdline").read_bytes()
    return False
