"""What all trackers have in common: which figures they log, and that a resumed run continues without repeating any."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from bespokefl.core.callback import FINISHED, Callback, Evaluation, RunEnd, RunInfo
from bespokefl.core.errors import InputError


class Tracker(Callback, ABC):
    """A callback that logs figures by round.

    Scores are logged as "personal/validation_accuracy", what a round cost as "round/seconds", the final scores of all
    metrics as "final/personal/test_accuracy", and with `clients` those of each client as
    "clients/07/personal/test_accuracy".

    Parameters
    ----------
    clients : bool, default=False
        Whether to log the scores of every client, too.
    name : str or None, default=None
        The name of the run in the tracker; None: that of its directory, or method and seed.
    """

    package: ClassVar[str]  # what the tracker imports
    extra: ClassVar[str]  # of bespokefl, which installs it

    def __init__(self, *, clients: bool = False, name: str | None = None) -> None:
        if find_spec(self.package) is None:
            raise InputError(
                f"logging to {type(self).__name__} needs {self.package}, which is not installed; "
                f'pip install "bespokefl[{self.extra}]".'
            )
        self.clients, self.name = clients, name
        self._identity: dict[str, str] = {}  # which run of the tracker this is
        self._logged = -1  # the last round that was logged; round 0 are the initial weights
        self._of_clients: dict[str, float] = {}

    # -- what a tracker defines

    @abstractmethod
    def open(self, name: str, run: RunInfo, identity: Mapping[str, str], logged: int) -> dict[str, str]:
        """Begin a run in the tracker and return its identity; if `identity` is given, continue that run after `logged`.

        Libraries are imported here and not before: the engine has forked its workers by now.
        """

    @abstractmethod
    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Log finite figures."""

    @abstractmethod
    def close(self, status: str) -> None:
        """End the run in the tracker: it has finished, was interrupted, or has failed."""

    # -- events

    def on_run_begin(self, run: RunInfo) -> None:
        self._identity = self.open(self.name or run.name, run, self._identity, self._logged)
        self._log(run.initial, 0)
        for line in run.history:  # what was not logged before the interruption
            scores = {
                f"{kind}/{name}": value
                for kind in ("personal", "global")
                for name, value in (line.get(kind) or {}).items()
            }
            self.on_round_end(line, scores)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        if self.clients:
            self._of_clients = {
                f"clients/{client}/{name}": value
                for client, scores in evaluation.by_client().items()
                for name, value in scores.items()
            }

    def on_round_end(self, record: Mapping[str, Any], scores: Mapping[str, float]) -> None:
        costs = {f"round/{name}": value for name, value in record.items() if name != "round"}
        self._log({**scores, **costs, **self._of_clients}, record["round"])
        self._of_clients = {}

    def on_run_end(self, end: RunEnd) -> None:
        if end.status == FINISHED:
            self.write(_finite({f"final/{name}": value for name, value in end.scores.items()}), end.rounds)
        self.close(end.status)

    def _log(self, figures: Mapping[str, Any], step: int) -> None:
        if step > self._logged:
            if known := _finite(figures):
                self.write(known, step)
            self._logged = step

    # -- resume

    def state(self) -> dict[str, Any]:
        return {"place": self._identity, "logged": self._logged}

    def restore(self, state: dict[str, Any]) -> None:
        self._identity, self._logged = dict(state["place"]), int(state["logged"])


def _finite(figures: Mapping[str, Any]) -> dict[str, float]:
    """The figures that are finite numbers; a round's record also holds names, lists and None."""
    return {
        name: float(value)
        for name, value in figures.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def flat_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are given, with hyper-parameters by their own names: "set.lr"."""
    rest = {name: value for name, value in settings.items() if name != "set" and value not in (None, "")}
    return rest | {f"set.{name}": value for name, value in settings.get("set", {}).items()}


def new_directory(parent: Path, name: str) -> Path:
    """Make the first of name, name-2, name-3, … that does not exist; another process may do the same."""
    number = 1
    while True:
        path = parent / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            number += 1
