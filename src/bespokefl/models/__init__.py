"""The models: ordinary torch modules, built in or the user's own.

A built-in model has its last linear layer under the name `head` and all before it under `base`. Those for text have
one row of an embedding for each number that a word can have; how many there are is offered as `tokens`.
"""

import copy
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from bespokefl.core import memory
from bespokefl.core.errors import InputError, unknown
from bespokefl.core.import_path import imported, is_named
from bespokefl.core.spec import bind, parse_call
from bespokefl.models.bag import Bag
from bespokefl.models.cnn1d import CNN1d
from bespokefl.models.lenet import LeNet
from bespokefl.models.logistic import Logistic
from bespokefl.models.lstm import LSTM
from bespokefl.models.mlp import MLP
from bespokefl.models.pictures import CifarCNN, DeepCNN, PFedVEMCNN

MODELS: dict[str, type[nn.Module]] = {
    "logistic": Logistic,
    "mlp": MLP,
    "lenet": LeNet,
    "cifar-cnn": CifarCNN,
    "pfedvem-cnn": PFedVEMCNN,
    "deep-cnn": DeepCNN,
    "cnn1d": CNN1d,
    "lstm": LSTM,
    "bag": Bag,
}
TEXT = ("lstm", "bag")  # models whose examples are numbers of words

Factory = Callable[[], nn.Module]
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
    "build",
    "names",
]


def names() -> dict[str, str]:
    """The built-in models and what each is, in one line."""
    return {name: (inspect.getdoc(model) or "").splitlines()[0] for name, model in MODELS.items()}


def build(spec: Model, shape: tuple[int, ...], outputs: int, tokens: int | None = None) -> Factory:
    """A function that makes a new model each time it is called.

    spec: a built-in model ("mlp", "mlp(hidden=(100, 50))"), "module:function" for one's own, a function, or a module
    to copy. A function is called with those of `shape` (of one example), `classes` and `tokens` that it has as
    arguments. outputs: the number of classes, or 1 for regression. tokens: for text, how many numbers words can have.
    """
    if isinstance(spec, nn.Module):
        return partial(copy.deepcopy, spec)
    if isinstance(spec, str):
        if ":" in spec.partition("(")[0]:
            return _own(imported(spec, "model"), spec, shape, outputs, tokens)
        return _built_in(spec, shape, outputs, tokens)
    if callable(spec):
        return _own(spec, getattr(spec, "__qualname__", repr(spec)), shape, outputs, tokens)
    raise InputError(f"model must be a name, a function or a torch module, got {type(spec).__name__}")


def check(spec: str) -> None:
    """Refuse the name of a model that there is not, or arguments that it does not take, before any data are known."""
    if ":" not in spec.partition("(")[0]:
        _read(spec)
    elif not is_named(spec):
        raise InputError(f'expected a model function as "module:function", got {spec!r}')


def _built_in(spec: str, shape: tuple[int, ...], outputs: int, tokens: int | None) -> Factory:
    name, chosen = _read(spec)
    model = MODELS[name]
    if name in TEXT:
        chosen = {"tokens": tokens} | chosen
    elif tokens is not None:
        raise InputError(
            f"{name} needs numbers that are quantities, but these examples are words, numbered; use one of "
            f"{' and '.join(TEXT)}"
        )
    make = partial(model, shape, outputs, **chosen)
    try:
        with torch.device("meta"):  # wrong values are refused now; costs no memory and draws nothing
            size = sum(one.numel() * one.element_size() for one in make().parameters())
    except (RuntimeError, TypeError) as error:
        if "overflow" not in str(error).lower():
            raise
        size = None  # torch cannot even count so many
    if size is None or size > memory.limit():
        takes = "more than can be counted" if size is None else f"{size / 1e9:,.0f} GB"
        raise InputError(f"model {spec!r} takes {takes}, more than this machine has in memory; use a smaller one.")
    return make


def _read(spec: str) -> tuple[str, dict[str, Any]]:
    """A built-in model's name, and the arguments that are given."""
    written, bracket, rest = spec.partition("(")
    read = parse_call(written.replace("-", "_") + bracket + rest)  # a call's name has no hyphen
    call = (read[0].replace("_", "-"), *read[1:])
    if call[0] not in MODELS:
        raise unknown("model", call[0], MODELS)
    return call[0], bind(call, MODELS[call[0]], given=("shape", "classes"))


def _own(function: Callable[..., Any], name: str, shape: tuple[int, ...], outputs: int, tokens: int | None) -> Factory:
    parameters = _parameters(function)
    offered = {"shape": shape, "classes": outputs} | ({} if tokens is None else {"tokens": tokens})
    usable = {one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    starred = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = {one.name for one in parameters if one.default is one.empty and one.kind not in starred}
    foreign = sorted(required - (usable & offered.keys()))
    if foreign == ["tokens"]:
        raise InputError(f"model function {name!r} asks for tokens, but the data are no text; use another model")
    if foreign:
        raise InputError(
            f"model function {name!r} may ask for shape, classes and tokens only, but needs {', '.join(foreign)}; "
            "give them default values"
        )
    return partial(_made, function, name, {key: value for key, value in offered.items() if key in usable})


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some compiled functions do not tell
        return []


def _made(function: Callable[..., Any], name: str, arguments: dict[str, Any]) -> nn.Module:
    try:
        module = function(**arguments)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"model function {name!r} failed with {type(error).__name__}: {error}") from error
    if not isinstance(module, nn.Module):
        raise InputError(f"model function {name!r} must return a torch module, got {type(module).__name__}")
    return module
