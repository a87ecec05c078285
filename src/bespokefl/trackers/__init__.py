"""Experiment trackers: callbacks that log the figures of a run. Each is an extra and imports its library on first use.

tracker      `Tracker`, what they have in common: names of figures, and no step twice
tensorboard  event files for TensorBoard
mlflow       runs in an MLflow store
wandb        runs of Weights & Biases, offline unless asked otherwise
"""

from bespokefl.core.errors import unknown
from bespokefl.core.user_input.spec import bind, parse_calls
from bespokefl.trackers.mlflow import MLflow as MLflow
from bespokefl.trackers.tensorboard import TensorBoard as TensorBoard
from bespokefl.trackers.tracker import Tracker as Tracker
from bespokefl.trackers.wandb import WandB as WandB

REGISTRY: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}
__all__ = ["REGISTRY", "MLflow", "TensorBoard", "Tracker", "WandB", "of"]


def of(text: str) -> list[Tracker]:
    """Return the trackers that a text names, such as "tensorboard" or "tensorboard(clients=true), mlflow".

    Raises
    ------
    InputError
        If a tracker or an argument is unknown, or if its library is not installed.
    """
    found = []
    for call in parse_calls(text) if text.strip() else ():
        if call[0] not in REGISTRY:
            raise unknown("tracker", call[0], REGISTRY)
        found.append(REGISTRY[call[0]](**bind(call, REGISTRY[call[0]])))
    return found
