"""The budget of a comparison: how much each method may compute.

steps       every method gets the run's local steps (or epochs); a method that sets its own stays within them
gradients   as steps, and methods that compute more gradients than FedAvg get fewer rounds, so that totals are equal
time        as steps, and methods that take more processor time than FedAvg get fewer rounds
none        methods set their own numbers of steps
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bespokefl.core.errors import listing, unknown
from bespokefl.workflows.compare.candidates import Candidate

STEPS, GRADIENTS, TIME, NONE = BUDGETS = ("steps", "gradients", "time", "none")
PILOT_ROUNDS = (1, 3)  # of the two short runs from which the gradients per round follow
TOLERANCE = 0.1  # of processor time: smaller differences are within the error of a short measurement

Work = Mapping[int, int]  # gradients of a short run by its number of rounds


@dataclass(frozen=True)
class Seconds:
    """Processor time of a short run: before the first round, of one round, and after the last."""

    start: float
    round: float
    end: float


def check(budget: str) -> str:
    """Return the name of a budget; raise InputError for an unknown one."""
    if budget not in BUDGETS:
        raise unknown("--budget", str(budget), BUDGETS)
    return budget


def limited(candidates: Sequence[Candidate], budget: str) -> list[Candidate]:
    """Return the candidates, those that set their own number of steps limited to that of the run."""
    if budget == NONE:
        return list(candidates)
    return [replace(one, method=one.method.within_budget()) for one in candidates]


def equal_rounds(rounds: int, own: Work, reference: Work) -> int:
    """Return the number of rounds in which a method computes as many gradients as the reference in `rounds`.

    Both have the gradients of runs of `PILOT_ROUNDS` rounds with the same clients. What a method computes once, such as
    PersFL's distillation, is the part that does not grow with the rounds. At least one round is left, and at most
    `rounds`.
    """
    first, last = PILOT_ROUNDS
    ratio = (own[last] - own[first]) / (reference[last] - reference[first])
    per_round = reference[last] / last
    once = own[first] - ratio * reference[first]
    return max(1, min(rounds, round((rounds - once / per_round) / ratio))) if ratio > 0 else rounds


def timed_rounds(rounds: int, own: Seconds, reference: Seconds) -> int:
    """Return the number of rounds that a method trains in the time in which the reference trains `rounds`.

    What the method takes longer than the reference before the first and after the last round is subtracted. At least
    one round is left, and at most `rounds`; so many are left, too, if they take at most `TOLERANCE` more time.
    """
    once = max(0.0, own.start - reference.start) + max(0.0, own.end - reference.end)
    available = rounds * reference.round
    if once + rounds * own.round <= (1 + TOLERANCE) * available:
        return rounds
    return max(1, min(rounds, round((available - once) / own.round)))


def round_notes(own_rounds: Mapping[str, int], rounds: int, budget: str | None = GRADIENTS) -> list[str]:
    """Return a sentence on the methods that got fewer rounds than the comparison has, by their own rounds."""
    fewer = {name: own for name, own in own_rounds.items() if own < rounds}
    listed = listing([f"{name} {own}" for name, own in fewer.items()])
    if budget == TIME:
        ran = f"methods ran fewer than {rounds} rounds: {listed}" if fewer else f"all methods ran {rounds} rounds"
        return [
            f"For equal processor time, {ran}. The time of a round was measured beforehand, in short runs on one "
            "machine with the hyper-parameters of the runs; on another machine the numbers of rounds may differ."
        ]
    return [f"For equal totals of gradients, methods ran fewer than {rounds} rounds: {listed}."] if fewer else []
