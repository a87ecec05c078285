"""Comparing: methods × seeds on one split, from the same start, with the same draws of clients.

What is on disk, in a folder of its own:

plan.json           what all runs have in common: a folder is gone on with only if this is the same
split.json          whose examples are whose
runs/METHOD-SEED    the folder of each run; those that are there are not trained again
tune/METHOD         the tuning of each method, where it was asked for
compare.json        what came out, for the report and other programs
clients.csv         one line per method, seed and client
"""

import hashlib
import inspect
import json
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from bespokefl import methods as registry
from bespokefl.core import chance
from bespokefl.core.errors import BespokeError, InputError, TrainingError, listing, unknown
from bespokefl.core.method import Method
from bespokefl.data.clients import Clients
from bespokefl.engines import simulation
from bespokefl.engines.workers import cores
from bespokefl.experiments import folder, tables, toml
from bespokefl.experiments import jobs as work
from bespokefl.experiments import start as starts
from bespokefl.experiments.comparison import BASELINES, FILE, TABLE, Comparison, Entry, Facts
from bespokefl.experiments.config import Config
from bespokefl.experiments.handover import check_clients
from bespokefl.experiments.personalize import labels_of
from bespokefl.experiments.result import Result, load_run
from bespokefl.experiments.run import RUNS, SPLIT_FILE, find_method, load_clients, run, run_config
from bespokefl.experiments.tune import Grid, Step, Tuning, expand
from bespokefl.experiments.tune import FILE as TUNING
from bespokefl.experiments.tune import OPTIONS as TUNED_OPTIONS
from bespokefl.experiments.tune import tune as tune_one
from bespokefl.experiments.weights import described, fingerprint
from bespokefl.models import build

PLAN, FAILED = "plan.json", "failed.json"
SIGNS, WHAT = (PLAN,), "a comparison"
MANY = 20_000_000  # parameters of all clients together: up to here several runs at once fit any memory
# Options of a run that a comparison settles itself, or that would give runs different clients.
NOT_HERE = ("seed", "newcomers", "keep_rounds", "checkpoint", "state_dir")
# What may change between two calls that go on with each other, as it does not change the results.
FREE = ("method", "data", "split", "clients", "seed", "workers", "chunk", "checkpoint_every", "start", "out")
FREE = (*FREE, "overwrite", "set", *NOT_HERE)

RATES = (0.2, 1.0, 5.0)  # times the method's own rate
RATE = {"pfedvem": "base_lr"}  # whose rate is not called lr
GRIDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "fedprox": {"pull": (0.01, 0.1, 1.0)},
    "ditto": {"pull": (0.1, 1.0, 2.0)},
    "selffl": {"max_steps": (10, 40)},
    "persfl": {"distil_lr": (0.02, 0.1)},
    "persfl-gd": {"distil_lr": (0.02, 0.1)},
    "pfedvem": {"initial_variance": (0.01, 0.1, 1.0)},
    "fedavg-ft": {"tune_lr": (0.01, 0.05)},
    "perfedavg": {"inner_rate": (0.01, 0.05)},
    "pfedme": {"pull": (1.0, 15.0)},
    "apfl": {"alpha": (0.25, 0.5, 0.75)},
    "fedrep": {"head_epochs": (5, 10)},
    "ifca": {"clusters": (2, 4)},
    "fedfomo": {"explore": (0.1, 0.3)},
    "pfedbayes": {"weight": (1.0, 10.0)},
}

Train = Callable[[Method, int, Path, simulation.Report], Result]


@dataclass(frozen=True)
class Contender:
    """A method that takes part, and what it is called here."""

    name: str
    method: Method

    @property
    def slug(self) -> str:
        """Its name as a folder's."""
        return re.sub(r"[^\w.=,-]+", "-", self.name).strip("-")


def compare(
    methods: Sequence[Method | str],
    clients: Clients,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    tune: bool = False,
    grids: Mapping[str, Grid] | None = None,
    out: str | PathLike[str] | None = None,
    overwrite: bool = False,
    progress: work.Report | None = None,
    **settings: Any,
) -> Comparison:
    """Train every method with every seed on the same clients, and compare them client by client.

    methods   with their hyper-parameters, `methods.Ditto(pull=0.5)`, or names; Local and FedAvg, over which gains are
              measured, always take part
    seeds     of the start, the draws of clients and the batches: for one seed they are the same for all methods
    tune      choose every method's hyper-parameters on validation data first, with the first seed
    grids     what to try, {"ditto": {"pull": (0.1, 1)}}, instead of the default grid; these methods are always tuned
    out       a folder for everything: what is in it already is not trained again
    settings  all else that `run` takes: model, rounds, participation, …
    """
    if not isinstance(clients, Clients):
        raise InputError(f"clients must be Clients, got {type(clients).__name__}; data.split(...) makes them.")
    known = [name for name in inspect.signature(run).parameters if name not in ("method", "clients", "progress")]
    for name in settings:
        if name not in known:
            raise unknown("setting", name, [*known, "seeds", "tune", "grids", "out"])
        if name in NOT_HERE:
            raise InputError(f"a comparison does not take {name}; leave it out.")
    loss, start = settings.get("loss"), settings.get("start")
    plain = {name: value for name, value in settings.items() if name not in ("model", "loss", "start")}
    config = Config(
        method="compare",
        data=clients.data_name,
        model=described(settings.get("model", Config.model)),
        loss=f"<{getattr(loss, '__name__', 'function')}>" if callable(loss) else loss,
        **plain,
    )
    begun = None if start is None else starts.read(start)
    given = settings | {"start": begun}

    def train(method: Method, seed: int, place: Path, report: simulation.Report, workers: int) -> Result:
        own = {"seed": seed, "workers": workers, "checkpoint": place, "progress": report}
        result = run(method, clients, **(given | own))
        return result if result.interrupted else _saved(result, place)

    plan = _Plan(contenders(methods), clients, _seeds(seeds), config, given)
    return plan.carry_out(train, tune, grids or {}, None if out is None else Path(out), overwrite, progress)


def compare_config(
    config: Config,
    methods: Sequence[str],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    tune: bool = False,
    grids: Mapping[str, Grid] | None = None,
    progress: work.Report | None = None,
) -> Comparison:
    """The same for what a config says: its seed is the split's, its `set` has keys such as "ditto.pull"."""
    target = Path(config.out) if config.out is not None else folder.fresh(RUNS, "compare")
    for name in ("newcomers", "keep_rounds", "state_dir"):
        if getattr(config, name) != getattr(Config, name):
            raise InputError(f"a comparison does not take {name}; leave it out.")
    if config.model.startswith("<"):
        raise InputError(f"the model was a Python object, {config.model}; give --model.")
    chosen = contenders(_with_hyper(_names(methods), config.set))
    numbers = _seeds(seeds)
    _check_place(target, config.overwrite)
    _check_grids(chosen, grids or {}, config)
    clients = load_clients(config)
    common = replace(config, data=_source(config, clients), split=str(target / SPLIT_FILE), overwrite=False, set={})

    def train(method: Method, seed: int, place: Path, report: simulation.Report, workers: int) -> Result:
        hyper = {name: value for name, value in method.hyper().items() if value is not None}
        own = replace(common, method=method.name, set=hyper, seed=seed, workers=workers, out=str(place))
        return run_config(own, report, resumed=folder.is_unfinished(place), clients=clients)

    apart = {"method", "data", "split", "clients", "set", "out", "overwrite", *NOT_HERE}
    settings = {one.name: getattr(config, one.name) for one in fields(config) if one.name not in apart}
    plan = _Plan(chosen, clients, numbers, config, settings)
    plan.command = command(config, methods, seeds, tune, grids or {}, target)
    return plan.carry_out(train, tune, grids or {}, target, config.overwrite, progress)
