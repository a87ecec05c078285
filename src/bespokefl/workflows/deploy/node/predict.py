"""Predictions of a client's own model, at the node that keeps it."""

import json
from os import PathLike
from pathlib import Path

from bespokefl.core.errors import InputError, unknown
from bespokefl.data.preprocessing.transform import Preparation
from bespokefl.engines.transports.flower.run_names import check_run
from bespokefl.workflows.newcomers.predict import Predictions, by_model
from bespokefl.workflows.results.models import HOME, PERSONAL, SavedModels, no_client, read_about


def predict(
    state: Path, data: str | PathLike[str], *, client: str | None = None, run: str | None = None
) -> tuple[str, Predictions]:
    """Predict the labels of the examples in a file; return the client and its model's predictions.

    state   the directory in which the node keeps clients' states and models
    client  whose model to use; None: that of the node's only client
    run     the run that trained the model; None: the one whose models were written last
    """
    directory = _run_directory(state, run)
    about = json.loads(read_about(directory / PERSONAL))
    names = tuple(map(str, about["clients"]))
    if client is None and len(names) > 1:
        raise InputError(f"this node has {len(names)} clients: name one, as in --client {names[0]}.")
    name = names[0] if client is None else client
    if name not in names:
        raise no_client(name, names)
    model = SavedModels(directory).module(names.index(name))
    home = about[HOME]
    preparation = None if home["preparation"] is None else Preparation.from_json(home["preparation"])
    return name, by_model(model, name, data, home["examples"], preparation)


def _run_directory(state: Path, run: str | None) -> Path:
    written = {path.parent.name: path.stat().st_mtime for path in state.glob(f"*/{PERSONAL}")}
    if not written:
        raise InputError(f"there is no model in {str(state)!r} yet: a node has its clients' models when a run is done.")
    if run is not None and check_run(run) not in written:
        raise unknown("run", run, written)
    return state / (run or max(written, key=lambda name: written[name]))
