"""The faster layers compute what torch's do."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bespokefl.core.nn import probe
from bespokefl.core.nn.layers import MAX_WIDTH, MatrixAvgPool2d, StackedLinear, quick
from bespokefl.core.task import Task
from bespokefl.engines.reference import ReferenceLoop

DOUBLE = torch.float64


def pictures(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(1)).requires_grad_()


def pool(*args: object, **options: object) -> nn.AvgPool2d:
    layer = nn.AvgPool2d(*args, **options)  # type: ignore[arg-type]
    layer.__class__ = MatrixAvgPool2d
    return layer


@pytest.mark.parametrize(
    ("window", "shape"), [(2, (3, 2, 8, 6)), (3, (2, 1, 9, 12)), (4, (5, 4, 8)), (2, (1, 3, 2, MAX_WIDTH))]
)
def test_averages_and_their_slopes_are_torchs(window: int, shape: tuple[int, ...]) -> None:
    x = pictures(*shape)
    found, expected = pool(window)(x), F.avg_pool2d(x, window)
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-14)
    weight = torch.randn_like(expected)
    slopes = [torch.autograd.grad((y**3 * weight).sum(), x, create_graph=True)[0] for y in (found, expected)]
    torch.testing.assert_close(*slopes, rtol=1e-12, atol=1e-12)
    curves = [torch.autograd.grad(slope.sum(), x)[0] for slope in slopes]
    torch.testing.assert_close(*curves, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (pool(2), (1, 1, 7, 8)),
        (pool(2), (1, 1, 8, 7)),
        (pool(2), (1, 1, 2, MAX_WIDTH + 2)),
        (pool(2, stride=1), (1, 1, 8, 8)),
        (pool(2, padding=1), (1, 1, 8, 8)),
        (pool((2, 4)), (1, 1, 8, 8)),
        (pool(2, divisor_override=3), (1, 1, 8, 8)),
    ],
    ids=["height", "width", "wide", "overlap", "padding", "oblong", "divisor"],
)
def test_what_does_not_suit_is_left_to_torch(layer: nn.AvgPool2d, shape: tuple[int, ...]) -> None:
    x = pictures(*shape)
    torchs = copy.copy(layer)
    torchs.__class__ = nn.AvgPool2d
    assert torch.equal(layer(x), torchs(x))


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(18, 3))


def test_a_quick_twin_has_the_same_weights_and_leaves_the_module_alone() -> None:
    module = network()
    plain, stacked = quick(module), quick(module, stacked=True)
    assert [type(layer) for layer in module] == [nn.Conv2d, nn.AvgPool2d, nn.Flatten, nn.Linear]
    assert [type(layer) for layer in plain] == [nn.Conv2d, MatrixAvgPool2d, nn.Flatten, nn.Linear]
    assert [type(layer) for layer in stacked] == [nn.Conv2d, MatrixAvgPool2d, nn.Flatten, StackedLinear]
    for twin in (plain, stacked):
        assert all(a is b for a, b in zip(module.parameters(), twin.parameters(), strict=True))


def test_the_plain_loop_stays_plain() -> None:
    loop = ReferenceLoop(Task(network))
    assert [type(layer) for layer in loop.module] == [nn.Conv2d, nn.AvgPool2d, nn.Flatten, nn.Linear]


def test_shared_weights_are_shared_when_stacked() -> None:
    """A layer that stands twice in a module has one weight, and its gradient is the sum of both uses."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.again = self.first
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.again(torch.relu(self.first(x))))

    task = Task(Twice)
    assert task.layout.names == ("first.weight", "first.bias", "head.weight", "head.bias")
    assert probe.why_not_stacked(task, torch.randn(5, 4), torch.arange(5) % 3) is None
