"""Applies a node's score policy: counts what was answered in a run, rounds scores, and hides those of small clients."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from bespokefl.core.client_index import PARTS
from bespokefl.core.errors import InputError
from bespokefl.core.system.files import write_text
from bespokefl.engines.client import Data
from bespokefl.engines.transports.flower.node.score_policy import FINAL, NONE, TRAINED, ScorePolicy

LEDGER = "scores.json"  # what was answered in a run, beside its states
INITIAL, LAST = "initial", "final"  # requests that belong to no round


class RefusedError(Exception):
    """The node does not answer a request for scores; the message says why."""


class ScoreLedger:
    """What a node has answered in one run. It is stored, so that a restart does not renew the budget."""

    def __init__(self, folder: Path, policy: ScorePolicy) -> None:
        self.policy, self._path = policy, folder / LEDGER
        self._answered: dict[str, str] = {}  # by round: the digest of the only request that is answered
        if self._path.exists():
            try:
                self._answered = dict(json.loads(self._path.read_text(encoding="utf-8")))
            except (OSError, ValueError, TypeError):
                raise InputError(f"{str(self._path)!r} is damaged: restore it, or take part in another run.") from None

    def admit(self, number: int, digest: str, *, final: bool, trained: bool, initial: bool) -> None:
        """Count a request; raise RefusedError if it is not to be answered.

        trained  whether the node trained in this round
        initial  whether the request is for the weights that the run starts with
        """
        policy, key = self.policy, LAST if final else INITIAL if initial else str(number)
        if policy.scores == NONE or (policy.scores == FINAL and not final):
            raise RefusedError(f'its node.toml says scores = "{policy.scores}"')
        if number == 0 and not (final or initial):
            raise RefusedError("these are not the weights that the run starts with")
        if policy.scores == TRAINED and not (final or initial or trained):
            raise RefusedError(f"it did not train in round {number}")
        if key in self._answered:
            if self._answered[key] == digest:  # the reply was lost: it is the same once more
                return
            raise RefusedError(f"it has scored other weights {'at the end' if final else f'in round {number}'} already")
        if len(self._answered) >= policy.score_budget:
            raise RefusedError(f"it has answered {policy.score_budget} requests for scores, its score_budget")
        answered = self._answered | {key: digest}
        write_text(self._path, json.dumps(answered))
        self._answered = answered


def rounded(values: dict[str, Tensor], digits: int) -> dict[str, Tensor]:
    """Scores with so many significant digits."""
    return {name: _rounded(one, digits) for name, one in values.items()}


def too_small(data: Data, cohort: Sequence[int], smallest: int) -> Tensor:
    """Which clients of a cohort have fewer examples than `smallest` for training, validation or test, but some."""
    sizes = torch.stack([getattr(data, part).take(list(cohort)).sizes for part in PARTS])
    return ((sizes > 0) & (sizes < smallest)).any(0)


def _rounded(values: Tensor, digits: int) -> Tensor:
    if not values.is_floating_point():
        return values
    rounded = [one if one == 0 or not math.isfinite(one) else float(f"{one:.{digits}g}") for one in values.tolist()]
    return torch.tensor(rounded, dtype=values.dtype)
