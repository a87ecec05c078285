"""Loads the clients of a run, and holds some of them out of training."""

import logging

from bespokefl import data as datasets
from bespokefl.core import rng
from bespokefl.core.errors import InputError
from bespokefl.data.clients import Clients
from bespokefl.data.tables.client_directories import split_table
from bespokefl.workflows.run.convert import select
from bespokefl.workflows.run.settings import DEFAULT_SPLIT, RunSettings

log = logging.getLogger("bespokefl")


def load_clients(settings: RunSettings) -> Clients:
    """Load the data of these settings and split them among clients."""
    drop = [one.strip() for one in settings.drop.split(",") if one.strip()]
    options = {key: getattr(settings, key) for key in ("label", "client", "task", "text", "missing")}
    dataset = datasets.load(settings.data, drop=drop, **options)
    if settings.split is not None and settings.split.endswith(".json"):
        clients = dataset.with_split(settings.split)
    else:
        clients = split_table(
            dataset,
            settings.split,
            DEFAULT_SPLIT,
            number=settings.clients,
            seed=settings.seed,
            fractions=_fractions(settings.fractions),
        )
    if settings.clients not in (len(clients), None):
        log.warning("the split has %d clients of its own; clients = %d is not used", len(clients), settings.clients)
    return clients


def _fractions(text: str) -> tuple[float, float, float]:
    try:
        train, validation, test = map(float, text.split(","))
    except ValueError:
        raise InputError(f"fractions must be three numbers such as 0.6,0.2,0.2, got {text!r}.") from None
    return train, validation, test


def hold_back(clients: Clients, share: float, seed: int) -> tuple[Clients, Clients | None]:
    """Return the clients that train, and a random fraction that does not; both keep the hash of the split."""
    if not share:
        return clients, None
    if len(clients) < 2:
        raise InputError(f"newcomers = {share} needs at least 2 clients, one to train and one to hold back, got 1.")
    canonical = sorted(range(len(clients)), key=lambda i: clients.names[i])
    held_out = {canonical[i] for i in rng.sample(len(clients), share, seed, "newcomers")}
    training = [i for i in range(len(clients)) if i not in held_out]
    return select(clients, training), select(clients, sorted(held_out))
