"""What runs on each machine: the server with its SuperLink, and the nodes.

`python -m bespokefl.experiments.deployment.machines server DIR` is what `bespoke deploy server DIR` runs, and the same
with `node`. Both stay in the foreground, end what they started when they end, and start again what was killed.
"""

import ctypes
import logging
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from bespokefl.core.errors import BespokeError, InputError, TrainingError, unknown
from bespokefl.core.files import write_text
from bespokefl.experiments import config as configs
from bespokefl.experiments.config import Config
from bespokefl.experiments.deployment import keys
from bespokefl.experiments.deployment.alone import alone, ask_to_stop, asked_to_stop, let_go_on, worked_on, worker_of
from bespokefl.experiments.deployment.news import RESULT, STATUS, tell, told
from bespokefl.experiments.deployment.place import (
    PLACE,
    Deployment,
    NodeSettings,
    ServerSettings,
    is_loopback,
    node_folder,
    node_settings,
    port_of,
)

log = logging.getLogger("bespokefl")

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
}
TURN = 0.5  # seconds between two looks at the processes
UP = 300.0  # seconds for the SuperLink to come up
END = 15.0  # seconds for a process to end when asked to
AGAIN = 20.0  # seconds before a run whose process died is started once more, if that dies too
BRIEF = 1.0  # seconds for somebody who only looks at a run to look away
SUBMITTED, UNFINISHED = "submitted", ("gathering", "running")


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


def run_node(place: Path, settings: NodeSettings, stopped: threading.Event, ready: Callable[[], None]) -> None:
    """A node: it loads its data and answers the server until it is stopped."""
    import torch

    from bespokefl.engines.flower.apps import answer
    from bespokefl.engines.flower.carrier import Line, carry
    from bespokefl.engines.flower.node import Node
    from bespokefl.experiments.deployment.host import LocalHost

    torch.set_num_threads(1)
    host = LocalHost(settings, place)
    about = host.about()
    log.info("node %s has %d clients", settings.name, len(about["clients"]))
    secure = (place / "node.key").is_file()
    if not secure and not is_loopback(settings.server.rpartition(":")[0]):
        raise InputError(
            f"node {settings.name} has no key, node.key, in {str(place)!r}: without one it may only talk to 127.0.0.1."
        )
    port_of(settings.server)
    state = place / settings.state
    line = Line(
        settings.server,
        place / "ca.crt" if secure else None,
        place / "node.key" if secure else None,
        state / "node-id",
    )
    carry(line, partial(answer, Node(host, state)), stopped, ready)


def start(deployment: Deployment, config: Config, name: str | None = None) -> str:
    """Start a run, or go on with one of this name that was stopped; its name."""
    from bespokefl.engines.flower.control import control

    with control(deployment.local, deployment.authority) as link:
        place = _place(deployment, config, name)
        with alone(place, BRIEF) as mine:
            if not mine or _waits(link, told(place)):
                raise InputError(f"the run {place.name} is under way already; see bespoke deploy status.")
            new = not told(place)
            if not new:
                _refuse_another(place, config)
            try:
                if new:
                    write_text(place / "config.toml", config.to_toml({"data": "The data stay at the nodes."}))
                _submit(link, deployment, place)
            except BaseException:
                if new:
                    shutil.rmtree(place, ignore_errors=True)
                raise
            let_go_on(place)
    return place.name


def _place(deployment: Deployment, config: Config, name: str | None) -> Path:
    """The folder of a run, which is there then."""
    from bespokefl.experiments import folder

    if name is not None:
        deployment.run(name).mkdir(parents=True, exist_ok=True)
        return deployment.run(name)
    while True:
        place = folder.fresh(deployment.server / "runs", config.method)
        with suppress(FileExistsError):  # another command may be quicker
            place.mkdir(parents=True)
            return place


def _waits(link: Any, news: Mapping[str, Any]) -> bool:
    """Whether a run was handed to Flower, which has not started it yet."""
    if news.get("state") != SUBMITTED or "flower" not in news:
        return False
    return str(link.status(int(news["flower"]))).partition(":")[0] in ("pending", "starting", "running")


def _refuse_another(place: Path, config: Config) -> None:
    """A run goes on as it began, and one that is done does not go on."""
    if told(place).get("state") == "done":
        raise InputError(
            f"the run {place.name} is done: bespoke deploy fetch --run {place.name} gets it; else choose another name."
        )
    file = place / "config.toml"
    begun = Config.of(configs.read(file))
    for one in fields(Config):
        before, now = getattr(begun, one.name), getattr(config, one.name)
        if one.name not in configs.PLACES and before != now:
            raise InputError(
                f"the run {place.name} began with {one.name} = {before!r}, got {now!r}: go on with "
                f"--method {begun.method} --config {shlex.quote(str(file))}, or choose another name."
            )


def _submit(link: Any, deployment: Deployment, place: Path) -> None:
    """Hand a run to Flower; whoever does so works on it alone."""
    before = told(place).get("flower")
    if before is not None:
        with suppress(TrainingError):  # it is over already
            link.stop(int(before))  # else nodes would wait for letters of an app that was killed while it wrote them
    number = link.start(deployment.server / "app", place.name)
    tell(place, state=SUBMITTED, flower=number, pid=None, error="")


def stop(deployment: Deployment, name: str) -> None:
    """Stop a run, and return when nobody works on it any more; the round in hand is lost, and it can go on later."""
    from bespokefl.engines.flower.control import control

    place = deployment.run(name)
    news = told(place)
    if not news:
        raise unknown("run", name, runs(deployment))
    if news["state"] in ("done", "failed", "stopped"):
        raise InputError(f"the run {name} is {news['state']} already.")
    if news["state"] == SUBMITTED and "flower" not in news:
        raise InputError(f"the run {name} never reached the server, there is nothing to stop; start it again.")
    ask_to_stop(place)
    if "flower" in news:
        with suppress(TrainingError), control(deployment.local, deployment.authority) as link:
            link.stop(int(news["flower"]))  # a server that is away has no app at work, and leaves the run alone later
    for patience in (END, END):
        with alone(place, patience) as over:
            if over:
                if told(place).get("state") == "done":
                    let_go_on(place)
                    raise InputError(f"the run {name} was done before it could be stopped.")
                tell(place, state="stopped", error="")
                return
        _kill(worker_of(place))
    raise TrainingError(f"the process {worker_of(place) or ''} of run {name} does not end; end it, then stop it again.")


def _kill(pid: int | None) -> None:
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def runs(deployment: Deployment) -> dict[str, dict[str, Any]]:
    """What is known of every run, the latest last."""
    found = {path.name: told(path) for path in (deployment.server / "runs").glob("*") if (path / STATUS).is_file()}
    return dict(sorted(found.items(), key=lambda item: item[1].get("time", 0)))


def last(deployment: Deployment) -> str:
    """The run that there was news of last."""
    found = list(runs(deployment))
    if not found:
        raise InputError(f"there is no run in {str(deployment.root)!r} yet; start one with bespoke deploy start.")
    return found[-1]


def present(deployment: Deployment) -> dict[str, str]:
    """Every node that may come, and whether it is there."""
    from bespokefl.engines.flower.control import control

    try:
        with control(deployment.local, deployment.authority) as link:
            known = {one.name: one.status for one in link.nodes()}
    except TrainingError:
        away = {"the server": "does not answer: start it with bespoke deploy server"}
        return away | dict.fromkeys(deployment.nodes, "unknown")
    return {name: known.get(name, "unknown") for name in sorted({*deployment.nodes, *known})}


def fetch(deployment: Deployment, name: str, out: Path) -> None:
    """A copy of a finished run's result."""
    from bespokefl.experiments import folder

    place = deployment.run(name)
    news = told(place)
    if not news:
        raise unknown("run", name, runs(deployment))
    if news["state"] != "done":
        raise InputError(f"the run {name} is not done but {news['state']}: {news.get('error') or 'wait for it'}.")

    def copy(into: Path) -> None:
        shutil.copytree(place / RESULT, into, dirs_exist_ok=True)

    folder.write(out, copy, overwrite=False)


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


# -- inside


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
        *(sys.executable, "-m", "bespokefl.engines.flower.link"),
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


def _check_server(deployment: Deployment, settings: ServerSettings) -> None:
    if settings.insecure and not is_loopback(settings.listen):
        raise InputError(f"insecure = true is for listen = '127.0.0.1' only, got {settings.listen!r}.")
    if not settings.insecure:
        again = f"bespoke deploy renew {deployment.root}"
        keys.check_certificate(deployment.server / "certificates" / "server.crt", again)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.listen, settings.port))
        except OSError as error:
            raise InputError(
                f"cannot listen on {settings.listen}:{settings.port}: {error.strerror or error}; is a server running "
                "already? Else change the port in server.toml and in every node.toml."
            ) from None


def _wait_until_up(deployment: Deployment, link: Child, stopped: threading.Event) -> None:
    from bespokefl.engines.flower.control import control

    began = time.monotonic()
    while True:
        try:
            with control(deployment.local, deployment.authority) as asked:
                asked.nodes()
            return
        except TrainingError:
            pass
        process = link.process
        if (process is not None and process.poll() is not None) or time.monotonic() - began > UP:
            raise TrainingError(f"the SuperLink did not come up; see {str(link.output)!r}.")
        if stopped.wait(TURN):
            raise KeyboardInterrupt


def _register(deployment: Deployment) -> None:
    from bespokefl.engines.flower.control import control

    with control(deployment.local, deployment.authority) as asked:
        for name, key in deployment.nodes.items():
            asked.register(name, key)


def _resume_killed(deployment: Deployment, submitted: dict[str, float], states: Sequence[str] = UNFINISHED) -> None:
    """A run whose process died goes on from its last checkpoint."""
    from bespokefl.engines.flower.control import control

    for name, news in runs(deployment).items():
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
                    _submit(link, deployment, place)
        except BespokeError as error:
            log.warning("%s", error)


def _give_up_unstarted(deployment: Deployment) -> None:
    """A run whose process ended before it could say anything is not started again and again."""
    from bespokefl.engines.flower.control import control

    for name, news in runs(deployment).items():
        place = deployment.run(name)
        if news.get("state") != SUBMITTED or time.time() - news["time"] < AGAIN:
            continue
        with suppress(BespokeError), control(deployment.local, deployment.authority) as link, alone(place) as mine:
            if mine and told(place) == news and not _waits(link, news):
                where = deployment.server / "logs" / "serverapp.log"
                tell(place, state="failed", error=f"its process ended before it began; see {str(where)!r}")


def _end_runs(deployment: Deployment) -> None:
    """End the server apps of this deployment, also one that has not said anything yet; runs go on with the server."""
    for process in Path("/proc").glob("[0-9]*"):  # there is none but on Linux
        if _is_app(process, deployment):
            _kill(int(process.name))
    for name in runs(deployment):
        _kill(worker_of(deployment.run(name)))


def _is_app(process: Path, deployment: Deployment) -> bool:
    """Whether this is a server app of Flower's, of this deployment; process: its folder in /proc."""
    with suppress(OSError):
        own = f"{PLACE}={deployment.root}".encode() in (process / "environ").read_bytes().split(b"\0")
        return own and b"flwr-serverapp" in (process / "cmdline").read_bytes()
    return False


def end_with_parent() -> None:
    """What a process does first that must not outlive the one that started it."""
    with suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def main(argv: Sequence[str] | None = None) -> int:
    """server DIR | node DIR: one line on standard output when it is ready."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    for noisy in ("httpx", "flwr"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    what, where = (sys.argv[1:] if argv is None else argv)[:2]
    with until_signalled() as stopped:
        try:
            if what == "server":
                run_server(Deployment.at(Path(where)), stopped, lambda: print("ready", flush=True))
            else:
                place = node_folder(Path(where), None)
                run_node(place, node_settings(place), stopped, lambda: print("ready", flush=True))
        except BespokeError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
