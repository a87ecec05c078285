"""User-Centric FL: each client gets its own weighted average of all models, with weights from gradient similarity.

Mestoukirdi et al., IEEE TMLCN 2023, arXiv:2304.12930, Algorithms 1 and 2.
Before training, a survey collects each client's gradient at θ⁰ and its noise σ over batches:
    W_ij ∝ n_j exp(−‖g_i − g_j‖² / (2 σ_i σ_j))     (9)
    Θ ← W Θ^{t−1/2}                                  (8), after local training of every row
Differs from the paper:
- W is computed in log space; equal gradients have exponent 0 for any σ; a client with σ_i = 0 does not collaborate. A
  client with fewer than two survey batches has no σ and gets the median of the known ones; if no client has one, W has
  the weights of FedAvg.
- The momentum buffer is reset in every round.
- Partial participation: columns of absent clients are dropped and rows renormalized. A row without remaining weight
  (within rounding) keeps its model. Clients that missed the survey get the weights of FedAvg, and no client uses their
  models; if all missed it, this is FedAvg.
- K-means starts from Ward's clustering and needs no random draws. The silhouette of one and of m streams is 0, as is
  that of more streams than W has distinct rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bespokefl.core.errors import InputError
from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.method import ALL, CohortData, Message, Method, Phase, Round, Rows, State, Task, Update, Uploads
from bespokefl.core.uploads import Declarations, Reference, Scalar, Weights
from bespokefl.core.user_input.hyper_parameters import at_least
from bespokefl.methods.ucfl.similarity import choose_streams, collaboration, collaboration_rows, renormalized, survey

SURVEY, TRAIN = "survey", "train"  # phases


@dataclass(frozen=True, kw_only=True)
class UCFL(Method):
    """Each client gets its own weighted average of all models; weights come from gradient similarity."""

    name = "ucfl"
    limits = {"penalty": at_least(0, "λ"), "survey_batches": at_least(2, "K"), "survey_size": at_least(1, "n_k")}

    lr: float = 0.01  # η
    momentum: float = 0.9  # β
    weight_decay: float = 0.0
    streams: int | str = "all"  # m_t: a number, "all" for one per client, "auto" for the best silhouette
    penalty: float = 0.0  # λ of (12), for streams="auto"
    survey_batches: int = 3  # K: n_k is a client's examples divided by it
    survey_size: int | None = None  # n_k itself, the same for all, instead

    def check(self) -> None:
        super().check()
        if self.streams not in ("all", "auto") and (isinstance(self.streams, str) or self.streams < 1):
            raise InputError(f"streams must be 'all', 'auto' or an integer >= 1, got {self.streams!r}.")

    def phases(self, rounds: int) -> list[Phase]:
        return [Phase(SURVEY, 1, trains=ALL, reports=ALL), Phase(TRAIN, rounds)]

    def start_server(self, start: Rows, round: Round) -> State:
        m = len(round.names)
        if isinstance(self.streams, int) and self.streams > m:
            raise InputError(f"streams must be in 1..{m}, as there are {m} clients, got {self.streams}.")
        surveyed = torch.zeros(0, dtype=torch.int64)  # positions of the clients whose survey counted
        return {"start": start, "weights": start, "surveyed": surveyed}  # θ⁰, Θ

    def message(self, server: State, cohort: Sequence[int], round: Round) -> Message:
        if not len(server["surveyed"]):
            return Message(shared={"weights": server["weights"]})  # θ⁰
        stream = server["stream"][list(cohort)]
        return Message(own={"weights": server["weights"][stream]}, stream=stream)  # θ_i

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        if round.phase == SURVEY:
            gradient, variance = survey(task, message["weights"], data, self.survey_batches, self.survey_size)
            data.note(variance=variance)
            return {"gradient": gradient, "variance": variance}, state
        return {"weights": self._train(task, message["weights"], data)}, state

    def upload(self, message: Message) -> Declarations:
        return {
            "gradient": Weights(reference=Reference.ZERO, phase=SURVEY),
            "variance": Scalar(minimum=0, may_be_undefined=True, phase=SURVEY),
            "weights": Weights(phase=TRAIN),
        }

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        if round.phase == SURVEY:
            return self._collaborate(server, uploads, round)
        if not len(server["surveyed"]):
            return server | {"weights": uploads.mean("weights")}
        present = torch.tensor(uploads.clients)
        shares, updated = renormalized(server["mixing"], present)
        mixed, trained = self._mixed(shares, uploads, server["stream"][present])
        return server | {
            "weights": server["weights"].replace(updated, mixed[updated]),
            "uploads": server["uploads"].replace(present, trained),
            "reported": server["reported"].index_fill(0, present, True),
        }

    def workload(self, server: State, round: Round) -> float:
        return 0.0 if round.phase == SURVEY else 1.0  # the survey costs one broadcast and the uploads

    def global_model(self, server: State) -> Rows | None:
        return None

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        """A new row of W times the last uploads of all clients; a newcomer without similar clients trains alone."""
        if not len(server["surveyed"]):
            return server["weights"]
        gradient, variance = survey(task, server["start"], data, self.survey_batches, self.survey_size)
        W = torch.zeros(len(data), len(server["reported"]), dtype=torch.float64)
        known = server["gradients"], server["variances"], server["examples"]
        W[:, server["surveyed"]] = torch.from_numpy(collaboration_rows(gradient, variance, *known))
        shares, similar = renormalized(W, server["reported"])
        rows: Rows = shares @ server["uploads"][server["reported"]]
        if bool(similar.all()):
            return rows
        alone = self._train(task, server["start"], data, steps=data.num_steps() * data.expected_rounds)
        return alone.replace(similar, rows[similar])

    def _collaborate(self, server: State, uploads: Uploads, round: Round) -> State:
        """W from the survey, and the streams."""
        m = len(round.names)
        order = torch.tensor(np.argsort(uploads.clients))
        surveyed = np.sort(uploads.clients)
        gradients, variances, n = uploads["gradient"][order], uploads["variance"][order], uploads.examples[order]
        W = np.zeros((m, m))
        W[:, surveyed] = n / n.sum()
        W[np.ix_(surveyed, surveyed)] = collaboration(gradients, variances, n)
        wanted = self.streams if isinstance(self.streams, int) else {"all": m, "auto": None}[self.streams]
        _, labels, curve = choose_streams(W, self.penalty, wanted)
        mixing = np.stack([W[labels == stream].mean(0) for stream in range(labels.max() + 1)])  # the centroids
        round.note(streams=len(mixing), silhouette=torch.from_numpy(curve))
        round.note_clients(collaboration=torch.from_numpy(W), stream=torch.from_numpy(labels))
        return server | {
            "weights": server["start"].expand(len(mixing)),  # Θ, a row for every stream
            "mixing": torch.from_numpy(mixing),
            "stream": torch.from_numpy(labels),
            "surveyed": torch.from_numpy(surveyed),
            "gradients": gradients,
            "variances": variances,
            "examples": n,
            "uploads": server["start"].expand(m),  # each client's last Θ^{t−1/2}, for newcomers
            "reported": torch.zeros(m, dtype=torch.bool),
        }

    def _mixed(self, shares: Tensor, uploads: Uploads, stream: Tensor) -> tuple[Rows, Rows]:
        """The new models of the streams, and the model that each client trained."""
        trained: Rows = uploads["weights"]
        return shares @ trained, trained  # (8)

    def _train(self, task: Task, rows: Rows, data: CohortData, steps: Tensor | None = None) -> Rows:
        return local_sgd(task.gradient, rows, data, self.lr, steps=steps, **self.sgd)
