"""Federations trained as one get what they would have got alone."""

from dataclasses import replace

import pytest
import torch

from bespokefl.core.task import Task
from bespokefl.engines.settings import Settings
from bespokefl.engines.simulation import Simulation
from bespokefl.methods import REGISTRY
from tests.federations import CLASSES, apart, federation, mlp

pytestmark = pytest.mark.slow  # `make check` is to stay under two minutes

SEEDS = (0, 1, 2)


@pytest.mark.parametrize("other_data", [False, True], ids=["same data", "other data"])
@pytest.mark.parametrize("name", ["local", "fedavg", "ditto", "ifca", "fedfomo", "oracle"])  # the contract has all
def test_stacked_runs_equal_the_same_runs_alone(name: str, other_data: bool) -> None:
    settings = [Settings(rounds=3, participation=0.7, batch_size=4, workers=1, seed=seed) for seed in SEEDS]
    first = federation(dtype=torch.float64)
    data = [federation(seed=seed, dtype=torch.float64) if other_data else first for seed in SEEDS]
    data = [replace(own, groups=own.groups[seed:] + own.groups[:seed]) for own, seed in zip(data, SEEDS, strict=True)]
    method = REGISTRY[name]()

    def task() -> Task:
        return Task(mlp, dtype=torch.float64)

    together = Simulation(method, task(), data, settings, CLASSES).run_all()
    for own, setting, outcome in zip(data, settings, together, strict=True):
        alone = Simulation(method, task(), own, setting, CLASSES).run()
        assert apart(outcome.personal_rows, alone.personal_rows) < 1e-10
        assert outcome.communication == alone.communication
        assert [row["up_bytes"] for row in outcome.history] == [row["up_bytes"] for row in alone.history]


def test_seeds_of_one_stack_differ_from_each_other() -> None:
    data = federation()
    settings = [replace(Settings(rounds=2, batch_size=4, workers=1), seed=seed) for seed in SEEDS]
    outcomes = Simulation(REGISTRY["fedavg"](), Task(mlp), [data] * 3, settings, CLASSES).run_all()
    assert apart(outcomes[0].personal_rows, outcomes[1].personal_rows) > 1e-6


@pytest.mark.parametrize("name", ["ditto", "selffl", "ucfl", "pfedvem"])
def test_a_run_without_records_has_the_same_outcome(name: str) -> None:
    data = federation(dtype=torch.float64)
    settings = [Settings(rounds=3, participation=0.7, batch_size=4, workers=1, seed=seed) for seed in SEEDS[:2]]
    found, expected = (
        Simulation(
            REGISTRY[name](),
            Task(mlp, dtype=torch.float64),
            [data] * 2,
            [replace(s, record=record) for s in settings],
            CLASSES,
        ).run_all()
        for record in (False, True)
    )
    for quiet, told in zip(found, expected, strict=True):
        assert apart(quiet.personal_rows, told.personal_rows) == 0
        assert torch.equal(quiet.personal["test_accuracy"], told.personal["test_accuracy"])
        assert quiet.communication.up_bytes == 0 < told.communication.up_bytes
        assert [line["round"] for line in quiet.history] == [line["round"] for line in told.history]
        assert not quiet.client_notes
