"""The budget of a comparison: how much each method may compute.

steps       every method gets the run's local steps (or epochs); a method that sets its own stays within them
gradients   as steps, and methods that compute more gradients than FedAvg get fewer rounds, so that totals are equal
none        methods set their own numbers of steps
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bespokefl.core.errors import InputError, listing, unknown
from bespokefl.workflows.compare.candidates import Candidate

STEPS, GRADIENTS, TIME, NONE = BUDGETS = ("steps", "gradients", "time", "none")
PILOT_ROUNDS = (1, 3)  # of the two short runs from which the gradients per round follow

Work = Mapping[int, int]  # gradients of a short run by its number of rounds


def check(budget: str) -> str:
    """Return the name of a budget; raise InputError for an unknown one, and for equal seconds."""
    if budget not in BUDGETS:
        raise unknown("--budget", str(budget), BUDGETS)
    if budget == TIME:
        raise InputError(
            "--budget time is not offered: seconds depend on the machine and on what else it runs, so that equal "
            "seconds would give other results each time; use --budget gradients, and read the column seconds."
        )
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


def round_notes(candidates: Sequence[Candidate], rounds: int) -> list[str]:
    """Return a sentence on the methods that got fewer rounds."""
    fewer = {one.name: one.options["rounds"] for one in candidates if one.options.get("rounds", rounds) < rounds}
    if not fewer:
        return []
    listed = listing([f"{name} {own}" for name, own in fewer.items()])
    return [f"For equal totals of gradients, methods ran fewer than {rounds} rounds: {listed}."]
