"""Clients that came when the training was over: what their models are worth, in memory and on disk.

newcomers.json          the figures over all of them, and which run they joined
newcomers.csv           one line per newcomer: sizes, accuracy and loss of its personal model and of plain fine-tuning
newcomers.safetensors   their personal models
"""

import json
import shutil
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from bespokefl.core.errors import InputError, count
from bespokefl.data.preprocessing.transform import Preparation
from bespokefl.workflows.results import run_directory, score_tables
from bespokefl.workflows.results.models import (
    NEWCOMERS,
    START,
    InMemoryModels,
    Model,
    SavedModels,
    no_client,
    write_state,
)
from bespokefl.workflows.results.score_tables import Scores, Sizes

KINDS = ("personal", "finetune")
ABOUT, TABLE = "newcomers.json", "newcomers.csv"
PREPARATION = "preparation.json"
SIGNS, WHAT = (ABOUT, TABLE, NEWCOMERS), "newcomers' models"


class Newcomers:
    """Their personal models, beside plain fine-tuning of the common model. Arrays are in the order of `names`."""

    def __init__(
        self,
        *,
        about: Mapping[str, Any],
        origin: Mapping[str, Any],
        names: tuple[str, ...],
        sizes: Sizes,
        personal: Scores,
        finetune: Scores,
        weights: InMemoryModels | SavedModels,
        preparation: Preparation | None = None,
    ) -> None:
        self.about = dict(about)  # how they were served
        self.origin = dict(origin)  # the run they joined
        self.names = names
        self.sizes = sizes  # "train", "validation", "test": examples per newcomer
        self.personal = personal  # by the method's own rule
        self.finetune = finetune  # plain fine-tuning of the global model, or of the start where there is none
        self.weights = weights
        self.preparation = preparation  # how examples are made to fit the models; None: they are taken as they are
        self.path: Path | None = None  # where they were saved

    @property
    def notes(self) -> list[str]:
        """What a reader of the figures has to know, one sentence each."""
        return list(self.about["notes"])

    @property
    def clients(self) -> list[dict[str, Any]]:
        """One dict per newcomer, as in newcomers.csv."""
        return score_tables.lines(self.names, self.sizes, {"personal": self.personal, "finetune": self.finetune})

    def summary(self) -> dict[str, Any]:
        """The figures over all newcomers."""
        return {
            **self.about,
            "personal": score_tables.figures(self.personal, self.sizes),
            "finetune": score_tables.figures(self.finetune, self.sizes),
        }

    def model(self, client: str) -> nn.Module:
        """A newcomer's own model, ready to predict."""
        if str(client) not in self.names:
            raise no_client(str(client), self.names)
        return self.weights.module(self.names.index(str(client)))

    def __repr__(self) -> str:
        figures = self.summary()
        measure = "loss" if figures["personal"]["accuracy"] is None else "accuracy"
        lines = [f"{count(len(self.names), 'newcomer')} to {self.origin['method']} on {self.origin['data']}"]
        for kind in KINDS:
            mean = figures[kind][measure]["mean"]
            lines.append(f"  {kind:<8}  test {measure}: mean {'undefined' if mean is None else f'{mean:.4f}'}")
        return "\n".join(lines)

    # -- on disk

    def save(self, path: str | PathLike[str], overwrite: bool = False) -> Path:
        """Write a folder of their own; it appears complete or not at all."""

        def fill(into: Path) -> None:
            about = {"origin": self.origin, **self.summary()}
            (into / ABOUT).write_text(score_tables.dumps(about, indent=2) + "\n", encoding="utf-8")
            self.write(into)
            if self.preparation is not None:
                (into / PREPARATION).write_text(self.preparation.to_json(), encoding="utf-8")
            if isinstance(self.weights, InMemoryModels):
                if self.weights.recipe.shared:
                    write_state(self.weights.recipe.shared, into / START)
            elif (self.weights.folder / START).exists():
                shutil.copyfile(self.weights.folder / START, into / START)

        self.path = run_directory.write(Path(path), fill, overwrite, SIGNS, WHAT)
        return self.path

    def write(self, into: Path) -> None:
        """Table and models, into the folder of a run or into their own."""
        score_tables.write_csv(into / TABLE, self.clients)
        if isinstance(self.weights, InMemoryModels):
            self.weights.write(into, self.names, NEWCOMERS)
        else:
            shutil.copyfile(self.weights.folder / NEWCOMERS, into / NEWCOMERS)


def load_newcomers(path: str | PathLike[str], model: Model | None = None) -> Newcomers:
    """What `Newcomers.save` wrote."""
    source = Path(path)
    if not run_directory.is_run(source, SIGNS):
        raise InputError(f"{str(path)!r} holds no newcomers' models: it has no {ABOUT} and {NEWCOMERS}.")
    try:
        about = json.loads((source / ABOUT).read_text(encoding="utf-8"))
        found = within(source, about, about.pop("origin"), model)
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise InputError(f"the newcomers in {str(path)!r} are damaged: {error!r}.") from error
    found.path = source
    return found


def within(source: Path, about: Mapping[str, Any], origin: Mapping[str, Any], model: Model | None) -> Newcomers:
    """The newcomers whose table and models are in a folder."""
    names, sizes, scores = score_tables.read_clients(source / TABLE, KINDS)
    return Newcomers(
        about={name: value for name, value in about.items() if name not in KINDS},
        origin=origin,
        names=names,
        sizes=sizes,
        personal=scores["personal"],
        finetune=scores["finetune"],
        weights=SavedModels(source.resolve(), model, NEWCOMERS),
        preparation=read_preparation(source),
    )


def read_preparation(source: Path) -> Preparation | None:
    """How a run's examples are made to fit, if its folder says so."""
    place = source / PREPARATION
    return Preparation.from_json(place.read_text(encoding="utf-8")) if place.exists() else None
