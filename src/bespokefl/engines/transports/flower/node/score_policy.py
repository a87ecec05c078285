"""Which scores a node gives away. Its owner decides in node.toml; the server can ask for less, never for more.

A score is computed on a client's own data with weights that the server chooses. Exact scores of many chosen weights
reveal examples, so a node answers one request for each round that it trained in, up to a budget, with few digits.
"""

from dataclasses import dataclass

from bespokefl.core.errors import InputError, unknown

TRAINED, ALL, FINAL, NONE = "trained", "all", "final", "none"
CHOICES = {
    TRAINED: "of rounds in which the node trained, of the initial weights, and the final ones",
    ALL: "of every round, also of those in which the node did not train",
    FINAL: "the final ones only",
    NONE: "none",
}
MAX_DIGITS = 17  # all of them


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
