"""The models of a node's clients, which stay at the node: predict with them, and export them."""

import json
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl.core.errors import InputError, unknown
from bespokefl.data.preprocessing.transform import Preparation
from bespokefl.engines.transports.flower.names import check_name
from bespokefl.workflows.newcomers.predict import Predictions, by_model
from bespokefl.workflows.results.models import (
    NODE_ENTRY,
    NODE_SCORES,
    PERSONAL,
    SavedModels,
    no_client,
    read_about,
)
from bespokefl.workflows.results.result import Result
from bespokefl.workflows.results.score_tables import CONSTANT, SIZES, Scores
from bespokefl.workflows.run.settings import RunSettings


def predict(
    state: Path, data: str | PathLike[str], *, client: str | None = None, run: str | None = None
) -> tuple[str, Predictions]:
    """Predict the labels of the examples in a file; return the client and its model's predictions.

    state   the directory in which the node keeps clients' states and models
    client  whose model to use; None: that of the node's only client
    run     the run that trained the model; None: the one whose models were written last
    """
    directory, about = _read(state, run)
    names = tuple(map(str, about["clients"]))
    name = only_client(names) if client is None else client
    if name not in names:
        raise no_client(name, names)
    model, entry = SavedModels(directory).module(names.index(name)), about[NODE_ENTRY]
    return name, by_model(model, name, data, entry["examples"], _preparation(entry))


def node_result(state: Path, run: str | None = None) -> Result:
    """Return a node's part of a run as a `Result` of its own clients, from which their models can be exported.

    It has test scores, but no rounds. `state` and `run` are those of `predict`.
    """
    directory, about = _read(state, run)
    entry = about[NODE_ENTRY]
    if "run" not in entry:
        raise InputError(
            f"the models in {str(directory)!r} were written by an earlier version, without what model cards need; "
            "export them with that version, or run again."
        )
    known, scores = entry["run"], about[NODE_SCORES]
    names = tuple(map(str, about["clients"]))
    missing = "The node keeps no test scores of this run: its settings forbid them, or it has more than 1000 clients."
    return Result(
        config=RunSettings(method=known["method"], model=about["model"]),
        about={
            "method": known["method"],
            "hyper": known["hyper"],
            "data": known["data"],
            "split": "the clients of a node",
            "split_hash": "",
            "examples": entry["examples"],
            "seed": known["seed"],
            "rounds_planned": known["rounds"],
            "rounds_done": known["rounds"],
            "interrupted": False,
            "notes": [] if scores.get("personal") else [missing],
            "settings": known["settings"],
            "privacy": {"clip": known["clip"], "noise": known["noise"]} if known["noise"] else None,
            "versions": known["versions"],
            "nodes": {},  # no model is elsewhere
        },
        names=names,
        sizes={part: np.array([known["sizes"][name][at] for name in names]) for at, part in enumerate(SIZES)},
        personal=_arrays(scores, "personal"),
        global_=_arrays(scores, "global") or None,
        constant=_arrays(scores, CONSTANT) or None,
        rounds=[],
        client_rounds=[],
        weights=SavedModels(directory),
        preparation=_preparation(entry),
        path=directory,
    )


def only_client(names: tuple[str, ...]) -> str:
    """Return the name of a node's only client; raise InputError if it has several."""
    if len(names) > 1:
        raise InputError(f"this node has {len(names)} clients: name one, as in --client {names[0]}.")
    return names[0]


def _read(state: Path, run: str | None) -> tuple[Path, dict[str, Any]]:
    """Return the directory of a run at a node, and what is written with its models."""
    written = {path.parent.name: path.stat().st_mtime for path in state.glob(f"*/{PERSONAL}")}
    if not written:
        raise InputError(f"there is no model in {str(state)!r} yet: a node has its clients' models when a run is done.")
    if run is not None and check_name(run, "a run") not in written:
        raise unknown("run", run, written)
    directory = state / (run or max(written, key=lambda name: written[name]))
    return directory, json.loads(read_about(directory / PERSONAL))


def _preparation(entry: dict[str, Any]) -> Preparation | None:
    return None if entry["preparation"] is None else Preparation.from_json(entry["preparation"])


def _arrays(scores: dict[str, dict[str, list[float]]], kind: str) -> Scores:
    return {name: np.array(values) for name, values in scores.get(kind, {}).items()}
