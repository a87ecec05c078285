"""The settings that all trainings of a tuning, a comparison or a diagnosis have in common."""

import inspect
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from bespokefl.core import rng
from bespokefl.core.errors import InputError, spell, unknown
from bespokefl.data.clients import Clients
from bespokefl.data.preprocessing.fit import prepare
from bespokefl.models import Model, build
from bespokefl.workflows.results import run_directory
from bespokefl.workflows.results.models import described
from bespokefl.workflows.run import jobs
from bespokefl.workflows.run.api import run
from bespokefl.workflows.run.settings import Mark, RunSettings

OBJECTS = ("model", "loss", "start")  # settings that may be Python objects, which a config cannot hold


def output_directory(config: RunSettings, name: str) -> Path:
    """Return the directory of a config, or a new one under runs/."""
    return run_directory.stable_path(
        Path(config.out) if config.out is not None else run_directory.fresh(run_directory.RUNS, name)
    )


def check_clients_type(clients: Any) -> None:
    """Raise an error for anything but `Clients`."""
    if not isinstance(clients, Clients):
        raise InputError(f"clients must be Clients, got {type(clients).__name__}; data.split(...) makes them.")


def check_names(
    settings: Mapping[str, Any], own: Sequence[str], rejected: Collection[str] = (), what: str = ""
) -> None:
    """Reject settings that `bespokefl.run` does not take, and those that `what` does not accept; `own` are known."""
    apart = {"method", "clients", "progress", *rejected}
    known = [name for name in inspect.signature(run).parameters if name not in apart]
    for name in settings:
        if name in rejected:
            raise InputError(f"{what} does not take {spell(name)}; leave it out.")
        if name not in known:
            raise unknown("setting", name, [*known, *own])


def check_seeds(seeds: Sequence[int] | int) -> list[int]:
    """Return the seeds as a list: 5 means the five seeds 0 to 4."""
    if isinstance(seeds, int) and not isinstance(seeds, bool) and seeds > 0:
        return list(range(seeds))
    numbers = list(seeds) if isinstance(seeds, Iterable) and not isinstance(seeds, str) else []
    integers = all(isinstance(one, int) and not isinstance(one, bool) for one in numbers)
    if not numbers or not integers or len(set(numbers)) < len(numbers):
        raise InputError(
            f"seeds must be one or more different integers, such as (0, 1, 2), or how many, such as 5, got {seeds!r}."
        )
    return numbers


def seeds_text(seeds: Sequence[int]) -> str:
    """Return seeds as --seeds reads them: a single seed is written as a range, because a number alone is a count."""
    return f"{seeds[0]}-{seeds[0]}" if len(seeds) == 1 and seeds[0] > 0 else ",".join(map(str, seeds))


def config_of(method: str, clients: Clients, settings: Mapping[str, Any]) -> RunSettings:
    """Return the checked config of these settings; Python objects are described in angle brackets."""
    loss = settings.get("loss")
    return RunSettings(
        method=method,
        data=clients.data_name,
        model=described(settings.get("model", RunSettings.model)),
        loss=f"<{getattr(loss, '__name__', 'function')}>" if callable(loss) else loss,
        **{name: value for name, value in settings.items() if name not in OBJECTS},
    )


def settings_of(config: RunSettings, without: Collection[str] = ()) -> dict[str, Any]:
    """Return the settings of a config as keyword arguments of `bespokefl.run`."""
    return {name: getattr(config, name) for name in RunSettings.arguments() if name not in without}


def prepared(clients: Clients, config: RunSettings) -> Clients:
    """Scale features and encode text as each run would do, unless the clients are prepared already."""
    if clients.preparation is not None:
        return clients
    return prepare(clients, **config.select(Mark.PREPARATION))[0]


def num_processes(clients: Clients, model: Model, config: RunSettings) -> int:
    """Return how many trainings of these prepared clients can run at the same time."""
    tokens = None if clients.preparation is None else clients.preparation.tokens
    with rng.torch_seeded(0, "size"):
        module = build(model, clients.shape, clients.classes or 1, tokens)()
    parameters = len(clients) * sum(parameter.numel() for parameter in module.parameters())
    return jobs.num_processes(parameters, config.workers, config.device, config.cluster)


def flags(config: RunSettings, without: Collection[str] = ()) -> list[str]:
    """Return the command-line flags, quoted, of all settings that differ from their defaults."""
    apart = {"method", "set", *RunSettings.marked(Mark.WRITING), *without}
    given = [one for one in fields(config) if one.name not in apart and getattr(config, one.name) != one.default]
    return [flag(one.name, getattr(config, one.name)) for one in given]


def flag(name: str, value: Any) -> str:
    """Return a setting as a flag of the command line."""
    switch = f"--{name.replace('_', '-')}"
    return switch if value is True else f"{switch} {shlex.quote(literal(value))}"


def set_flag(name: str, value: Any) -> str:
    """Return a hyper-parameter as the flag --set."""
    return f"--set {shlex.quote(f'{name}={literal(value)}')}"


def literal(value: Any) -> str:
    """Return a value as the command line reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
