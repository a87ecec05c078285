"""Many heads on one base give what each of them gives by itself."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bespokefl.core.client_index import ClientIndex
from bespokefl.core.cohort_data import Batch, BatchSchedule, CohortData
from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.nn.heads import Sweep, base_gradient, head_inputs, split_gradient, train_head
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from tests.core.modules import PLAIN_ONLY, RANDOM, STACKABLE, Pretrained, inputs
from tests.federations import CLASSES, WIDTH, apart, federation, mlp, random_rows, same_bits, work_of

pytestmark = pytest.mark.slow  # `make check` is to stay under two minutes

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
HEADS = 3
SIZES = (3, 9, 1, 6)  # examples of each client, in passes of 4


class Shared(nn.Module):
    """The head's weights are the first layer's, too."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.head(x)))


class Borrowed(nn.Module):
    """The layer below looks at the head's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(WIDTH, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.base(x) * self.head.weight.sum(0))


class Below(nn.Module):
    """A layer below has the head's weights, under the head's name."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.base = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.base.weight = self.head.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.base(x)))


class Curious(nn.Module):
    """What happens below depends on what the head is."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(WIDTH, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.base(x)) if isinstance(self.head, nn.Linear) else self.base(x))


def clipped() -> nn.Module:
    """What comes after the head would leave the features as they are, but not the outputs."""
    return nn.Sequential(nn.Linear(WIDTH, 6), nn.ReLU(), nn.Linear(6, CLASSES), nn.ReLU())


class ByHand(nn.Module):
    """The head is not called, only its weights are used."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(WIDTH, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.base(x)), self.head.weight, self.head.bias)


class Places(nn.Module):
    """A head for every place of a sequence, whose outputs are summed."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(1, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.base(x.unsqueeze(-1)))).sum(-2)


def half_frozen() -> nn.Module:
    module = mlp()
    module[2].bias.requires_grad_(False)
    return module


def unbiased() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 6), nn.Tanh(), nn.Linear(6, CLASSES, bias=False))


SPLIT: dict[str, Callable[[], nn.Module]] = {
    name: (STACKABLE | RANDOM)[name]
    for name in ("linear", "mlp", "conv", "normed", "pretrained", "tied", "constant", "tokens", "noise", "dropout")
} | {"unbiased": unbiased}
WHOLE: dict[str, Callable[[], nn.Module]] = {
    "temperature": STACKABLE["temperature"],
    **PLAIN_ONLY,
    "shared": Shared,
    "borrowed": Borrowed,
    "below": Below,
    "curious": Curious,
    "clipped": clipped,
    "by hand": ByHand,
    "places": Places,
    "half frozen": half_frozen,
}


def prepared(name: str, dtype: torch.dtype, stacked: bool) -> tuple[Task, BatchSchedule, Rows, list[Rows]]:
    """A task, a sweep over ragged clients, their rows, and heads to try."""
    task = Task((SPLIT | WHOLE)[name], dtype=dtype)
    x = inputs(name, sum(SIZES), dtype=dtype)
    y = torch.arange(sum(SIZES)) % CLASSES
    task.draws = name in RANDOM
    if stacked:
        task.stack()
    part = ClientIndex.of_lists([range(sum(SIZES[:k]), sum(SIZES[: k + 1])) for k in range(len(SIZES))])
    plan = BatchSchedule.sweep(x, y, part, 4, [(7, "of", k) for k in range(len(SIZES))])
    heads = [random_rows(task, len(SIZES), seed=seed, scale=1.0).block("head") for seed in range(1, HEADS + 1)]
    return task, plan, random_rows(task, len(SIZES)), heads


def each(task: Task, rows: Rows, batch: Batch, heads: list[Rows]) -> Rows:
    """The mean over the heads of the whole model's gradients."""
    found = [task.gradient(rows.with_block(head).freeze(rows.layout.head), batch) for head in heads]
    return sum(found[1:], found[0]) / len(heads)


CASES = [
    (name, stacked)
    for name in SPLIT | WHOLE
    for stacked in (False, True)
    if not (stacked and name in (RANDOM | PLAIN_ONLY))
]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("name", "stacked"), CASES)
def test_heads_on_one_base_are_the_model_with_each_of_them(name: str, stacked: bool, dtype: torch.dtype) -> None:
    task, plan, rows, heads = prepared(name, dtype, stacked)
    assert (task.without_head(plan.batch(0).x[0]) is not None) == (name in SPLIT)

    for base in (rows, rows[:1]):  # a base for each client, or one for all
        sweep = Sweep(task, base, plan)
        for _ in range(2):  # the features serve more than once
            for head, found in zip(heads, sweep.gradients(heads), strict=True):
                whole = base.with_block(head).freeze(base.layout.base)
                assert apart(found, task.sweep_gradient(whole, plan).block("head")) < TOLERANCE[dtype]
        if not task.draws:
            for head in heads:
                expected = task.score(base.with_block(head), plan)["loss"]
                torch.testing.assert_close(sweep.losses(head), expected, rtol=TOLERANCE[dtype], atol=0)

    if not rows.layout.base:
        return
    batch = plan.batch(0)
    found, expected = base_gradient(task, rows, batch, heads), each(task, rows, batch, heads)
    assert expected.block("base").square_norm().min() > 0
    assert apart(found, expected) < TOLERANCE[dtype]
    even = replace(batch, x=batch.x[:, :1], y=batch.y[:, :1], weight=None)
    assert apart(base_gradient(task, rows, even, heads), each(task, rows, even, heads)) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("name", "stacked"), [case for case in CASES if case[0] != "unbiased"])
def test_a_gradient_in_two_parts(name: str, stacked: bool, dtype: torch.dtype) -> None:
    """Of a model whose features are shifted, with a term of their mean, against autograd of the whole model."""
    task, plan, rows, _ = prepared(name, dtype, stacked)
    pulled = torch.ones(len(SIZES), 1, dtype=dtype).cumsum(0)
    batch = plan.batch(0)
    below = task.without_head(batch.x[0])
    width = rows.block("head").layout.shapes[0][1] if rows.layout.head else 1
    shift = torch.linspace(-1, 1, len(SIZES) * width, dtype=dtype).reshape(len(SIZES), width)

    def pull(features: Tensor, batch: Batch, strength: Tensor) -> Tensor:
        return strength * batch.mean(features).tanh()

    found = split_gradient(task, rows, batch, shift, pull, (pulled,))
    if below is None or not rows.layout.base:
        assert found is None
        return
    base, slope, features = found
    weight, bias = rows.block("head").blocks
    by_shift = Rows(rows.block("head").layout, [weight, bias + (weight @ shift.unsqueeze(2)).squeeze(2)])
    whole = task.gradient(rows.with_block(by_shift), batch)

    def objective(features: Tensor, batch: Batch, strength: Tensor) -> Tensor:
        value = (strength * batch.mean(features).cosh().log()).sum(1, keepdim=True)  # the gradient of which is the pull
        return value / batch.mean(torch.ones_like(features[..., 0])).unsqueeze(1)

    more = below.gradient(rows.block("base"), batch, objective, (pulled,))
    assert apart(base, whole.block("base") + more) < TOLERANCE[dtype]
    head = whole.block("head").blocks
    expected = head[0] + head[1].unsqueeze(2) * shift.unsqueeze(1)
    torch.testing.assert_close(slope @ features, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    torch.testing.assert_close(slope.sum(2), head[1], rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_numbers_as_targets() -> None:
    task = Task(lambda: nn.Sequential(nn.Linear(WIDTH, 6), nn.Tanh(), nn.Linear(6, 1)), "mse", dtype=torch.float64)
    x, y = inputs("mlp", 3, 4, dtype=torch.float64), inputs("mlp", 3, 4, dtype=torch.float64)[..., 0]
    heads = [random_rows(task, 3, seed=seed).block("head") for seed in (1, 2)]
    rows, batch = random_rows(task, 3), Batch(x, y)
    assert task.without_head(x[0]) is not None
    assert apart(base_gradient(task, rows, batch, heads), each(task, rows, batch, heads)) < 1e-10
    part = ClientIndex.of_lists([range(5), range(5, 7), range(7, 12)])
    plan = BatchSchedule.sweep(x.flatten(0, 1), y.flatten(0, 1), part, 4)
    for head, found in zip(heads, Sweep(task, rows, plan).gradients(heads), strict=True):
        assert apart(found, task.sweep_gradient(rows.with_block(head), plan).block("head")) < 1e-10


def test_a_head_for_every_place_is_computed_whole() -> None:
    task = Task(lambda: nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1)), "mse")
    x = inputs("mlp", 3, 4, dtype=torch.float32).unsqueeze(-1)  # (3, 4, WIDTH, 1)
    heads = [random_rows(task, 3, seed=seed).block("head") for seed in (1, 2)]
    rows, batch = random_rows(task, 3), Batch(x, x[..., 0])
    assert task.without_head(x[0]) is None
    assert same_bits(base_gradient(task, rows, batch, heads), each(task, rows, batch, heads))


def test_what_is_made_of_a_task_follows_it() -> None:
    """It is found once, before or after the task is stacked, shares what never changes, and counts the same work."""
    task = Task(Pretrained)
    x = inputs("pretrained", 3, dtype=torch.float32)
    made = task.without_head(x)
    assert made is not None and not made.stacked and made.module.backbone.weight is task.module.backbone.weight
    assert made.work is task.work
    task.stack()
    assert task.without_head(x) is made and made.stacked
    task.stacked, task.draws = False, True
    assert task.without_head(x) is made and not made.stacked and made.draws
    assert isinstance(task.module.head, nn.Linear) and task.trial(x).shape == (3, CLASSES)


def test_a_model_that_is_its_head_gets_its_inputs_reshaped() -> None:
    data = replace(work_of(federation()), x=torch.randn(len(federation().x), 2, WIDTH // 2))
    flat = nn.Sequential(nn.Flatten(), nn.Linear(WIDTH, CLASSES))
    found = head_inputs(Task(lambda: flat), data)
    assert found is not None and torch.equal(found.x, data.x.flatten(1))
    for layer in (nn.ReLU(), nn.Hardtanh(-9, 9), nn.Linear(WIDTH, WIDTH)):
        assert head_inputs(Task(lambda layer=layer: nn.Sequential(nn.Flatten(), layer, flat[1])), data) is None


def test_trying_leaves_the_task_and_torch_as_they_were() -> None:
    task, plan, rows, _ = prepared("dropout", torch.float32, False)
    batch = plan.batch(0)
    expected, before = task.gradient(rows, batch), torch.get_rng_state()
    assert task.without_head(batch.x[0]) is not None
    assert torch.equal(torch.get_rng_state(), before)
    assert same_bits(task.gradient(rows, batch), expected)


# -- training of heads


def cohort(name: str, dtype: torch.dtype, **options: Any) -> CohortData:
    """Ragged clients whose examples are not in the order of the clients."""
    total = sum(SIZES)
    mixed = torch.randperm(total, generator=torch.Generator().manual_seed(3)).numpy()
    part = ClientIndex.of_lists(np.split(mixed, np.cumsum(SIZES)[:-1]))
    x, y = inputs(name, total, dtype=dtype), torch.arange(total) % CLASSES
    return CohortData(x, y, part, part, ("a", "b", "c", "d"), seed=5, round=2, batch_size=4, **options)


OPTIONS: list[dict[str, Any]] = [
    {"epochs": 3, "purpose": "head"},
    {"epochs": 2, "momentum": 0.9, "weight_decay": 0.1},
    {"steps": torch.tensor([7, 3, 0, 12])},
]


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "momentum", "steps"])
@pytest.mark.parametrize(("name", "stacked"), CASES)
def test_a_head_is_trained_as_by_local_sgd(name: str, stacked: bool, options: dict[str, Any]) -> None:
    task, _, rows, heads = prepared(name, torch.float64, stacked)
    for base, head in ((rows, heads[0]), (rows[:1], heads[0]), (rows[:1], heads[0][:1])):
        data = cohort(name, torch.float64, keyed=task.draws)
        before = [base.clone(), head.clone()]
        whole = task.start.with_block(base.block("base")).with_block(head)
        expected = local_sgd(task.gradient, whole, data, 0.1, frozen="base", **options).block("head")
        counted = task.work.take()
        found = train_head(task, base.block("base"), head, data, 0.1, **options)
        assert apart(found, expected) < 1e-10
        assert apart(found, head) > 1e-4
        assert torch.equal(task.work.take(), counted)
        assert same_bits([base, head], before)


@pytest.mark.parametrize("stacked", [False, True])
def test_heads_are_trained_on_features_that_are_computed_once(stacked: bool) -> None:
    task, _, rows, heads = prepared("mlp", torch.float32, stacked)
    data = cohort("mlp", torch.float32)
    below = task.without_head(data.x[:2])
    assert below is not None
    outputs, seen = below.outputs, []

    def watched(base: Rows, batch: Batch) -> Tensor:
        seen.append(batch.num_examples())
        return outputs(base, batch)

    below.outputs = watched  # type: ignore[method-assign]
    expected = local_sgd(task.gradient, rows.with_block(heads[0]), data, 0.1, frozen="base", epochs=4)
    found = train_head(task, rows.block("base"), heads[0], data, 0.1, epochs=4)
    assert sum(seen) == sum(SIZES)
    assert apart(found, expected.block("head")) < 1e-5
    seen.clear()
    train_head(task, rows.block("base"), heads[0], data, 0.1, steps=1)  # needs fewer examples than there are
    assert seen == []


def test_training_of_heads_does_not_depend_on_chunks() -> None:
    data = federation(dtype=torch.float64)
    task = Task(mlp, dtype=torch.float64)
    base, heads = task.start.block("base"), random_rows(task, 6).block("head")
    task.stack()
    together = train_head(task, base, heads, work_of(data), 0.1, epochs=3, momentum=0.5)
    for cut in ([0, 3], [1], [2, 4, 5]):
        alone = train_head(task, base, heads[cut], work_of(data, cut), 0.1, epochs=3, momentum=0.5)
        assert apart(alone, together[cut]) < 1e-10


def test_a_head_for_numbers_is_trained_as_by_local_sgd() -> None:
    data = federation(targets="numbers", dtype=torch.float64)
    task = Task(lambda: nn.Sequential(nn.Linear(WIDTH, 6), nn.Tanh(), nn.Linear(6, 1)), "mse", dtype=torch.float64)
    expected = local_sgd(task.gradient, task.start, work_of(data), 0.1, frozen="base", epochs=3)
    found = train_head(task, task.start.block("base"), task.start.block("head"), work_of(data), 0.1, epochs=3)
    assert apart(found, expected.block("head")) < 1e-10
