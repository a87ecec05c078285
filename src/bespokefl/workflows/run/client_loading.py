"""Loads the clients of a run, and holds some of them out of training."""

import logging
from collections.abc import Mapping
from typing import Any

from bespokefl import data as datasets
from bespokefl.core import rng
from bespokefl.core.errors import InputError, spell
from bespokefl.data.clients import Clients
from bespokefl.data.tables.client_directories import split_table
from bespokefl.workflows.run.convert import select
from bespokefl.workflows.run.settings import DEFAULT_SPLIT, Mark, RunSettings

log = logging.getLogger("bespokefl")


def load_clients(settings: RunSettings) -> Clients:
    """Load the data of these settings and split them among clients."""
    dataset = datasets.load(settings.data, **table_options(settings.select(Mark.TABLE)))
    if settings.split is not None and settings.split.endswith(".json"):
        clients = dataset.with_split(settings.split)
    else:
        try:
            train, validation, test = map(float, settings.fractions.split(","))
        except ValueError:
            raise InputError(
                f"{spell('fractions')} must be three numbers such as 0.6,0.2,0.2, got {settings.fractions!r}."
            ) from None
        shares, number = (train, validation, test), settings.clients
        clients = split_table(
            dataset, settings.split, DEFAULT_SPLIT, number=number, seed=settings.seed, fractions=shares
        )
    if settings.clients not in (len(clients), None):
        log.warning("the split has %d clients of its own; clients = %d is not used", len(clients), settings.clients)
    return clients


def table_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `bespokefl.load`: names that settings separate by commas are lists."""
    lists = {key: settings[key].split(",") for key in ("drop", "missing_values", "as_number")}
    return {**settings, **{key: [one.strip() for one in names if one.strip()] for key, names in lists.items()}}


def hold_back(clients: Clients, share: float, seed: int) -> tuple[Clients, Clients | None]:
    """Return the clients that train, and a random fraction that does not; both keep the hash of the split."""
    if not share:
        return clients, None
    if len(clients) < 2:
        raise InputError(
            f"{spell('newcomers', share)} needs at least 2 clients, one to train and one to hold back, got 1."
        )
    canonical = sorted(range(len(clients)), key=lambda i: clients.names[i])
    held_out = {canonical[i] for i in rng.sample(len(clients), share, seed, "newcomers")}
    training = [i for i in range(len(clients)) if i not in held_out]
    return select(clients, training), select(clients, sorted(held_out))
