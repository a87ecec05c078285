"""The laws for a model with batch norm: running statistics are part of a client's row, for every method."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bespokefl.core.method import Message, Method, Uploads
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.engines.simulation import Simulation
from bespokefl.methods import REGISTRY, PFedBayes, PFedMe, Scaffold, SelfFL
from bespokefl.methods.cfl import similarity
from bespokefl.methods.ifca import nearby, shuffled
from tests.contract import test_methods as laws
from tests.contract.conftest import params, quick
from tests.contract.test_methods import (
    ALONE,
    DOUBLE,
    EVERYBODY,
    HALF,
    MIXED,
    SINGLE,
    assert_chunks_do_not_matter,
    assert_it_declares_what_it_uploads,
    assert_near,
    moments,
    newcomers,
    result,
    rows_of,
    states,
)
from tests.federations import CLASSES, WIDTH, apart, federation, random_rows, run, same_bits, simulation, work_of


def normed() -> nn.Module:
    """Batch norm between two linear layers; with batches of 4, clients have batches of one to four examples."""
    return nn.Sequential(nn.Linear(WIDTH, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, CLASSES))


def off_zero(start: Rows) -> Rows:
    """Initial weights away from zero, where rows of batch norm would be equal."""
    return start + random_rows(Task(normed, dtype=start.dtype), 1, scale=0.1).map(torch.abs)


STATISTICS = ("1.running_mean", "1.running_var")
OPTIONS: dict[str, Any] = {"factory": normed, "start": off_zero}


@pytest.fixture(params=params(REGISTRY))
def method(request: pytest.FixtureRequest) -> Method:
    return quick(REGISTRY[request.param])


def variances(rows: Rows) -> torch.Tensor:
    return dict(zip(rows.layout.names, rows.blocks, strict=True))["1.running_var"]


def test_chunks_do_not_matter(method: Method) -> None:
    """Padding of a smaller last batch enters no statistics, and a batch of one example changes none."""
    for made, round in moments(method, DOUBLE, **OPTIONS):
        assert_chunks_do_not_matter(made, round)
    made, _ = run(method, DOUBLE, **HALF, **OPTIONS)
    made.task.stack()
    found = newcomers(made, MIXED)
    made.task.stacked = False
    assert apart(found, newcomers(made, ALONE)) <= 1e-10


def test_the_reference_loop_gives_the_same(method: Method) -> None:
    expected_sim, expected = run(method, DOUBLE, rounds=1, chunk=6, **OPTIONS)
    found_sim, found = run(method, DOUBLE, rounds=1, reference=True, **OPTIONS)
    assert apart(found.personal_rows, expected.personal_rows) <= 1e-10
    assert_near(rows_of(found.server), rows_of(expected.server), 1e-10)
    assert_near(rows_of(states(found_sim)), rows_of(states(expected_sim)), 1e-10)
    assert found.communication == expected.communication


def test_workers_change_no_bit(method: Method) -> None:
    expected = result(*run(method, SINGLE, chunk=2, **HALF, **OPTIONS))
    assert same_bits(result(*run(method, SINGLE, workers=2, chunk=2, **HALF, **OPTIONS)), expected)


def test_statistics_are_trained_and_valid(method: Method) -> None:
    made, outcome = run(method, SINGLE, **(HALF | {"rounds": 3}), **OPTIONS)
    rows = outcome.personal_rows
    assert rows.layout.statistics == STATISTICS and rows.finite().all()
    assert (variances(rows) > 0).all()
    assert apart(rows.block(STATISTICS), made.task.start.block(STATISTICS)) > 1e-3
    if outcome.global_rows is not None:
        assert (variances(outcome.global_rows) > 0).all()


def test_it_declares_what_it_uploads(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    def normed_simulation(*given: Any, **options: Any) -> Any:
        return simulation(*given, **(OPTIONS | options))

    monkeypatch.setattr("tests.contract.test_methods.simulation", normed_simulation)
    assert_it_declares_what_it_uploads(method, SINGLE)


LAWS = (
    laws.test_same_seed_same_bits_in_whatever_order,
    laws.test_a_stranger_computes_the_same_from_bytes,
    laws.test_who_did_not_train_is_unchanged,
    laws.test_only_reports_reach_the_server,
    laws.test_poisoned_test_data_change_nothing_but_the_test_scores,
    partial(laws.test_no_function_changes_its_arguments_or_remembers_them, stacked=True),
)


@pytest.mark.parametrize("law", LAWS, ids=("order", "bytes", "unchanged", "reports", "poisoned", "pure"))
def test_the_other_laws(method: Method, law: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the contract, with batch norm in every simulation."""
    made: list[Simulation] = []

    def normed_simulation(*given: Any, **options: Any) -> Simulation:
        made.append(simulation(*given, **(OPTIONS | options)))
        return made[-1]

    monkeypatch.setattr(laws, "simulation", normed_simulation)
    monkeypatch.setattr("tests.federations.simulation", normed_simulation)
    monkeypatch.setattr(laws, "usual", laws.usual.__wrapped__)  # what it has kept is of another model
    asks = "monkeypatch" in inspect.signature(law).parameters
    law(method, **({"monkeypatch": monkeypatch} if asks else {}))
    assert made and all(one.task.layout.statistics == STATISTICS for one in made)


def test_clients_with_one_example(method: Method) -> None:
    """Their batches show no variance: their models are normalized by the statistics that they have."""
    made, outcome = run(method, federation((1, 5, 1, 9)), rounds=2, **OPTIONS)
    assert outcome.personal_rows.finite().all() and (variances(outcome.personal_rows) > 0).all()
    _, reference = run(method, federation((1, 5, 1, 9)), rounds=2, reference=True, **OPTIONS)
    assert apart(outcome.personal_rows, reference.personal_rows) < 1e-4
    assert made.task.layout.statistics == STATISTICS


# -- arithmetic that makes sense for weights only


def with_variance(rows: Rows, value: float) -> Rows:
    blocks = zip(rows.layout.names, rows.blocks, strict=True)
    return Rows(rows.layout, [b * 0 + value if name == "1.running_var" else b for name, b in blocks])


@pytest.mark.parametrize(
    ("method", "names"),
    [(PFedMe(mix=4.0), ["weights"]), (PFedBayes(mix=4.0), ["mean", "rho"]), (Scaffold(server_lr=8.0), ["change"])],
)
def test_the_server_averages_statistics_and_does_not_extrapolate_them(method: Method, names: list[str]) -> None:
    """A server with variance 1 and uploads of .1: three times the difference would be negative."""
    made = simulation(method, SINGLE, **OPTIONS)
    round = made.federations[0].round(1, "train", (0, 1))
    before = {
        name: with_variance(value, 1.0) if isinstance(value, Rows) else value for name, value in made.server.items()
    }
    change = -0.9 if names == ["change"] else 0.1
    model = with_variance(made.task.start.expand(2), change)
    upload = dict.fromkeys(names, model) | ({"control": model * 0.0} if names == ["change"] else {})
    found = method.aggregate(before, Uploads((0, 1), SINGLE.train.sizes[:2], [upload]), round)
    torch.testing.assert_close(variances(found["mean" if names[0] == "mean" else "weights"]), torch.full((1, 5), 0.1))


def test_selffl_starts_with_the_received_statistics() -> None:
    """(10) with the ratio 1 would start at variance 1 - (30 - 1)."""
    method = SelfFL(max_steps=1, noise=1.0)
    made = simulation(method, SINGLE, **OPTIONS)
    theta, personal_rows = with_variance(made.task.start, 1.0), with_variance(made.task.start.expand(6), 30.0)
    state = made.store.get(EVERYBODY) | {"personal": personal_rows}
    others = SINGLE.train.sizes.double()  # w_m, as σ_m² = v²/n_m
    message = Message({"weights": theta, "between": torch.tensor(0.0)}, {"others": others})
    round = made.federations[0].round(1, "train")
    upload, _ = method.local_update(made.task, message, state, work_of(SINGLE), round)
    assert (variances(upload["weights"]) > 0.5).all()


def test_ifca_perturbs_weights_alone() -> None:
    start = Task(normed).start.map(lambda block: block + 0.01 + torch.arange(block.shape[-1]) ** 2)
    rng = np.random.default_rng(0)
    for other in (nearby(start, rng), shuffled(start, rng)):
        assert same_bits(other.block(STATISTICS), start.block(STATISTICS))


def test_lengths_and_noise_leave_statistics_out() -> None:
    task = Task(normed)
    rows = with_variance(task.start.expand(len(SINGLE)), 100.0)
    assert same_bits(rows.square_norm(), with_variance(rows, 1.0).square_norm())
    noise = work_of(SINGLE).normal(rows, "test")
    assert not noise.block(STATISTICS).matrix().any() and noise.block("0").matrix().all()
    changes = Rows.cat([task.start, with_variance(task.start, 50.0)])
    torch.testing.assert_close(similarity(changes), torch.ones(2, 2, dtype=torch.float64))
