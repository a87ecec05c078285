"""Models: ordinary PyTorch modules, built in or the user's own.

dense          logistic regression and fully connected networks; base class and initial weights
convolutional  networks for images and series
residual       residual networks for images, with batch or group norm
text           bag of words and LSTM
adapters       low-rank adapters in a frozen model

All are created with the shape of one example and the number of outputs, `classes` (1 for regression); `init` selects
the initial weights: "torch", "glorot", "he" or "he-glorot". A built-in model has its last linear layer under the name
`head` and all layers before it under `base`. Models for text have an embedding with one row for each of the `tokens`
word ids.
"""

import copy
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from bespokefl.core.errors import InputError, in_brief, unknown
from bespokefl.core.system import memory
from bespokefl.core.user_input import plugins
from bespokefl.core.user_input.spec import bind, imported, is_named, parse_call
from bespokefl.models.adapters import lora
from bespokefl.models.convolutional import CifarCNN, CNN1d, DeepCNN, LeNet, PFedVEMCNN
from bespokefl.models.dense import MLP, Logistic
from bespokefl.models.residual import ResNet8, ResNet20
from bespokefl.models.text import LSTM, Bag

MODELS: dict[str, type[nn.Module]] = {
    "logistic": Logistic,
    "mlp": MLP,
    "lenet": LeNet,
    "cifar-cnn": CifarCNN,
    "pfedvem-cnn": PFedVEMCNN,
    "deep-cnn": DeepCNN,
    "resnet8": ResNet8,
    "resnet20": ResNet20,
    "cnn1d": CNN1d,
    "lstm": LSTM,
    "bag": Bag,
}
TEXT = ("lstm", "bag")  # models whose examples are word ids

Factory = Callable[[], nn.Module]
MAX_LAYERS = 500  # of a built-in model: a plan from elsewhere may ask for any number
Model = str | Callable[..., nn.Module] | nn.Module

__all__ = [
    "LSTM",
    "MLP",
    "MODELS",
    "TEXT",
    "Bag",
    "CNN1d",
    "CifarCNN",
    "DeepCNN",
    "Factory",
    "LeNet",
    "Logistic",
    "PFedVEMCNN",
    "ResNet8",
    "ResNet20",
    "build",
    "lora",
    "names",
]


def names() -> dict[str, str]:
    """The models with a one-line description of each: the built-in ones, and those of other packages."""
    found = {name: (inspect.getdoc(model) or "").splitlines()[0] for name, model in MODELS.items()}
    others = plugins.entry_points(plugins.MODELS).items()
    return found | {name: f"from {point.value}" for name, point in others if name not in found}


def build(spec: Model, shape: tuple[int, ...], outputs: int, tokens: int | None = None) -> Factory:
    """Return a function that creates a new model at each call.

    `spec` is a built-in model ("mlp", "mlp(hidden=(100, 50))"), an entry point of another package, "module:function"
    for your own, a function, or a module to copy. A function is called with those of the arguments `shape`, `classes`
    and `tokens` that it declares. `outputs` is the number of classes, or 1 for regression; `tokens`, for text, the
    number of word ids.
    """
    if isinstance(spec, nn.Module):
        return partial(copy.deepcopy, spec)
    if isinstance(spec, str):
        if ":" in spec.partition("(")[0]:
            return _from_function(imported(spec, "model"), spec, shape, outputs, tokens)
        name, chosen = _parse(spec)
        if name not in MODELS:
            return _from_function(partial(_plugin(name), **chosen), name, shape, outputs, tokens)
        return _built_in(spec, shape, outputs, tokens)
    if callable(spec):
        return _from_function(spec, getattr(spec, "__qualname__", repr(spec)), shape, outputs, tokens)
    raise InputError(f"model must be a name, a function or a torch module, got {type(spec).__name__}")


def check(spec: str) -> None:
    """Check the name and the arguments of a model before any data are known."""
    if ":" not in spec.partition("(")[0]:
        _parse(spec)
    elif not is_named(spec):
        raise InputError(f'expected a model function as "module:function", got {spec!r}')


def _built_in(spec: str, shape: tuple[int, ...], outputs: int, tokens: int | None) -> Factory:
    name, chosen = _parse(spec)
    if name in TEXT:
        chosen = {"tokens": tokens} | chosen
    elif tokens is not None:
        raise InputError(f"{name} needs numeric features, but these examples are word ids; use {' or '.join(TEXT)}")
    layers = max((len(one) if isinstance(one, tuple) else 0 for one in chosen.values()), default=0)
    layers = max(layers, int(chosen.get("layers", 0)))
    if layers > MAX_LAYERS:  # building and tracing them would take minutes
        raise InputError(f"model {in_brief(spec, 60)!r} has {layers:,} layers; give at most {MAX_LAYERS}.")
    make = partial(MODELS[name], shape, outputs, **chosen)
    try:
        with torch.device("meta"):  # checks the arguments without using memory or random numbers
            size = sum(one.numel() * one.element_size() for one in make().parameters())
    except (RuntimeError, TypeError) as error:
        if "overflow" not in str(error).lower():
            raise
        size = None  # more parameters than torch can count
    if size is None or size > memory.limit():
        takes = "more bytes than can be counted" if size is None else f"{size / 1e9:,.0f} GB"
        raise InputError(f"model {spec!r} takes {takes}, more than this machine has in memory; use a smaller one.")
    return make


def _parse(spec: str) -> tuple[str, dict[str, Any]]:
    """The name of a built-in model and the given arguments."""
    written, bracket, rest = spec.partition("(")
    read = parse_call(written.replace("-", "_") + bracket + rest)  # names of calls have no hyphens
    call = (read[0].replace("_", "-"), *read[1:])
    if call[0] not in MODELS:
        offered = {"shape", "classes", "tokens"} & {*inspect.signature(_plugin(call[0])).parameters}
        return call[0], bind(call, _plugin(call[0]), given=offered)
    return call[0], bind(call, MODELS[call[0]], given=("shape", "classes"))


def _plugin(name: str) -> Callable[..., Any]:
    """The model of an entry point."""
    found: Any = plugins.load(name, plugins.MODELS, "model")
    if found is None:
        raise unknown("model", name, names())
    if not callable(found):
        raise InputError(f"model {name!r} must be a function or a class, got {type(found).__name__}")
    model: Callable[..., Any] = found
    return model


def _from_function(
    function: Callable[..., Any], name: str, shape: tuple[int, ...], outputs: int, tokens: int | None
) -> Factory:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some compiled functions have no signature
        parameters = []
    offered = {"shape": shape, "classes": outputs} | ({} if tokens is None else {"tokens": tokens})
    usable = {one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    starred = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = {one.name for one in parameters if one.default is one.empty and one.kind not in starred}
    foreign = sorted(required - (usable & offered.keys()))
    if foreign == ["tokens"]:
        raise InputError(f"model function {name!r} requires tokens, but the data are not text; use another model")
    if foreign:
        raise InputError(
            f"model function {name!r} may require only shape, classes and tokens, but needs {', '.join(foreign)}; "
            "give them default values"
        )
    return partial(_call, function, name, {key: value for key, value in offered.items() if key in usable})


def _call(function: Callable[..., Any], name: str, arguments: dict[str, Any]) -> nn.Module:
    try:
        module = function(**arguments)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"model function {name!r} failed with {type(error).__name__}: {error}") from error
    if not isinstance(module, nn.Module):
        raise InputError(f"model function {name!r} must return a torch module, got {type(module).__name__}")
    return module
