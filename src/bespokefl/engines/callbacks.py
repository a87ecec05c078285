"""Calls a run's callbacks. One that fails is not called again, and the run goes on."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bespokefl.core.callback import FAILED, FINISHED, INTERRUPTED, Callback, Evaluation, RunEnd, RunInfo
from bespokefl.core.errors import StoppedError, said
from bespokefl.engines.evaluation import Scores, means
from bespokefl.engines.federation import Federation
from bespokefl.engines.outcome import Outcome

log = logging.getLogger("bespokefl")

SCORES = ("personal", "global")  # keys of a line in the history that is evaluated


class Callbacks:
    """The callbacks of one run of one federation."""

    def __init__(self, callbacks: Sequence[Callback] = (), run: RunInfo | None = None) -> None:
        self._active = dict(zip(_keys(callbacks), callbacks, strict=True))
        self._run, self._begun = run, False

    def begin(
        self, federation: Federation, planned: int, history: Sequence[Mapping[str, Any]], states: Mapping[str, Any]
    ) -> None:
        """Restore the callbacks' states if the run is resumed, and report the rounds that are complete."""
        if self._run is None:
            return
        self._begun = True
        for key in [key for key in self._active if key in states]:
            self._call("restore", states[key], only=key)
        has_global = federation.method.global_model(federation.server) is not None
        initial = _flat({"personal": federation.initial, "global": federation.initial if has_global else None})
        run = replace(
            self._run,
            rounds=planned,
            clients=tuple(federation.data.names),
            initial=initial,
            history=[dict(line) for line in history],
        )
        self._call("on_run_begin", run)

    def evaluated(self, federation: Federation, number: int, scores: tuple[Scores, Scores | None], final: bool) -> None:
        """Report the scores of personal and global models."""
        found = _flat(dict(zip(SCORES, (None if one is None else means(one) for one in scores), strict=True)))
        self._call("on_evaluation", Evaluation(number, final, found, tuple(federation.data.names), *scores))

    def round_ended(self, line: Mapping[str, Any]) -> None:
        """Report a line of the history, which has scores if the round was evaluated."""
        self._call("on_round_end", {name: value for name, value in line.items() if name not in SCORES}, _flat(line))

    def checkpoint_written(self, number: int, path: Path) -> None:
        """Report that a checkpoint is on disk."""
        self._call("on_checkpoint", number, path)

    def ended(self, outcome: Outcome) -> None:
        """Report the end of the run with the mean of every score."""
        status = FINISHED if outcome.rounds_done == outcome.rounds_planned else INTERRUPTED
        found = {"personal": _all_means(outcome.personal), "global": _all_means(outcome.globally or {})}
        self._call("on_run_end", RunEnd(status, outcome.rounds_done, _flat(found)))

    def failed(self, error: BaseException, rounds: int) -> None:
        """Report that the run ended by an error or an interrupt."""
        stopped = isinstance(error, StoppedError | KeyboardInterrupt)
        if self._begun:
            self._call("on_run_end", RunEnd(INTERRUPTED if stopped else FAILED, rounds, {}))

    def states(self) -> dict[str, Any]:
        """The states of the callbacks that have one."""
        found = {}
        for key in list(self._active):
            if state := self._call("state", only=key):
                found[key] = state
        return found

    def _call(self, event: str, *values: Any, only: str | None = None) -> Any:
        """Call a method of all callbacks, or of one, whose result is returned."""
        result = None
        for key, callback in list(self._active.items()):
            if only not in (None, key):
                continue
            try:
                result = getattr(callback, event)(*values)
            except Exception as error:
                del self._active[key]
                name = type(callback).__name__
                log.warning("the callback %s failed in %s (%s); the run goes on without it", name, event, said(error))
        return result


def _keys(callbacks: Sequence[Callback]) -> list[str]:
    """A key for each callback that is the same when the run is resumed: TensorBoard, TensorBoard-2, …"""
    names = [type(one).__name__ for one in callbacks]
    counts = [names[: at + 1].count(name) for at, name in enumerate(names)]
    return [name if count == 1 else f"{name}-{count}" for name, count in zip(names, counts, strict=True)]


def _flat(line: Mapping[str, Any]) -> dict[str, float]:
    return {
        f"{kind}/{name}": value
        for kind in SCORES
        for name, value in (line.get(kind) or {}).items()
        if value is not None
    }


def _all_means(scores: Scores) -> dict[str, float]:
    """The means of all metrics, also of those that are computed at the end only."""
    found: dict[str, float] = {}
    for name, values in scores.items():  # one by one, as there may be a million values each
        known = values[~values.isnan()] if values.is_floating_point() else values[:0]
        found |= {name: float(known.mean())} if len(known) else {}
    return found
