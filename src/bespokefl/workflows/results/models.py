"""The models of a run: personal and global weights in memory and on disk, and how modules are built from them.

personal.safetensors   one tensor per trainable parameter, shape (clients, …); the metadata has the clients' names
newcomers.safetensors  the same for clients that were personalized after training
global.safetensors     the state dict of the global model, if the method has one
blueprint.json         how to build the model, if the personal weights stay at the nodes of a deployment
"""

import difflib
import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bespokefl import models
from bespokefl.core import rng
from bespokefl.core.errors import InputError, listing
from bespokefl.core.rows import Rows
from bespokefl.core.system.files import refuse_pipe
from bespokefl.engines.storage.safetensors_writer import write_tensors
from bespokefl.models import Model

StateDict = dict[str, Tensor]

ABOUT = "bespoke"  # the metadata entry: JSON with the clients' names and the blueprint
NODE_ENTRY = "home"  # an entry that nodes add to that JSON: preprocessing of examples, names of labels, the run
NODE_SCORES = "scores"  # another one: test scores of the clients' models by kind and name
PERSONAL, GLOBAL, START = "personal.safetensors", "global.safetensors", "start.safetensors"
NEWCOMERS, BLUEPRINT = "newcomers.safetensors", "blueprint.json"
PRECISIONS = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.float32}  # of weights
AUTOCAST = {"bfloat16": torch.bfloat16}  # of layers, if it is another one


@dataclass(frozen=True)
class Blueprint:
    """A description of a run's module from which it is built again."""

    model: str
    shape: tuple[int, ...]  # of one example
    outputs: int
    seed: int
    precision: str
    names: tuple[str, ...]  # the trainable parameters and running statistics
    head: tuple[str, ...]
    shared: str  # hash of what is not trained, frozen parameters and buffers; "" if there are none
    tokens: int | None = None  # for text, the number of distinct word indices

    def __post_init__(self) -> None:
        for name in ("shape", "names", "head"):
            object.__setattr__(self, name, tuple(getattr(self, name)))  # JSON has lists only


@dataclass(frozen=True)
class Recipe:
    """A blueprint with the model it describes and the values of what is not trained."""

    blueprint: Blueprint
    model: Model
    shared: StateDict

    def build(self, weights: StateDict) -> nn.Module:
        """Return a module with these weights, on the CPU, in evaluation mode."""
        about = self.blueprint
        factory = models.build(self.model, about.shape, about.outputs, about.tokens)
        with rng.torch_seeded(about.seed, "start"):
            module = factory().to(dtype=PRECISIONS[about.precision])
        own = {name: tuple(value.shape) for name, value in [*module.named_parameters(), *module.named_buffers()]}
        wrong = [name for name, value in weights.items() if own.get(name) != tuple(value.shape)]
        if wrong:
            raise InputError(
                f"the model does not fit the weights of this run: {listing(wrong)} is missing or has another shape; "
                "give the model that was trained."
            )
        module.load_state_dict(weights | self.shared, strict=False)
        if fingerprint(untrained(module, about.names)) != about.shared:
            raise InputError(
                "the model's frozen parameters or buffers are not those of this run; "
                "give the model as it was, with the same pre-trained weights."
            )
        return module.eval()


class InMemoryModels:
    """The models of a run that has just finished; rows are in the order of the clients."""

    def __init__(self, recipe: Recipe, personal: Rows, global_rows: Rows | None = None) -> None:
        self.recipe, self.personal, self.global_rows = recipe, personal, global_rows

    def module(self, position: int) -> nn.Module:
        """The personal model of the client at this position."""
        return self.recipe.build(self.personal.state(position))

    def global_module(self) -> nn.Module | None:
        """Return the global model as a module; None if there is none."""
        return None if self.global_rows is None else self.recipe.build(self.global_rows.state())

    def write(self, folder: Path, names: tuple[str, ...], file: str = PERSONAL) -> None:
        """Write the personal models and the global model to a directory."""
        about = {"clients": names, **asdict(self.recipe.blueprint)}
        write_rows(self.personal, folder / file, json.dumps(about, ensure_ascii=False))
        self.write_global(folder)

    def write_global(self, folder: Path) -> None:
        """Write the global model to a directory, if there is one."""
        module = self.global_module()
        if module is not None:
            write_state(module.state_dict(), folder / GLOBAL)


class SavedModels:
    """The models in the directory of a run, read when they are needed."""

    def __init__(self, folder: Path, model: Model | None = None, file: str = PERSONAL) -> None:
        self.folder, self.model, self.file = folder, model, file

    def module(self, position: int) -> nn.Module:
        """The personal model of the client at this position."""
        try:
            with safe_open(self.folder / self.file, framework="pt") as file:
                weights = {name: file.get_slice(name)[position] for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise InputError(f"cannot read {str(self.folder / self.file)!r}: {error}.") from None
        return self.recipe.build(weights)

    def global_module(self) -> nn.Module | None:
        """Return the global model as a module; None if there is none."""
        if not (self.folder / GLOBAL).exists():
            return None
        recipe, state = self.recipe, read_state(self.folder / GLOBAL)
        return recipe.build({name: value for name, value in state.items() if name in recipe.blueprint.names})

    @property
    def recipe(self) -> Recipe:
        """How the models are built; needs `model` if the run's was a Python object."""
        blueprint = self._blueprint()
        if self.model is None and blueprint.model.startswith("<"):
            raise InputError(
                f"the model of this run was a Python object, {blueprint.model}, which only Python can give again: "
                "load_run(path, model=...)."
            )
        start = read_state(self.folder / START) if (self.folder / START).exists() else {}
        shared = {name: value for name, value in start.items() if name not in blueprint.names}
        return Recipe(blueprint, self.model or blueprint.model, shared)

    def _blueprint(self) -> Blueprint:
        path, separate = self.folder / self.file, self.folder / BLUEPRINT
        if self.file == PERSONAL and separate.exists():
            path = separate
            refuse_pipe(path)
        try:
            known = json.loads(path.read_text(encoding="utf-8") if path == separate else read_about(path))
            others = ("clients", NODE_ENTRY, NODE_SCORES)
            return Blueprint(**{name: value for name, value in known.items() if name not in others})
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise InputError(f"cannot read {str(path)!r}: {error}.") from None


def no_client(name: str, names: tuple[str, ...]) -> InputError:
    """Return the error for an unknown client, with the most similar name."""
    near = difflib.get_close_matches(name, names, n=1)
    guess = f"; did you mean {near[0]!r}?" if near else "."
    return InputError(f"there is no client {name!r}; there are {listing(names)}{guess}")


def described(model: Model) -> str:
    """Return a model as text from which it can be built again, or, if it cannot, a description in <>."""
    if isinstance(model, str):
        return model
    if isinstance(model, nn.Module):
        return f"<{type(model).__name__} module>"
    module, name = getattr(model, "__module__", ""), getattr(model, "__qualname__", "")
    if name and "<" not in name and module != "__main__":
        found: object = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is model:
            return f"{module}:{name}"
    return f"<{name or type(model).__name__}>"


def untrained(module: nn.Module, names: tuple[str, ...]) -> StateDict:
    """Return frozen parameters and constant buffers: the state dict without `names`, also under other names."""
    trained = {id(value) for name, value in [*module.named_parameters(), *module.named_buffers()] if name in names}
    state = module.state_dict(keep_vars=True)
    return {
        name: value.detach() for name, value in state.items() if isinstance(value, Tensor) and id(value) not in trained
    }


def fingerprint(state: StateDict) -> str:
    """Return a hash of names and values; "" if the state is empty."""
    if not state:
        return ""
    sha = hashlib.sha256()
    for name in sorted(state):
        value = state[name].detach().cpu().contiguous()
        sha.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        sha.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def write_state(state: Mapping[str, Tensor], path: Path) -> None:
    """Write a state dict; tensors are copied, as safetensors rejects those that share memory (tied layers)."""
    write_named({name: value.detach().cpu().clone().contiguous() for name, value in state.items()}, path)


def write_named(tensors: Mapping[str, Tensor], path: Path, about: str | None = None) -> None:
    """Write a safetensors file; a full disk is an OSError, as for other files."""
    try:
        save_file(dict(tensors), path, None if about is None else {ABOUT: about})
    except SafetensorError as error:
        if found := re.search(r"\(os error (\d+)\)", str(error)):
            raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from None
        raise


def write_rows(rows: Rows, path: Path, about: str) -> None:
    """Write one tensor per parameter, shape (rows, …), and a text as metadata."""
    positions = list(range(len(rows)))
    entries = [(name, block, positions) for name, block in zip(rows.layout.names, rows.blocks, strict=True)]
    write_tensors(path, entries, {ABOUT: about})


def write_blueprint(blueprint: Blueprint, path: Path) -> None:
    """Write a blueprint as JSON."""
    path.write_text(json.dumps(asdict(blueprint), ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def read_about(path: Path) -> str:
    """Return the text in the metadata of a safetensors file."""
    try:
        with safe_open(path, framework="pt") as file:
            return str(file.metadata()[ABOUT])
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        raise InputError(f"cannot read {str(path)!r}: {error}.") from None


def read_state(path: Path) -> StateDict:
    """Read the tensors of a safetensors file."""
    refuse_pipe(path)
    try:
        return dict(load_file(path))
    except FileNotFoundError:
        raise InputError(f"there is no file {str(path)!r}.") from None
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot read {str(path)!r} as safetensors: {error}.") from None
