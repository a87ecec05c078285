"""FedAvg with fine-tuning: FedAvg's model, trained on at home."""

from types import SimpleNamespace

import pytest
import torch

from bespokefl.core import rng
from bespokefl.core.errors import InputError
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.methods import FedAvg, FedAvgFT
from tests.federations import WIDTH, apart, federation, line, run, same_bits, work_of
from tests.methods.plain_sgd import train, weighted

pytestmark = pytest.mark.slow  # `make check` is to stay under two minutes

DATA = federation(dtype=torch.float64)
WHOLE = 1000  # a batch size that takes everything in
SGD = [{}, {"momentum": 0.9}, {"momentum": 0.5, "weight_decay": 0.1}]


def tuned(task: Task, k: int, common: Rows, epochs: int, *, round: int, **sgd: float) -> Rows:
    """Client k's model after plain SGD from the common one, on the batches drawn for tuning."""
    work = work_of(DATA, round=round)
    batches = SimpleNamespace(x=work.x, y=work.y, batches=lambda row: work.batches(row, epochs=epochs, purpose="tune"))
    return train(task, batches, k, common, **sgd)


@pytest.mark.parametrize("sgd", SGD)
@pytest.mark.parametrize("weights", ["examples", "equal"])
def test_the_common_model_is_fedavgs_to_the_last_bit(weights: str, sgd: dict[str, float]) -> None:
    options = {"rounds": 3, "participation": 0.5, "chunk": 2}
    _, found = run(FedAvgFT(lr=0.2, tune_lr=0.4, weights=weights, **sgd), DATA, **options)
    _, expected = run(FedAvg(lr=0.2, weights=weights, **sgd), DATA, **options)
    assert same_bits(found.server, expected.server)
    assert same_bits(found.global_rows, expected.global_rows) and same_bits(found.globally, expected.globally)
    assert found.communication == expected.communication
    assert apart(found.personal_rows, expected.personal_rows) > 1e-2


@pytest.mark.parametrize("sgd", SGD)
def test_rounds_and_fine_tuning_by_hand(sgd: dict[str, float]) -> None:
    """Everybody tunes, drawn or not, from the mean after the last round; momentum begins anew."""
    sizes = (2, 3, 10)
    three = federation(sizes, dtype=torch.float64)
    method = FedAvgFT(lr=0.2, tune_lr=0.1, tune_epochs=3, **sgd)
    made, outcome = run(method, three, rounds=2, participation=0.67, batch_size=WHOLE)
    common = made.task.start
    for number in (1, 2):
        drawn = rng.sample(3, 0.67, 0, "cohort", number).tolist()
        work = work_of(three, round=number, batch_size=WHOLE)
        trained = [train(made.task, work, k, common, lr=0.2, **sgd) for k in drawn]
        common = weighted(trained, [sizes[k] for k in drawn])
    assert len(drawn) == 2
    long = work_of(three, batch_size=WHOLE, epochs=3)
    for k in range(3):
        assert apart(outcome.personal_rows[k : k + 1], train(made.task, long, k, common, lr=0.1, **sgd)) < 1e-10
    assert apart(outcome.global_rows, common) < 1e-10


def test_fine_tuning_goes_through_batches() -> None:
    """Ragged clients in batches of 4; how many rounds there were names the draw."""
    made, outcome = run(FedAvgFT(lr=0.2, tune_lr=0.1, tune_epochs=2), DATA, rounds=2)
    for k in range(len(DATA)):
        expected = tuned(made.task, k, outcome.server["weights"], 2, round=2, lr=0.1)
        assert apart(outcome.personal_rows[k : k + 1], expected) < 1e-10
        assert apart(expected, tuned(made.task, k, outcome.server["weights"], 1, round=2, lr=0.1)) > 1e-4


def test_on_quadratics_it_goes_from_the_common_model_to_everybodys_own() -> None:
    """F_k(v) = mean (x·v − y)², ∇F_k(v) = H_k v − b_k: v = v*_k + (I − ηH_k)^E (w − v*_k)."""
    data = federation((60, 90, 44), targets="numbers", dtype=torch.float64)
    options = {"factory": line, "loss": "mse", "batch_size": WHOLE, "rounds": 3}
    for epochs in (1, 7, 150):
        _, outcome = run(FedAvgFT(lr=0.1, tune_lr=0.25, tune_epochs=epochs), data, **options)
        w = outcome.server["weights"].matrix()[0]
        for k in range(3):
            own = data.train.of(k)
            x, y = data.x[own], data.y[own]
            h, b = 2 * x.T @ x / len(own), 2 * x.T @ y / len(own)
            best = torch.linalg.solve(h, b)
            left = torch.linalg.matrix_power(torch.eye(WIDTH, dtype=torch.float64) - 0.25 * h, epochs)
            found = outcome.personal_rows.matrix()[k]
            torch.testing.assert_close(found, best + left @ (w - best), rtol=1e-9, atol=1e-9)
            assert (w - best).norm() > 0.1
            assert epochs < 150 or (found - best).norm() < 1e-6


def test_a_newcomer_does_what_everybody_does() -> None:
    made, outcome = run(FedAvgFT(lr=0.2, tune_epochs=2), DATA, rounds=2)
    served = made.method.newcomer(made.task, made.server, work_of(DATA, round=2))
    assert apart(served, outcome.personal_rows) < 1e-12


@pytest.mark.parametrize("hyper", [{"tune_epochs": 0}, {"tune_lr": 0.0}, {"momentum": 1.0}, {"weights": "size"}])
def test_what_makes_no_sense_is_refused(hyper: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(hyper))):
        FedAvgFT(**hyper)
