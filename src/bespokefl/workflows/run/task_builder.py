"""Builds the learning task of a run: the one place for simulation, deployment server, node and newcomers."""

from dataclasses import dataclass
from typing import Any

import torch

from bespokefl.core.nn.losses import Loss, fitting
from bespokefl.core.task import Task
from bespokefl.models import Model
from bespokefl.models import build as build_model
from bespokefl.workflows.results import models
from bespokefl.workflows.results.models import Recipe, StateDict
from bespokefl.workflows.run import initial_weights
from bespokefl.workflows.run.settings import RunSettings


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """Everything that determines the learning task of a run."""

    model: Model
    shape: tuple[int, ...]  # of one example
    classes: int | None  # None for regression
    tokens: int | None  # for text, the number of distinct word indices
    loss: str | Loss | None = None  # None: chosen by the kind of labels
    head: str | None = None  # the name of the module that is the head
    local_blocks: str = ""  # columns that stay with each client
    seed: int = 0  # of the initial weights
    precision: str = "float32"
    device: torch.device | str = "cpu"

    @classmethod
    def of(cls, settings: RunSettings, **given: Any) -> "TaskSpec":
        """The task that these settings describe; other fields, and models and losses from Python, are given."""
        described = ("model", "loss", "head", "local_blocks", "seed", "precision")
        return cls(**{name: getattr(settings, name) for name in described} | given)

    @property
    def outputs(self) -> int:
        """The number of the model's outputs."""
        return self.classes or 1

    @property
    def objective(self) -> str | Loss:
        """The loss, chosen by the kind of labels if none is given."""
        return fitting(self.loss, self.classes)

    def build(self, start: StateDict | None = None) -> Task:
        """Build the task; `start` replaces the random initial weights."""
        task = Task(
            build_model(self.model, self.shape, self.outputs, self.tokens),
            self.objective,
            head=self.head,
            seed=self.seed,
            device=self.device,
            dtype=models.PRECISIONS[self.precision],
            classifies=self.classes is not None,
            local_blocks=self.local_blocks,
            autocast=models.AUTOCAST.get(self.precision),
        )
        if start is not None:
            initial_weights.load_into(task, start)
        return task

    def recipe(self, task: Task) -> Recipe:
        """Return what is needed to build the task's module again, with the current values of what is not trained."""
        shared = models.untrained(task.module, task.layout.names)
        blueprint = models.Blueprint(
            model=models.described(self.model),
            shape=self.shape,
            outputs=self.outputs,
            seed=self.seed,
            precision=self.precision,
            names=task.layout.names,
            head=task.layout.head,
            shared=models.fingerprint(shared),
            tokens=self.tokens,
        )
        return Recipe(blueprint, self.model, shared)
