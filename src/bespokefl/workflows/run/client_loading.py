"""The clients of a run: loaded and divided as its config says, some of them held back until the training is over."""

import logging

from bespokefl import data as datasets
from bespokefl.core import rng
from bespokefl.core.errors import InputError
from bespokefl.data.clients import Clients
from bespokefl.data.tables.client_directories import split_table
from bespokefl.workflows.run.convert import select
from bespokefl.workflows.run.settings import SPLIT, Config

log = logging.getLogger("bespokefl")


def load_clients(config: Config) -> Clients:
    """The data of a config, split as it says."""
    drop = [one.strip() for one in config.drop.split(",") if one.strip()]
    options = {key: getattr(config, key) for key in ("label", "client", "task", "text", "missing")}
    dataset = datasets.load(config.data, drop=drop, **options)
    if config.split is not None and config.split.endswith(".json"):
        clients = dataset.with_split(config.split)
    else:
        clients = split_table(
            dataset,
            config.split,
            SPLIT,
            number=config.clients,
            seed=config.seed,
            fractions=_fractions(config.fractions),
        )
    if config.clients not in (len(clients), None):
        log.warning("the split has %d clients of its own; clients = %d is not used", len(clients), config.clients)
    return clients


def _fractions(text: str) -> tuple[float, float, float]:
    try:
        train, validation, test = (float(one) for one in text.split(","))
    except ValueError:
        raise InputError(f"fractions must be three numbers such as 0.6,0.2,0.2, got {text!r}.") from None
    return train, validation, test


def hold_back(clients: Clients, share: float, seed: int) -> tuple[Clients, Clients | None]:
    """Those that train, and a share of the clients that come later; both keep the split's hash."""
    if not share:
        return clients, None
    if len(clients) < 2:
        raise InputError(f"newcomers = {share} needs at least 2 clients, one to train and one to hold back, got 1.")
    canonical = sorted(range(len(clients)), key=lambda i: clients.names[i])
    late = {canonical[i] for i in rng.sample(len(clients), share, seed, "newcomers")}
    return select(clients, [i for i in range(len(clients)) if i not in late]), select(clients, sorted(late))
