"""Runs of a deployment are started once, stay stopped, and resume with the same settings. Flower is a stub."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from bespokefl.core.errors import InputError, TrainingError
from bespokefl.engines.transports.flower import adapter
from bespokefl.engines.transports.flower.messenger import NodeMessenger
from bespokefl.workflows.deploy import demo, processes, runs
from bespokefl.workflows.deploy import init as initialization
from bespokefl.workflows.deploy.layout import DEPLOYMENT_VARIABLE, Deployment
from bespokefl.workflows.deploy.runs import RESULT, read_status, update_status
from bespokefl.workflows.deploy.server import run as serve
from bespokefl.workflows.deploy.server import supervisor
from bespokefl.workflows.run.settings import RunSettings

CONFIG = RunSettings(method="ditto", rounds=3, data="deployment", set={"lr": 0.1, "sizes": [1, 2]})


class Flower:
    """The SuperLink's record of runs."""

    def __init__(self) -> None:
        self.runs: dict[int, str] = {}
        self.names: dict[int, str] = {}
        self.away = False

    def start(self, app: Path, run: str) -> int:
        self._check()
        number = len(self.runs) + 1
        self.runs[number], self.names[number] = "pending", run
        return number

    def stop(self, number: int) -> None:
        self._check()
        if self.runs[number].startswith("finished"):
            raise TrainingError("it is over already.")
        self.runs[number] = "finished:stopped"

    def is_active(self, number: int) -> bool:
        self._check()
        return not self.runs.get(number, "unknown").startswith(("finished", "unknown"))

    def _check(self) -> None:
        if self.away:
            raise TrainingError("the server does not answer.")


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return initialization.init(tmp_path / "dir", ["a", "b"], f"127.0.0.1:{demo.free_port()}")


@pytest.fixture
def flower(monkeypatch: pytest.MonkeyPatch) -> Flower:
    made = Flower()

    @contextmanager
    def connected(address: str, authority: Path | None, signer: object) -> Iterator[Flower]:
        yield made

    monkeypatch.setattr(adapter, "connect_control", connected)
    return made


@contextmanager
def app(deployment: Deployment, name: str) -> Iterator[threading.Thread]:
    """A server app that writes repeatedly that the run is running, until it is asked to stop."""
    begun = threading.Event()

    def work() -> None:
        where = deployment.run_directory(name)
        with runs.try_lock(where) as mine:
            assert mine
            while not runs.stop_requested(where):
                update_status(where, state="running", pid=1, round=2)
                begun.set()
                time.sleep(0.01)
            time.sleep(0.3)  # the round in hand
            update_status(where, state="running", round=3)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert begun.wait(30)
    try:
        yield thread
    finally:
        runs.request_stop(deployment.run_directory(name))
        thread.join(30)


def folders(deployment: Deployment) -> list[str]:
    return sorted(path.name for path in (deployment.server / "runs").iterdir())


def submitted(flower: Flower) -> list[str]:
    return list(flower.names.values())


# -- start


def test_a_run_that_cannot_be_started_leaves_no_directory(deployment: Deployment, flower: Flower) -> None:
    flower.away = True
    for name in (None, "mine"):
        with pytest.raises(TrainingError, match="does not answer"):
            runs.start(deployment, CONFIG, name)
    assert folders(deployment) == []
    flower.away = False
    runs.start(deployment, CONFIG, "mine")
    update_status(deployment.run_directory("mine"), state="stopped", round=2)
    flower.away = True
    with pytest.raises(TrainingError, match="does not answer"):
        runs.start(deployment, CONFIG, "mine")
    assert (
        read_status(deployment.run_directory("mine"))["state"] == "stopped"
    )  # and one that has begun is left as it was


def test_a_run_is_started_once(deployment: Deployment, flower: Flower) -> None:
    """Also before its process is there, and however many commands there are at once."""
    assert runs.start(deployment, CONFIG, "mine") == "mine"
    for status in ("pending", "starting", "running"):
        flower.runs[1] = status
        with pytest.raises(InputError, match=r"the run mine is running already; see bespoke deploy status\."):
            runs.start(deployment, CONFIG, "mine")
    with app(deployment, "mine"), pytest.raises(InputError, match="running already"):
        runs.start(deployment, CONFIG, "mine")
    assert submitted(flower) == ["mine"]


def test_two_commands_at_once(deployment: Deployment, flower: Flower, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "LOCK_TIMEOUT", 0.1)
    before, errors = flower.start, []

    def slow(app: Path, run: str) -> int:
        try:
            runs.start(deployment, CONFIG, "mine")  # another command, while this one submits
        except InputError as error:
            errors.append(str(error))
        return before(app, run)

    monkeypatch.setattr(flower, "start", slow)
    runs.start(deployment, CONFIG, "mine")
    assert submitted(flower) == ["mine"] and len(errors) == 1 and "running already" in errors[0]


def test_a_run_whose_process_is_gone_can_be_started_again(deployment: Deployment, flower: Flower) -> None:
    runs.start(deployment, CONFIG, "mine")
    update_status(
        deployment.run_directory("mine"), state="running", pid=os.getpid(), round=2
    )  # the number is somebody else's by now
    runs.start(deployment, CONFIG, "mine")
    assert submitted(flower) == ["mine", "mine"] and flower.runs[1] == "finished:stopped"
    flower.runs[2] = "finished:failed"  # before it could say anything
    runs.start(deployment, CONFIG, "mine")
    assert read_status(deployment.run_directory("mine"))["flower"] == 3


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"method": "fedavg", "rounds": 2}, "was started with method = 'ditto', got 'fedavg'"),
        ({"rounds": 2}, "was started with rounds = 3, got 2"),
        ({"set": {"lr": 0.2}}, r"was started with set = \{'lr': 0.1, 'sizes': \(1, 2\)\}, got \{'lr': 0.2\}"),
    ],
)
def test_a_run_resumes_only_with_the_same_settings(
    other: dict[str, Any], sentence: str, deployment: Deployment, flower: Flower
) -> None:
    runs.start(deployment, CONFIG, "mine")
    runs.stop(deployment, "mine")
    values = {"method": "ditto", "rounds": 3, "data": "deployment", "set": CONFIG.set} | other
    with pytest.raises(InputError, match=f"the run mine {sentence}: resume it with --method ditto --config"):
        runs.start(deployment, RunSettings(**values), "mine")
    assert submitted(flower) == ["mine"] and read_status(deployment.run_directory("mine"))["state"] == "stopped"
    runs.start(deployment, CONFIG, "mine")
    assert submitted(flower) == ["mine", "mine"]


def test_a_run_that_is_done_is_not_started_again(deployment: Deployment, flower: Flower) -> None:
    runs.start(deployment, CONFIG, "mine")
    update_status(deployment.run_directory("mine"), state="done")
    with pytest.raises(
        InputError, match=r"the run mine is done: fetch it with bespoke deploy fetch --run mine, or choose another name"
    ):
        runs.start(deployment, CONFIG, "mine")
    assert submitted(flower) == ["mine"]


def test_a_run_is_not_lost_if_the_superlink_ends_while_it_starts_it(
    deployment: Deployment, flower: Flower, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether the SuperLink has started it is unknown: its app may report, or else the server submits it again."""
    begin = flower.start

    def die(app: Path, run: str) -> int:
        raise adapter.UnconfirmedError("the server ended.")

    monkeypatch.setattr(flower, "start", die)
    assert runs.start(deployment, CONFIG, "mine") == "mine"
    assert "ended while it started the run mine: the run begins when the server is back" in caplog.text
    where = deployment.run_directory("mine")
    assert read_status(where)["state"] == "submitted" and (where / "config.toml").exists()
    monkeypatch.setattr(flower, "start", begin)
    monkeypatch.setattr(supervisor, "RESUBMIT_DELAY", 1000.0)
    supervisor._resume_killed(deployment, {})
    assert submitted(flower) == []  # its app may still come
    monkeypatch.setattr(supervisor, "RESUBMIT_DELAY", 0.0)
    supervisor._fail_unstarted(deployment)
    supervisor._resume_killed(deployment, {})
    assert submitted(flower) == ["mine"]
    supervisor._resume_killed(deployment, {})
    assert submitted(flower) == ["mine"] and read_status(where)["state"] == "submitted"


def test_a_clock_that_is_set_back_delays_nothing(deployment: Deployment, flower: Flower) -> None:
    runs.start(deployment, CONFIG, "mine")
    flower.runs[1] = "finished:failed"
    supervisor._fail_unstarted(deployment)
    assert submitted(flower) == ["mine"]  # just now
    update_status(deployment.run_directory("mine"), time=time.time() + 9000)
    supervisor._fail_unstarted(deployment)
    assert submitted(flower) == ["mine", "mine"]


def test_a_run_that_is_unconfirmed_can_be_stopped(
    deployment: Deployment, flower: Flower, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(app: Path, run: str) -> int:
        raise adapter.UnconfirmedError("the server ended.")

    monkeypatch.setattr(flower, "start", die)
    runs.start(deployment, CONFIG, "mine")
    runs.stop(deployment, "mine")
    supervisor._resume_killed(deployment, {}, (runs.SUBMITTED, *runs.UNFINISHED))
    assert read_status(deployment.run_directory("mine"))["state"] == "stopped"


@pytest.mark.parametrize(
    ("error", "known"), [(httpx.ConnectError("refused"), True), (httpx.RemoteProtocolError("closed"), False)]
)
def test_whether_a_request_was_received(error: Exception, known: bool, deployment: Deployment) -> None:
    """A refused connection has carried nothing; one that ended before the response may have."""

    def fail(request: Any) -> None:
        raise error

    supervisor.write_app(deployment.server / "app")
    control = adapter.Control(SimpleNamespace(StartRun=fail))  # type: ignore[arg-type]
    with pytest.raises(httpx.ConnectError if known else adapter.UnconfirmedError):
        control.start(deployment.server / "app", "mine")


# -- stop


def test_a_stopped_run_stays_stopped(deployment: Deployment, flower: Flower) -> None:
    """Its process writes that it is running until it ends, and stop returns then."""
    runs.start(deployment, CONFIG, "mine")
    where = deployment.run_directory("mine")
    with app(deployment, "mine") as process:
        runs.stop(deployment, "mine")
        assert not runs.is_locked(where)
        assert read_status(where)["state"] == "stopped" and read_status(where)["round"] == 3
        process.join(30)
    supervisor._resume_killed(deployment, {})
    assert submitted(flower) == ["mine"] and read_status(where)["state"] == "stopped"
    runs.start(deployment, CONFIG, "mine")
    assert submitted(flower) == ["mine", "mine"] and not runs.stop_requested(where)


def test_a_run_that_is_to_stop_is_not_resumed(deployment: Deployment, flower: Flower) -> None:
    """Its process has ended, and the status does not say yet that it is stopped."""
    runs.start(deployment, CONFIG, "mine")
    update_status(deployment.run_directory("mine"), state="running", pid=1)
    runs.request_stop(deployment.run_directory("mine"))
    supervisor._resume_killed(deployment, {})
    assert submitted(flower) == ["mine"]


def test_a_process_that_ignores_the_stop_request_is_killed(
    deployment: Deployment, flower: Flower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "END_TIMEOUT", 5.0)
    runs.start(deployment, CONFIG, "mine")
    where = deployment.run_directory("mine")
    code = (
        "import sys, time, pathlib; from bespokefl.workflows.deploy.runs import try_lock\n"
        "with try_lock(pathlib.Path(sys.argv[1]), record_pid=True): print(flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(where)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        update_status(where, state="running", pid=process.pid)
        assert runs.locking_pid(where) == process.pid
        monkeypatch.setattr(runs, "END_TIMEOUT", 1.0)
        runs.stop(deployment, "mine")
        assert process.wait(30) < 0
    assert read_status(where)["state"] == "stopped" and runs.locking_pid(where) is None


def test_a_run_can_be_stopped_while_the_server_is_away(deployment: Deployment, flower: Flower) -> None:
    """It does not resume when the server restarts."""
    runs.start(deployment, CONFIG, "mine")
    update_status(deployment.run_directory("mine"), state="running", pid=1)
    flower.away = True
    runs.stop(deployment, "mine")
    flower.away = False
    supervisor._resume_killed(deployment, {}, (runs.SUBMITTED, *runs.UNFINISHED))
    assert submitted(flower) == ["mine"] and read_status(deployment.run_directory("mine"))["state"] == "stopped"


def test_runs_that_cannot_be_stopped(deployment: Deployment, flower: Flower) -> None:
    for state, sentence in (("done", "is done already"), ("submitted", "never reached the server")):
        deployment.run_directory(state).mkdir(parents=True)
        update_status(deployment.run_directory(state), state=state)
        with pytest.raises(InputError, match=f"the run {state} {sentence}"):
            runs.stop(deployment, state)
    with pytest.raises(InputError, match="unknown run 'nobody'"):
        runs.stop(deployment, "nobody")


def test_a_run_that_was_done_first(deployment: Deployment, flower: Flower, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.start(deployment, CONFIG, "mine")
    where = deployment.run_directory("mine")
    monkeypatch.setattr(flower, "stop", lambda number: update_status(where, state="done"))
    with pytest.raises(InputError, match="the run mine was done before it could be stopped"):
        runs.stop(deployment, "mine")
    assert read_status(where)["state"] == "done" and not runs.stop_requested(where)


# -- fetch


def test_a_result_is_fetched_and_replaced_when_asked_to(deployment: Deployment, tmp_path: Path) -> None:
    for name in ("one", "two"):
        result = deployment.run_directory(name) / RESULT
        result.mkdir(parents=True)
        for file in ("config.toml", "result.json"):
            (result / file).write_text(name)
        update_status(deployment.run_directory(name), state="done")
    out = tmp_path / "out"
    runs.fetch(deployment, "one", out)
    with pytest.raises(InputError, match="already holds a run"):
        runs.fetch(deployment, "two", out)
    assert (out / "result.json").read_text() == "one"
    runs.fetch(deployment, "two", out, overwrite=True)
    assert (out / "result.json").read_text() == "two"
    for error in ("no node came.", "no node came"):
        update_status(deployment.run_directory("two"), state="failed", error=error)
        with pytest.raises(InputError, match=r"the run two is not done but failed: no node came\.$"):
            runs.fetch(deployment, "two", out, overwrite=True)


# -- the server


def test_a_run_whose_process_died_resumes(deployment: Deployment, flower: Flower) -> None:
    """The previous Flower run is stopped first: nodes may have incomplete messages of it."""
    runs.start(deployment, CONFIG, "mine")
    with app(deployment, "mine"):
        supervisor._resume_killed(deployment, {})
        assert submitted(flower) == ["mine"]
    runs.withdraw_stop_request(deployment.run_directory("mine"))
    supervisor._resume_killed(deployment, {})
    assert flower.runs == {1: "finished:stopped", 2: "pending"} and submitted(flower) == ["mine", "mine"]
    assert read_status(deployment.run_directory("mine"))["round"] == 3


def test_a_server_that_comes_up_starts_what_was_only_submitted(deployment: Deployment, flower: Flower) -> None:
    runs.start(deployment, CONFIG, "mine")
    supervisor._resume_killed(deployment, {})
    assert submitted(flower) == ["mine"]  # it is on its way
    supervisor._resume_killed(deployment, {}, (runs.SUBMITTED, *runs.UNFINISHED))
    assert flower.runs == {1: "finished:stopped", 2: "pending"}


def test_it_does_so_before_anything_else(
    deployment: Deployment, flower: Flower, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.start(deployment, CONFIG, "mine")
    run_server_once(deployment, monkeypatch)
    assert flower.runs == {1: "finished:stopped", 2: "pending"}


def test_a_server_replaces_the_app_of_an_earlier_version(
    deployment: Deployment, flower: Flower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a run of before could not be resumed: the earlier app imports modules that do not exist any more."""
    file = deployment.server / "app" / "bespoke_app.py"
    file.write_text("from bespokefl.experiments.deployment.apps import client, server\n")
    runs.start(deployment, CONFIG, "mine")
    seen: list[str] = []
    before = flower.start
    monkeypatch.setattr(flower, "start", lambda app, run: seen.append(file.read_text()) or before(app, run))
    run_server_once(deployment, monkeypatch)
    assert seen == [(initialization.TEMPLATES / "bespoke_app.py.txt").read_text(encoding="utf-8")]
    names: dict[str, Any] = {}
    exec(seen[0], names)
    assert {"client", "server"} <= names.keys()


def run_server_once(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the server without Flower's processes, for one check of its runs."""
    for name in ("_check_server", "_wait_until_up", "_register_nodes"):
        monkeypatch.setattr(supervisor, name, lambda *_: None)
    for name in ("start", "stop"):
        monkeypatch.setattr(processes.Child, name, lambda self: None)
    stopped = threading.Event()
    stopped.set()
    supervisor.run_server(deployment, stopped)


def test_a_run_whose_process_never_started_is_marked_as_failed(
    deployment: Deployment, flower: Flower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "RESUBMIT_DELAY", 0.0)
    runs.start(deployment, CONFIG, "mine")
    supervisor._fail_unstarted(deployment)
    assert read_status(deployment.run_directory("mine"))["state"] == "submitted"
    for attempt in (1, 2, 3):  # it may have been killed: twice it is tried again
        assert read_status(deployment.run_directory("mine"))["state"] == "submitted"
        flower.runs[attempt] = "finished:failed"
        supervisor._fail_unstarted(deployment)
    assert submitted(flower) == ["mine"] * 3
    assert read_status(deployment.run_directory("mine"))["state"] == "failed"
    assert "ended 3 times before the run started" in read_status(deployment.run_directory("mine"))["error"]


def test_runs_are_listed_while_the_server_is_down(deployment: Deployment) -> None:
    """No server listens there."""
    deployment.run_directory("mine").mkdir(parents=True)
    update_status(deployment.run_directory("mine"), state="running", round=2)
    assert runs.list_nodes(deployment) == {
        "the server": "does not respond: start it with bespoke deploy server",
        "a": "unknown",
        "b": "unknown",
    }
    assert runs.list_runs(deployment)["mine"]["round"] == 2


# -- the server's app


class Nobody:
    """A grid without nodes."""

    def get_nodes(self) -> list[Any]:
        return []


Serve = Callable[[], dict[str, Any]]


@pytest.fixture
def served(deployment: Deployment, flower: Flower, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Start the app of a run; returns the status afterwards."""
    monkeypatch.setenv(DEPLOYMENT_VARIABLE, str(deployment.root))
    runs.start(deployment, CONFIG, "mine")

    def start() -> dict[str, Any]:
        serve.serve(Nobody(), "mine")  # type: ignore[arg-type]
        return read_status(deployment.run_directory("mine"))

    return start


def test_two_apps_never_work_on_one_run(served: Serve, deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "LOCK_TIMEOUT", 0.1)
    monkeypatch.setattr(serve, "_serve", lambda *_: pytest.fail("two at once"))
    with app(deployment, "mine"):
        assert served()["state"] == "running"


def test_an_app_waits_until_the_command_that_started_it_is_over(
    served: Serve, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "_serve", lambda grid, deployment, place: update_status(place, state="done"))
    held = threading.Event()

    def command() -> None:
        with runs.try_lock(deployment.run_directory("mine")):
            held.set()
            time.sleep(0.3)
            update_status(deployment.run_directory("mine"), flower=7)

    threading.Thread(target=command).start()
    assert held.wait(30)
    assert served() | {"state": "done", "flower": 7} == read_status(deployment.run_directory("mine"))


def test_an_app_that_is_asked_to_stop_does(
    served: Serve, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = deployment.run_directory("mine")

    def run(messenger: NodeMessenger, *_: Any, strict: bool) -> None:
        runs.request_stop(where)
        messenger.gather(lambda known: False)  # would take ten minutes

    monkeypatch.setattr(serve, "run", run)
    assert served()["state"] == "stopped"
    assert served()["state"] == "stopped"  # and one that is started late does not begin


def test_the_status_keeps_the_round_while_nodes_are_gathered_again(
    served: Serve, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = deployment.run_directory("mine")
    seen: list[dict[str, Any]] = []

    def run(*_: Any, strict: bool) -> None:
        seen.append(read_status(where))
        raise InputError("no more of this.")

    monkeypatch.setattr(serve, "run", run)
    for round in (0, 2):
        with pytest.raises(InputError):
            served()
        assert (seen[-1]["state"], seen[-1]["round"], seen[-1]["pid"]) == ("gathering", round, os.getpid())
        update_status(where, round=2)


# -- the SuperLink


class Control:
    """An administrator's connection to a SuperLink that responds once there is a file."""

    def __init__(self, ready: Path) -> None:
        self.ready = ready

    def nodes(self) -> dict[str, str]:
        if not self.ready.exists():
            raise TrainingError("the server does not respond.")
        return {}


@pytest.mark.parametrize("killed", [True, False])
def test_a_superlink_that_ends_while_it_starts(
    killed: bool, deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it was killed, it is started again; if it ended by itself, its log says why, and the server ends."""
    first, ready = tmp_path / "first", tmp_path / "ready"
    end = "os.kill(os.getpid(), 9)" if killed else "sys.exit(1)"
    code = (
        "import os, sys, time, pathlib; first, ready = map(pathlib.Path, sys.argv[1:])\n"
        f"if not first.exists(): first.touch(); {end}\n"
        "ready.touch(); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(first), str(ready)]
    link = processes.Child("the SuperLink", command, {}, tmp_path / "log")

    @contextmanager
    def connected(*_: object) -> Iterator[Control]:
        yield Control(ready)

    monkeypatch.setattr(adapter, "connect_control", connected)
    monkeypatch.setattr(supervisor, "_register_nodes", lambda deployment: None)
    monkeypatch.setattr(supervisor, "POLL", 0.05)
    link.start()
    try:
        if killed:
            supervisor._bring_up(deployment, link, threading.Event())
            assert link.process is not None and link.process.poll() is None
        else:
            with pytest.raises(TrainingError, match="the SuperLink did not start; see"):
                supervisor._bring_up(deployment, link, threading.Event())
    finally:
        link.stop()
