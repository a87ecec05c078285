"""The methods of a comparison: their names and order, and the values that are tried when they are tuned."""

import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import prod
from pathlib import Path
from typing import Any

from bespokefl import methods as registry
from bespokefl.core.errors import InputError, listing, unknown
from bespokefl.core.method import Method
from bespokefl.workflows.compare.result import BASELINES
from bespokefl.workflows.results import score_tables
from bespokefl.workflows.run.settings import RunSettings
from bespokefl.workflows.tune.grid import Grid, Point, expand
from bespokefl.workflows.tune.schedule import is_rate
from bespokefl.workflows.tune.shared_settings import flags, literal, seeds_text, set_flag

ALL_METHODS = "all"  # instead of names of methods
LR_FACTORS = tuple(2.0**power for power in range(-5, 7))  # of the default lr of a method that has no grid
MORE_STEPS = 5  # times the run's local steps, which a baseline tries if the budget does not limit it
GRIDS: dict[str, dict[str, list[Any]]] = tomllib.loads(
    Path(__file__).with_name("grids.toml").read_text(encoding="utf-8")
)


@dataclass(frozen=True)
class Candidate:
    """A method and its name in a comparison."""

    name: str
    method: Method
    options: dict[str, Any] = field(default_factory=dict)  # settings of its runs that differ from the comparison's

    @property
    def slug(self) -> str:
        """The name as part of a path."""
        return slug(self.name)

    @property
    def registered(self) -> bool:
        """Whether the method is built in."""
        return registry.REGISTRY.get(self.method.name) is type(self.method)


def slug(name: str) -> str:
    """Return the name of a candidate as part of a path."""
    return re.sub(r"[^\w.=,-]+", "-", name).strip("-")


def of(given: Sequence[Method | str]) -> list[Candidate]:
    """Return the given methods and the baselines; methods of equal name are told apart by their hyper-parameters."""
    if isinstance(given, str | Method):
        raise InputError(f"methods must be a list, such as ['ditto', 'persfl'], got {given!r}.")
    found = [registry.of(one) for one in given]
    if not found:
        raise InputError('a comparison needs methods, got none; name some, as in "bespoke compare ditto persfl".')
    present = {one.name for one in found}
    found = [registry.build(name) for name in BASELINES if name not in present] + found
    names = [registry.title_of(one) for one in found]
    unique = labels(names, [score_tables.plain(one.hyper()) for one in found])
    chosen = [Candidate(name, method) for name, method in zip(unique, found, strict=True)]
    order = list(registry.REGISTRY)
    return sorted(chosen, key=lambda one: (order.index(one.method.name) if one.registered else len(order), one.name))


def named(names: Sequence[str], hyper: Mapping[str, Any]) -> list[Candidate]:
    """Return methods by name; `hyper` sets "ditto.prox_weight" for one of them, "lr" for all that have it."""
    asked = list(registry.REGISTRY) if list(names) == [ALL_METHODS] else list(names)
    if not asked:
        return of([])
    if (twice := _duplicate(asked)) is not None:
        raise InputError(f"{twice} is named twice; leave one of them out.")
    built = {name: registry.find(name)() for name in dict.fromkeys([*BASELINES, *asked])}
    known = {name: one.hyper() for name, one in built.items()}
    names_of = {alias: name for name, one in built.items() for alias in _aliases(one)}
    own: dict[str, dict[str, Any]] = {name: {} for name in known}
    # Keys of a single method come last and override those of all methods.
    for key, value in sorted(flattened(hyper).items(), key=lambda item: "." in item[0]):
        method, dot, name = key.rpartition(".")
        method = names_of.get(_with_hyphens(method), method)
        if dot and method not in own:
            raise InputError(f"--set has {key}, but {method!r} is not compared; compared are {listing(list(own))}.")
        having = [method] if dot else [one for one in own if name in known[one]]
        if not having:
            every = {one for keys in known.values() for one in keys}
            raise unknown("hyper-parameter of the methods compared", name, every)
        for one in having:
            own[one][name] = value
    return of([registry.build(name, values) for name, values in own.items()])


def flattened(hyper: Mapping[str, Any]) -> dict[str, Any]:
    """Turn `[set.ditto] prox_weight = 1` of a TOML file into the key "ditto.prox_weight"."""
    found: dict[str, Any] = {}
    for key, value in hyper.items():
        found |= {f"{key}.{name}": one for name, one in value.items()} if isinstance(value, Mapping) else {key: value}
    return found


def labels(names: Sequence[str], about: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a unique label for each; what differs between equal names follows in brackets."""
    found = []
    for name, own in zip(names, about, strict=True):
        rivals = [other for label, other in zip(names, about, strict=True) if label == name]
        inside = ", ".join(f"{key}={own[key]}" for key in own if any(other.get(key) != own[key] for other in rivals))
        found.append(f"{name} ({inside})" if inside else name)
    if (twice := _duplicate(found)) is not None:
        raise InputError(f"{twice} is given twice with equal settings; leave one of them out.")
    return found


def _aliases(method: Method) -> set[str]:
    """What --set and --grid may call a method: its name, or that of its class."""
    own = {type(method).__name__} if registry.name_of(method) != method.name else set()
    return {_with_hyphens(one) for one in {registry.title_of(method), *own}}


def _with_hyphens(name: str) -> str:
    return name.replace("_", "-")  # keys are read with underscores, and names of methods may have hyphens


def _duplicate(names: Sequence[str]) -> str | None:
    return next((name for name, number in Counter(names).items() if number > 1), None)


# -- tuning


def grids_of(candidates: Sequence[Candidate], tune: bool, grids: Mapping[str, Grid]) -> dict[str, Grid]:
    """Return the grid of every candidate, empty for one that is not tuned; reject grids of other methods."""
    for name in grids:
        if all(given_grid(one, {name: {}}) is None for one in candidates):
            known = listing([one.name for one in candidates])
            raise InputError(f"--grid has {name!r}, which is not compared; compared are {known}.")
    return {one.name: grid_of(one, tune, grids) for one in candidates}


def given_grid(one: Candidate, grids: Mapping[str, Grid]) -> Grid | None:
    """Return the grid that is given for a candidate, by its own name or that of its method."""
    aliases = _aliases(one.method)
    of_method = (grid for name, grid in grids.items() if _with_hyphens(name) in aliases)
    return grids.get(one.name, next(of_method, None))


def grid_of(one: Candidate, tune: bool, grids: Mapping[str, Grid]) -> Grid:
    """Return the grid given for a candidate, or its default grid if it is tuned."""
    method, hyper = one.method, one.method.hyper()
    given = given_grid(one, grids)
    changed = {each.name for each in fields(method) if hyper[each.name] != each.default}
    if given is not None:
        for key in given:
            if key not in hyper:
                raise unknown(f"hyper-parameter of {one.name}", key, hyper, see=f"bespoke methods {method.name}")
            if key in changed:
                raise InputError(
                    f"{key} of {one.name} has both a fixed value and values in the grid; leave one of them out."
                )
        points(one, given)  # reject invalid values
        return dict(given)
    if not tune:
        return {}
    tried: dict[str, Sequence[Any]] = dict(GRIDS.get(method.name, {})) if one.registered else {}
    if not tried and isinstance(hyper.get("lr"), float):
        tried["lr"] = tuple(float(f"{hyper['lr'] * factor:.3g}") for factor in LR_FACTORS)
    return {key: values for key, values in tried.items() if key not in changed}


def with_smallest_rates(one: Candidate, grid: Grid) -> Candidate:
    """Return a candidate with the smallest learning rates of its grid; if that is empty, of its default grid."""
    tried = grid or grid_of(one, True, {})
    hyper = one.method.hyper()
    rates = {key: (min(hyper[key], *tried[key]),) for key in tried if is_rate(key)}
    return replace(one, method=points(one, rates)[0].method) if rates else one


def other_local_steps(one: Candidate, config: RunSettings, sizes: Sequence[int], limited: bool) -> dict[str, int]:
    """Return another number of local steps or epochs, which a baseline tries at its best point; empty for others.

    Under a budget (`limited`) it is half the run's number, otherwise a multiple of it. Half of one epoch are half the
    steps of the client with the fewest training examples; `sizes` are those of the clients.
    """
    if not one.registered or one.method.name not in BASELINES:
        return {}
    key = "local_epochs" if config.local_steps is None else "local_steps"
    own: int = getattr(config, key)
    if limited and key == "local_epochs" and own == 1:
        key, own = "local_steps", -(-min(filter(None, sizes), default=0) // config.batch_size)
    other = own // 2 if limited else own * MORE_STEPS
    return {key: other} if other else {}


def num_points(grid: Grid) -> int:
    """Return the number of points of a grid."""
    return prod(len(values) for values in grid.values())


def points(one: Candidate, grid: Grid, options: Mapping[str, Any] | None = None) -> list[Point]:
    """Return the points of a grid; `options` are the settings of the run that a grid may have."""
    return expand(one.method, grid, {"local_steps": None} if options is None else options)


# -- repeating a comparison


def command(
    config: RunSettings,
    names: Sequence[str],
    seeds: Sequence[int],
    tune: bool | str | float | None,
    grids: Mapping[str, Grid],
    budget: str = "steps",
    metric: str | None = None,
) -> str:
    """Return the command that makes this comparison."""
    words = ["bespoke compare", shlex.join(names), "--seeds", seeds_text(seeds), *flags(config)]
    words += [set_flag(key, value) for key, value in flattened(config.set).items()]
    words += ["--no-tune"] if tune is False else [] if tune is None or tune is True else ["--tune", str(tune)]
    words += [] if budget == "steps" else ["--budget", budget]
    words += [] if metric is None else ["--metric", metric]
    for name, grid in grids.items():
        for key, values in grid.items():
            words += ["--grid", shlex.quote(f"{name}.{key}={','.join(map(literal, values))}")]
    return " ".join(words)
