"""The clients' side: their data and their half of the method. Simulations and deployed nodes run the same code."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from bespokefl.core.blocks.local import keep_local
from bespokefl.core.client_index import PARTS, ClientIndex
from bespokefl.core.cohort_data import BatchSchedule, CohortData
from bespokefl.core.method import Message, Method, Round, State
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.core.work import SIZE
from bespokefl.engines.constant_predictor import constant_models
from bespokefl.engines.protection.clipping import Privacy
from bespokefl.engines.protection.screening import largest_plausible_entry
from bespokefl.engines.reference import ReferenceLoop
from bespokefl.engines.settings import FOLLOWED, Settings
from bespokefl.engines.storage.client_states import on_device, on_host, repeat_single_rows


@dataclass(frozen=True)
class Data:
    """All examples, and which client each belongs to. Clients are in canonical order: by name."""

    x: Tensor
    y: Tensor
    names: tuple[str, ...]
    train: ClientIndex
    validation: ClientIndex
    test: ClientIndex
    groups: tuple[int, ...] | None = None  # the split's true groups, if it has any
    seeds: tuple[int, ...] = ()  # by client: its federation's seed, if several federations are trained as one

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class ClientResult:
    """The result of local training of a cohort, one row per client."""

    upload: State = field(default_factory=dict)
    state: State = field(default_factory=dict)
    notes: dict[str, Tensor] = field(default_factory=dict)
    broken: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))  # weights not finite, or huge
    work: Tensor = field(default_factory=lambda: torch.zeros(SIZE, dtype=torch.int64))  # of the whole cohort


class ClientSide:
    """Runs the client half of a method for any cohort of the clients whose data it holds."""

    def __init__(
        self, method: Method, task: Task, data: Data, settings: Settings, privacy: Privacy | None = None
    ) -> None:
        self.method = keep_local(method, task.layout)
        self.task, self.data, self.settings = task, data, settings
        self.privacy = privacy or settings.privacy
        self._loop = ReferenceLoop(task) if settings.reference else None

    def cohort_data(self, cohort: Sequence[int], number: int) -> CohortData:
        """The training and validation data of a cohort in a round."""
        settings = self.settings
        return CohortData(
            x=self.data.x,
            y=self.data.y,
            train=self.data.train.take(cohort),
            validation=self.data.validation.take(cohort),
            names=tuple(self.data.names[i] for i in cohort),
            seed=settings.seed,
            seeds=tuple(self.data.seeds[i] for i in cohort) if self.data.seeds else (),
            round=number,
            batch_size=settings.batch_size,
            epochs=settings.local_epochs,
            steps=settings.local_steps,
            expected_rounds=settings.expected_rounds,
            keyed=self.task.draws,
            loop=self._loop,
        )

    def train(self, cohort: Sequence[int], message: Message, state: State, round: Round) -> ClientResult:
        """Run the local update of a cohort."""
        data, message, state = self.cohort_data(cohort, round.number), self._here(message), self._rows_here(state)
        self.task.work.take()
        upload, new = self.method.local_update(self.task, message, state, data, round)
        work = self.task.work.take()
        upload, new = repeat_single_rows(upload, len(cohort)), repeat_single_rows(new, len(cohort))
        fine, limit = torch.ones(len(cohort), dtype=torch.bool), largest_plausible_entry(self.task.start)
        for value in (*upload.values(), *new.values()):
            if isinstance(value, Rows) and value.blocks:
                fine &= value.largest() <= limit  # False for NaN
        upload = self.privacy.release(self.method, self.task, message, upload, data)
        return ClientResult(on_host(upload), on_host(new), on_host(data.notes), ~fine, work)

    def personal(self, cohort: Sequence[int], message: Message, state: State, number: int) -> Rows:
        """The cohort's personal models, one row each."""
        data = self.cohort_data(cohort, number)
        return self.method.personal(self.task, self._here(message), self._rows_here(state), data)

    def score(self, cohort: Sequence[int], rows: Rows, *, final: bool = False) -> dict[str, Tensor]:
        """Loss and accuracy on the cohort's training, validation and test data, named "test_accuracy" and so on.

        The `final` scores of a run add F1, precision and recall, and measures of validation and test data (AUC,
        calibration, RMSE, …), which take too long for evaluations between rounds, except for the one to follow.
        Evaluations between rounds may leave out the training data.
        """
        return self._score(self.task, self.data.x, cohort, rows.to(device=self.task.start.device), final)

    def score_constant(self, cohort: Sequence[int]) -> dict[str, Tensor]:
        """The final scores of the constant predictors of the cohort: majority class, or mean target."""
        made = constant_models(self.task, self.data.x, self.data.y, self.data.train.take(cohort))
        if made is None:
            return {}
        unused = self.data.x.new_zeros(1).expand(len(self.data.x))  # no features
        return self._score(made[0], unused, cohort, made[1], final=True)

    def _here(self, message: Message) -> Message:
        """The message with its rows on the device of the task; they may come from another process."""
        return replace(message, shared=self._rows_here(message.shared), own=self._rows_here(message.own))

    def _rows_here(self, values: Mapping[str, Any]) -> State:
        return on_device(values, self.task.start.device)

    def _score(self, task: Task, x: Tensor, cohort: Sequence[int], rows: Rows, final: bool) -> dict[str, Tensor]:
        scores: dict[str, Tensor] = {}
        skipped = "train" if self.settings.skip_train_scores and not final else None
        for part in (one for one in PARTS if one != skipped):
            own: ClientIndex = getattr(self.data, part).take(cohort)
            schedule = BatchSchedule.sweep(x, self.data.y, own)
            more = final or (part == "test" and self.settings.followed != FOLLOWED)
            found = task.score(rows, schedule, by_class=more, measures=more and part != "train")
            kept = found if final else [name for name in self.settings.followed if name in found]
            scores |= {f"{part}_{name}": found[name] for name in kept}
        return scores
