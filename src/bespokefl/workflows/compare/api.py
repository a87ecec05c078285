"""Compare methods: train each with several seeds on one split, with equal initial weights and equal client draws."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from bespokefl import methods as registry
from bespokefl import trackers
from bespokefl.core.errors import InputError, spell
from bespokefl.core.method import Method
from bespokefl.data.clients import Clients
from bespokefl.engines.outcome import OnProgress
from bespokefl.metrics.metric import check_metric
from bespokefl.metrics.verdict import MIN_SEEDS
from bespokefl.workflows.compare import budget as budgets
from bespokefl.workflows.compare import candidates, storage
from bespokefl.workflows.compare.candidates import Candidate
from bespokefl.workflows.compare.plan import NOT_ACCEPTED, ComparisonPlan, often_enough, run_comparison
from bespokefl.workflows.compare.result import Comparison
from bespokefl.workflows.results import run_directory
from bespokefl.workflows.results.result import Result
from bespokefl.workflows.run import initial_weights, jobs
from bespokefl.workflows.run.api import run, run_config
from bespokefl.workflows.run.client_loading import load_clients
from bespokefl.workflows.run.settings import RunSettings
from bespokefl.workflows.tune import shared_settings
from bespokefl.workflows.tune.duration import DEFAULT_TIME, read_time
from bespokefl.workflows.tune.grid import Grid

SEEDS = tuple(range(MIN_SEEDS))  # fewer cannot name a method that performs best
OWN = ("seeds", "tune", "budget", "grids", "metric", "out")  # settings that `run` does not have
REJECTED = {"method", "clients", "progress", "callbacks", "checkpoint", "seed", *NOT_ACCEPTED}


def compare(
    methods: Sequence[Method | str],
    clients: Clients,
    *,
    seeds: Sequence[int] | int = SEEDS,
    tune: bool | str | float | None = None,
    budget: str = "steps",
    grids: Mapping[str, Grid] | None = None,
    metric: str | None = None,
    out: str | PathLike[str] | None = None,
    overwrite: bool = False,
    progress: jobs.OnProgress | None = None,
    **settings: Any,
) -> Comparison:
    """Train every method with every seed on the same clients, and compare them client by client.

    Parameters
    ----------
    methods : sequence of Method or str
        Methods with their hyper-parameters, `methods.Ditto(prox_weight=0.5)`, or names. Local and FedAvg, the
        baselines that gains are measured against, are always added.
    seeds : sequence of int or int
        Seeds of initial weights, client draws and batches; 5, the default, means 0 to 4. For one seed they are the same
        for all methods. Fewer than five are too few to call a method best.
    tune : bool, str or float, optional
        The time in which all methods are tuned on validation data first, with the first seed (the best points with up
        to three): "10m", "1h" or a number of seconds. Default, and True: 10 minutes. False: the comparison is untuned.
    budget : {"steps", "gradients", "time", "none"}
        What is the same for all methods: the local steps of a client and round, the total number of gradients or the
        processor time (methods that take more than FedAvg get fewer rounds), or nothing, so that methods may set their
        own steps.
    grids : mapping of str to mapping, optional
        Values to try instead of the default grid: `{"ditto": {"prox_weight": (0.1, 1)}}`. Methods named here are
        tuned even without `tune`.
    metric : str, optional
        The score by which methods are tuned (on validation data), tested and ranked (on test data), such as
        "balanced_accuracy", "auc" or "rmse". Default: accuracy, or loss for regression.
    out : path, optional
        Directory for all results. Runs that it already contains are not trained again, unless `overwrite`.
    progress : callable, optional
        Called with a `Step` after every round.
    **settings
        Other keyword arguments of `bespokefl.run`, such as model, rounds or participation. `eval_every` is by default
        so small that at least ten rounds between the first and the last are evaluated.

    Raises
    ------
    InputError
        If a method, grid or setting is invalid, or if `out` holds another comparison.
    TrainingError
        If no method could be trained.

    Examples
    --------
    >>> found = bf.compare(["ditto", "persfl"], clients, seeds=(0, 1), rounds=5)
    >>> print(found.best.sentence)
    """
    shared_settings.check_clients_type(clients)
    shared_settings.check_names(settings, OWN, REJECTED, "a comparison")
    score = None if metric is None else check_metric(metric)
    config = shared_settings.config_of("compare", clients, settings)
    trackers.of(config.log)  # report mistakes before training
    asked, config = config, replace(config, eval_every=often_enough(config), follow=config.follow or score)
    start = None if settings.get("start") is None else initial_weights.read(settings["start"])
    given = settings | {"eval_every": config.eval_every, "follow": config.follow, "start": start}

    def train(one: Candidate, seed: int, path: Path, workers: int, report: OnProgress) -> Result:
        own = {"seed": seed, "workers": workers, "checkpoint": path, "progress": report}
        own["eval_every"] = often_enough(asked, one.options.get("rounds"))
        result = run(one.method, clients, **(given | one.options | own))
        if not result.interrupted:
            result.save(path, overwrite=True)
        return result

    model, sorted_seeds = settings.get("model", RunSettings.model), sorted(shared_settings.check_seeds(seeds))
    chosen = candidates.of(methods)
    plan = ComparisonPlan(
        chosen, clients, sorted_seeds, config, given, model, train, budget=budget, tune=tune, metric=score
    )
    return run_comparison(plan, grids or {}, None if out is None else Path(out), overwrite, progress)


def compare_config(
    config: RunSettings,
    methods: Sequence[str],
    *,
    seeds: Sequence[int] | int | None = None,
    tune: bool | str | float | None = None,
    budget: str = "steps",
    grids: Mapping[str, Grid] | None = None,
    metric: str | None = None,
    progress: jobs.OnProgress | None = None,
) -> Comparison:
    """Compare methods as a config says: its seed is that of the split, its `set` has keys like "ditto.prox_weight"."""
    score = None if metric is None else check_metric(metric)
    sorted_seeds = sorted(shared_settings.check_seeds(SEEDS if seeds is None else seeds))
    grids = grids or {}
    for name in NOT_ACCEPTED:
        if getattr(config, name) != getattr(RunSettings, name):
            raise InputError(f"a comparison does not take {spell(name)}; leave it out.")
    if config.model.startswith("<"):
        raise InputError(f"the model {config.model} was a Python object and has no name; give --model.")
    chosen = candidates.named(methods, config.set)
    budgets.check(budget)  # report mistakes before loading data
    trackers.of(config.log)
    read_time(DEFAULT_TIME if tune is None or isinstance(tune, bool) else tune)
    candidates.grids_of(chosen, tune is not False, grids)
    asked, config = config, replace(config, eval_every=often_enough(config), follow=config.follow or score)
    target = shared_settings.output_directory(config, "compare")
    storage.check(target, config.overwrite)
    clients = load_clients(config)
    common = replace(config, split=str(target / run_directory.SPLIT_FILE), overwrite=True, set={})

    def train(one: Candidate, seed: int, path: Path, workers: int, report: OnProgress) -> Result:
        hyper = {name: value for name, value in one.method.hyper().items() if value is not None}
        own = replace(
            common,
            method=str(registry.name_of(one.method)),
            set=hyper,
            seed=seed,
            workers=workers,
            out=str(path),
            eval_every=often_enough(asked, one.options.get("rounds")),
            **one.options,
        )
        return run_config(own, report, resumed=run_directory.is_unfinished(path), clients=clients)

    command = candidates.command(asked, methods, sorted_seeds, tune, grids, budget, score)
    settings = shared_settings.settings_of(config, without=("seed", *NOT_ACCEPTED))
    plan = ComparisonPlan(
        chosen,
        clients,
        sorted_seeds,
        config,
        settings,
        config.model,
        train,
        command,
        budget=budget,
        tune=tune,
        metric=score,
    )
    return run_comparison(plan, grids, target, config.overwrite, progress)
