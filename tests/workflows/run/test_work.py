"""The work of a run: what each method's gradients add up to, for any engine and number of workers."""

from typing import Any

import numpy as np
import pytest
import torch

from bespokefl import methods
from bespokefl.core.method import Method
from bespokefl.data.clients import Clients
from bespokefl.workflows.run.api import run

SIZES, ROUNDS, EPOCHS, BATCH = (30, 17, 44), 3, 2, 8


@pytest.fixture(scope="module")
def clients() -> Clients:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(len(SIZES)), SIZES)
    return Clients.from_arrays(rng.normal(size=(len(client), 4)), rng.integers(0, 3, len(client)), client)


def work(method: Method, clients: Clients, **settings: Any) -> dict[str, Any]:
    options = {"rounds": ROUNDS, "local_epochs": EPOCHS, "batch_size": BATCH, "model": "mlp", "workers": 1} | settings
    found = run(method, clients, **options).work
    assert found is not None
    return found


def test_the_work_of_methods_is_what_their_algorithms_say(clients: Clients) -> None:
    n = clients.train.sizes.numpy()
    epoch = int(n.sum())
    steps = float((-(-n // BATCH)).mean() * EPOCHS)  # per client and round
    once = ROUNDS * EPOCHS * epoch
    assert len(set(n.tolist())) > 1 and any(n % BATCH)  # ragged clients and batches: padding must not count

    def expected(factor: float, gradients: int, head: int = 0, final: int = 0) -> Any:
        values = {"gradients": gradients, "head_gradients": head, "final_gradients": final}
        return {"steps": pytest.approx(factor * steps)} | values

    assert work(methods.FedAvg(), clients) == expected(1, once)
    assert work(methods.Local(), clients) == expected(1, once)
    assert work(methods.Ditto(), clients) == expected(2, 2 * once)
    assert work(methods.PFedMe(inner_steps=4), clients) == expected(4, 4 * once)
    # One gradient of all training data adapts the final model; "exact" takes two more for the Hessian product.
    assert work(methods.PerFedAvg(), clients)["final_gradients"] == epoch
    rounds_alone = {order: work(methods.PerFedAvg(order=order), clients)["steps"] for order in ("first", "exact")}
    assert rounds_alone == {"first": pytest.approx(2 * steps), "exact": pytest.approx(4 * steps)}
    tuned = work(methods.FedAvgFT(tune_epochs=3), clients)
    assert tuned == expected(1, once + 3 * epoch, final=3 * epoch)
    fedrep = work(methods.FedRep(head_epochs=4, finish_epochs=5), clients)
    assert (fedrep["gradients"], fedrep["head_gradients"]) == (once, (4 * ROUNDS + 5) * epoch)
    # In its second round a client learns its mixture for eleven epochs of its sample at least, then for one a round.
    fedala, sample = work(methods.FedALA(threshold=1e3), clients), sum(int(0.8 * size) for size in n)
    assert (fedala["gradients"], fedala["head_gradients"]) == (once, (11 + ROUNDS - 2) * sample)
    feddbe = work(methods.FedDBE(), clients)  # a round before training
    assert (feddbe["gradients"], feddbe["head_gradients"]) == ((ROUNDS + 1) * EPOCHS * epoch, 0)


def test_the_work_is_the_same_for_every_engine_chunk_and_number_of_workers(clients: Clients) -> None:
    for method in (methods.Ditto(), methods.FedRep(head_epochs=2), methods.PFedVEM(head_steps=2), methods.FedAvgFT()):
        usual = work(method, clients)
        assert work(method, clients, workers=2) == usual
        assert work(method, clients, chunk=1) == usual
        assert work(method, clients, engine="reference") == usual


def test_rounds_have_their_own_work(clients: Clients) -> None:
    found = run(methods.FedAvg(), clients, rounds=4, participation=0.4, model="logistic", workers=1, batch_size=BATCH)
    assert found.work is not None
    assert sum(line["gradients"] for line in found.rounds) == found.work["gradients"]
    assert {line["gradients"] for line in found.rounds} <= set(clients.train.sizes.tolist())  # one client per round


def test_self_fl_stays_within_the_local_steps_of_the_run(clients: Clients) -> None:
    free, limited = methods.SelfFL(lr=0.1), methods.SelfFL(lr=0.1).within_budget()
    steps = work(methods.FedAvg(), clients)["steps"]
    assert work(free, clients)["steps"] > steps
    assert work(limited, clients)["steps"] <= steps
    assert work(methods.SelfFL(lr=0.1, max_steps=2, limit_steps=True), clients)["steps"] <= 2
