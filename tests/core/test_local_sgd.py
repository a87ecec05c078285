"""Local training is what torch.optim.SGD does to each client alone, whoever it trains with."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bespokefl.core.cohort_data import Batch, CohortData
from bespokefl.core.local_sgd import Penalty, local_sgd
from bespokefl.core.nn import probe
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.engines.reference import ReferenceLoop
from tests.core.modules import Dropped
from tests.federations import CLASSES, SIZES, WIDTH, apart, federation, mlp, random_rows, same_bits, work_of

DOUBLE = torch.float64
DATA = federation(dtype=DOUBLE)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "decay": {"weight_decay": 0.1},
    "both": {"momentum": 0.5, "weight_decay": 0.01},
}


def make(stacked: bool = True) -> Task:
    task = Task(mlp, dtype=DOUBLE)
    if stacked:
        task.stack()
    return task


def optimised(
    task: Task,
    data: CohortData,
    row: Rows,
    k: int,
    lr: float,
    *,
    steps: int | None = None,
    reach: float = 1e9,
    **sgd: float,
) -> tuple[Rows, int]:
    """One client with torch.optim.SGD, on the batches that the work says, and how many steps it took.

    It stops when it is further from where it began than `reach`.
    """
    module = mlp().to(DOUBLE)
    module.load_state_dict(row.state())
    optimizer = torch.optim.SGD(module.parameters(), lr=lr, **sgd)
    now, taken = row, 0
    for batch in data.batches(k) if steps is None else data.batches(k, steps=steps):
        own = torch.from_numpy(batch)
        optimizer.zero_grad()
        F.cross_entropy(module(DATA.x[own]), DATA.y[own]).backward()
        optimizer.step()
        now, taken = Rows.from_state(task.layout, dict(module.named_parameters())), taken + 1
        if (now - row).square_norm().item() > reach**2:
            break
    return now, taken


@pytest.mark.parametrize("stacked", [False, True], ids=["plain", "stacked"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_one_client_is_sgd_step_by_step(options: dict[str, float], stacked: bool) -> None:
    task = make(stacked)
    for steps in range(1, 7):
        data = work_of(DATA, [1])
        found = local_sgd(task.gradient, task.start, data, 0.3, steps=steps, **options)
        assert apart(found, optimised(task, data, task.start, 0, 0.3, steps=steps, **options)[0]) < 1e-10


@pytest.mark.parametrize("stacked", [False, True], ids=["plain", "stacked"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_ragged_clients_are_sgd_each(options: dict[str, float], stacked: bool) -> None:
    task = make(stacked)
    rows = random_rows(task, len(DATA))
    data = work_of(DATA, epochs=2)
    found = local_sgd(task.gradient, rows, data, 0.3, **options)
    for k in range(len(DATA)):
        assert apart(found[k : k + 1], optimised(task, data, rows[k : k + 1], k, 0.3, **options)[0]) < 1e-10


def test_steps_and_rates_may_differ_from_row_to_row() -> None:
    task = make()
    data = work_of(DATA)
    steps, lr = torch.tensor([2, 0, 5, 1, 1, 3]), torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    found = local_sgd(task.gradient, task.start, data, lr, steps=steps, momentum=0.9)
    for k in range(len(DATA)):
        expected, _ = optimised(task, data, task.start, k, float(lr[k]), steps=int(steps[k]), momentum=0.9)
        assert apart(found[k : k + 1], expected) < 1e-10
    assert same_bits(found[1:2], task.start)


@pytest.mark.parametrize("lr", [torch.tensor(0.25), torch.tensor([0.25])])
def test_a_rate_may_come_as_a_tensor(lr: Tensor) -> None:
    task = make()
    expected = local_sgd(task.gradient, task.start, work_of(DATA), 0.25)
    assert same_bits(local_sgd(task.gradient, task.start, work_of(DATA), lr), expected)


def test_epochs_instead_of_the_budget() -> None:
    task = make()
    found = local_sgd(task.gradient, task.start, work_of(DATA), 0.1, epochs=3)
    assert same_bits(found, local_sgd(task.gradient, task.start, work_of(DATA, epochs=3), 0.1))


def test_purposes_name_the_batches() -> None:
    task = make()
    first = local_sgd(task.gradient, task.start, work_of(DATA), 0.1, purpose="a")
    assert same_bits(first, local_sgd(task.gradient, task.start, work_of(DATA), 0.1, purpose="a"))
    assert not same_bits(first, local_sgd(task.gradient, task.start, work_of(DATA), 0.1, purpose="b"))


@pytest.mark.parametrize("stacked", [False, True], ids=["plain", "stacked"])
@pytest.mark.parametrize("block", ["base", "head", "0.weight"])
def test_a_frozen_block_stays(block: str, stacked: bool) -> None:
    task = make(stacked)
    rows = random_rows(task, len(DATA))
    data = work_of(DATA)
    found = local_sgd(task.gradient, rows, data, 0.3, frozen=block, momentum=0.9, weight_decay=0.1)
    assert same_bits(found.block(block), rows.block(block)) and not found.frozen
    fixed = set(task.layout.block(block))
    for k in range(len(DATA)):
        module = mlp().to(DOUBLE)
        module.load_state_dict(rows.state(k))
        free = [parameter for name, parameter in module.named_parameters() if name not in fixed]
        optimizer = torch.optim.SGD(free, lr=0.3, momentum=0.9, weight_decay=0.1)
        for batch in data.batches(k):
            own = torch.from_numpy(batch)
            optimizer.zero_grad()
            F.cross_entropy(module(DATA.x[own]), DATA.y[own]).backward()
            optimizer.step()
        assert apart(found[k : k + 1], Rows.from_state(task.layout, dict(module.named_parameters()))) < 1e-10


@pytest.mark.parametrize("reference", [False, True])
def test_a_model_that_is_all_head(reference: bool) -> None:
    task = Task(lambda: nn.Linear(WIDTH, CLASSES), dtype=DOUBLE)
    data = work_of(DATA, loop=ReferenceLoop(task) if reference else None)
    found = local_sgd(task.gradient, task.start, data, 0.3, frozen="head")
    assert len(found) == len(DATA) and same_bits(found, task.start.expand(len(DATA)))
    trained = local_sgd(task.gradient, task.start, data, 0.3, frozen="base")
    assert apart(trained, task.start) > 1e-3


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize("stacked", [False, True], ids=["plain", "stacked"])
def test_what_goes_beside_is_cut_with_the_rows(stacked: bool, reference: bool) -> None:
    """∇F_k(v) + c_k (v − target_k): towards its own target, with its own strength, for each ragged client."""
    task = make(stacked)
    targets, rows = random_rows(task, len(DATA), seed=1), random_rows(task, len(DATA))
    strength = torch.linspace(0.1, 2.0, len(DATA), dtype=DOUBLE)
    common = random_rows(task, 1, seed=2)
    sizes = []

    def gradient(v: Rows, batch: Batch, target: Rows, own: Tensor, shared: Rows) -> Rows:
        sizes.append(len(v))
        assert len(v) == len(batch) == len(target) == len(own) and len(shared) == 1
        return task.gradient(v, batch) + own * (v - target) + 0.5 * (v - shared)

    data = work_of(DATA, loop=ReferenceLoop(task) if reference else None)
    found = local_sgd(gradient, rows, data, 0.1, per_row=[targets, strength, common])
    assert (max(sizes), min(sizes)) == (1 if reference else 6, 1)
    for k in range(len(DATA)):
        v = rows[k : k + 1]
        for batch in data.batches(k):
            own = torch.from_numpy(batch)
            step = Batch(DATA.x[own][None], DATA.y[own][None])
            prox_weight = strength[k] * (v - targets[k : k + 1]) + 0.5 * (v - common)
            v = v - 0.1 * (task.gradient(v, step) + prox_weight)
        assert apart(found[k : k + 1], v) < 1e-10


def test_only_active_rows_are_worked_on() -> None:
    task = make()
    seen: list[int] = []

    def gradient(rows: Rows, batch: Batch) -> Rows:
        seen.append(len(rows))
        return task.gradient(rows, batch)

    local_sgd(gradient, task.start, work_of(DATA), 0.1)
    steps = [-(-size // 4) for size in SIZES]  # 1, 5, 2, 3, 2, 3
    assert seen == [sum(own > step for own in steps) for step in range(max(steps))]


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_stop_rule_ends_each_row_by_itself(options: dict[str, float], reference: bool) -> None:
    task = make()

    def far(rows: Rows, batch: Batch) -> Tensor:
        return (rows - task.start).square_norm() > 0.25**2

    data = work_of(DATA, loop=ReferenceLoop(task) if reference else None)
    found = local_sgd(task.gradient, task.start, data, 0.15, stop=far, **options)
    taken = []
    for k in range(len(DATA)):
        expected, steps = optimised(task, data, task.start, k, 0.15, reach=0.25, **options)
        assert apart(found[k : k + 1], expected) < 1e-10  # a rate in float32 would be 1e-8 off
        taken.append(steps)
    budget = [-(-size // 4) for size in SIZES]
    assert any(a < b for a, b in zip(taken, budget, strict=True)) and len(set(taken)) > 1


def test_training_ends_when_all_have_stopped() -> None:
    task = make()
    calls = []

    def stop(rows: Rows, batch: Batch) -> Tensor:
        calls.append(batch.step)
        return torch.ones(len(rows), dtype=torch.bool)

    local_sgd(task.gradient, task.start, work_of(DATA, epochs=5), 0.1, stop=stop)
    assert calls == [0]


@pytest.mark.parametrize("stacked", [False, True], ids=["plain", "stacked"])
def test_inputs_are_not_modified(stacked: bool) -> None:
    task = make(stacked)
    rows, lr, per_row = random_rows(task, len(DATA)), torch.full((6,), 0.1), random_rows(task, 6, seed=1)
    before = rows.clone(), lr.clone(), per_row.clone(), DATA.x.clone(), task.start.clone()

    def gradient(v: Rows, batch: Batch, other: Rows) -> Rows:
        return task.gradient(v, batch) + (v - other)

    local_sgd(gradient, rows, work_of(DATA), lr, per_row=[per_row], momentum=0.9, weight_decay=0.1)
    local_sgd(task.gradient, task.start, work_of(DATA), 0.1, momentum=0.9)
    assert same_bits((rows, lr, per_row, DATA.x, task.start), before)


def test_no_steps_change_nothing() -> None:
    task = make()
    assert same_bits(local_sgd(task.gradient, task.start, work_of(DATA), 0.1, steps=0), task.start.expand(len(DATA)))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_reference_loop_is_the_same(options: dict[str, float]) -> None:
    task = make()
    rows = random_rows(task, len(DATA))
    data = work_of(DATA, epochs=2, loop=ReferenceLoop(task))
    expected = local_sgd(task.gradient, rows, data, 0.2, **options)
    assert apart(local_sgd(task.gradient, rows, work_of(DATA, epochs=2), 0.2, **options), expected) < 1e-10
    for block in ("base", "head"):
        expected = local_sgd(task.gradient, rows, data, 0.2, frozen=block, **options)
        found = local_sgd(task.gradient, rows, work_of(DATA, epochs=2), 0.2, frozen=block, **options)
        assert apart(found, expected) < 1e-10


def test_dropout_is_the_same_in_any_company_and_in_the_reference_loop() -> None:
    task = Task(Dropped, dtype=DOUBLE)
    probe.check(task, DATA.x[:3], DATA.y[:3], CLASSES)
    before = torch.get_rng_state()
    together = local_sgd(task.gradient, task.start, work_of(DATA), 0.2)
    assert same_bits(together, local_sgd(task.gradient, task.start, work_of(DATA), 0.2))
    alone = Rows.cat([local_sgd(task.gradient, task.start, work_of(DATA, [k]), 0.2) for k in range(len(DATA))])
    reference = local_sgd(task.gradient, task.start, work_of(DATA, loop=ReferenceLoop(task)), 0.2)
    assert apart(together, alone) < 1e-10 and apart(reference, alone) < 1e-10
    assert torch.equal(before, torch.get_rng_state())
    other = local_sgd(task.gradient, task.start, work_of(DATA, seed=1), 0.2)
    assert apart(other, together) > 1e-3


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"frozen": "base"}])
def test_a_penalty_is_a_term_of_the_gradient(options: dict[str, Any], stacked: bool, reference: bool) -> None:
    """μ (w − centre) + slope, with centres and slopes of single clients or of all."""
    task, work = make(stacked), work_of(DATA, epochs=2)
    work = replace(work, loop=ReferenceLoop(task)) if reference else work
    one, many = random_rows(task, 1, seed=1), random_rows(task, len(DATA), seed=2)

    def whole(rows: Rows, batch: Batch, centre: Rows, slope: Rows) -> Rows:
        return task.gradient(rows, batch) + 0.5 * (rows - centre) + slope

    for centre, slope in ((one, many), (many, one)):
        expected = local_sgd(whole, task.start, work, 0.1, per_row=(centre, slope), **options)
        for rate in (0.1, torch.full((len(DATA),), 0.1, dtype=torch.float64)):
            if reference and isinstance(rate, Tensor):
                continue
            found = local_sgd(task.gradient, task.start, work, rate, penalty=Penalty(0.5, centre, slope), **options)
            assert apart(found, expected) < 1e-12
    without = local_sgd(task.gradient, task.start, work, 0.1, **options)
    assert apart(without, expected) > 1e-3
    nothing = local_sgd(task.gradient, task.start, work, 0.1, penalty=Penalty(0.0, many), **options)
    assert apart(nothing, without) < 1e-12 if reference else same_bits(nothing, without)


def test_a_penalty_does_not_change_its_rows() -> None:
    task, work = make(), work_of(DATA)
    centre, slope = random_rows(task, len(DATA), seed=1), random_rows(task, len(DATA), seed=2)
    before = centre.clone(), slope.clone()
    local_sgd(task.gradient, task.start, work, 0.1, penalty=Penalty(0.5, centre, slope))
    assert same_bits(centre, before[0]) and same_bits(slope, before[1])
