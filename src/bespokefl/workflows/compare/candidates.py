"""Who takes part in a comparison: methods, what each is called, and what is tried when it is tuned."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import prod
from typing import Any

from bespokefl import methods as registry
from bespokefl.core.errors import InputError, listing, unknown
from bespokefl.core.method import Method
from bespokefl.workflows.compare.result import BASELINES, Entry
from bespokefl.workflows.results import score_tables
from bespokefl.workflows.results.result import Result
from bespokefl.workflows.run.settings import Config
from bespokefl.workflows.tune.result import Grid, expand

EVERYTHING = "all"  # in the place of methods' names
RATES = (0.2, 1.0, 5.0)  # times a method's own lr
# What is tried beside the lr, or, where it is named, instead of it.
GRIDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "fedprox": {"prox_weight": (0.01, 0.1, 1.0)},
    "ditto": {"lr": (0.05, 0.25), "personal_lr": (0.05, 0.25), "prox_weight": (0.1, 1.0)},
    "selffl": {"max_steps": (10, 40)},
    "persfl": {"distil_lr": (0.02, 0.1)},
    "persfl-gd": {"distil_lr": (0.02, 0.1)},
    "pfedvem": {"head_lr": (0.001, 0.01), "base_lr": (0.01, 0.05), "initial_variance": (0.01, 0.1)},
    "fedavg-ft": {"tune_lr": (0.01, 0.05)},
    "perfedavg": {"inner_rate": (0.01, 0.05)},
    "pfedme": {"lr": (0.005, 0.05), "personal_lr": (0.09, 0.25), "prox_weight": (1.0, 15.0)},
    "apfl": {"alpha": (0.25, 0.5, 0.75)},
    "fedper": {"lr": (0.01, 0.05, 0.25)},
    "fedrep": {"head_epochs": (5, 10)},
    "ifca": {"clusters": (2, 4)},
    "fedfomo": {"explore": (0.1, 0.3)},
    "pfedbayes": {"lr": (0.05, 0.25), "common_lr": (0.05, 0.25), "weight": (1.0, 10.0)},
}
# What makes a run beside its method, model, rounds and seed.
SAME = ("participation", "batch_size", "local_epochs", "local_steps", "head", "loss", "precision", "start")


@dataclass(frozen=True)
class Contender:
    """A method, and what it is called in a comparison."""

    name: str
    method: Method

    @property
    def slug(self) -> str:
        """Its name as a folder's."""
        return re.sub(r"[^\w.=,-]+", "-", self.name).strip("-")

    @property
    def registered(self) -> bool:
        return registry.REGISTRY.get(self.method.name) is type(self.method)


def of(given: Sequence[Method | str]) -> list[Contender]:
    """The methods that are given, and the baselines; two of one kind are told apart by what differs in them."""
    if isinstance(given, str | Method):
        raise InputError(f"methods must be a list, such as ['ditto', 'persfl'], got {given!r}.")
    found = [registry.of(one) for one in given]
    if not found:
        raise InputError('a comparison needs methods, got none; name some, as in "bespoke compare ditto persfl".')
    present = {one.name for one in found}
    found = [registry.build(name) for name in BASELINES if name not in present] + found
    names = [one.name or type(one).__name__ for one in found]
    called = labels(names, [score_tables.plain(one.hyper()) for one in found])
    chosen = [Contender(name, method) for name, method in zip(called, found, strict=True)]
    order = list(registry.REGISTRY)
    return sorted(chosen, key=lambda one: (order.index(one.method.name) if one.registered else len(order), one.name))


def named(names: Sequence[str], hyper: Mapping[str, Any]) -> list[Contender]:
    """Methods by name; `hyper` has "ditto.prox_weight" for one of them, "lr" for all that have it."""
    asked = list(registry.REGISTRY) if list(names) == [EVERYTHING] else list(names)
    if not asked:
        return of([])
    twice = next((name for name in asked if asked.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{twice} is named twice; leave one of them out.")
    everybody = list(dict.fromkeys([*BASELINES, *asked]))
    known = {name: registry.find(name)().hyper() for name in everybody}
    own: dict[str, dict[str, Any]] = {name: {} for name in everybody}
    flat = flattened(hyper)
    # What is for one method comes last, and wins over what is for all.
    for key, value in sorted(flat.items(), key=lambda item: "." in item[0]):
        method, dot, name = key.rpartition(".")
        method = method.replace("_", "-")  # keys are read with underscores; no method's name has one
        if dot and method not in own:
            raise InputError(f"--set has {key}, but {method!r} is not compared; compared are {listing(list(own))}.")
        fitting = [method] if dot else [one for one in own if name in known[one]]
        if not fitting:
            raise unknown(
                "hyper-parameter of the methods compared", name, {one for keys in known.values() for one in keys}
            )
        for one in fitting:
            own[one][name] = value
    return of([registry.build(name, values) for name, values in own.items()])


def flattened(hyper: Mapping[str, Any]) -> dict[str, Any]:
    """`[set.ditto] prox_weight = 1` of a TOML file as "ditto.prox_weight"."""
    found: dict[str, Any] = {}
    for key, value in hyper.items():
        if isinstance(value, Mapping):
            found |= {f"{key}.{name}": one for name, one in value.items()}
        else:
            found[key] = value
    return found


def labels(names: Sequence[str], about: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each: its own, with what differs in brackets where several have the same."""
    found = []
    for name, own in zip(names, about, strict=True):
        rivals = [other for called, other in zip(names, about, strict=True) if called == name]
        differs = [key for key in own if any(other.get(key) != own[key] for other in rivals)]
        inside = ", ".join(f"{key}={own[key]}" for key in differs)
        found.append(f"{name} ({inside})" if inside else name)
    twice = next((name for name in found if found.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{twice} is there twice, and nothing differs; leave one of them out.")
    return found


# -- tuning


def check_grids(contenders: Sequence[Contender], grids: Mapping[str, Grid]) -> None:
    for name in grids:
        if all(name not in (one.name, one.method.name) for one in contenders):
            known = listing([one.name for one in contenders])
            raise InputError(f"--grid has {name!r}, which is not compared; compared are {known}.")


def grid(one: Contender, tuning: bool, grids: Mapping[str, Grid]) -> dict[str, Sequence[Any]]:
    """What to try: what was asked for, or else the method's default grid; nothing where it is not tuned."""
    method, hyper = one.method, one.method.hyper()
    given = grids.get(one.name, grids.get(method.name))
    changed = {each.name for each in fields(method) if hyper[each.name] != each.default}
    if given is not None:
        for key in given:
            if key not in hyper:
                raise unknown(f"hyper-parameter of {one.name}", key, hyper, see=f"bespoke methods {method.name}")
            if key in changed:
                raise InputError(
                    f"{key} of {one.name} is in the grid and has a fixed value, too; leave one of them out."
                )
        _points(one, given)
        return dict(given)
    if not tuning:
        return {}
    tried: dict[str, Sequence[Any]] = {}
    if isinstance(hyper.get("lr"), float):
        tried["lr"] = tuple(float(f"{hyper['lr'] * factor:.3g}") for factor in RATES)
    tried |= GRIDS.get(method.name, {}) if one.registered else {}
    return {key: values for key, values in tried.items() if key not in changed}


def points(grid: Grid) -> int:
    return prod(len(values) for values in grid.values())


def chosen(one: Contender, grid: Grid, at: int) -> tuple[Method, dict[str, Any]]:
    """The method of a point of the grid, and the point."""
    point = _points(one, grid)[at]
    return point.method, point.values


def _points(one: Contender, grid: Grid) -> list[Any]:
    return expand(one.method, grid, {"local_steps": None})


# -- runs that are there


def grouped(results: Iterable[Result]) -> tuple[list[Entry], str]:
    """Runs as methods, those together that differ in the seed only; and what differs between methods, in words."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(score_tables.dumps([result.method, _settings(result), result.hyper]), []).append(result)
    firsts = [own[0] for own in groups.values()]
    names = labels([one.method for one in firsts], [_settings(one) | score_tables.plain(one.hyper) for one in firsts])
    entries = []
    for name, own in zip(names, groups.values(), strict=True):
        kind = registry.REGISTRY.get(own[0].method)
        about, citation = ("", "") if kind is None else (kind.summary(), kind.citation)
        entry = Entry(name, own[0].method, own[0].hyper, about=about, citation=citation)
        for result in own:
            seed = int(result.about["seed"])
            if seed in entry.runs:
                raise InputError(f"two runs are of {name} with seed {seed}; leave one of them out.")
            entry.runs[seed] = result
        entries.append(entry)
    settings = [_settings(one) for one in firsts]
    differs = [key for key in settings[0] if any(one[key] != settings[0][key] for one in settings)]
    told = (f"{key} ({', '.join(dict.fromkeys(str(one[key]) for one in settings))})" for key in differs)
    return entries, ", ".join(told)


def _settings(result: Result) -> dict[str, Any]:
    """All that makes a run, but for its method and its seed."""
    about = result.about
    found = {name: about[name] for name in ("model", "rounds")} | {name: about["settings"].get(name) for name in SAME}
    return {name: score_tables.plain(value) for name, value in found.items()}


# -- to do it again


def command(config: Config, names: Sequence[str], seeds: Sequence[int], tuning: bool, grids: Mapping[str, Grid]) -> str:
    """The command that makes this comparison."""
    words = ["bespoke", "compare", *names, "--seeds", ",".join(map(str, seeds))]
    for one in fields(config):
        value = getattr(config, one.name)
        if one.name not in ("method", "set", "out", "overwrite") and value != one.default:
            words += [f"--{one.name.replace('_', '-')}", *([] if value is True else [str(value)])]
    for key, value in flattened(config.set).items():
        words += ["--set", f"{key}={_written(value)}"]
    words += ["--tune"] if tuning else []
    for name, grid in grids.items():
        for key, values in grid.items():
            words += ["--grid", f"{name}.{key}={','.join(map(_written, values))}"]
    return shlex.join(words)


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
