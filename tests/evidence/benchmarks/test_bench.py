"""The yardstick is honest: the reference engine is no slower than the script that everybody would write."""

import math
import statistics
import time
from itertools import count

import pytest
import torch
import torch.nn.functional as F
from bespokefl_evidence.benchmarks import scale
from bespokefl_evidence.benchmarks.speed import (
    CASES,
    SCORED,
    Case,
    aggregation_share,
    build,
    evaluation_cost,
    federation,
    measure,
)
from torch.utils.data import DataLoader, TensorDataset

from bespokefl.core.method import Phase
from bespokefl.core.task import Task
from bespokefl.engines.client import Data
from bespokefl.engines.settings import Settings
from bespokefl.engines.simulation import Simulation
from bespokefl.methods import FedAvg
from tests.speed import TRIES

pytestmark = [pytest.mark.slow, pytest.mark.alone]

SMALL = Case("small", "logistic", (784,), (200,) * 20, 10, "784-10, 20 clients x 20 steps, batch 10")


def script(case: Case, data: Data) -> None:
    """One round of FedAvg as a plain script."""
    model = build(case)()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    total = {name: torch.zeros_like(value) for name, value in start.items()}
    for client in range(len(data)):
        own = data.train.of(client)
        loader = DataLoader(TensorDataset(data.x[own], data.y[own]), batch_size=case.batch_size, shuffle=True)
        model.load_state_dict(start)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        for name, value in model.state_dict().items():
            total[name] += value * len(own) / len(data.y)
    model.load_state_dict(total)


def test_the_reference_engine_is_not_slower_than_a_plain_script() -> None:
    data = federation(SMALL)
    settings = Settings(rounds=1, batch_size=SMALL.batch_size, reference=True)
    engine = Simulation(FedAvg(lr=0.01), Task(build(SMALL)), data, settings, 10)
    numbers = count(1)

    def ratio() -> float:
        began = time.perf_counter()
        script(SMALL, data)
        between = time.perf_counter()
        engine.round(next(numbers), Phase("train", 1))
        return (time.perf_counter() - between) / (between - began)

    with engine.open():  # on an idle machine they are within a tenth
        assert any(statistics.median(ratio() for _ in range(15)) < 1.25 for _ in range(TRIES))


# What `bespoke bench` reaches with two workers on an idle machine; a change that loses 45 % of it is noticed.
REACHED = {"logistic": 15.3, "mlp": 4.2, "mlp-full": 3.5, "lenet": 2.7, "cifar": 2.0, "resnet8": 1.9, "linear": 515.0}
SLACK = 0.55  # no case may be slower than six tenths of what was asked of it
# Where a round is long enough for two workers to be nearly twice as fast as one: 45 % would hide all of that.
PARALLEL = ("logistic", "mlp", "cifar")
TWO = 1.2


def test_every_case_has_a_guard() -> None:
    assert set(REACHED) == set(CASES)


@pytest.mark.parametrize("name", REACHED)
def test_training_is_as_much_faster_than_the_plain_loop_as_it_was(name: str) -> None:
    """In one of three tries: a machine that others use, too, can be slow for some seconds."""

    def as_fast() -> bool:
        ratios = measure(CASES[name], workers=(1, 2) if name in PARALLEL else (2,), repeats=3, peak=1.0).ratios
        print(ratios)
        return ratios[2] > SLACK * REACHED[name] and (name not in PARALLEL or ratios[2] > TWO * ratios[1])

    assert any(as_fast() for _ in range(TRIES))


def test_more_clients_cost_a_round_neither_time_nor_memory() -> None:
    """A hundred are active; what they need is the data, and the rows of those who have been active.

    The time of a round has three tries: see above.
    """

    def apart() -> float:
        found = [scale.measure(clients) for clients in scale.SIZES]
        for one in found:
            assert one.memory <= 1.3 * one.needed, one
            assert one.usual < 5e7, one  # idle: 10 MB, that a round of a hundred works with
        times = [one.seconds for one in found]
        print(times, [one.start for one in found])
        return max(times) / min(times) if all(one.start < 20 for one in found) else math.inf

    assert any(apart() < 1.3 for _ in range(TRIES))


def test_a_large_model_fits_with_states_in_files() -> None:
    """A hundred clients with five million parameters each, all active: two gigabytes of states, and of uploads."""
    large = scale.measure_large()
    assert large.needed > 1.99e9 and large.memory < 4e9


def test_a_frozen_backbone_is_in_memory_once() -> None:
    """A hundred million frozen parameters, two workers, clients with adapters."""
    found = scale.measure_frozen(clients=8)
    assert found.needed > 4e8 and found.memory < 1.6 * found.needed, found


@pytest.mark.parametrize("personal", [False, True])
@pytest.mark.parametrize("name", SCORED)
def test_scoring_costs_a_forward_pass(name: str, personal: bool) -> None:
    """In one of three tries: as above."""

    def cost() -> float:
        return evaluation_cost(name, personal=personal, repeats=5)  # idle: 0.6 for LeNet, 0.9 to 1.1 else

    assert any(cost() < 1.2 for _ in range(TRIES))


def test_aggregation_is_a_small_part_of_a_round() -> None:
    assert any(aggregation_share(repeats=3) < 0.1 for _ in range(TRIES))
