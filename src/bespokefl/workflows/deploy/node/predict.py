"""A client's own model, used where it is: at the node that keeps it."""

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
    """Whose model it is, and what it says about the examples of a file.

    state   the folder in which the node keeps what it has of each run
    client  None: the only one that the node has
    run     None: the one whose models were kept last
    """
    place = _place(state, run)
    about = json.loads(read_about(place / PERSONAL))
    names = tuple(map(str, about["clients"]))
    if client is None and len(names) > 1:
        raise InputError(f"this node has {len(names)} clients: name one, as in --client {names[0]}.")
    name = names[0] if client is None else client
    if name not in names:
        raise no_client(name, names)
    model = SavedModels(place).module(names.index(name))
    kept = about[HOME]
    preparation = None if kept["preparation"] is None else Preparation.from_json(kept["preparation"])
    return name, by_model(model, name, data, kept["examples"], preparation)


def _place(state: Path, run: str | None) -> Path:
    found = {path.parent.name: path.stat().st_mtime for path in state.glob(f"*/{PERSONAL}")}
    if not found:
        raise InputError(f"there is no model in {str(state)!r} yet: a node has its clients' models when a run is done.")
    if run is not None and check_run(run) not in found:
        raise unknown("run", run, found)
    return state / (run or max(found, key=lambda name: found[name]))
