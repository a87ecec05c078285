"""Clients that come later: served by the method's own rule, beside plain fine-tuning, however they are cut."""

from dataclasses import replace

import pytest
import torch

from bespokefl.core.errors import TrainingError
from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.rows import Rows
from bespokefl.engines.client import Data
from bespokefl.engines.settings import Settings
from bespokefl.engines.simulation import Simulation
from bespokefl.methods import Ditto, FedAvg, Local, PersFL
from bespokefl.workflows.newcomers.trainer import NewcomerModels, train_newcomers
from tests.federations import BATCH, CLASSES, apart, federation, run, same_bits, simulation, work_of

pytestmark = pytest.mark.slow  # `make check` is to stay under two minutes

SETTINGS = Settings(rounds=4, participation=0.5, batch_size=BATCH, workers=1)  # a lifetime of two rounds
LATE = replace(federation((6, 11, 4), seed=5), names=("gil", "hal", "ida"))


def served(
    made: Simulation, data: Data = LATE, lr: float = 0.1, momentum: float = 0.0, **changes: object
) -> NewcomerModels:
    settings = replace(SETTINGS, **changes)
    return train_newcomers(
        made.method, made.task, data, made.server, settings, CLASSES, number=5, lr=lr, momentum=momentum
    )


@pytest.fixture(scope="module")
def ditto() -> Simulation:
    return run(Ditto(lr=0.1, personal_lr=0.1), federation())[0]


def test_models_are_the_methods_own_and_scores_are_theirs(ditto: Simulation) -> None:
    found = served(ditto)
    work = work_of(LATE, expected_rounds=2, round=5)
    assert apart(found.rows, ditto.method.newcomer(ditto.task, ditto.server, work)) < 1e-6
    for k in range(len(LATE)):
        own = LATE.test.of(k)
        outputs = ditto.task.predict(found.rows[k : k + 1], LATE.x[own].unsqueeze(0))[0]
        assert found.personal["test_accuracy"][k] == pytest.approx(
            float((outputs.argmax(1) == LATE.y[own]).float().mean())
        )
    assert found.diverged == ()


def test_fine_tuning_is_plain_descent_from_the_common_model(ditto: Simulation) -> None:
    found = served(ditto, lr=0.2, momentum=0.5)
    work = work_of(LATE, expected_rounds=2, round=5)
    tuned = local_sgd(ditto.task.gradient, ditto.server["weights"], work, 0.2, momentum=0.5, steps=work.num_steps() * 2)
    expected = ditto.task.score(tuned, work.sweep("train"))["loss"]
    torch.testing.assert_close(found.finetune["train_loss"], expected, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(found.finetune["train_loss"], found.personal["train_loss"], rtol=1e-3)


@pytest.mark.parametrize(
    "method", [Local(lr=0.1), Ditto(lr=0.1, personal_lr=0.1, prox_weight=0)], ids=lambda one: one.name
)
def test_where_the_rule_is_plain_descent_both_are_the_same(method: Local | Ditto) -> None:
    """Local has no common model: its newcomers, and fine-tuning, begin where all began."""
    made, _ = run(method, federation())
    found = served(made)
    assert same_bits(found.personal, found.finetune)


def test_neither_workers_nor_chunks_matter(ditto: Simulation) -> None:
    first = served(ditto, chunk=2)
    again = served(ditto, chunk=2, workers=2)
    assert same_bits(first.rows, again.rows) and same_bits(first.personal, again.personal)
    assert same_bits(first.finetune, again.finetune)
    for changes in ({"chunk": 1}, {"reference": True}):
        assert apart(served(ditto, **changes).rows, first.rows) < 1e-5


def test_fine_tuning_that_diverges_is_told_and_costs_nothing_else() -> None:
    made, _ = run(FedAvg(lr=0.1), federation())
    found = served(made, lr=1e30)
    assert found.diverged == LATE.names
    assert all(values.isnan().all() for values in found.finetune.values())
    assert found.personal["test_loss"].isfinite().all()


def test_a_rule_that_diverges_is_an_error() -> None:
    made, _ = run(FedAvg(lr=0.1), federation())
    made.method = Ditto(personal_lr=1e30)
    with pytest.raises(TrainingError, match=r"non-finite .* for clients gil, hal, ida"):
        served(made)


# -- the common model of every round


def test_every_rounds_common_model_is_kept_if_asked() -> None:
    _, outcome = run(PersFL(lr=0.1, distil_epochs=1), federation(), rounds=3, keep_rounds=True)
    assert outcome.kept_rows is not None and len(outcome.kept_rows) == outcome.rounds_done == 4  # one distils
    for number in (1, 2, 3):
        _, short = run(FedAvg(lr=0.1), federation(), rounds=number)
        assert short.global_rows is not None
        assert same_bits(outcome.kept_rows[number - 1 : number], short.global_rows)
    assert outcome.global_rows is not None
    assert same_bits(outcome.kept_rows[3:], outcome.global_rows)


def test_nothing_is_kept_unasked_or_where_there_is_nothing() -> None:
    assert run(FedAvg(), federation())[1].kept_rows is None
    assert run(Local(), federation(), keep_rounds=True)[1].kept_rows is None


def test_a_budget_is_what_an_average_client_spends() -> None:
    for rounds, participation, expected_rounds in ((4, 0.5, 2), (10, 0.3, 3), (3, 0.1, 1), (5, 1.0, 5)):
        made = simulation(FedAvg(), federation(), rounds=rounds, participation=participation)
        assert made.side.cohort_data([0], 1).expected_rounds == expected_rounds
        assert isinstance(made.task.start, Rows)
