"""What a run reports, simulated or deployed: its progress after every round, and at the end its outcome."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from bespokefl.core.method import State
from bespokefl.core.rows import Rows
from bespokefl.engines.cohorts.chunks import Executor
from bespokefl.engines.evaluation import Scores
from bespokefl.engines.federation import Traffic


@dataclass
class Progress:
    """The progress of a run, with the mean scores on validation data if the round was evaluated, as the last one is."""

    done: int
    total: int
    phase: str
    scores: dict[str, float] = field(default_factory=dict)

    @classmethod
    def after(cls, line: Mapping[str, Any], total: int) -> "Progress":
        """The progress after a round, given its line in the history."""
        found = line.get("personal", {}).items()
        scores = {name: value for name, value in found if name.startswith("validation") and value is not None}
        return cls(line["round"], total, line["phase"], scores)


OnProgress = Callable[[Progress], None]  # is called after every round


@dataclass
class Outcome:
    """The end of a run. Scores are per client, in the order of `Data.names`."""

    server: State
    global_rows: Rows | None
    models: Rows | None  # the personal models; None: they are at the nodes of a deployment
    kept_rows: Rows | None  # the global model after each round, if requested
    personal: Scores
    globally: Scores | None
    constant: Scores | None  # of the constant predictors: majority class, or mean target; None: unknown
    initial: dict[str, float | None]  # mean loss and accuracy of the initial weights; empty if they were not scored
    client_scores: list[dict[str, Any]]  # by evaluated round: the test accuracy and loss of every client
    unscored: list[str]  # clients of a deployment whose final models could not be scored
    history: list[dict[str, Any]]
    lost: dict[str, dict[str, int]]  # by client: reasons why its uploads were not used, with counts
    uploaded: dict[str, int]  # by client: uploads that left it, whether they were used or not
    by_client: set[str]  # names in the history with a value for every client on each axis
    client_notes: list[dict[str, Any]]
    communication: Traffic
    final_work: Tensor | None  # of making the final personal models, as in `WorkCounter.take`
    seconds_per_round: float
    rounds_done: int
    rounds_planned: int
    executor: Executor
    workers: int
    states: str  # where clients' states were: "memory", "files" or "nodes"
    placement: tuple[int, ...] = ()  # the number of clients on each node of a cluster

    @property
    def personal_rows(self) -> Rows:
        """The personal models of a simulation."""
        assert self.models is not None, "the personal models of a deployment are at its nodes"
        return self.models
