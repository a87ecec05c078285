"""A run of a deployment, as the server sees it: who is there, what is trained, what is written."""

import logging
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from bespokefl import methods
from bespokefl.core.errors import BespokeError, InputError, count, listing
from bespokefl.core.method import Method
from bespokefl.data.preprocessing.transform import Preparation
from bespokefl.engines.outcome import Outcome
from bespokefl.engines.progress import Progress
from bespokefl.engines.storage.checkpoints import CheckpointInterval, Checkpoints
from bespokefl.engines.transports.flower.messenger import Grid, NodeMessenger, StoppedError
from bespokefl.engines.transports.flower.run_plan import fingerprint
from bespokefl.engines.transports.flower.server import Server
from bespokefl.workflows.deploy.layout import PLACE, Deployment
from bespokefl.workflows.deploy.lock import alone, asked_to_stop
from bespokefl.workflows.deploy.shared_features import agreed
from bespokefl.workflows.deploy.status import RESULT, tell, told
from bespokefl.workflows.results import run_directory as folder
from bespokefl.workflows.results.models import (
    BLUEPRINT,
    START,
    InMemoryModels,
    write_blueprint,
    write_state,
)
from bespokefl.workflows.results.result import Result
from bespokefl.workflows.results.summary import summarize_run
from bespokefl.workflows.run import initial_weights as starts
from bespokefl.workflows.run import settings as configs
from bespokefl.workflows.run.convert import engine_settings
from bespokefl.workflows.run.packaging import make_result
from bespokefl.workflows.run.settings import Config
from bespokefl.workflows.run.task_builder import TaskSpec

log = logging.getLogger("bespokefl")

LOG = "log.txt"
HANDOVER = 30.0  # seconds to wait for whoever works on the run: the command that started it, or an app that ends


class RemoteModels(InMemoryModels):
    """The models of a deployment: the common one is here, everybody's own is at home."""

    def write(self, folder: Path, names: tuple[str, ...], file: str = "") -> None:
        write_blueprint(self.recipe.blueprint, folder / BLUEPRINT)
        self.write_global(folder)


def serve(grid: Grid, name: str) -> None:
    """What the server's app does: the run of this name, from its beginning or its last checkpoint."""
    deployment = Deployment.at(Path(os.environ[PLACE]))
    place = deployment.run(name)
    with alone(place, HANDOVER, sign=True) as mine:
        if not mine:
            log.warning("another process works on the run %s already; this one ends", name)
        elif told(place).get("state") != "done":  # else it was started twice
            _serve(grid, deployment, place)


def _serve(grid: Grid, deployment: Deployment, place: Path) -> None:
    handler = logging.FileHandler(place / LOG, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    torch.set_num_threads(1)
    try:
        config = Config.of(configs.read(place / "config.toml"))
        done = told(place).get("round", 0)
        tell(place, state="gathering", pid=os.getpid(), round=done, rounds=config.rounds, error="")
        post = NodeMessenger(grid, deployment.settings.patience, stopped=lambda: asked_to_stop(place))
        result = run(post, config, place, set(deployment.nodes))
        result.save(place / RESULT, overwrite=True)
        tell(place, state="done")
    except StoppedError:
        log.warning("the run was stopped")
        tell(place, state="stopped")
    except BespokeError as error:
        tell(place, state="failed", error=str(error))
        raise
    except Exception as error:
        log.exception("the run failed")
        tell(place, state="failed", error=f"{type(error).__name__}: {error}")
        raise
    finally:
        log.removeHandler(handler)
        handler.close()


def run(post: NodeMessenger, config: Config, place: Path, expected: set[str]) -> Result:
    """Gather the nodes, train, and put together what is known of it here."""
    post.gather(lambda known: bool(known) and expected <= known.keys())
    if not post.known:
        raise InputError(f"no node came within {post.timeouts.gather:g} seconds; start them with bespoke deploy node.")
    absent = sorted(expected - post.known.keys())
    if absent:
        log.warning("the run begins without nodes %s", listing(absent))
    preparation, labels = agreed(post.known, config)
    method = methods.build(config.method, dict(config.set))
    classes = None if labels is None else len(labels)
    spec = TaskSpec.of(config, shape=preparation.shape, classes=classes, tokens=preparation.tokens)
    start = None if config.start is None else starts.read(config.start)
    task = spec.build(start)
    settings = engine_settings(config, warm=config.start is not None)
    recipe = {
        "method": config.method,
        "hyper": {name: value for name, value in method.hyper().items() if value is not None},
        "model": config.model,
        "head": config.head,
        "loss": str(spec.objective),
        "precision": config.precision,
        "labels": labels,
        "preparation": preparation.to_json(),
    }
    server = Server(method, task, settings, post, place.name, recipe)
    if config.keep_rounds and method.global_model(server.server) is None:
        raise InputError(f"{config.method} has no global model to keep of every round; leave keep_rounds out.")
    identity = {"config": config.to_toml(), "clients": list(server.data.names), "model": fingerprint(task, warm=False)}
    checkpoints = Checkpoints(place / folder.CHECKPOINTS, CheckpointInterval(rounds=1), identity)

    def report(progress: Progress) -> None:
        tell(place, state="running", round=progress.done, rounds=progress.total, scores=progress.scores)

    tell(place, state="running", clients=len(server.data))
    began = time.perf_counter()
    outcome = server.run(report, checkpoints)
    seconds = time.perf_counter() - began
    return make_result(
        config,
        method,
        outcome,
        server.data,
        server.data,
        about=_about(config, method, server, outcome, seconds, preparation, labels),
        models=RemoteModels(spec.recipe(task), task.start, outcome.global_rows),
        spec=spec,
        task=task,
        preparation=preparation,
        write_rest=None if start is None else lambda into: write_state(start, into / START),
        comments={"data": "The data stayed at the nodes of a deployment."},
    )


def _about(
    config: Config,
    method: Method,
    server: Server,
    outcome: Outcome,
    seconds: float,
    preparation: Preparation,
    labels: list[str] | None,
) -> dict[str, Any]:
    nodes = count(len(server.homes), "node")
    notes = [f"Clients' own models are at {nodes}, in personal.safetensors of the run's folder."]
    if outcome.unscored:
        notes.append(f"Clients whose last models could not be scored: {listing(outcome.unscored)}.")
    origin = {
        "data": config.data,
        "split": nodes,
        "split_hash": "",
        "split_seed": 0,
        "examples": {"shape": preparation.shape, "tokens": preparation.tokens is not None, "labels": labels},
    }
    found = summarize_run(
        config,
        method,
        outcome,
        origin=origin,
        names=server.data.names,
        notes=notes,
        timing={"seconds": seconds, **asdict(outcome.executor), "workers": outcome.workers},
        packages=("bespokefl", "torch", "numpy", "flwr"),
    )
    return found | {"nodes": server.homes}
