"""Builds the learning task of a run: the one place for simulation, deployment server, node and newcomers."""

from dataclasses import dataclass

import torch

from bespokefl import models
from bespokefl.core.nn.losses import Loss, fitting
from bespokefl.core.task import Task
from bespokefl.workflows.results.models import (
    PRECISIONS,
    Blueprint,
    Model,
    Recipe,
    State,
    described,
    fingerprint,
    untrained,
)
from bespokefl.workflows.run import initial_weights
from bespokefl.workflows.run.settings import RunSettings


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """Everything that determines a run's learning task.

    Parameters
    ----------
    model : str, Module or callable
        A name, a module to copy, or a function that makes a module.
    shape : tuple of int
        The shape of one example.
    classes : int or None
        The number of classes; None for regression.
    tokens : int or None
        For text, the number of distinct word indices.
    loss : str, callable or None
        None: cross_entropy for classes, mse for regression.
    head : str or None
        The name of the module that is the head.
    seed : int
        The seed of the initial weights.
    precision : {"float32", "float64"}
    device : torch.device or str
    """

    model: Model
    shape: tuple[int, ...]
    classes: int | None
    tokens: int | None = None
    loss: str | Loss | None = None
    head: str | None = None
    seed: int = 0
    precision: str = "float32"
    device: torch.device | str = "cpu"

    @classmethod
    def of(
        cls,
        settings: RunSettings,
        shape: tuple[int, ...],
        classes: int | None,
        tokens: int | None,
        *,
        model: Model | None = None,
        loss: str | Loss | None = None,
        device: torch.device | str = "cpu",
    ) -> "TaskSpec":
        """The task of these settings; `model` and `loss` are given where they are Python objects."""
        return cls(
            model=settings.model if model is None else model,
            shape=shape,
            classes=classes,
            tokens=tokens,
            loss=settings.loss if loss is None else loss,
            head=settings.head,
            seed=settings.seed,
            precision=settings.precision,
            device=device,
        )

    @property
    def outputs(self) -> int:
        """The number of the model's outputs."""
        return self.classes or 1

    @property
    def objective(self) -> str | Loss:
        """The loss, chosen by the kind of labels if none is given."""
        return fitting(self.loss, self.classes)

    def build(self, start: State | None = None) -> Task:
        """Build the task; `start` replaces the random initial weights."""
        loss = self.objective
        task = Task(
            models.build(self.model, self.shape, self.outputs, self.tokens),
            loss,
            head=self.head,
            seed=self.seed,
            device=self.device,
            dtype=PRECISIONS[self.precision],
            classifies=self.classes is not None,
        )
        if start is not None:
            initial_weights.load_into(task, start)
        return task

    def recipe(self, task: Task) -> Recipe:
        """What is needed to build the task's module again, with the current values of all that is not trained."""
        shared = untrained(task.module, task.layout.names)
        blueprint = Blueprint(
            model=described(self.model),
            shape=self.shape,
            outputs=self.outputs,
            seed=self.seed,
            precision=self.precision,
            names=task.layout.names,
            head=task.layout.head,
            shared=fingerprint(shared),
            tokens=self.tokens,
        )
        return Recipe(blueprint, self.model, shared)
