"""A local iteration of any kind: several values at once, each client for its own number of steps."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bespokefl.core.cohort_data import Batch
from bespokefl.core.local_sgd import iterate, local_sgd
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from tests.federations import BATCH, NAMES, SIZES, apart, federation, mlp, random_rows, same_bits, work_of

DATA = federation(dtype=torch.float64)
STEPS = [-(-size // BATCH) for size in SIZES]  # 1, 5, 2, 3, 2, 3


def make(stacked: bool = True) -> Task:
    task = Task(mlp, dtype=torch.float64)
    if stacked:
        task.stack()
    return task


@pytest.mark.parametrize("steps", [None, torch.tensor([4, 0, 2, 7, 1, 1])])
@pytest.mark.parametrize("stacked", [False, True], ids=["plain", "stacked"])
def test_a_gradient_step_is_descent(stacked: bool, steps: Tensor | None) -> None:
    task = make(stacked)
    rows = random_rows(task, len(DATA))

    def step(rows: Rows, batch: Batch) -> tuple[Rows]:
        return (rows - 0.3 * task.gradient(rows, batch),)

    (found,) = iterate(step, (rows,), work_of(DATA), steps=steps)
    assert apart(found, local_sgd(task.gradient, rows, work_of(DATA), 0.3, steps=steps)) < 1e-12


def test_values_go_together_whatever_the_order_of_the_cohort() -> None:
    """A client's rows, numbers and batches meet in every step, and each takes its own number of steps."""
    task, work = make(), work_of(DATA)
    owner = torch.full((len(DATA.x),), -1)
    for k in range(len(DATA)):
        owner[DATA.train.of(k)] = k
    marked = work_of(DATA)
    object.__setattr__(marked, "y", owner)
    seen = []

    def step(rows: Rows, other: Rows, count: Tensor, who: Tensor, batch: Batch) -> tuple[Rows, Rows, Tensor, Tensor]:
        assert len(rows) == len(other) == len(count) == len(who) == len(batch)
        assert (count == batch.step).all()
        for at, client in enumerate(who.tolist()):
            assert set(batch.y[at, : batch.count(at)].tolist()) == {client}
        seen.append(len(rows))
        return rows + who.double(), other + rows, count + 1, who

    zeros, start = random_rows(task, 6) * 0.0, random_rows(task, 6, seed=1)
    begin = (zeros, start, torch.zeros(6, dtype=torch.int64), torch.arange(6))
    rows, other, count, who = iterate(step, begin, marked)
    assert count.tolist() == STEPS == work.num_steps().tolist() and who.tolist() == list(range(6))
    assert seen == [sum(own > step for own in STEPS) for step in range(max(STEPS))]
    for k, steps in enumerate(STEPS):
        assert rows.matrix()[k].unique().tolist() == [k * steps]
        # The second value sees the first as it was before the step: 0 + k + 2k + …
        torch.testing.assert_close(other.matrix()[k], start.matrix()[k] + k * steps * (steps - 1) / 2)


def test_no_steps_change_nothing() -> None:
    task = make()
    rows, numbers = random_rows(task, 6), torch.arange(6.0)

    def never(*given: object) -> None:
        raise AssertionError("there is nothing to do")

    found = iterate(never, (rows, numbers), work_of(DATA), steps=torch.zeros(6, dtype=torch.int64))
    assert same_bits(list(found), [rows, numbers])


def test_one_row_is_everybodys() -> None:
    task = make()
    (found,) = iterate(lambda rows, batch: (rows * 2.0,), (task.start,), work_of(DATA))
    assert len(found) == len(DATA)
    for k, steps in enumerate(STEPS):
        assert apart(found[k : k + 1], task.start * 2.0**steps) < 1e-12


def test_one_row_for_all_and_a_copy_for_each_give_the_same_bits() -> None:
    """Vectorised functions end in other last bits where memory is not in a row."""
    task = Task(mlp)
    start = random_rows(task, 1)

    def step(rows: Rows, batch: Batch) -> tuple[Rows]:
        assert all(block.is_contiguous() for block in rows.blocks)
        return (rows.map(F.softplus).map(torch.sigmoid),)

    data, steps = federation(), torch.full((6,), 3)  # as many for all: nothing is sorted, which would copy
    (shared,) = iterate(step, (start,), work_of(data), steps=steps)
    (copied,) = iterate(step, (start.expand(6).clone(),), work_of(data), steps=steps)
    assert same_bits(shared, copied)


@pytest.mark.parametrize("steps", [None, torch.full((6,), 3)], ids=["sorted", "as they are"])
def test_inputs_are_not_modified(steps: Tensor | None) -> None:
    task = make()
    rows, numbers = random_rows(task, 6), torch.arange(6.0)
    before = rows.clone(), numbers.clone()

    def greedy(rows: Rows, numbers: Tensor, batch: Batch) -> tuple[Rows, Tensor]:
        for block in rows.blocks:
            block += 1
        return rows, numbers + 1

    iterate(greedy, (rows, numbers), work_of(DATA), steps=steps)
    assert same_bits([rows, numbers], list(before))


def test_a_client_iterates_the_same_alone_and_in_company() -> None:
    task = make(stacked=False)
    rows = random_rows(task, 6)

    def step(rows: Rows, prox_weight: Tensor, batch: Batch) -> tuple[Rows, Tensor]:
        return rows - 0.1 * task.gradient(rows, batch) - prox_weight * rows, prox_weight * 0.5

    prox_weight = torch.linspace(0.1, 0.5, 6, dtype=torch.float64)
    together = iterate(step, (rows, prox_weight), work_of(DATA))
    for k in range(6):
        alone = iterate(step, (rows[k : k + 1], prox_weight[k : k + 1]), work_of(DATA, [k]))
        assert apart(together[0][k : k + 1], alone[0]) < 1e-12
        assert torch.equal(together[1][k : k + 1], alone[1])


def test_some_of_the_rows_of_a_work() -> None:
    """The same clients, data, batches and draws, in the order asked for."""
    work, like, chosen = work_of(DATA, epochs=2), random_rows(make(), 1), [4, 1, 1]
    work.note(loss=torch.zeros(6))
    some = work.take(chosen)
    assert some.names == tuple(NAMES[k] for k in chosen) and some.n.tolist() == [SIZES[k] for k in chosen]
    assert some.notes == {} and some.num_steps().tolist() == [2 * STEPS[k] for k in chosen]
    noise, drawn = work.normal(like, "noise", 3), some.normal(like, "noise", 3)
    for at, k in enumerate(chosen):
        assert some.validation.of(at).tolist() == work.validation.of(k).tolist()
        assert [b.tolist() for b in some.batches(at)] == [b.tolist() for b in work.batches(k)]
        assert same_bits(drawn[at : at + 1], noise[k : k + 1])
    assert set(work.notes) == {"loss"} and len(work) == 6


def test_copies_and_seeds_are_taken_along() -> None:
    work = work_of(DATA, [0, 1], seeds=(7, 8)).repeat(2)
    some = work.take([3, 0])
    assert (some.names, some.seeds, some.copies) == (("ben", "ada"), (8, 7), (1, 0))
    like = random_rows(make(), 1)
    assert same_bits(some.normal(like, "noise"), work.normal(like, "noise")[[3, 0]])
    assert [b.tolist() for b in some.batches(0)] == [b.tolist() for b in work.batches(3)]
