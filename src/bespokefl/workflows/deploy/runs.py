"""The runs of a deployment: started, stopped, looked at and fetched, on the server's machine."""

import shlex
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from bespokefl.core.errors import InputError, TrainingError, unknown
from bespokefl.core.files import write_text
from bespokefl.workflows.deploy.layout import Deployment
from bespokefl.workflows.deploy.lock import alone, ask_to_stop, let_go_on, worker_of
from bespokefl.workflows.deploy.processes import END, kill
from bespokefl.workflows.deploy.status import RESULT, STATUS, tell, told
from bespokefl.workflows.run import settings as configs
from bespokefl.workflows.run.settings import Config, Mark

BRIEF = 1.0  # seconds for somebody who only looks at a run to look away
SUBMITTED, UNFINISHED = "submitted", ("gathering", "running")


def start(deployment: Deployment, config: Config, name: str | None = None) -> str:
    """Start a run, or go on with one of this name that was stopped; its name."""
    from bespokefl.engines.transports.flower.control import control

    with control(deployment.local, deployment.authority) as link:
        place = _place(deployment, config, name)
        with alone(place, BRIEF) as mine:
            if not mine or waits(link, told(place)):
                raise InputError(f"the run {place.name} is under way already; see bespoke deploy status.")
            new = not told(place)
            if not new:
                _refuse_another(place, config)
            try:
                if new:
                    write_text(place / "config.toml", config.to_toml({"data": "The data stay at the nodes."}))
                submit(link, deployment, place)
            except BaseException:
                if new:
                    shutil.rmtree(place, ignore_errors=True)
                raise
            let_go_on(place)
    return place.name


def stop(deployment: Deployment, name: str) -> None:
    """Stop a run, and return when nobody works on it any more; the round in hand is lost, and it can go on later."""
    from bespokefl.engines.transports.flower.control import control

    place = deployment.run(name)
    news = told(place)
    if not news:
        raise unknown("run", name, known(deployment))
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
        kill(worker_of(place))
    raise TrainingError(f"the process {worker_of(place) or ''} of run {name} does not end; end it, then stop it again.")


def known(deployment: Deployment) -> dict[str, dict[str, Any]]:
    """What is known of every run, the latest last."""
    found = {path.name: told(path) for path in (deployment.server / "runs").glob("*") if (path / STATUS).is_file()}
    return dict(sorted(found.items(), key=lambda item: item[1].get("time", 0)))


def last(deployment: Deployment) -> str:
    """The run that there was news of last."""
    found = list(known(deployment))
    if not found:
        raise InputError(f"there is no run in {str(deployment.root)!r} yet; start one with bespoke deploy start.")
    return found[-1]


def present(deployment: Deployment) -> dict[str, str]:
    """Every node that may come, and whether it is there."""
    from bespokefl.engines.transports.flower.control import control

    try:
        with control(deployment.local, deployment.authority) as link:
            there = {one.name: one.status for one in link.nodes()}
    except TrainingError:
        away = {"the server": "does not answer: start it with bespoke deploy server"}
        return away | dict.fromkeys(deployment.nodes, "unknown")
    return {name: there.get(name, "unknown") for name in sorted({*deployment.nodes, *there})}


def fetch(deployment: Deployment, name: str, out: Path, overwrite: bool = False) -> None:
    """A copy of a finished run's result."""
    from bespokefl.workflows.results import run_directory

    place = deployment.run(name)
    news = told(place)
    if not news:
        raise unknown("run", name, known(deployment))
    if news["state"] != "done":
        reason = str(news.get("error") or "wait for it").rstrip(".")
        raise InputError(f"the run {name} is not done but {news['state']}: {reason}.")

    def copy(into: Path) -> None:
        shutil.copytree(place / RESULT, into, dirs_exist_ok=True)

    run_directory.write(out, copy, overwrite)


def submit(link: Any, deployment: Deployment, place: Path) -> None:
    """Hand a run to Flower; whoever does so works on it alone."""
    before = told(place).get("flower")
    if before is not None:
        with suppress(TrainingError):  # it is over already
            link.stop(int(before))  # else nodes would wait for letters of an app that was killed while it wrote them
    number = link.start(deployment.server / "app", place.name)
    tell(place, state=SUBMITTED, flower=number, pid=None, error="")


def waits(link: Any, news: Mapping[str, Any]) -> bool:
    """Whether a run was handed to Flower, which has not started it yet."""
    if news.get("state") != SUBMITTED or "flower" not in news:
        return False
    return str(link.status(int(news["flower"]))).partition(":")[0] in ("pending", "starting", "running")


def _place(deployment: Deployment, config: Config, name: str | None) -> Path:
    """The folder of a run, which is there then."""
    from bespokefl.workflows.results import run_directory

    if name is not None:
        deployment.run(name).mkdir(parents=True, exist_ok=True)
        return deployment.run(name)
    while True:
        place = run_directory.fresh(deployment.server / "runs", config.method)
        with suppress(FileExistsError):  # another command may be quicker
            place.mkdir(parents=True)
            return place


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
        if Mark.WRITING not in one.metadata["marks"] and before != now:
            raise InputError(
                f"the run {place.name} began with {one.name} = {before!r}, got {now!r}: go on with "
                f"--method {begun.method} --config {shlex.quote(str(file))}, or choose another name."
            )
