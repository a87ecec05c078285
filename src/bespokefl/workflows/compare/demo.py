"""The demonstration: a federation of digits in which training alone and one common model both lose.

Half of the clients number the digits in another order, so that a common model contradicts itself, and every client has
some fifty images, too few to train alone.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bespokefl import methods
from bespokefl.data import load
from bespokefl.data.clients import Clients
from bespokefl.workflows.compare.api import compare
from bespokefl.workflows.compare.result import FEDAVG, LOCAL, Comparison
from bespokefl.workflows.run import jobs

SPLIT, NUM_CLIENTS, SPLIT_SEED = "dirichlet(alpha=1) + permuted_labels(groups=2)", 20, 0
SETTINGS: dict[str, Any] = {"model": "mlp", "batch_size": 10, "local_epochs": 1}
ROUNDS, NUM_SEEDS = 30, 3

# Chosen by validation accuracy, with seed 100 and 30 rounds, from the values that CHOSEN_BEFOREHAND names.
HYPER: dict[str, Mapping[str, Any]] = {
    LOCAL: {"lr": 0.3},
    FEDAVG: {"lr": 1.0},
    "ditto": {"lr": 0.3, "personal_lr": 0.3, "prox_weight": 0.01},
    "selffl": {"lr": 0.3},
    "persfl": {"lr": 1.0, "distil_lr": 0.3},
    "ucfl": {"lr": 0.1},
    "pfedvem": {"base_lr": 0.03},
    "fedavg-ft": {"lr": 0.3, "tune_lr": 0.3},
    "ifca": {"lr": 1.0, "clusters": 2},
    "cfl": {"lr": 0.3},
}
CHOSEN_BEFOREHAND = (
    "Hyper-parameters were chosen beforehand by validation accuracy, with a seed that is not among those compared: "
    "learning rates from .1, .3 and 1 (ucfl: .03, .1, .3; persfl's distil_lr: .1, .3; pfedvem's base_lr: .01, .03, "
    ".1), ditto's prox_weight from .01, .1 and 1, and ifca's number of models from 2 and 4. Test data were not used."
)
OTHERS_UNTUNED = "Methods that are not in the short demonstration have their default hyper-parameters."


def demo_clients() -> Clients:
    """Return the clients of the demonstration."""
    return load("digits").split(SPLIT, clients=NUM_CLIENTS, seed=SPLIT_SEED)


def demo(
    clients: Clients, *, everything: bool = False, rounds: int = ROUNDS, seed: int = 0, progress: jobs.OnProgress | None
) -> Comparison:
    """Compare the methods of the demonstration, or all, with three seeds from `seed` on."""
    names = methods.REGISTRY if everything else HYPER
    chosen = [methods.build(name, dict(HYPER.get(name, {}))) for name in names]
    seeds = range(seed, seed + NUM_SEEDS)
    found = compare(chosen, clients, seeds=seeds, tune=False, rounds=rounds, progress=progress, **SETTINGS)
    tuning: dict[str, Any] = {"tuned": None, "sentences": [CHOSEN_BEFOREHAND, OTHERS_UNTUNED]}
    if not everything:
        tuning = {"tuned": True, "sentences": [CHOSEN_BEFOREHAND]}
    metadata = replace(found.metadata, tuning=tuning)
    return Comparison(list(found.entries.values()), metadata, keep=found)


def meaning(found: Comparison) -> str:
    """Return what the comparison means, in plain words."""
    local, fedavg, best = (found.figures[name] for name in (LOCAL, FEDAVG, found.ranking[0]))
    if local is None or fedavg is None or best is None:
        return "A method failed, so that there is nothing to compare with."
    alone, common, personal = (f"{100 * one['accuracy']['mean']:.0f} %" for one in (local, fedavg, best))
    baselines = (
        f"One common model (fedavg) recognizes {common} of a client's images, because half of the clients contradict "
        f"it; a model that each client trains alone (local) {alone}, because it has few images."
    )
    if best["gain"] is None:
        return f"{baselines} No method improves on both."
    return (
        f"{baselines} With {found.ranking[0]} each client learns from those that are like it: {personal}, which is "
        f"better than both for {best['gain']['improved_share']:.0f} % of the clients."
    )
