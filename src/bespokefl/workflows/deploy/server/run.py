"""One run of a deployment, in the server app: it gathers the nodes, trains, and writes the result."""

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from bespokefl import methods, trackers
from bespokefl.core.callback import RunInfo
from bespokefl.core.errors import (
    COMMAND_LINE,
    BespokeError,
    InputError,
    StoppedError,
    count,
    listing,
    settings_written_in,
)
from bespokefl.core.method import Method
from bespokefl.engines.callbacks import Callbacks
from bespokefl.engines.outcome import Outcome, Progress
from bespokefl.engines.storage.checkpoints import CheckpointInterval, Checkpoints
from bespokefl.engines.transports.flower.messenger import Grid, NodeInfo, NodeMessenger
from bespokefl.engines.transports.flower.run_plan import fingerprint
from bespokefl.engines.transports.flower.server import Server
from bespokefl.workflows.deploy.layout import DEPLOYMENT_VARIABLE, Deployment
from bespokefl.workflows.deploy.runs import RESULT, read_status, stop_requested, try_lock, update_status
from bespokefl.workflows.deploy.shared_features import agree_on_features, incompatible
from bespokefl.workflows.results import run_directory
from bespokefl.workflows.results.models import BLUEPRINT, START, InMemoryModels, write_blueprint, write_state
from bespokefl.workflows.results.result import Result
from bespokefl.workflows.results.summary import summarize_run
from bespokefl.workflows.run import initial_weights as starts
from bespokefl.workflows.run import settings as configs
from bespokefl.workflows.run.convert import check_keep_rounds, engine_settings, make_result
from bespokefl.workflows.run.settings import RunSettings
from bespokefl.workflows.run.task_builder import TaskSpec

log = logging.getLogger("bespokefl")

LOG = "log.txt"
LOCK_TIMEOUT = 30.0  # seconds for the command that started the run, or for a previous app, to release its lock


class RemoteModels(InMemoryModels):
    """The models of a deployment: the server has the global model only."""

    def write(self, folder: Path, names: tuple[str, ...], file: str = "") -> None:
        write_blueprint(self.recipe.blueprint, folder / BLUEPRINT)
        self.write_global(folder)


def serve(grid: Grid, name: str) -> None:
    """Execute the run of this name, from the start or from its last checkpoint; the server app calls this."""
    deployment = Deployment.at(Path(os.environ[DEPLOYMENT_VARIABLE]))
    directory = deployment.run_directory(name)
    with try_lock(directory, LOCK_TIMEOUT, record_pid=True) as acquired:
        if not acquired:
            log.warning("another process works on the run %s already; this one ends", name)
        elif read_status(directory).get("state") != "done":  # otherwise it was started twice
            with settings_written_in(COMMAND_LINE):
                _serve(grid, deployment, directory)


def _serve(grid: Grid, deployment: Deployment, directory: Path) -> None:
    handler = logging.FileHandler(directory / LOG, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    torch.set_num_threads(1)
    try:
        config = RunSettings.of(configs.read(directory / "config.toml"))
        done = read_status(directory).get("round", 0)
        update_status(directory, state="gathering", pid=os.getpid(), round=done, rounds=config.rounds, error="")
        messenger = NodeMessenger(grid, deployment.settings, stopped=lambda: stop_requested(directory))
        result = run(messenger, config, directory, set(deployment.node_keys), strict=deployment.settings.strict)
        result.save(directory / RESULT, overwrite=True)
        update_status(directory, state="done")
    except StoppedError:
        log.warning("the run was stopped")
        update_status(directory, state="stopped")
    except Exception as error:
        if not isinstance(error, BespokeError):
            log.exception("the run failed")
        sentence = str(error) if isinstance(error, BespokeError) else f"{type(error).__name__}: {error}"
        update_status(directory, state="failed", error=sentence)
        raise
    finally:
        log.removeHandler(handler)
        handler.close()


def run(
    messenger: NodeMessenger, config: RunSettings, directory: Path, expected: set[str], *, strict: bool = True
) -> Result:
    """Wait for the expected nodes, train, and return what the server knows of the result.

    A node that cannot take part ends a strict run. Otherwise it is left out.
    """
    watching = trackers.of(config.log)  # report mistakes before nodes train
    messenger.hello = {"missing": config.missing}
    _gather(messenger, directory, expected, strict)
    preparation, labels = agree_on_features(messenger.known, config)
    left_out = dict(messenger.left_out)
    method = methods.build(config.method, dict(config.set))
    classes = None if labels is None else len(labels)
    spec = TaskSpec.of(config, shape=preparation.shape, classes=classes, tokens=preparation.tokens)
    start = None if config.start is None else starts.read(config.start)
    task = spec.build(start)
    settings = engine_settings(config, warm=config.start is not None)
    recipe = {
        name: getattr(config, name) for name in ("method", "model", "head", "local_blocks", "precision", "missing")
    } | {
        "hyper": {name: value for name, value in method.hyper().items() if value is not None},
        "loss": str(spec.objective),
        "labels": labels,
        "preparation": preparation.to_json(),
    }
    server = Server(method, task, settings, messenger, directory.name, recipe)
    check_keep_rounds(config, server.method, server.server)
    identity = {"config": config.to_toml(), "clients": list(server.data.names), "model": fingerprint(task, warm=False)}
    checkpoints = Checkpoints(directory / run_directory.CHECKPOINTS, CheckpointInterval(rounds=1), identity)

    def report(progress: Progress) -> None:
        scores = {"scores": progress.scores} if progress.scores else {}  # the latest stay
        update_status(directory, state="running", round=progress.done, rounds=progress.total, **scores)

    update_status(directory, state="running", clients=len(server.data))
    started = time.perf_counter()
    outcome = server.run(report, checkpoints, Callbacks(watching, RunInfo(directory.name, asdict(config), directory)))
    timing = {"seconds": time.perf_counter() - started, **asdict(outcome.executor), "workers": outcome.workers}
    examples = {"shape": preparation.shape, "tokens": preparation.tokens is not None, "labels": labels}
    return make_result(
        config,
        method,
        outcome,
        server.data,
        server.data,
        about=_about(config, method, server, outcome, timing, examples) | _left_out(left_out),
        models=RemoteModels(spec.recipe(task), task.start, outcome.global_rows),
        spec=spec,
        task=task,
        preparation=preparation,
        write_rest=None if start is None else lambda into: write_state(start, into / START),
        comments={"data": "The data stayed at the nodes of a deployment."},
    )


def _gather(messenger: NodeMessenger, directory: Path, expected: set[str], strict: bool) -> None:
    """Wait for the expected nodes, and name those that are not connected yet in the run's status.

    Raises InputError if there are none, or if one of a strict run cannot take part.
    """
    noted: list[str] | None = None

    def is_complete(known: Mapping[str, NodeInfo]) -> bool:
        nonlocal noted
        without = messenger.left_out.keys() | (set() if strict else messenger.unable.keys())
        absent = sorted(expected - known.keys() - without)
        if absent != noted:
            noted = absent
            update_status(directory, waiting_for=absent)
        return bool(known) and not absent

    messenger.gather(is_complete, strict=strict)
    if messenger.unable and strict:
        reasons = [f"{name}: {reason.rstrip('.')}" for name, reason in sorted(messenger.unable.items())]
        raise InputError(f"{count(len(reasons), 'node')} cannot take part: {'; '.join(reasons)}.")
    if not strict:
        messenger.leave_out(messenger.unable | incompatible(messenger.known))
    if not messenger.known:
        raise InputError(
            f"no node connected within {messenger.timeouts.gather:g} seconds; start them with bespoke deploy node."
        )
    absent = sorted(expected - messenger.known.keys() - messenger.left_out.keys())
    if absent:
        log.warning("the run starts without nodes %s", listing(absent))


def _left_out(reasons: dict[str, str]) -> dict[str, Any]:
    """The nodes that were left out, and why, as an entry of the result; none if there are none."""
    return {"left_out": dict(sorted(reasons.items()))} if reasons else {}


def _about(
    config: RunSettings,
    method: Method,
    server: Server,
    outcome: Outcome,
    timing: dict[str, Any],
    examples: dict[str, Any],
) -> dict[str, Any]:
    nodes = count(len(server.clients_by_node), "node")
    notes = [f"Clients' own models are at {nodes}, in personal.safetensors in the run's directory."]
    if outcome.unscored:
        notes.append(f"Clients whose last models could not be scored: {listing(outcome.unscored)}.")
    origin = {"data": config.data, "split": nodes, "split_hash": "", "split_seed": 0, "examples": examples}
    found = summarize_run(
        config,
        method,
        outcome,
        origin=origin,
        names=server.data.names,
        notes=notes,
        timing=timing,
        packages=("bespokefl", "torch", "numpy", "flwr"),
    )
    return found | {"nodes": server.clients_by_node}
