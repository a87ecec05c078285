"""Comparing: methods × seeds on one split, from the same start, with the same draws of clients."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from os import PathLike
from pathlib import Path
from typing import Any

from bespokefl.core.errors import InputError, unknown
from bespokefl.core.method import Method
from bespokefl.data.clients import Clients
from bespokefl.engines.progress import Report
from bespokefl.workflows.compare import candidates
from bespokefl.workflows.compare import storage as compare_folder
from bespokefl.workflows.compare.plan import NOT_HERE, ComparisonPlan
from bespokefl.workflows.compare.result import Comparison
from bespokefl.workflows.compare.runner import carry_out
from bespokefl.workflows.results import run_directory
from bespokefl.workflows.results.models import Model, described
from bespokefl.workflows.results.result import Result
from bespokefl.workflows.run import initial_weights as starts
from bespokefl.workflows.run import jobs
from bespokefl.workflows.run.api import run, run_config
from bespokefl.workflows.run.client_loading import load_clients
from bespokefl.workflows.run.settings import LOADING, Config
from bespokefl.workflows.tune.result import Grid

SEEDS = (0, 1, 2)


def compare(
    methods: Sequence[Method | str],
    clients: Clients,
    *,
    seeds: Sequence[int] = SEEDS,
    tune: bool = False,
    grids: Mapping[str, Grid] | None = None,
    out: str | PathLike[str] | None = None,
    overwrite: bool = False,
    progress: jobs.Report | None = None,
    **settings: Any,
) -> Comparison:
    """Train every method with every seed on the same clients, and compare them client by client.

    methods   with their hyper-parameters, `methods.Ditto(prox_weight=0.5)`, or names; Local and FedAvg, over
              which gains are measured, always take part
    seeds     of the start, the draws of clients and the batches; for one seed they are the same for all methods
    tune      choose every method's hyper-parameters on validation data first, with the first seed
    grids     what to try, {"ditto": {"prox_weight": (0.1, 1)}}, instead of the default grid; these methods are
              tuned anyway
    out       a folder for everything: what is in it already is not trained again
    settings  all else that `run` takes: model, rounds, participation, …
    """
    if not isinstance(clients, Clients):
        raise InputError(f"clients must be Clients, got {type(clients).__name__}; data.split(...) makes them.")
    _check_settings(settings)
    loss, start = settings.get("loss"), settings.get("start")
    model: Model = settings.get("model", Config.model)
    plain = {name: value for name, value in settings.items() if name not in ("model", "loss", "start")}
    config = Config(
        method="compare",
        data=clients.data_name,
        clients=len(clients),
        model=described(model),
        loss=f"<{getattr(loss, '__name__', 'function')}>" if callable(loss) else loss,
        **plain,
    )
    given = settings | {"start": None if start is None else starts.read(start)}

    def train(method: Method, seed: int, place: Path, workers: int, report: Report) -> Result:
        own = {"seed": seed, "workers": workers, "checkpoint": place, "progress": report}
        result = run(method, clients, **(given | own))
        if not result.interrupted:
            result.save(place, overwrite=True)
        return result

    plan = ComparisonPlan(candidates.of(methods), clients, _seeds(seeds), config, given, model, train)
    return carry_out(plan, tune, grids or {}, None if out is None else Path(out), overwrite, progress)


def compare_config(
    config: Config,
    methods: Sequence[str],
    *,
    seeds: Sequence[int] | None = None,
    tune: bool = False,
    grids: Mapping[str, Grid] | None = None,
    progress: jobs.Report | None = None,
) -> Comparison:
    """The same for what a config says: its seed is the split's, its `set` has keys such as "ditto.prox_weight"."""
    numbers = _seeds(SEEDS if seeds is None else seeds)
    for name in NOT_HERE:
        if getattr(config, name) != getattr(Config, name):
            raise InputError(f"a comparison does not take {name}; leave it out.")
    if config.model.startswith("<"):
        raise InputError(f"the model was a Python object, {config.model}, that has no name; give --model.")
    chosen = candidates.named(methods, config.set)
    for one in chosen:
        candidates.grid(one, tune, grids or {})  # mistakes are told before data are read
    candidates.check_grids(chosen, grids or {})
    target = run_directory.stable_path(
        Path(config.out) if config.out is not None else run_directory.fresh(run_directory.RUNS, "compare")
    )
    compare_folder.check(target, config.overwrite)
    clients = load_clients(config)
    common = replace(config, split=str(target / run_directory.SPLIT_FILE), overwrite=True, set={})

    def train(method: Method, seed: int, place: Path, workers: int, report: Report) -> Result:
        hyper = {name: value for name, value in method.hyper().items() if value is not None}
        own = replace(common, method=method.name, set=hyper, seed=seed, workers=workers, out=str(place))
        return run_config(own, report, resumed=run_directory.is_unfinished(place), clients=clients)

    apart = {*LOADING, "method", "seed", "set", "out", "overwrite", *NOT_HERE}
    settings = {one.name: getattr(config, one.name) for one in fields(config) if one.name not in apart}
    plan = ComparisonPlan(chosen, clients, numbers, config, settings, config.model, train)
    plan.command = candidates.command(config, methods, numbers, tune, grids or {})
    return carry_out(plan, tune, grids or {}, target, config.overwrite, progress)


def _check_settings(settings: Mapping[str, Any]) -> None:
    apart = {"method", "clients", "progress", "checkpoint", "seed", *NOT_HERE}
    known = [name for name in inspect.signature(run).parameters if name not in apart]
    for name in settings:
        if name in apart:
            raise InputError(f"a comparison does not take {name}; leave it out.")
        if name not in known:
            raise unknown("setting", name, [*known, "seeds", "tune", "grids", "out"])


def _seeds(seeds: Sequence[int]) -> list[int]:
    numbers = list(seeds)
    if not numbers or not all(isinstance(one, int) for one in numbers) or len(set(numbers)) < len(numbers):
        raise InputError(f"seeds must be one or more different whole numbers, got {seeds!r}.")
    return sorted(numbers)
