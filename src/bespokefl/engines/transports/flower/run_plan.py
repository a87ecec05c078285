"""What the server sends to every node about a run: the clients, the settings, and how to build the model."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from bespokefl.core.errors import InputError
from bespokefl.core.method import Method, Round
from bespokefl.core.task import Task
from bespokefl.engines.settings import Settings
from bespokefl.engines.storage.safetensors_writer import tensor_bytes
from bespokefl.engines.transports.flower.names import check_name


@dataclass(frozen=True)
class RunPlan:
    """A run without its tensors. `recipe` says how to build method and model at the node; it contains no paths."""

    run: str
    names: tuple[str, ...]  # all clients, in canonical order
    rounds: int
    participation: float
    batch_size: int
    local_epochs: int
    local_steps: int | None
    seed: int
    warm: bool = False
    clip: float | None = None  # the largest norm of an upload, relative to its reference
    noise: float | None = None  # on uploads, in units of clip; drawn at the nodes
    follow: str | None = None  # a metric recorded over the rounds, besides loss and accuracy
    groups: tuple[int, ...] | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name(self.run, "a run")

    @classmethod
    def of(
        cls, run: str, names: tuple[str, ...], groups: tuple[int, ...] | None, settings: Settings, recipe: Any
    ) -> "RunPlan":
        """The plan of a run with these settings."""
        shared = {name: getattr(settings, name) for name in SHARED_SETTINGS}
        return cls(run=run, names=names, groups=groups, recipe=recipe, **shared)

    @classmethod
    def read(cls, text: str) -> "RunPlan":
        """Parse the text of a plan."""
        try:
            values = json.loads(text)
            values["names"] = tuple(map(str, values["names"]))
            if values["groups"] is not None:
                values["groups"] = tuple(map(int, values["groups"]))
            return cls(**values)
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"the server's plan cannot be read ({error}): run the same version on both sides."
            ) from None

    def text(self) -> str:
        """The plan as JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def settings(self) -> Settings:
        """The settings that nodes share with the server."""
        return Settings(**{name: getattr(self, name) for name in SHARED_SETTINGS})

    def round(self, number: int, phase: str, method: Method) -> Round:
        """A round as clients know it."""
        return Round(
            number=number,
            phase=phase,
            seed=self.seed,
            names=self.names,
            participation=self.participation,
            warm=self.warm,
            groups=self.groups if method.needs_groups else None,
        )


SHARED_SETTINGS = {one.name for one in fields(RunPlan)} & {one.name for one in fields(Settings)}


def fingerprint(task: Task, *, warm: bool) -> str:
    """A hash of the model: its columns, its untrained values, and its start unless the server sends one (`warm`)."""
    layout = task.layout
    sha = hashlib.sha256(
        json.dumps([layout.names, layout.shapes, layout.head, layout.local, str(task.start.dtype)]).encode()
    )
    trained = set(layout.names)
    values = [(name, value) for name, value in task.module.named_parameters() if name not in trained]
    for name, value in [*values, *task.module.named_buffers()]:
        sha.update(f"\n{name} {value.dtype} {tuple(value.shape)}\n".encode())
        sha.update(tensor_bytes(value))
    for block in () if warm else task.start.blocks:
        sha.update(tensor_bytes(block))
    return sha.hexdigest()
