"""Features of a frozen backbone, computed once before the first round, so that only heads are computed in training."""

import logging
from dataclasses import replace

from bespokefl.core.task import Task
from bespokefl.engines.client import Data
from bespokefl.engines.settings import Settings

log = logging.getLogger("bespokefl")


def with_features(task: Task, data: Data, settings: Settings) -> tuple[Task, Data]:
    """Return the task of the head alone, and the examples' features, if all below the head is frozen; else as given.

    Called after the task was probed and before workers are forked, which share the features.
    """
    found = None if settings.reference else task.on_features(data.x)
    if found is None:
        return task, data
    log.info("the frozen part of the model is computed once for all %d examples", len(data.x))
    return found[0], replace(data, x=found[1])
