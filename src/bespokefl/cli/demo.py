"""The demonstration: some methods, or all of them, on the same clients, in about a minute."""

from bespokefl import methods
from bespokefl.data import load
from bespokefl.data.clients import Clients
from bespokefl.engines.progress import Report
from bespokefl.workflows.results.result import Result
from bespokefl.workflows.run.api import run

DATA, SPLIT, NUM_CLIENTS, MODEL = "digits", "classes(k=3)", 20, "mlp"
PARTICIPATION, BATCH_SIZE, LOCAL_EPOCHS = 1.0, 10, 2
SHORT = ("local", "fedavg", "ditto", "selffl", "persfl", "ucfl", "pfedvem")  # the methods without --all


def make_clients(seed: int) -> Clients:
    """Return the clients of the demonstration."""
    return load(DATA).split(SPLIT, clients=NUM_CLIENTS, seed=seed)


def choose_methods(clients: Clients, everything: bool) -> tuple[list[str], list[str]]:
    """Return the methods to run, and those left out because they need the true groups of the clients."""
    names = [name for name in methods.REGISTRY if everything or name in SHORT]
    unfit = [name for name in names if methods.build(name).needs_groups and clients.groups is None]
    return [name for name in names if name not in unfit], unfit


def run_method(name: str, clients: Clients, rounds: int, seed: int, progress: Report | None) -> Result:
    """Train one method; all methods start from the same model and draw the same clients."""
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
