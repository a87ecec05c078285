"""The models: ordinary torch modules, built in or the user's own.

A built-in model has its last linear layer under the name `head` and all before it under `base`. Those for text have
one row of an embedding for each number that a word can have; how many there are is offered as `tokens`.
"""

import copy
import importlib
import inspect
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bespokefl.core.errors import InputError, unknown
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
            return _own(_imported(spec), spec, shape, outputs, tokens)
        return _built_in(spec, shape, outputs, tokens)
    if callable(spec):
        return _own(spec, getattr(spec, "__qualname__", repr(spec)), shape, outputs, tokens)
    raise InputError(f"model must be a name, a function or a torch module, got {type(spec).__name__}")


def _built_in(spec: str, shape: tuple[int, ...], outputs: int, tokens: int | None) -> Factory:
    written, bracket, rest = spec.partition("(")
    read = parse_call(written.replace("-", "_") + bracket + rest)  # a call's name has no hyphen
    call = (read[0].replace("_", "-"), *read[1:])
    if call[0] not in MODELS:
        raise unknown("model", call[0], MODELS)
    model = MODELS[call[0]]
    chosen = bind(call, model, given=("shape", "classes"))
    if call[0] in TEXT:
        chosen = {"tokens": tokens} | chosen
    elif tokens is not None:
        raise InputError(
            f"{call[0]} needs numbers that are quantities, but these examples are words, numbered; use one of "
            f"{' and '.join(TEXT)}"
        )
    make = partial(model, shape, outputs, **chosen)
    with torch.device("meta"):  # wrong values are refused now; costs no memory and draws nothing
        make()
    return make


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


def _imported(spec: str) -> Callable[..., Any]:
    module_name, _, path = spec.partition(":")
    if not all(one.isidentifier() for one in [*module_name.split("."), *path.split(".")]):
        raise InputError(f'expected a model function as "module:function", got {spec!r}')
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)  # as "python -m" has it; it stays, for what the module imports later
    importlib.invalidate_caches()
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise InputError(
            f"cannot import {module_name!r} for model {spec!r}: {type(error).__name__}: {error}"
        ) from error
    for name in path.split("."):
        if not hasattr(found, name):
            functions = [key for key, one in vars(found).items() if callable(one) and not key.startswith("_")]
            raise unknown(f"function in {module_name!r}:", name, functions)
        found = getattr(found, name)
    if not callable(found):
        raise InputError(f"model {spec!r} must name a function, got {type(found).__name__}")
    result: Callable[..., Any] = found
    return result
