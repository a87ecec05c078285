"""What a run keeps on the server, from which models for newcomers are made.

server.safetensors   the method's final server state ("server/…") and the initial weights ("start"); the metadata has
                     numbers, and which tensors make up which rows
rounds.safetensors   the global model after every round, shape (rounds, …), with keep_rounds
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bespokefl import methods
from bespokefl.core.errors import InputError
from bespokefl.core.method import Method, State
from bespokefl.core.nn.losses import Loss
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.engines.transports import wire
from bespokefl.workflows.results.models import Recipe, SavedModels, read_about, read_state, write_named, write_rows
from bespokefl.workflows.run.settings import RunSettings
from bespokefl.workflows.run.task_builder import TaskSpec

log = logging.getLogger("bespokefl")

SERVER, ROUNDS = "server.safetensors", "rounds.safetensors"


@dataclass(frozen=True)
class ServerArtifact:
    """Everything that a newcomer's model is made of, except the newcomer's data."""

    method: Method
    recipe: Recipe
    loss: str | Loss
    head: str | None
    local_blocks: str
    server: State
    start: Rows
    rounds: Rows | None = None  # the global model after every round

    def task(self, device: torch.device) -> Task:
        """Build the run's task again, with its initial weights."""
        blueprint = self.recipe.blueprint
        spec = TaskSpec(
            model=lambda: self.recipe.build(self.start.state()).train(),
            shape=blueprint.shape,
            classes=blueprint.outputs if blueprint.outputs > 1 else None,
            tokens=blueprint.tokens,
            loss=self.loss,
            head=self.head,
            local_blocks=self.local_blocks,
            seed=blueprint.seed,
            precision=blueprint.precision,
            device=device,
        )
        return spec.build()

    def state(self, device: torch.device) -> State:
        """The server state for `Method.newcomer`, with the global models of all rounds, if they were kept."""
        kept = {} if self.rounds is None else {"rounds": self.rounds}
        state = kept | self.server
        return {name: value.to(device=device) if isinstance(value, Rows) else value for name, value in state.items()}

    def write(self, folder: Path) -> None:
        """Write the files; the state of a user's method may hold objects that cannot be written."""
        values = {"start": self.start} | {f"server/{name}": value for name, value in self.server.items()}
        try:
            header, tensors = wire.flatten(values)
        except TypeError as error:
            log.warning("the server's state is not saved, so newcomers cannot be personalized from disk: %s", error)
            return
        named = {name: tensor.cpu().clone().contiguous() for name, tensor in zip(_names(header), tensors, strict=True)}
        write_named(named, folder / SERVER, json.dumps(header, ensure_ascii=False))
        if self.rounds is not None:
            write_rows(self.rounds, folder / ROUNDS, json.dumps(len(self.rounds)))


def read(models: SavedModels, config: RunSettings, about: Mapping[str, Any]) -> ServerArtifact:
    """Read the artifact in the directory of a finished run; `about` is the content of its result.json."""
    recipe, folder, python = models.recipe, models.folder, about["python"]
    if not (folder / SERVER).exists():
        raise InputError(f"the run in {str(folder)!r} cannot personalize newcomers: it has no {SERVER}; run it again.")
    if python:
        what, was = next(iter(python.items()))
        raise InputError(
            f"the {what} of the run in {str(folder)!r} was a Python object, {was}, and is not in its files; call "
            "bespokefl.personalize with the result that bespokefl.run returns."
        )
    header: list[Any] = json.loads(read_about(folder / SERVER))
    tensors = read_state(folder / SERVER)
    try:
        values = wire.unflatten(header, [tensors[name] for name in _names(header)])
        start: Rows = values.pop("start")
    except (KeyError, ValueError, TypeError) as error:
        raise InputError(f"{str(folder / SERVER)!r} is damaged: {error!r}.") from None
    rounds = None
    if (folder / ROUNDS).exists():
        kept = read_state(folder / ROUNDS)
        rounds = Rows(start.layout, [kept[name] for name in start.layout.names])
    return ServerArtifact(
        method=methods.build(config.method, dict(config.set)),
        recipe=recipe,
        loss="mse" if about["examples"]["labels"] is None else "cross_entropy",
        head=config.head,
        local_blocks=config.local_blocks,
        server={name.removeprefix("server/"): value for name, value in values.items()},
        start=start,
        rounds=rounds,
    )


def _names(header: Sequence[Any]) -> Iterator[str]:
    """The names of the tensors in the file, such as "server/weights/head.bias"."""
    for name, kind, about in header:
        if kind == "rows":
            yield from (f"{name}/{parameter}" for parameter in about[0])
        elif kind == "tensor":
            yield name
