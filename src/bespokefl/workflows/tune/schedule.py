"""How a limited time for tuning is spent: successive halving over rounds, and grids that are widened at their edges.

All points of a grid are trained for a few rounds, the best third of them for three times as many, and so on until the
run's own number of rounds; the best points of these are trained with several seeds. The schedule depends on the numbers
of rounds and seeds alone, so that it is the same for every method, and the choice follows from validation scores.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bespokefl.workflows.tune.grid import Grid, Point

SHARE = 3  # one of this many points stays, and is trained for this many times as many rounds
MIN_ROUNDS = 5  # of a first stage; shorter trainings say too little
MIN_KEPT = 3  # points of a stage
SEEDS = 3  # over which the points of the last stage are compared
WIDENINGS = 3  # how often a grid is widened
LOWER = 10  # learning rates are divided by this if no point of a grid can be trained


@dataclass(frozen=True)
class Stage:
    """Points are compared after this many rounds, by their mean over this many seeds."""

    rounds: int
    seeds: int


def stages(rounds: int, seeds: int) -> list[Stage]:
    """Return the stages of a tuning: one seed and more and more rounds, then all rounds with more seeds."""
    found = [rounds]
    while found[0] > SHARE and -(-found[0] // SHARE) >= MIN_ROUNDS and len(found) < 3:
        found.insert(0, -(-found[0] // SHARE))
    last = [Stage(rounds, min(seeds, SEEDS))] if seeds > 1 else []
    return [Stage(one, 1) for one in found] + last


def num_kept(num_points: int) -> int:
    """Return how many points go on to the next stage."""
    return min(num_points, max(MIN_KEPT, -(-num_points // SHARE)))


def edges(best: Mapping[str, Any], tried: Grid) -> dict[str, Any]:
    """Return the keys whose best value lies on the edge of the values tried, with the next value beyond it.

    Only keys with several positive numbers have edges; the next value continues the ratio of the last two.
    """
    found: dict[str, Any] = {}
    for key, values in tried.items():
        ordered = sorted(values) if all(_is_positive(one) for one in values) else []
        if len(ordered) < 2 or best.get(key) not in (ordered[0], ordered[-1]):
            continue
        low = best[key] == ordered[0]
        neighbour = ordered[1] if low else ordered[-2]
        beyond = best[key] * best[key] / neighbour
        if isinstance(best[key], int):
            found[key] = max(1, int(beyond)) if low else max(best[key] + 1, round(beyond))
        else:
            found[key] = float(f"{beyond:.2g}")
        if found[key] == best[key]:
            del found[key]
    return found


def is_rate(key: str) -> bool:
    """Return whether a hyper-parameter is a learning rate of clients."""
    return key == "lr" or (key.endswith(("_lr", "_rate")) and not key.startswith("server_"))


def with_lower_rates(grid: Grid, times: int) -> dict[str, Sequence[Any]]:
    """Return a grid with all learning rates divided by `LOWER` so many times."""
    factor = float(LOWER**times)
    return {
        key: [float(f"{value / factor:.3g}") for value in values] if is_rate(key) else values
        for key, values in grid.items()
    }


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def tried_values(points: Sequence[Point], keys: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values of some keys that these points have."""
    return {key: list(dict.fromkeys(point.values[key] for point in points)) for key in keys}
