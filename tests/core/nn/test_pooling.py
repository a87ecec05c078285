"""Maximum pooling by comparisons has torch's results, bit by bit, and so has a ReLU after it instead of before it."""

import copy
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bespokefl.core.nn import layers
from bespokefl.core.nn.layers import PairwiseMaxPool2d, QuickSequential, quick
from bespokefl.core.nn.pooling import max_pool

DTYPES = (torch.float32, torch.float64)


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 2, 8, 6), (4, 2, 10), (1, 1, 2, 2)])
def test_maxima_and_their_slopes_are_torchs(shape: tuple[int, ...], dtype: torch.dtype, relu: bool) -> None:
    x = draw(*shape, dtype=dtype).requires_grad_()
    found, expected = max_pool(x, relu=relu), F.max_pool2d(F.relu(x) if relu else x, 2)
    assert torch.equal(found, expected)
    assert torch.equal(max_pool(x.detach(), relu=relu), expected)
    weight = draw(*expected.shape, dtype=dtype)
    slopes = [torch.autograd.grad((y**3 * weight).sum(), x, create_graph=True)[0] for y in (found, expected)]
    assert torch.equal(*slopes)
    direction = draw(*shape, dtype=dtype)
    curves = [torch.autograd.grad((slope * direction).sum(), x)[0] for slope in slopes]
    torch.testing.assert_close(*curves, rtol=1e-6, atol=1e-6)
    assert curves[0].any()


@pytest.mark.parametrize("relu", [False, True])
def test_of_equal_values_the_first_gets_the_gradient(relu: bool) -> None:
    """All windows of the values -1, 0, 1: every kind of tie, also at the kink of the ReLU."""
    windows = torch.tensor(list(product((-1.0, 0.0, 1.0), repeat=4)), dtype=torch.float64)
    x = windows.reshape(-1, 1, 2, 2).requires_grad_()
    weight = draw(len(x), 1, 1, 1)
    found, expected = (
        torch.autograd.grad((y * weight).sum(), x)[0]
        for y in (max_pool(x, relu=relu), F.max_pool2d(F.relu(x) if relu else x, 2))
    )
    assert torch.equal(found, expected)


def test_undefined_values_are_not_hidden() -> None:
    x = torch.zeros(4, 2, 2)
    x[torch.arange(4), torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])] = torch.nan
    assert max_pool(x, relu=True).isnan().all()


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"kernel_size": 2}, (1, 1, 7, 8)),
        ({"kernel_size": 2}, (1, 1, 8, 7)),
        ({"kernel_size": 2, "ceil_mode": True}, (1, 1, 7, 7)),
        ({"kernel_size": 2, "stride": 1}, (1, 1, 8, 8)),
        ({"kernel_size": 2, "padding": 1}, (1, 1, 8, 8)),
        ({"kernel_size": 2, "dilation": 2}, (1, 1, 8, 8)),
        ({"kernel_size": 3}, (1, 1, 6, 6)),
        ({"kernel_size": (2, 4)}, (1, 1, 8, 8)),
    ],
)
def test_what_does_not_suit_is_left_to_torch(
    options: dict[str, object], shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "max_pool", None)  # would raise
    torchs = nn.Sequential(nn.ReLU(), nn.MaxPool2d(**options))  # type: ignore[arg-type]
    x = draw(*shape)
    assert torch.equal(quick(torchs)(x), torchs(x))


def test_indices_are_torchs() -> None:
    torchs = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2, return_indices=True))
    for found, expected in zip(quick(torchs)(draw(2, 3, 4, 4)), torchs(draw(2, 3, 4, 4)), strict=True):
        assert torch.equal(found, expected)


def network() -> nn.Sequential:
    pooled = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(pooled, nn.MaxPool2d(1), nn.ReLU(), nn.Flatten(), nn.Linear(27, 2)).double()


def gradients(module: nn.Module, x: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(module(x).square().sum(), list(module.parameters())))


def test_a_twin_pools_before_its_relu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "MIN_PIXELS", 0)
    module, x = network(), draw(5, 1, 8, 8)
    twin = quick(module)
    assert type(twin) is type(twin[0]) is QuickSequential and type(twin[0][2]) is PairwiseMaxPool2d
    assert type(module) is type(module[0]) is nn.Sequential and type(module[0][2]) is nn.MaxPool2d
    calls: list[bool] = []
    monkeypatch.setattr(layers, "max_pool", lambda x, relu: calls.append(relu) or max_pool(x, relu=relu))
    assert torch.equal(twin(x), module(x))
    assert all(map(torch.equal, gradients(twin, x), gradients(module, x)))
    assert calls == [True, True]
    assert type(quick(module, stacked=True)[0]) is nn.Sequential


def test_small_batches_are_left_to_torch_in_training_only(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    monkeypatch.setattr(layers, "max_pool", lambda x, relu: calls.append(relu) or max_pool(x, relu=relu))
    twin = quick(network())
    twin(draw(5, 1, 8, 8))
    assert not calls
    with torch.no_grad():
        twin(draw(5, 1, 8, 8))
    assert calls == [True]


@pytest.mark.parametrize("hooked", [1, 2])
def test_layers_with_hooks_stay_in_their_places(hooked: int) -> None:
    module = network()
    seen: list[Tensor] = []
    module[0][hooked].register_forward_hook(lambda layer, inputs, output: seen.append(inputs[0]))
    x = draw(5, 1, 8, 8)
    quick(module)(x)
    module(x)
    assert torch.equal(*seen)


def test_parts_of_a_twin_can_be_called_alone() -> None:
    module, x = network(), draw(5, 1, 8, 8)
    twin = copy.deepcopy(quick(module))
    assert torch.equal(twin[0][:2](x), module[0][:2](x))
    assert torch.equal(twin[0][1](x), F.relu(x))
