"""FedAvg: the mean of what clients train."""

import pytest
import torch
import torch.nn.functional as F

from bespokefl.core import rng
from bespokefl.core.rows import Rows
from bespokefl.methods import FedAvg
from tests.federations import SIZES, apart, federation, run, same_bits, work_of
from tests.methods.plain_sgd import train, weighted

DATA = federation(dtype=torch.float64)
THREE = federation((2, 3, 10), dtype=torch.float64)


@pytest.mark.parametrize("sgd", [{}, {"momentum": 0.9}, {"momentum": 0.5, "weight_decay": 0.1}])
def test_one_client_is_plain_sgd(sgd: dict[str, float]) -> None:
    alone = federation((13,), dtype=torch.float64)
    made, outcome = run(FedAvg(lr=0.2, **sgd), alone, rounds=3, local_epochs=2)
    row = made.task.start
    for number in (1, 2, 3):  # momentum begins anew in every round, as a client's optimizer does
        row = train(made.task, work_of(alone, round=number, epochs=2), 0, row, lr=0.2, **sgd)
    assert apart(outcome.server["weights"], row) < 1e-10


@pytest.mark.parametrize(("weights", "numbers"), [("examples", (2, 3, 10)), ("equal", (1, 1, 1))])
def test_three_clients_by_hand(weights: str, numbers: tuple[int, ...]) -> None:
    made, outcome = run(FedAvg(lr=0.2, weights=weights), THREE, rounds=2)
    common = made.task.start
    for number in (1, 2):
        work = work_of(THREE, round=number)
        a, b, c = (train(made.task, work, k, common, lr=0.2) for k in range(3))
        common = (a * numbers[0] + b * numbers[1] + c * numbers[2]) / sum(numbers)
    assert apart(outcome.server["weights"], common) < 1e-10
    assert same_bits(outcome.personal_rows, outcome.server["weights"].expand(3))


def test_weights_matter() -> None:
    by_size, equal = (run(FedAvg(weights=weights), THREE)[1].server["weights"] for weights in ("examples", "equal"))
    assert apart(by_size, equal) > 1e-4


@pytest.mark.parametrize("weights", ["examples", "equal"])
def test_one_full_batch_step_is_a_step_on_the_pooled_loss(weights: str) -> None:
    """Σ p_k (w − η ∇F_k(w)) = w − η ∇ Σ p_k F_k(w); for p_k = n_k / n that is the loss over everybody's examples."""
    made, outcome = run(FedAvg(lr=0.3, weights=weights), DATA, rounds=1, batch_size=100)
    start = [value.requires_grad_() for value in made.task.start.state().values()]
    named = dict(zip(made.task.layout.names, start, strict=True))

    def loss(own: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(torch.func.functional_call(made.task.module, named, (DATA.x[own],)), DATA.y[own])

    each = [loss(DATA.train.of(k)) for k in range(len(DATA))]
    pooled = loss(DATA.train.indices) if weights == "examples" else sum(each) / len(each)
    pooled.backward()
    stepped = {name: (value - 0.3 * value.grad).detach() for name, value in named.items()}
    assert apart(outcome.server["weights"], Rows.from_state(made.task.layout, stepped)) < 1e-10


def test_only_the_drawn_are_averaged() -> None:
    made, outcome = run(FedAvg(lr=0.2), DATA, rounds=1, participation=0.5)
    drawn = rng.sample(6, 0.5, 0, "cohort", 1).tolist()
    trained = [train(made.task, work_of(DATA), k, made.task.start, lr=0.2) for k in drawn]
    assert apart(outcome.server["weights"], weighted(trained, [SIZES[k] for k in drawn])) < 1e-10


def test_a_newcomer_gets_the_common_model() -> None:
    made, outcome = run(FedAvg(), DATA)
    assert same_bits(made.method.newcomer(made.task, made.server, work_of(DATA)), outcome.server["weights"])
