"""How much the clients of a run computed, and how the work of several methods compares."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

TOLERANCE = 0.05  # relative difference of work up to which methods count as equal


def totals(rounds: Sequence[Mapping[str, Any]], final: Sequence[int] | None = None) -> dict[str, float | int] | None:
    """Return the work of a run, from `Result.rounds` (the lines of rounds.jsonl); None if it was not counted.

    Parameters
    ----------
    rounds : sequence of mapping
        Of each round "trained", "gradient_steps", "gradients" and "head_gradients".
    final : sequence of int, optional
        Steps, gradients and head gradients that were needed to make the final personal models.

    Returns
    -------
    dict
        "steps", gradient steps per client and round; "gradients" and "head_gradients", totals of the gradients of one
        example with respect to the model and to the head alone; "final_gradients", both after the last round, which
        are part of the totals.
    """
    if any("gradients" not in line for line in rounds):
        return None
    trained = sum(line["trained"] for line in rounds)
    _, whole, head = (int(one) for one in (final if final is not None else (0, 0, 0)))
    return {
        "steps": sum(line["gradient_steps"] for line in rounds) / trained if trained else 0.0,
        "gradients": sum(line["gradients"] for line in rounds) + whole,
        "head_gradients": sum(line["head_gradients"] for line in rounds) + head,
        "final_gradients": whole + head,
    }


def unequal(work: Mapping[str, float], tolerance: float = TOLERANCE) -> dict[str, float]:
    """Return how many times the usual work each method did that differs from it by more than `tolerance`.

    The usual work is the value closest to which most methods lie; of several such values, the smallest.
    """
    known = {name: value for name, value in work.items() if value is not None and value > 0}
    if len(known) < 2:
        return {}

    def num_near(value: float) -> int:
        return sum(abs(other / value - 1) <= tolerance for other in known.values())

    usual = max(sorted(known.values()), key=num_near)
    near = [value for value in known.values() if abs(value / usual - 1) <= tolerance]
    usual = float(np.mean(near))
    return {name: value / usual for name, value in known.items() if abs(value / usual - 1) > tolerance}
