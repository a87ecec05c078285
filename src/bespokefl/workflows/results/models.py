"""The models a run leaves: everybody's personal weights, the global ones, and how modules are made of them.

personal.safetensors   one tensor per trainable parameter, shape (clients, …); whose row is whose is in the metadata
newcomers.safetensors  the same, of clients that came when the training was over
global.safetensors     the state dict of the common model, where a method has one
blueprint.json         what it takes to build the model, where everybody's weights are at the nodes of a deployment
"""

import difflib
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bespokefl import models
from bespokefl.core import rng
from bespokefl.core.errors import InputError, listing
from bespokefl.core.files import refuse_pipe
from bespokefl.core.rows import Rows
from bespokefl.engines.storage.safetensors_writer import write_tensors

State = dict[str, Tensor]
Model = str | nn.Module | Callable[..., nn.Module]

ABOUT = "bespoke"  # the entry of the metadata: JSON with the clients' names and what it takes to build the model
HOME = "home"  # the entry of that which a node adds: how its examples were made to fit, and what the labels are called
PERSONAL, GLOBAL, START = "personal.safetensors", "global.safetensors", "start.safetensors"
NEWCOMERS, BLUEPRINT = "newcomers.safetensors", "blueprint.json"
PRECISIONS = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Blueprint:
    """What it takes to build the module of a run again."""

    model: str
    shape: tuple[int, ...]  # of an example
    outputs: int
    seed: int
    precision: str
    names: tuple[str, ...]  # the trainable parameters
    head: tuple[str, ...]
    shared: str  # hash of all that is not trained: frozen parameters and buffers; "" if there is none
    tokens: int | None = None  # how many numbers words can have, for text

    def __post_init__(self) -> None:
        for name in ("shape", "names", "head"):
            object.__setattr__(self, name, tuple(getattr(self, name)))  # JSON has lists only

    def build(self, model: Model, weights: State, shared: State) -> nn.Module:
        """A module with these weights, on the CPU, ready to predict."""
        factory = models.build(model, self.shape, self.outputs, self.tokens)
        with rng.torch_seeded(self.seed, "start"):
            module = factory().to(dtype=PRECISIONS[self.precision])
        own = {name: tuple(value.shape) for name, value in module.named_parameters()}
        wrong = [name for name, value in weights.items() if own.get(name) != tuple(value.shape)]
        if wrong:
            raise InputError(
                f"the model does not fit the weights of this run: {listing(wrong)} is missing or has another shape; "
                "give the model that was trained."
            )
        module.load_state_dict(weights | shared, strict=False)
        if fingerprint(untrained(module, self.names)) != self.shared:
            raise InputError(
                "the model's frozen parameters or buffers are not those of this run; "
                "give the model as it was, with the same pre-trained weights."
            )
        return module.eval()


@dataclass(frozen=True)
class Recipe:
    """A blueprint and what it builds from: the model, and the values of all that is not trained."""

    blueprint: Blueprint
    model: Model
    shared: State

    def build(self, weights: State) -> nn.Module:
        return self.blueprint.build(self.model, weights, self.shared)


class InMemoryModels:
    """Weights in memory, as a run has just left them; rows in the order of the clients."""

    def __init__(self, recipe: Recipe, personal: Rows, common: Rows | None = None) -> None:
        self.recipe, self.personal, self.common = recipe, personal, common

    def module(self, position: int) -> nn.Module:
        return self._build(self.personal, position)

    def common_module(self) -> nn.Module | None:
        return None if self.common is None else self._build(self.common, 0)

    def _build(self, rows: Rows, position: int) -> nn.Module:
        return self.recipe.build({name: value.cpu() for name, value in rows.state(position).items()})

    def write(self, folder: Path, names: tuple[str, ...], file: str = PERSONAL) -> None:
        about = {"clients": names, **asdict(self.recipe.blueprint)}
        write_rows(self.personal, folder / file, json.dumps(about, ensure_ascii=False))
        common = self.common_module()
        if common is not None:
            write_state(common.state_dict(), folder / GLOBAL)


class SavedModels:
    """Weights in the folder of a run, read when they are asked for."""

    def __init__(self, folder: Path, model: Model | None = None, file: str = PERSONAL) -> None:
        self.folder, self.model, self.file = folder, model, file

    def module(self, position: int) -> nn.Module:
        try:
            with safe_open(self.folder / self.file, framework="pt") as file:
                weights = {name: file.get_slice(name)[position] for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise InputError(f"cannot read {str(self.folder / self.file)!r}: {error}.") from None
        return self.recipe.build(weights)

    def common_module(self) -> nn.Module | None:
        if not (self.folder / GLOBAL).exists():
            return None
        recipe, state = self.recipe, read_state(self.folder / GLOBAL)
        return recipe.build({name: value for name, value in state.items() if name in recipe.blueprint.names})

    @property
    def recipe(self) -> Recipe:
        blueprint = self._blueprint()
        if self.model is None and blueprint.model.startswith("<"):
            raise InputError(
                f"the model of this run was a Python object, {blueprint.model}; give it again, as in "
                "load_run(path, model=...)."
            )
        start = read_state(self.folder / START) if (self.folder / START).exists() else {}
        shared = {name: value for name, value in start.items() if name not in blueprint.names}
        return Recipe(blueprint, self.model or blueprint.model, shared)

    def _blueprint(self) -> Blueprint:
        alone = self.folder / BLUEPRINT
        if self.file == PERSONAL and alone.exists():
            return read_blueprint(alone)
        known: dict[str, Any] = json.loads(read_about(self.folder / self.file))
        return Blueprint(**{name: value for name, value in known.items() if name not in ("clients", HOME)})


def no_client(name: str, names: tuple[str, ...]) -> InputError:
    """The error for a client that there is not, with the nearest."""
    near = difflib.get_close_matches(name, names, n=1)
    guess = f"; did you mean {near[0]!r}?" if near else "."
    return InputError(f"there is no client {name!r}; there are {listing(names)}{guess}")


def described(model: Model) -> str:
    """The model as text: what can be built again from it, or in <> what cannot."""
    if isinstance(model, str):
        return model
    if isinstance(model, nn.Module):
        return f"<{type(model).__name__} module>"
    module, name = getattr(model, "__module__", ""), getattr(model, "__qualname__", "")
    if _found(module, name) is model:
        return f"{module}:{name}"
    return f"<{name or type(model).__name__}>"


def _found(module: str, name: str) -> object:
    import sys

    if module == "__main__" or not name or "<" in name:
        return None
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def untrained(module: nn.Module, names: tuple[str, ...]) -> State:
    """Frozen parameters and buffers: all of the state dict but the columns (under whatever name they are shared)."""
    trained = {id(value) for name, value in module.named_parameters() if name in names}
    state = module.state_dict(keep_vars=True)
    return {
        name: value.detach() for name, value in state.items() if isinstance(value, Tensor) and id(value) not in trained
    }


def fingerprint(state: State) -> str:
    """A hash of names and values; "" for none."""
    if not state:
        return ""
    sha = hashlib.sha256()
    for name in sorted(state):
        value = state[name].detach().cpu().contiguous()
        sha.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        sha.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def write_state(state: Mapping[str, Tensor], path: Path) -> None:
    # Copies, as safetensors refuses tensors that share memory (tied layers).
    write_named({name: value.detach().cpu().clone().contiguous() for name, value in state.items()}, path)


def write_named(tensors: Mapping[str, Tensor], path: Path, about: str | None = None) -> None:
    """A safetensors file; a disk that takes no more is the same error as for any other file."""
    try:
        save_file(dict(tensors), path, None if about is None else {ABOUT: about})
    except SafetensorError as error:
        if found := re.search(r"\(os error (\d+)\)", str(error)):
            raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from None
        raise


def write_rows(rows: Rows, path: Path, about: str) -> None:
    """One tensor per parameter, shape (rows, …), and a text."""
    everybody = list(range(len(rows)))
    entries = [(name, block, everybody) for name, block in zip(rows.layout.names, rows.blocks, strict=True)]
    write_tensors(path, entries, {ABOUT: about})


def write_blueprint(blueprint: Blueprint, path: Path) -> None:
    path.write_text(json.dumps(asdict(blueprint), ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def read_blueprint(path: Path) -> Blueprint:
    refuse_pipe(path)
    try:
        return Blueprint(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"cannot read {str(path)!r}: {error}.") from None


def read_about(path: Path) -> str:
    """The text that was written with tensors."""
    try:
        with safe_open(path, framework="pt") as file:
            return str(file.metadata()[ABOUT])
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        raise InputError(f"cannot read {str(path)!r}: {error}.") from None


def read_state(path: Path) -> State:
    refuse_pipe(path)
    try:
        return dict(load_file(path))
    except FileNotFoundError:
        raise InputError(f"there is no file {str(path)!r}.") from None
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot read {str(path)!r} as safetensors: {error}.") from None
