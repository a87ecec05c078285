"""The demonstration: all registered methods on the same clients, in about a minute."""

from collections.abc import Callable, Iterator
from functools import partial

from bespokefl import methods
from bespokefl.data import load
from bespokefl.data.clients import Clients
from bespokefl.engines.simulation import Report
from bespokefl.experiments.result import Result
from bespokefl.experiments.run import run

DATA, SPLIT, CLIENTS, MODEL = "digits", "dirichlet(alpha=0.4)", 20, "mlp"
PARTICIPATION, BATCH_SIZE, LOCAL_EPOCHS = 0.5, 10, 2

Trial = Callable[[Report | None], Result]


def clients(seed: int) -> Clients:
    return load(DATA).split(SPLIT, clients=CLIENTS, seed=seed)


def trials(clients: Clients, rounds: int, seed: int) -> Iterator[tuple[str, Trial]]:
    """One trial per method, all from the same start and with the same draws of clients."""
    for name, method in methods.REGISTRY.items():
        if method().needs_groups and clients.groups is None:
            continue
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
