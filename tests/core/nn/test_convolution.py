"""A first convolution computed together with the pooling after it has torch's results and gradients."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bespokefl import models
from bespokefl.core.nn import layers
from bespokefl.core.nn.convolution import convolve_windows
from bespokefl.core.nn.layers import quick

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}  # of the norm: law 2
POOLS = {"maximum": nn.MaxPool2d, "average": nn.AvgPool2d}


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(3))


def assert_close(found: Tensor, expected: Tensor) -> None:
    assert (found - expected).norm() <= TOLERANCE[found.dtype] * expected.norm()
    assert found.shape == expected.shape and expected.any()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of inputs of which a convolution was computed with its pooling."""
    shapes: list[tuple[int, ...]] = []
    pooled = layers._pooled

    def record(layer: nn.Conv2d, pool: layers.QuickPool, x: Tensor, *, relu: bool) -> Tensor:
        shapes.append(tuple(x.shape))
        return pooled(layer, pool, x, relu=relu)

    monkeypatch.setattr(layers, "_pooled", record)
    return shapes


@pytest.fixture
def any_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "MIN_OUTPUTS", 0)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("kernel", "padding", "sides"), [((5, 5), (2, 2), (8, 6)), ((2, 3), (0, 1), (5, 4)), ((3, 2), (2, 0), (4, 3))]
)
def test_windows_contain_the_outputs(
    kernel: tuple[int, int], padding: tuple[int, int], sides: tuple[int, int], bias: bool
) -> None:
    x, weight, offset = draw(3, 2, *sides), draw(4, 2, *kernel), draw(4) if bias else None
    windows = convolve_windows(x, weight, offset, padding)
    expected = F.conv2d(x, weight, offset, padding=padding)
    for i in (0, 1):
        for j in (0, 1):
            torch.testing.assert_close(windows[:, i, j], expected[:, :, i::2, j::2], rtol=1e-12, atol=1e-12)


def block(kind: str, relu: bool, bias: bool = True, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        between = [nn.ReLU()] if relu else []
        return nn.Sequential(nn.Conv2d(2, 5, 3, padding=1, bias=bias), *between, POOLS[kind](2), nn.Tanh()).to(dtype)


@pytest.mark.usefixtures("any_batch")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("kind", POOLS)
def test_gradients_and_hessian_products_are_torchs(
    kind: str, relu: bool, bias: bool, dtype: torch.dtype, calls: list[tuple[int, ...]]
) -> None:
    torchs, x = block(kind, relu, bias, dtype), draw(6, 2, 8, 10, dtype=dtype)
    weights = list(torchs.parameters())
    results = []
    for module in (quick(torchs), torchs):
        outputs = module(x)
        gradients = torch.autograd.grad(outputs.square().sum(), weights, create_graph=True)
        along = sum((g * draw(*g.shape, dtype=dtype)).sum() for g in gradients)
        results.append([outputs, *gradients, *torch.autograd.grad(along, weights)])
    assert calls == [(6, 2, 8, 10)]
    for found, expected in zip(*results, strict=True):
        assert_close(found, expected)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("name", "shape"), [("cifar-cnn", (3, 32, 32)), ("lenet", (1, 28, 28)), ("lenet", (28, 28))])
def test_steps_of_models_are_torchs(
    name: str, shape: tuple[int, ...], dtype: torch.dtype, calls: list[tuple[int, ...]]
) -> None:
    torchs = models.build(name, shape, 10)().to(dtype)
    x, y = draw(50, *shape, dtype=dtype), torch.arange(50) % 10
    weights = list(torchs.parameters())
    steps = []
    for module in (quick(torchs), torchs):
        gradients = torch.autograd.grad(F.cross_entropy(module(x), y), weights)
        steps.append(torch.cat([(w - 0.1 * g).flatten() for w, g in zip(weights, gradients, strict=True)]))
    assert len(calls) == 1
    assert_close(*steps)


CASES = {
    "usual": ({}, {}, (2, 2, 8, 8)),
    "single": ({}, {}, (2, 8, 8)),
    "odd": ({}, {}, (2, 2, 7, 8)),
    "many colors": ({"in_channels": 4}, {}, (2, 4, 8, 8)),
    "full blocks": ({"out_channels": 16}, {}, (2, 2, 8, 8)),
    "nearly full blocks": ({"out_channels": 12}, {}, (2, 2, 8, 8)),
    "stride": ({"stride": 2}, {}, (2, 2, 8, 8)),
    "dilation": ({"dilation": 2}, {}, (2, 2, 8, 8)),
    "groups": ({"out_channels": 4, "groups": 2}, {}, (2, 2, 8, 8)),
    "reflection": ({"padding": 1, "padding_mode": "reflect"}, {}, (2, 2, 8, 8)),
    "same": ({"padding": "same"}, {}, (2, 2, 8, 8)),
    "pixels": ({"kernel_size": 1}, {}, (2, 2, 8, 8)),
    "overlap": ({}, {"stride": 1}, (2, 2, 8, 8)),
    "larger windows": ({}, {"kernel_size": 3}, (2, 2, 8, 8)),
    "padded windows": ({}, {"padding": 1}, (2, 2, 8, 8)),
}


@pytest.mark.usefixtures("any_batch")
@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("case", CASES)
def test_what_does_not_suit_is_computed_layer_by_layer(kind: str, case: str, calls: list[tuple[int, ...]]) -> None:
    options, window, shape = CASES[case]
    convolution = nn.Conv2d(**({"in_channels": 2, "out_channels": 5, "kernel_size": 3} | options))  # type: ignore[arg-type]
    torchs = nn.Sequential(convolution, nn.ReLU(), POOLS[kind](**({"kernel_size": 2} | window))).double()  # type: ignore[arg-type]
    assert_close(quick(torchs)(draw(*shape)), torchs(draw(*shape)))
    assert len(calls) == (case == "usual")


def test_small_batches_are_computed_layer_by_layer(calls: list[tuple[int, ...]]) -> None:
    module = quick(models.build("cifar-cnn", (3, 32, 32), 10)())
    module(draw(20, 3, 32, 32, dtype=torch.float32))
    assert not calls
    module(draw(50, 3, 32, 32, dtype=torch.float32))
    assert calls == [(50, 3, 32, 32)]


@pytest.mark.usefixtures("any_batch")
def test_an_input_with_a_gradient_is_computed_layer_by_layer(calls: list[tuple[int, ...]]) -> None:
    torchs, x = block("maximum", relu=True), draw(2, 2, 8, 8).requires_grad_()
    twin = quick(torchs)
    found, expected = (torch.autograd.grad(module(x).sum(), x)[0] for module in (twin, torchs))
    assert_close(found, expected)
    assert not calls
    with torch.no_grad():
        twin(x)
    assert calls == [(2, 2, 8, 8)]


@pytest.mark.usefixtures("any_batch")
@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("hooked", [0, 1, 2])
def test_layers_with_hooks_see_what_they_see_in_torch(hooked: int, kind: str, calls: list[tuple[int, ...]]) -> None:
    module, x = block(kind, relu=True), draw(2, 2, 8, 8)
    seen: list[Tensor] = []
    module[hooked].register_forward_hook(lambda layer, inputs, output: seen.extend((*inputs, output)))
    twin = quick(copy.deepcopy(module))
    twin(x)
    module(x)
    assert not calls
    for found, expected in zip(seen[:2], seen[2:], strict=True):
        assert_close(found, expected)
