"""The points of a grid of hyper-parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from bespokefl import methods
from bespokefl.core.errors import InputError, spell, unknown
from bespokefl.core.method import Method
from bespokefl.workflows.results import score_tables
from bespokefl.workflows.run.settings import Mark, RunSettings

OPTIONS = RunSettings.marked(Mark.TUNABLE)  # settings of a run allowed in a grid

Grid = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Point:
    """One point of a grid."""

    values: dict[str, Any]
    method: Method  # with the point's hyper-parameters
    options: dict[str, Any]  # the point's values of OPTIONS

    def key(self, seed: int) -> str:
        """Identify a training of this point among all points of a tuning."""
        return score_tables.dumps({"hyper": self.method.hyper(), "options": self.options, "seed": seed})


def expand(method: Method, grid: Grid, options: Mapping[str, Any]) -> list[Point]:
    """Return all points of a grid, the last key varying fastest; reject keys and values that cannot be used."""
    if not isinstance(grid, Mapping) or not grid:
        raise InputError('a grid needs at least one key and its values, such as "prox_weight=0.1,1,2", got none.')
    grid = method.rename(grid)
    hyper, name = method.hyper(), method.name or type(method).__name__
    tried = {key: _values(values) for key, values in grid.items()}
    for key, values in tried.items():
        if key not in hyper and key not in OPTIONS:
            raise unknown(f"grid key for {name}", key, [*hyper, *OPTIONS], see=f"bespoke methods {name}")
        if not values:
            raise InputError(f"the grid's {key} must be one or more values to try, got {grid[key]!r}.")
    if "local_epochs" in grid and ("local_steps" in grid or options["local_steps"] is not None):
        raise InputError(
            f"{spell('local_epochs')} has no effect if {spell('local_steps')} is given; leave one of them out."
        )
    points: dict[str, Point] = {}
    for combination in product(*tried.values()):
        given = dict(zip(tried, combination, strict=True))
        built = _with(method, {key: value for key, value in given.items() if key in hyper})
        config = RunSettings(
            **{"method": name, **options, **{key: value for key, value in given.items() if key not in hyper}}
        )
        checked = {key: getattr(built if key in hyper else config, key) for key in grid}
        point = Point(checked, built, {key: getattr(config, key) for key in options})
        if point.key(0) in points:
            raise InputError(f"the grid has {in_words(point.values)} twice; leave one of them out.")
        points[point.key(0)] = point
    return list(points.values())


def in_words(values: Mapping[str, Any]) -> str:
    """Return values as text, such as "lr=0.1, rounds=5"."""
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _values(values: Any) -> list[Any]:
    """Return the values of a key as Python values, lists as tuples; none if `values` is not a sequence."""
    listed = values.tolist() if isinstance(values, np.ndarray) else values
    if isinstance(listed, str) or not isinstance(listed, Sequence):
        return []
    plain = [one.item() if isinstance(one, np.generic) else one for one in listed]
    return [tuple(one) if isinstance(one, list) else one for one in plain]


def _with(method: Method, hyper: Mapping[str, Any]) -> Method:
    """Return the method with some hyper-parameters replaced."""
    name = methods.name_of(method)
    if name is not None:
        return methods.build(name, {k: v for k, v in method.hyper().items() if v is not None} | dict(hyper))
    return replace(method, **hyper)
