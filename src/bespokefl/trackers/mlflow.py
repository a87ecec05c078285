"""Runs in an MLflow store: a server, or a database file on this machine."""

import os
import re
import time
from collections.abc import Mapping
from typing import Any

from bespokefl.core.callback import FINISHED, INTERRUPTED, RunInfo
from bespokefl.trackers.tracker import Tracker, flat_settings

MAX_METRICS, MAX_PARAMS = 1000, 100  # of one request
MAX_VALUE = 500  # characters of a parameter


class MLflow(Tracker):
    """Logs to MLflow; `mlflow ui --backend-store-uri sqlite:///mlflow.db` shows what is in the default store.

    Parameters
    ----------
    uri : str or None, default=None
        The store; None: the environment variable MLFLOW_TRACKING_URI, else the file mlflow.db in the current directory
        or in that of a deployed run.
    experiment : str, default='bespoke'
        The experiment, which is created if needed.
    clients, name
        As for every tracker.
    """

    package = "mlflow"
    extra = "mlflow"

    def __init__(
        self,
        *,
        uri: str | None = None,
        experiment: str = "bespoke",
        clients: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(clients=clients, name=name)
        self.uri, self.experiment = uri, experiment
        self._client: Any = None
        self._id = ""

    def open(self, name: str, run: RunInfo, identity: Mapping[str, str], logged: int) -> dict[str, str]:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it would call another server
        from mlflow import MlflowClient
        from mlflow.entities import Param

        default = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{run.root.resolve() / 'mlflow.db'}"
        uri = identity.get("uri") or self.uri or default
        self._client = MlflowClient(tracking_uri=uri)
        if identity:
            self._id = identity["id"]
            self._client.update_run(self._id, status="RUNNING")
        else:
            self._id = self._client.create_run(self._experiment_id(), run_name=name).info.run_id
            settings = flat_settings(run.settings).items()
            params = [Param(_allowed(key), str(value)[:MAX_VALUE]) for key, value in settings]
            for at in range(0, len(params), MAX_PARAMS):
                self._client.log_batch(self._id, params=params[at : at + MAX_PARAMS])
        return {"uri": uri, "id": self._id}

    def write(self, figures: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(_allowed(name), value, now, step) for name, value in figures.items()]
        for at in range(0, len(metrics), MAX_METRICS):
            self._client.log_batch(self._id, metrics=metrics[at : at + MAX_METRICS])

    def close(self, status: str) -> None:
        names = {FINISHED: "FINISHED", INTERRUPTED: "KILLED"}
        self._client.set_terminated(self._id, names.get(status, "FAILED"))

    def _experiment_id(self) -> str:
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(self.experiment)
        if found is None:
            try:
                return str(self._client.create_experiment(self.experiment))
            except MlflowException:  # another run has created it meanwhile
                found = self._client.get_experiment_by_name(self.experiment)
                if found is None:
                    raise
        return str(found.experiment_id)


def _allowed(name: str) -> str:
    """A name with the characters that MLflow accepts."""
    return re.sub(r"[^\w.\- :/]", "_", name)
