"""What a run tells its callbacks: `Callback` with one method per event, and the values that these receive.

Scores are means over clients, named "personal/validation_accuracy" or "global/test_loss".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

FINISHED, INTERRUPTED, FAILED = "finished", "interrupted", "failed"  # how a run ended


@dataclass(frozen=True)
class RunInfo:
    """A run that begins or is resumed.

    Parameters
    ----------
    name : str
        The name of the run's directory; method and seed, such as "ditto-0", if it has none.
    settings : mapping of str to object
        All settings of the run, with the method's hyper-parameters under "set".
    root : Path
        Where trackers write by default: the current directory, or the directory of a deployed run.
    rounds : int
        Number of planned rounds.
    clients : tuple of str
        The names of the clients that train.
    initial : mapping of str to float
        Scores of the initial weights; empty if they were not evaluated.
    history : sequence of mapping
        The lines of rounds.jsonl before a resumed run continues; empty if the run begins.
    """

    name: str
    settings: Mapping[str, Any]
    root: Path
    rounds: int = 0
    clients: tuple[str, ...] = ()
    initial: Mapping[str, float] = field(default_factory=dict)
    history: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Evaluation:
    """An evaluation of all clients after a round; `final` if it is the last one of the run."""

    round: int
    final: bool
    scores: Mapping[str, float]
    clients: tuple[str, ...]
    personal: Mapping[str, Tensor]  # one value per client; NaN: it has no such data, or did not answer
    globally: Mapping[str, Tensor] | None  # None: the method has no global model

    def by_client(self) -> dict[str, dict[str, float]]:
        """The finite scores of every client, by its name."""
        found: dict[str, dict[str, float]] = {name: {} for name in self.clients}
        for kind, scores in (("personal", self.personal), ("global", self.globally or {})):
            for score, values in scores.items():
                for name, value in zip(self.clients, values.tolist(), strict=True):
                    if isinstance(value, float) and value == value:
                        found[name][f"{kind}/{score}"] = value
        return found


@dataclass(frozen=True)
class RunEnd:
    """The end of a run: "finished", "interrupted" or "failed", its rounds, and the final scores of all metrics."""

    status: str
    rounds: int
    scores: Mapping[str, float]  # empty if the run failed


class Callback:
    """Base class of callbacks, whose methods do nothing; override those that you need.

    A callback that raises an exception is not called again; the run logs a warning and goes on. All calls come from the
    process and the thread that called `run`.
    """

    def on_run_begin(self, run: RunInfo) -> None:
        """The run begins or is resumed."""

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """All clients were evaluated, before `on_round_end` of the same round."""

    def on_round_end(self, record: Mapping[str, Any], scores: Mapping[str, float]) -> None:
        """A round has ended.

        Parameters
        ----------
        record : mapping
            The line of rounds.jsonl without scores: "round", "phase", "seconds", "up_bytes", …
        scores : mapping
            The scores if this round was evaluated, else empty. The last round is always evaluated.
        """

    def on_checkpoint(self, round: int, path: Path) -> None:
        """The checkpoint of this round was written."""

    def on_run_end(self, end: RunEnd) -> None:
        """The run has ended, also if it was interrupted or has failed."""

    def state(self) -> dict[str, Any]:
        """What `restore` needs after an interruption, as JSON values; stored beside the checkpoints."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state when a run is resumed, before `on_run_begin`."""
