"""Features of a frozen backbone, computed once before the first round, so that only what is above is computed later."""

import logging
from dataclasses import replace

from bespokefl.core.task import Task
from bespokefl.engines.client import Data
from bespokefl.engines.cohorts.chunks import Executor, choose_for, prepare_task
from bespokefl.engines.settings import Settings

log = logging.getLogger("bespokefl")


def prepare(task: Task, data: Data, settings: Settings, classes: int | None) -> tuple[Task, Data, Executor]:
    """Try the task, compute features of its frozen part, and choose how to compute the rest.

    Called before workers are forked, which share the features.

    Returns
    -------
    tuple of Task, Data and Executor
        The task and the examples as given, or, if what is trained is at the end of the model, this end and its inputs.
    """
    executor = prepare_task(task, data, settings, classes)
    found = None if settings.reference else task.on_features(data.x)
    if found is None:
        return task, data, executor
    log.info("the frozen part of the model is computed once for all %d examples", len(data.x))
    above, data = found[0], replace(data, x=found[1])
    return above, data, choose_for(above, data, settings)
