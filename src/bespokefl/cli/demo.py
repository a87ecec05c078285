"""The demonstration: a few methods, or all of them, on the same clients, in about a minute."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from bespokefl import methods
from bespokefl.data import load
from bespokefl.data.clients import Clients
from bespokefl.engines.progress import Report
from bespokefl.workflows.results.result import Result
from bespokefl.workflows.run.api import run

DATA, SPLIT, CLIENTS, MODEL = "digits", "classes(k=3)", 20, "mlp"
PARTICIPATION, BATCH_SIZE, LOCAL_EPOCHS = 1.0, 10, 2
SHORT = ("local", "fedavg", "ditto", "selffl", "persfl", "ucfl", "pfedvem")  # what is shown if not asked for all

Trial = Callable[[Report | None], Result]


def clients(seed: int) -> Clients:
    return load(DATA).split(SPLIT, clients=CLIENTS, seed=seed)


def shown(clients: Clients, everything: bool) -> tuple[list[str], list[str]]:
    """The methods to show, and those that cannot be, as they need to know the clients' true groups."""
    names = [name for name in methods.REGISTRY if everything or name in SHORT]
    unfit = [name for name in names if methods.build(name).needs_groups and clients.groups is None]
    return [name for name in names if name not in unfit], unfit


def trials(names: Sequence[str], clients: Clients, rounds: int, seed: int) -> Iterator[tuple[str, Trial]]:
    """One trial per method, all from the same start and with the same draws of clients."""
    for name in names:
        yield name, partial(_trial, name, clients, rounds, seed)


def _trial(name: str, clients: Clients, rounds: int, seed: int, progress: Report | None) -> Result:
    return run(
        name,
        clients,
        model=MODEL,
        rounds=rounds,
        participation=PARTICIPATION,
        batch_size=BATCH_SIZE,
        local_epochs=LOCAL_EPOCHS,
        seed=seed,
        progress=progress,
    )
