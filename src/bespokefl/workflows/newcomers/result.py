"""Models and scores of clients that joined after training, in memory and on disk.

newcomers.json          figures over all newcomers, and the run they joined
newcomers.csv           one line per newcomer: sizes, scores of its personal model and of plain fine-tuning
newcomers.safetensors   their personal models
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from bespokefl.core.errors import InputError, count
from bespokefl.data.preprocessing.transform import Preparation
from bespokefl.models import Model
from bespokefl.workflows.newcomers.trainer import NEWCOMER_MODELS
from bespokefl.workflows.results import models, run_directory, score_tables
from bespokefl.workflows.results.models import NEWCOMERS, START, InMemoryModels, SavedModels
from bespokefl.workflows.results.score_tables import Scores, Sizes

ABOUT, TABLE = "newcomers.json", "newcomers.csv"
PREPARATION = "preparation.json"
MARKERS, KIND = (ABOUT, TABLE, NEWCOMERS), "newcomers' models"


@dataclass(kw_only=True, eq=False, repr=False)
class Newcomers:
    """Personal models of newcomers, compared with plain fine-tuning. Arrays are in the order of `names`."""

    about: dict[str, Any]  # how their models were trained
    origin: Mapping[str, Any]  # the run that they joined
    names: tuple[str, ...]
    sizes: Sizes  # numbers of "train", "validation" and "test" examples
    personal: Scores  # of the models trained by the method's own rule
    finetune: Scores  # of the fine-tuned global model, or the initial model if the method has no global one
    weights: InMemoryModels | SavedModels
    preparation: Preparation | None = None  # how examples are scaled and encoded; None if they are used unchanged
    path: Path | None = None  # directory that they were saved to

    @property
    def notes(self) -> list[str]:
        """Remarks on the figures, one sentence each."""
        return list(self.about["notes"])

    @property
    def clients(self) -> list[dict[str, Any]]:
        """One dict per newcomer, as in newcomers.csv."""
        return score_tables.lines(self.names, self.sizes, {"personal": self.personal, "finetune": self.finetune})

    def summary(self) -> dict[str, Any]:
        """Return the figures over all newcomers, as in newcomers.json."""
        return {
            **self.about,
            "personal": score_tables.figures(self.personal, self.sizes),
            "finetune": score_tables.figures(self.finetune, self.sizes),
        }

    def model(self, client: str) -> nn.Module:
        """Return the personal model of a newcomer, in evaluation mode; raise InputError if there is none."""
        if str(client) not in self.names:
            raise models.no_client(str(client), self.names)
        return self.weights.module(self.names.index(str(client)))

    def __repr__(self) -> str:
        figures = self.summary()
        title = f"{count(len(self.names), 'newcomer')} to {self.origin['method']} on {self.origin['data']}"
        return "\n".join([title, *score_tables.in_words({kind: figures[kind] for kind in NEWCOMER_MODELS})])

    def save(self, path: str | PathLike[str], overwrite: bool = False) -> Path:
        """Write models and scores to a new directory and return it. It appears complete or not at all."""

        def fill(into: Path) -> None:
            about = {"origin": dict(self.origin), **self.summary()}
            (into / ABOUT).write_text(score_tables.dumps(about, indent=2) + "\n", encoding="utf-8")
            self.write(into)
            if self.preparation is not None:
                (into / PREPARATION).write_text(self.preparation.to_json(), encoding="utf-8")
            if isinstance(self.weights, InMemoryModels):
                if self.weights.recipe.shared:
                    models.write_state(self.weights.recipe.shared, into / START)
            elif (self.weights.folder / START).exists():
                shutil.copyfile(self.weights.folder / START, into / START)

        self.path = run_directory.write(Path(path), fill, overwrite, MARKERS, KIND)
        return self.path

    def write(self, into: Path) -> None:
        """Write table and models into the directory of a run, or into their own."""
        score_tables.write_csv(into / TABLE, self.clients)
        if isinstance(self.weights, InMemoryModels):
            self.weights.write(into, self.names, NEWCOMERS)
        else:
            shutil.copyfile(self.weights.folder / NEWCOMERS, into / NEWCOMERS)


def load_newcomers(path: str | PathLike[str], model: Model | None = None) -> Newcomers:
    """Load what `Newcomers.save` wrote; `model` is needed if the model was a Python object."""
    source = Path(path)
    if not run_directory.is_run(source, MARKERS):
        raise InputError(f"{str(path)!r} holds no newcomers' models: it has no {ABOUT} and {NEWCOMERS}.")
    try:
        about = json.loads((source / ABOUT).read_text(encoding="utf-8"))
        found = read_newcomers(source, about, about.pop("origin"), model)
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise InputError(f"the newcomers in {str(path)!r} are damaged: {error!r}.") from error
    found.path = source
    return found


def read_newcomers(source: Path, about: Mapping[str, Any], origin: Mapping[str, Any], model: Model | None) -> Newcomers:
    """Read newcomers from a directory with their table and models."""
    names, sizes, scores = score_tables.read_clients(source / TABLE, NEWCOMER_MODELS)
    return Newcomers(
        about={name: value for name, value in about.items() if name not in NEWCOMER_MODELS},
        origin=origin,
        names=names,
        sizes=sizes,
        personal=scores["personal"],
        finetune=scores["finetune"],
        weights=SavedModels(source.resolve(), model, NEWCOMERS),
        preparation=read_preparation(source),
    )


def read_preparation(source: Path) -> Preparation | None:
    """Read how the examples of a run are scaled and encoded, if its directory says so."""
    path = source / PREPARATION
    return Preparation.from_json(path.read_text(encoding="utf-8")) if path.exists() else None
