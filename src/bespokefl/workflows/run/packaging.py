"""Makes the `Result` of a finished run, simulated or deployed."""

from typing import Any

from bespokefl.core.method import Method
from bespokefl.core.task import Task
from bespokefl.data.clients import Clients
from bespokefl.data.preprocessing.transform import Preparation
from bespokefl.engines.client import Data
from bespokefl.engines.outcome import Outcome
from bespokefl.workflows.results import score_tables
from bespokefl.workflows.results.models import InMemoryModels
from bespokefl.workflows.results.result import Result
from bespokefl.workflows.results.server_artifact import ServerArtifact
from bespokefl.workflows.run.convert import positions, rounds_of, scores_of
from bespokefl.workflows.run.settings import RunSettings
from bespokefl.workflows.run.task_builder import TaskSpec


def make_result(
    settings: RunSettings,
    method: Method,
    outcome: Outcome,
    clients: Clients | Data,
    data: Data,
    *,
    about: dict[str, Any],
    models: InMemoryModels,
    spec: TaskSpec,
    task: Task,
    preparation: Preparation,
    **files: Any,
) -> Result:
    """Put the outcome of an engine into the order of the clients.

    Parameters
    ----------
    clients : Clients or Data
        The clients in the order that the result has.
    data : Data
        The clients in the order that the outcome has.
    about : dict
        The content of result.json, without scores.
    **files
        Arguments of `Result` that say what else to write.
    """
    back = positions(clients, data).numpy()
    kept = outcome.server, task.start, outcome.kept_rows
    return Result(
        config=settings,
        about=about,
        names=clients.names,
        sizes={part: getattr(data, part).sizes.numpy()[back] for part in score_tables.SIZES},
        personal=scores_of(clients, data, outcome.personal),
        global_=None if outcome.globally is None else scores_of(clients, data, outcome.globally),
        rounds=rounds_of(clients, data, outcome.history, outcome.by_client),
        client_rounds=sorted(outcome.client_notes, key=lambda row: (row["round"], row["client"])),
        weights=models,
        final=ServerArtifact(method, models.recipe, spec.objective, spec.head, *kept),
        preparation=preparation if preparation.changes else None,
        **files,
    )
