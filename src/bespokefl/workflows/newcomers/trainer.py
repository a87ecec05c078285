"""Train the models of newcomers from the final state of the server and their own data.

For comparison, every newcomer also fine-tunes the global model (or the initial model, if the method has no global one)
for as many steps as an average client made.
"""

from contextlib import closing
from dataclasses import dataclass

import torch

from bespokefl.core.client_index import PARTS
from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.method import Method, State
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.engines.client import ClientSide, Data
from bespokefl.engines.cohorts import chunks
from bespokefl.engines.cohorts.features import prepare
from bespokefl.engines.evaluation import Scores, refuse_non_finite, without_number
from bespokefl.engines.settings import Settings
from bespokefl.engines.transports.processes import Pool, num_workers
from bespokefl.engines.transports.wire import Values, under

NEWCOMER_MODELS = ("personal", "finetune")


@dataclass(frozen=True)
class NewcomerModels:
    """Models and scores of newcomers, in the order of `Data.names`."""

    rows: Rows  # personal models
    personal: Scores
    finetune: Scores  # NaN where fine-tuning diverged
    diverged: tuple[str, ...]  # names of those clients


def train_newcomers(
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
    """Train personal models by the method's own rule, and fine-tune for the same budget, in the round `number`."""
    task, data, executor = prepare(task, data, settings, classes)
    side = ClientSide(method, task, data, settings)
    global_rows = method.global_model(server)
    start = task.start if global_rows is None else global_rows

    def train(what: str, values: Values) -> Values:
        cohort: list[int] = values["cohort"].tolist()
        work = side.cohort_data(cohort, number)
        personal = method.newcomer(task, server, work).expand(len(cohort))
        steps = work.num_steps() * work.expected_rounds
        tuned = local_sgd(task.gradient, start, work, lr, momentum=momentum, steps=steps)
        scores = {
            f"{kind}/{name}": values
            for kind, rows in zip(NEWCOMER_MODELS, (personal, tuned), strict=True)
            for name, values in side.score(cohort, rows, final=True).items()
        }
        return {"rows": personal, **scores}

    parts = chunks.cut(range(len(data)), data.train.sizes.tolist(), executor.chunk)
    names = ["newcomers " + ", ".join(data.names[i] for i in part) for part in parts]
    answers: list[Values] = [{}] * len(parts)
    with closing(Pool(train, min(num_workers(task, settings), len(parts)))) as pool:
        jobs = [lambda part=part: {"cohort": torch.tensor(part)} for part in parts]
        for at, values in pool.map("serve", jobs, names):
            answers[at] = values
    back = torch.argsort(torch.tensor([client for part in parts for client in part]))

    def joined(kind: str) -> Scores:
        found = [under(kind, values) for values in answers]
        return {name: torch.cat([one[name] for one in found])[back] for name in found[0]}

    personal, finetune = (joined(kind) for kind in NEWCOMER_MODELS)
    refuse_non_finite(personal, data, number)
    losses = ((finetune[f"{part}_loss"], getattr(data, part).sizes) for part in PARTS)
    diverged = torch.stack([without_number(loss, sizes) for loss, sizes in losses]).any(0)
    return NewcomerModels(
        rows=Rows.cat([values["rows"] for values in answers])[back],
        personal=personal,
        finetune={name: values.masked_fill(diverged, torch.nan) for name, values in finetune.items()},
        diverged=tuple(data.names[i] for i in diverged.nonzero().flatten().tolist()),
    )
