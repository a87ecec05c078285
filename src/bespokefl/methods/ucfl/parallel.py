"""Parallel UCFL: every client trains the models of all streams, at a multiple of UCFL's cost.

Mestoukirdi et al., IEEE TMLCN 2023, arXiv:2304.12930, (13). Survey and collaboration matrix W are those of UCFL.
    θ_i ← Σ_j W_ij θ_{i,j}     θ_{i,j}: the model of stream i, trained by client j                 (13)
Differs from the paper: θ_{i,j} is trained by j from θ_i; the text says from θ_j. Otherwise as UCFL.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bespokefl.core.method import CohortData, Message, Round, Rows, State, Task, Update, Uploads
from bespokefl.core.uploads import Declarations, Weights
from bespokefl.methods.ucfl.algorithm import SURVEY, UCFL


@dataclass(frozen=True, kw_only=True)
class UCFLParallel(UCFL):
    """UCFL in which each client trains the models of all streams: exact, at a multiple of the cost."""

    name = "ucfl-parallel"

    def message(self, server: State, cohort: Sequence[int], round: Round) -> Message:
        if not len(server["surveyed"]):
            return super().message(server, cohort, round)
        return Message(shared={"streams": server["weights"]}, own={"stream": server["stream"][list(cohort)]})

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        if round.phase == SURVEY or not _has_streams(message):
            return super().local_update(task, message, state, data, round)
        streams: Rows = message["streams"]
        return {f"weights{i}": self._train(task, streams[i : i + 1], data) for i in range(len(streams))}, state

    def upload(self, message: Message) -> Declarations:
        if not _has_streams(message):
            return super().upload(message)
        streams: Rows = message["streams"]
        return {f"weights{i}": Weights(reference=streams[i : i + 1]) for i in range(len(streams))}

    def workload(self, server: State, round: Round) -> float:
        return super().workload(server, round) * len(server["weights"])

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        return message["streams"][message["stream"]] if _has_streams(message) else message["weights"]

    def _mixed(self, shares: Tensor, uploads: Uploads, stream: Tensor) -> tuple[Rows, Rows]:
        trained: list[Rows] = [uploads[f"weights{i}"] for i in range(len(shares))]  # θ_{i,j} of all j, for each i
        mixed = Rows.cat([shares[i : i + 1] @ rows for i, rows in enumerate(trained)])  # (13)
        return mixed, Rows.cat(trained)[stream * len(uploads) + torch.arange(len(uploads))]


def _has_streams(message: Message) -> bool:
    """Whether the message carries all streams: not in the survey, nor in training if no client's survey counted."""
    return "streams" in message
