"""Which scores a node gives away. Its owner decides in node.toml; the server can ask for less, never for more.

A score is computed on a client's own data with weights that the server chooses. Exact scores of many chosen weights
reveal examples, so a node answers one request for each round that it trained in, up to a budget, with few digits.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bespokefl.core.client_index import PARTS
from bespokefl.core.errors import InputError, unknown
from bespokefl.core.files import write_text
from bespokefl.engines.client import Data

TRAINED, ALL, FINAL, NONE = "trained", "all", "final", "none"
CHOICES = {
    TRAINED: "of rounds in which the node trained, of the initial weights, and the final ones",
    ALL: "of every round, also of those in which the node did not train",
    FINAL: "the final ones only",
    NONE: "none",
}
LEDGER = "scores.json"  # what was answered in a run, beside its states
INITIAL, LAST = "initial", "final"  # requests that belong to no round
MAX_DIGITS = 17  # all of them


class RefusedError(Exception):
    """The node does not answer a request for scores; the message says why."""


@dataclass(frozen=True)
class ScorePolicy:
    """What a node answers, with the keys of node.toml."""

    scores: str = TRAINED
    score_budget: int = 1000  # answers in one run
    score_digits: int = 4  # significant digits
    smallest_scored: int = 1  # examples: a client with fewer in one of its parts is not scored

    def __post_init__(self) -> None:
        if self.scores not in CHOICES:
            raise unknown("scores in node.toml:", self.scores, CHOICES)
        if self.score_budget < 0 or self.smallest_scored < 1 or not 1 <= self.score_digits <= MAX_DIGITS:
            raise InputError(
                "node.toml must have score_budget >= 0, smallest_scored >= 1 and score_digits from 1 to "
                f"{MAX_DIGITS}, got {self.score_budget}, {self.smallest_scored} and {self.score_digits}."
            )

    def rounded(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Scores with the policy's number of digits."""
        return {name: _rounded(one, self.score_digits) for name, one in values.items()}

    def hidden(self, data: Data, cohort: Sequence[int]) -> Tensor:
        """Which clients of a cohort are too small to be scored."""
        sizes = torch.stack([getattr(data, part).take(list(cohort)).sizes for part in PARTS])
        return ((sizes > 0) & (sizes < self.smallest_scored)).any(0)


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


def _rounded(values: Tensor, digits: int) -> Tensor:
    if not values.is_floating_point():
        return values
    rounded = [one if one == 0 or not math.isfinite(one) else float(f"{one:.{digits}g}") for one in values.tolist()]
    return torch.tensor(rounded, dtype=values.dtype)
