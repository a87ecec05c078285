"""Clients that come when the training is over: their models, from what the server kept and from their own data.

Beside each stands what anybody could do without a method: the common model (or, where there is none, the one that all
began with), trained on for as long as an average client was.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.method import Method, State
from bespokefl.core.nn import probe
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.engines import chunks
from bespokefl.engines.client import PARTS, ClientSide, Data
from bespokefl.engines.evaluation import Scores, refuse_non_finite
from bespokefl.engines.reference import ReferenceLoop
from bespokefl.engines.settings import Settings
from bespokefl.engines.transports.processes import num_workers, open_pool
from bespokefl.engines.transports.wire import Values, under

KINDS = ("personal", "finetune")


@dataclass(frozen=True)
class NewcomerModels:
    """What newcomers get, in the order of `Data.names`."""

    rows: Rows  # their personal models
    personal: Scores
    finetune: Scores  # NaN for those whose plain fine-tuning diverged
    diverged: tuple[str, ...]  # who they are


def serve(
    method: Method,
    task: Task,
    data: Data,
    server: State,
    settings: Settings,
    classes: int | None,
    *,
    number: int,
    lr: float,
    momentum: float,
) -> NewcomerModels:
    """Personal models by the method's own rule, and plain fine-tuning with this rate and the same budget.

    number    the round that all this counts as: the one after the last
    """
    probe.check(task, data.x[:3], data.y[:3], classes)
    executor = chunks.choose_executor(task, data, settings)
    task.stacked = False
    if executor.stacked:
        task.stack()
    loop = ReferenceLoop(task) if settings.reference else None
    side = ClientSide(method, task, data, settings.budget, settings.seed, loop)
    common = method.global_model(server)
    begin = task.start if common is None else common

    def answer(what: str, values: Values) -> Values:
        cohort: list[int] = values["cohort"].tolist()
        work = side.cohort_data(cohort, number)
        rows = method.newcomer(task, server, work).expand(len(cohort))
        steps = work.num_steps() * work.expected_rounds
        tuned = local_sgd(task.gradient, begin, work, lr, momentum=momentum, steps=steps)
        found = zip(KINDS, (rows, tuned), strict=True)
        scores = {
            f"{kind}/{name}": values
            for kind, own in found
            for name, values in side.score(cohort, own, by_class=True).items()
        }
        return {"rows": rows, **scores}

    parts = chunks.cut(range(len(data)), data.train.sizes.tolist(), executor.chunk)
    names = ["newcomers " + ", ".join(data.names[i] for i in part) for part in parts]
    answers: list[Values] = [{}] * len(parts)
    with open_pool(answer, min(num_workers(task, settings), len(parts))) as pool:
        jobs = [lambda part=part: {"cohort": torch.tensor(part)} for part in parts]
        for at, values in pool.map("serve", jobs, names):
            answers[at] = values
    back = torch.argsort(torch.tensor([client for part in parts for client in part]))

    def joined(kind: str) -> Scores:
        found = [under(kind, values) for values in answers]
        return {name: torch.cat([one[name] for one in found])[back] for name in found[0]}

    personal, finetune = (joined(kind) for kind in KINDS)
    refuse_non_finite(personal, data, number)
    lost = _lost(finetune, data)
    return NewcomerModels(
        rows=Rows.cat([values["rows"] for values in answers])[back],
        personal=personal,
        finetune={name: values.masked_fill(lost, torch.nan) for name, values in finetune.items()},
        diverged=tuple(data.names[i] for i in lost.nonzero().flatten().tolist()),
    )


def _lost(scores: Scores, data: Data) -> Tensor:
    """Whose loss is not finite though there are data, (K,)."""
    lost = torch.zeros(len(data), dtype=torch.bool)
    for part in PARTS:
        lost |= ~scores[f"{part}_loss"].isfinite() & (getattr(data, part).sizes > 0)
    return lost
