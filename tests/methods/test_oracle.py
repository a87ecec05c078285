"""Oracle: FedAvg inside the true groups."""

from dataclasses import replace

import pytest
import torch

from bespokefl.core import rng
from bespokefl.core.errors import InputError
from bespokefl.engines.client import Data
from bespokefl.methods import FedAvg, Oracle
from tests.federations import GROUPS, SIZES, apart, federation, planted, run, same_bits, simulation, work_of
from tests.methods.plain_sgd import train, weighted

DATA = federation(dtype=torch.float64)
SGD = {"lr": 0.2, "momentum": 0.5, "weight_decay": 0.1}
MEMBERS = [[k for k, group in enumerate(GROUPS) if group == one] for one in (2, 7)]


def only(data: Data, clients: list[int]) -> Data:
    """The federation of these clients alone."""
    parts = {part: getattr(data, part).take(clients) for part in ("train", "validation", "test")}
    return replace(data, names=tuple(data.names[k] for k in clients), groups=None, **parts)


@pytest.mark.parametrize("weights", ["examples", "equal"])
def test_each_group_is_a_fedavg_of_its_own(weights: str) -> None:
    _, found = run(Oracle(**SGD, weights=weights), DATA, rounds=3)
    for group, clients in enumerate(MEMBERS):
        _, alone = run(FedAvg(**SGD, weights=weights), only(DATA, clients), rounds=3)
        assert apart(found.server["models"][group : group + 1], alone.server["weights"]) < 1e-12
        assert apart(found.personal_rows[clients], alone.personal_rows) < 1e-12


@pytest.mark.parametrize("participation", [0.5, 1.0])
def test_one_group_is_fedavg(participation: float) -> None:
    options = {"rounds": 3, "participation": participation}
    _, found = run(Oracle(**SGD), replace(DATA, groups=(5,) * 6), **options)
    _, expected = run(FedAvg(**SGD), DATA, **options)
    assert apart(found.personal_rows, expected.personal_rows) < 1e-12
    assert found.communication == expected.communication


def test_numbers_of_groups_mean_nothing() -> None:
    other = tuple({2: 90, 7: -1}[group] for group in GROUPS)
    expected = run(Oracle(), DATA)[1].personal_rows
    assert apart(run(Oracle(), replace(DATA, groups=other))[1].personal_rows, expected) < 1e-12
    wrong = (2, 2, 2, 7, 7, 7)
    assert apart(run(Oracle(), replace(DATA, groups=wrong))[1].personal_rows, expected) > 1e-3


def test_a_group_with_nobody_active_keeps_its_model() -> None:
    """With one of six clients drawn, one of the two groups is idle in every round."""
    made, outcome = run(Oracle(lr=0.2), DATA, rounds=2, participation=1 / 6)
    models = [made.task.start, made.task.start]
    for number in (1, 2):
        (k,) = rng.sample(6, 1 / 6, 0, "cohort", number).tolist()
        group = (2, 7).index(GROUPS[k])
        models[group] = weighted([train(made.task, work_of(DATA, round=number), k, models[group], lr=0.2)], [SIZES[k]])
    for group in (0, 1):
        assert apart(outcome.server["models"][group : group + 1], models[group]) < 1e-10


def test_one_model_down_and_one_up() -> None:
    made, outcome = run(Oracle(), DATA, rounds=1)
    assert outcome.communication.down_bytes == outcome.communication.up_bytes == 6 * made.task.layout.width * 8


def test_groups_that_nobody_knows() -> None:
    with pytest.raises(InputError, match=r"^oracle needs a split that knows the clients' true groups; this one does"):
        simulation(Oracle(), replace(DATA, groups=None))


def test_a_newcomer_gets_the_group_that_fits_its_training_data() -> None:
    made, outcome = run(Oracle(lr=0.3), planted((0, 0, 1, 1)), rounds=5)
    served = made.method.newcomer(made.task, made.server, work_of(planted((1, 0, 1), seed=0)))
    assert same_bits(served, outcome.server["models"][[1, 0, 1]])
