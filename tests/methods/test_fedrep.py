"""FedRep: heads and base trained in turn."""

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bespokefl.core import rng
from bespokefl.core.errors import InputError
from bespokefl.core.rows import Layout, Rows
from bespokefl.core.task import Task
from bespokefl.methods import FedRep, Local
from tests.federations import CLASSES, SIZES, WIDTH, apart, federation, run, same_bits, simulation, work_of
from tests.methods.plain_sgd import weighted

pytestmark = pytest.mark.slow  # `make check` is to stay under two minutes

DATA = federation(dtype=torch.float64)
EVERYBODY = list(range(len(DATA)))
BASE = 6 * WIDTH + 6  # numbers in the base of tests.federations.mlp
WHOLE = 1000  # a batch size that takes everything in


def train_half(
    task: Task, start: Rows, half: str, batches: Sequence[np.ndarray], *, lr: float, momentum: float
) -> Rows:
    """Plain SGD on the base or the head alone."""
    module = copy.deepcopy(task.module)
    module.load_state_dict(start.state())
    own = {"base": task.layout.base, "head": task.layout.head}[half]
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in own)
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=lr, momentum=momentum)
    for batch in map(torch.from_numpy, batches):
        optimizer.zero_grad()
        task.loss(module(DATA.x[batch]), DATA.y[batch]).mean().backward()
        optimizer.step()
    return Rows.from_state(task.layout, dict(module.named_parameters()))


# -- by hand


@pytest.mark.parametrize(("weights", "numbers"), [("examples", SIZES), ("equal", (1,) * 6)])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_rounds_by_hand(momentum: float, weights: str, numbers: tuple[int, ...]) -> None:
    """Three epochs of the head, one of the base; at the end everybody, drawn or not, two of the head."""
    sgd = {"lr": 0.1, "momentum": momentum}
    method = FedRep(head_epochs=3, finish_epochs=2, weights=weights, **sgd)
    made, outcome = run(method, DATA, rounds=2, participation=0.5)
    task = made.task
    base, heads = task.start.block("base"), [task.start.block("head")] * 6
    for number in (1, 2):
        drawn = rng.sample(6, 0.5, 0, "cohort", number).tolist()
        work = work_of(DATA, round=number)
        sent = []
        for k in drawn:
            row = task.start.with_block(base).with_block(heads[k])
            row = train_half(task, row, "head", work.batches(k, epochs=3, purpose="head"), **sgd)
            heads[k] = row.block("head")
            sent.append(train_half(task, row, "base", work.batches(k), **sgd).block("base"))
        base = weighted(sent, [numbers[k] for k in drawn])
    work = work_of(DATA, round=3)
    assert apart(outcome.server["base"], base) < 1e-10
    for k in EVERYBODY:
        row = task.start.with_block(base).with_block(heads[k])
        expected = train_half(task, row, "head", work.batches(k, epochs=2, purpose="head"), **sgd)
        assert apart(outcome.personal_rows[k : k + 1], expected) < 1e-10
        assert same_bits(outcome.personal_rows[k : k + 1].block("base"), outcome.server["base"])


# -- in turn


@pytest.mark.parametrize(("phase", "expected"), [("train", ["base"] * 6 + ["head"] * 2), ("finish", ["base"] * 4)])
def test_head_epochs_come_first_then_base_epochs(phase: str, expected: list[str]) -> None:
    """What is frozen at each step of a client with two batches: three epochs of the head, one of the base."""
    two = federation((7,), dtype=torch.float64)
    made = simulation(FedRep(head_epochs=3, finish_epochs=2), two)
    frozen: list[str] = []

    def watched(steps: int, examples: int, *, head_only: bool = False) -> None:
        frozen.extend(["base" if head_only else "head"] * steps)

    made.task.work.add = watched  # type: ignore[method-assign]
    round = made.federations[0].round(1, phase)
    state = made.store.get([0])
    upload, new = made.method.local_update(
        made.task, made.method.message(made.server, [0], round), state, work_of(two), round
    )
    assert frozen == expected
    assert set(upload) == ({"base"} if phase == "train" else set())
    assert set(new) == {"head"}


def test_the_run_ends_with_everybodys_head() -> None:
    method = FedRep(head_epochs=1, finish_epochs=2)
    made = simulation(method, DATA, participation=0.5, rounds=1)
    phases = method.phases(1)
    assert [phase.rounds for phase in phases] == [1, 1]
    with made.open():
        made.round(1, phases[0])
        server, heads = dict(made.server), made.store.get(EVERYBODY)["head"]
        made.round(2, phases[1])
    assert same_bits(made.server, server)
    after = made.store.get(EVERYBODY)["head"]
    assert all(apart(after[k : k + 1], heads[k : k + 1]) > 1e-4 for k in EVERYBODY)
    line = made.federations[0].history[-1]
    assert (line["trained"], line["reported"], line["up_bytes"]) == (6, 0, 0)


# -- closed forms


class Factored(nn.Module):
    """x · B · h: for a fixed base B a least-squares problem in the head h."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.base(x))


def best_head(x: Tensor, y: Tensor, base: Tensor) -> Tensor:
    return torch.linalg.lstsq(x @ base.T, y[:, None]).solution.T


QUADRATICS = federation((60, 90, 44), targets="numbers", dtype=torch.float64)
TOGETHER = {"factory": Factored, "loss": "mse", "batch_size": WHOLE}


def own_data(k: int) -> tuple[Tensor, Tensor]:
    own = QUADRATICS.train.of(k)
    return QUADRATICS.x[own], QUADRATICS.y[own]


def test_the_base_steps_under_heads_that_are_optimal() -> None:
    """With heads at their least squares h_k(B), one step of the base is B − (α/N) Σ ∂F_k(B, h_k(B))/∂B."""
    method = FedRep(lr=0.1, head_epochs=300, finish_epochs=300)
    made, outcome = run(method, QUADRATICS, rounds=1, local_steps=1, **TOGETHER)
    start = made.task.start.state()["base.weight"]
    steps = []
    for k in range(3):
        x, y = own_data(k)
        base = start.clone().requires_grad_()
        (x @ base.T @ best_head(x, y, start).T - y[:, None]).square().mean().backward()
        steps.append(base.grad)
    expected = start - 0.1 * sum(steps) / 3  # a first step knows no momentum
    found = outcome.server["base"].state()["base.weight"]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    for k in range(3):  # the end: least squares on the new base
        own = outcome.personal_rows.state(k)
        torch.testing.assert_close(own["head.weight"], best_head(*own_data(k), found), rtol=1e-5, atol=1e-5)


def test_a_newcomer_finds_its_head_on_the_common_base() -> None:
    made, outcome = run(FedRep(lr=0.1, head_epochs=100), QUADRATICS, rounds=2, **TOGETHER)
    served = made.method.newcomer(made.task, made.server, work_of(QUADRATICS, batch_size=WHOLE, expected_rounds=4))
    for k in range(3):
        own = served.state(k)
        assert torch.equal(own["base.weight"], outcome.server["base"].state()["base.weight"])
        expected = best_head(*own_data(k), own["base.weight"])
        torch.testing.assert_close(own["head.weight"], expected, rtol=1e-5, atol=1e-5)


def test_a_model_that_is_all_head_is_local() -> None:
    """Nothing is shared: two rounds of three epochs and two at the end are eight full-batch steps alone."""
    options = {"factory": lambda: nn.Linear(WIDTH, CLASSES), "batch_size": WHOLE}
    method = FedRep(lr=0.2, momentum=0.0, head_epochs=3, finish_epochs=2)
    _, found = run(method, DATA, rounds=2, local_epochs=4, **options)
    _, expected = run(Local(lr=0.2), DATA, rounds=1, local_steps=8, **options)
    assert apart(found.personal_rows, expected.personal_rows) < 1e-12
    assert found.communication.up_bytes == found.communication.down_bytes == 0


# -- what is sent, what comes out


def test_only_the_base_is_sent() -> None:
    made, outcome = run(FedRep(head_epochs=1, finish_epochs=1), DATA, rounds=2, participation=0.5)
    assert [line["up_bytes"] for line in outcome.history] == [3 * BASE * 8, 3 * BASE * 8, 0]
    assert [line["down_bytes"] for line in outcome.history] == [3 * BASE * 8, 3 * BASE * 8, 6 * BASE * 8]
    assert set(outcome.server) == {"base"} and outcome.server["base"].layout.width == BASE
    assert outcome.global_rows is None and made.task.layout.head == ("2.weight", "2.bias")


def test_a_model_without_a_head_is_refused() -> None:
    start = simulation(FedRep(), DATA).task.start
    layout = Layout(start.layout.names, start.layout.shapes)
    with pytest.raises(InputError, match="no head"):
        FedRep().start_clients(Rows(layout, start.blocks), ["ada"])


@pytest.mark.parametrize("hyper", [{"head_epochs": 0}, {"finish_epochs": 0}, {"lr": 0.0}, {"weights": "size"}])
def test_what_makes_no_sense_is_refused(hyper: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(hyper))):
        replace(FedRep(), **hyper)
