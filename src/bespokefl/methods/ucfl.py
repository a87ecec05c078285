"""User-Centric FL: every client gets its own mixture of all clients' models, more from those whose data look alike.

Mestoukirdi et al., IEEE TMLCN 2023, arXiv:2304.12930, Algorithms 1 and 2.
Before training, everybody's gradient at θ⁰, and its noise over batches, say who looks like whom:
    W_ij ∝ n_j exp(−‖g_i − g_j‖² / (2 σ_i σ_j))     (9)
    Θ ← W Θ^{t−1/2}                                  (8), after local training of every row
Differs from the paper:
- W is computed in log space; equal gradients have exponent 0 whatever σ; a true σ_i = 0 does not collaborate with
  others. A client with fewer than two survey batches has no σ: the median of the known σ stands in, and if nobody has
  one, W has FedAvg's weights.
- The momentum buffer is fresh in every round.
- Partial participation: W's columns of the absent are dropped, its rows renormalised. A row with nothing left (less
  than rounding would swallow) keeps its model. Whoever missed the survey gets FedAvg's weights and is nobody's peer;
  if everybody did, this is FedAvg.
- K-means starts from Ward's clustering, so that it needs no draws. The silhouette of one and of m streams is 0, and so
  is that of more streams than W has distinct rows.
- In (13), θ_{i,j} is trained by j from θ_i; the text says from θ_j.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import cdist, pdist, squareform
from torch import Tensor

from bespokefl.core.client_index import ClientIndex
from bespokefl.core.cohort_data import BatchSchedule, CohortData
from bespokefl.core.errors import InputError
from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.method import ALL, REAL, Message, Method, Phase, Round, State, Update, Uploads
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task

SURVEY = "survey"
NOTHING = float(np.finfo(np.float64).eps)  # a share of a row that its sum would not notice
EVERY = 100  # up to so many streams each number is tried, beyond in steps of 5 %

Array = NDArray[Any]
Matrix = Rows | Tensor | Array | Sequence[Any]


@dataclass(frozen=True, kw_only=True)
class UCFL(Method):
    """Every client its own mixture of all models, by the likeness of their gradients."""

    name: ClassVar[str] = "ucfl"
    citation: ClassVar[str] = """@article{mestoukirdi2023user,
  title={User-Centric Federated Learning: Trading off Wireless Resources for Personalization},
  author={Mestoukirdi, Mohamad and Zecchin, Matteo and Gesbert, David and Li, Qianrui},
  journal={IEEE Transactions on Machine Learning in Communications and Networking},
  year={2023}
}"""
    positive: ClassVar[tuple[str, ...]] = ("variance",)
    undefined: ClassVar[tuple[str, ...]] = ("variance",)

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
            raise InputError(f"streams must be 'all', 'auto' or a number from 1 on, got {self.streams!r}.")
        if not self.penalty >= 0:
            raise InputError(f"penalty must be >= 0, got {self.penalty} (UCFL's λ, for each stream).")
        if self.survey_batches < 2:
            raise InputError(f"survey_batches must be at least 2, got {self.survey_batches}: one has no variance.")
        if self.survey_size is not None and self.survey_size < 1:
            raise InputError(f"survey_size must be a number of examples from 1 on, got {self.survey_size}.")

    def phases(self, rounds: int) -> list[Phase]:
        return [Phase(SURVEY, 1, trains=ALL, reports=ALL), Phase("train", rounds)]

    def start_server(self, start: Rows, round: Round) -> State:
        m = len(round.names)
        if isinstance(self.streams, int) and self.streams > m:
            raise InputError(f"streams must be in 1..{m}, as there are {m} clients, got {self.streams}.")
        return {"start": start}

    def message(self, server: State, cohort: Sequence[int], round: Round) -> Message:
        if "mixing" not in server:
            return Message(shared={"weights": self._common(server)})  # θ⁰
        stream = server["stream"][list(cohort)]
        return Message(own={"weights": server["weights"][stream]}, stream=stream)  # θ_i

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        if round.phase == SURVEY:
            gradient, variance = self._survey(task, message["weights"], data)
            data.note(variance=variance)
            return {"gradient": gradient, "variance": variance}, state
        return {"weights": self._train(task, message["weights"], data)}, state

    def upload(self, start: Rows, server: State, round: Round) -> State:
        return {"gradient": start, "variance": REAL} if round.phase == SURVEY else {"weights": start}

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        if round.phase == SURVEY:
            return self._collaborate(server, uploads, round)
        if "mixing" not in server:
            return server | {"weights": uploads.mean("weights")}
        here = torch.tensor(uploads.clients)
        shares, some = _present(server["mixing"], here)
        mixed, trained = self._mixed(shares, uploads, server["stream"][here])
        return server | {
            "weights": server["weights"].replace(some, mixed[some]),
            "uploads": server["uploads"].replace(here, trained),
            "reported": server["reported"].index_fill(0, here, True),
        }

    def workload(self, server: State, round: Round) -> float:
        return 0.0 if round.phase == SURVEY else 1.0  # the special round costs one broadcast and the uploads

    def global_model(self, server: State) -> Rows | None:
        return None

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        """A new row of W, times everybody's last upload; who fits nobody trains alone."""
        if "mixing" not in server:
            return self._common(server)
        gradient, variance = self._survey(task, server["start"], data)
        W = torch.zeros(len(data), len(server["reported"]), dtype=torch.float64)
        known = server["gradients"], server["variances"], server["examples"]
        W[:, server["surveyed"]] = torch.from_numpy(_kernel(gradient, variance, *known))
        shares, some = _present(W, server["reported"])
        rows: Rows = shares @ server["uploads"][server["reported"]]
        if bool(some.all()):
            return rows
        alone = self._train(task, server["start"], data, steps=data.num_steps() * data.expected_rounds)
        return alone.replace(some, rows[some])

    def _common(self, server: State) -> Rows:
        """The model of all, as long as nobody's survey has counted."""
        weights: Rows = server["weights"] if "weights" in server else server["start"]
        return weights

    def _survey(self, task: Task, start: Rows, data: CohortData) -> tuple[Rows, Tensor]:
        """Each client's g_i over all of its data, and σ_i² over a random partition of them."""
        g = task.sweep_gradient(start, data.sweep("train"))
        parts = [self._partition(data, row) for row in range(len(data))]
        counts = [len(batches) for batches in parts]
        tag = [data.tag(row, SURVEY) for row in range(len(data))]

        def batch(k: int) -> Rows:
            own = ClientIndex.of_lists([batches[k] if k < len(batches) else np.zeros(0) for batches in parts])
            return task.sweep_gradient(start, BatchSchedule.sweep(data.x, data.y, own, tag=tag))

        return g, torch.from_numpy(gradient_noise((batch(k) for k in range(max(counts))), g, counts))

    def _partition(self, data: CohortData, row: int) -> Array:
        own = data.train.of(row).numpy()
        size = self.survey_size or max(1, len(own) // self.survey_batches)  # n_k
        if len(own) < size:
            raise InputError(
                f"client {data.names[row]!r} has {len(own)} training examples, fewer than the {size} of a survey "
                "batch: give a smaller survey_size, or none."
            )
        num = len(own) // size  # K; what is left over is dropped
        return data.generator(SURVEY, row).permutation(own)[: num * size].reshape(num, size)

    def _collaborate(self, server: State, uploads: Uploads, round: Round) -> State:
        m = len(round.names)
        order = torch.tensor(np.argsort(uploads.clients))
        here = np.sort(uploads.clients)
        gradients, variances, n = uploads["gradient"][order], uploads["variance"][order], uploads.examples[order]
        W = np.zeros((m, m))
        W[:, here] = n / n.sum()
        W[np.ix_(here, here)] = collaboration(gradients, variances, n)
        wanted = self.streams if isinstance(self.streams, int) else {"all": m, "auto": None}[self.streams]
        _, labels, curve = choose_streams(W, self.penalty, wanted)
        mixing = np.stack([W[labels == stream].mean(0) for stream in range(labels.max() + 1)])  # the centroids
        round.note(streams=len(mixing), silhouette=torch.from_numpy(curve))
        round.note_clients(collaboration=torch.from_numpy(W), stream=torch.from_numpy(labels))
        return server | {
            "weights": server["start"].expand(len(mixing)),  # Θ, a row for every stream
            "mixing": torch.from_numpy(mixing),
            "stream": torch.from_numpy(labels),
            "surveyed": torch.from_numpy(here),
            "gradients": gradients,
            "variances": variances,
            "examples": n,
            "uploads": server["start"].expand(m),  # everybody's last Θ^{t−1/2}, for newcomers
            "reported": torch.zeros(m, dtype=torch.bool),
        }

    def _mixed(self, shares: Tensor, uploads: Uploads, stream: Tensor) -> tuple[Rows, Rows]:
        """The streams' new models, and what each client made of its own."""
        trained: Rows = uploads["weights"]
        return shares @ trained, trained  # (8)

    def _train(self, task: Task, rows: Rows, data: CohortData, steps: Tensor | None = None) -> Rows:
        sgd: dict[str, Any] = {"momentum": self.momentum, "weight_decay": self.weight_decay}
        return local_sgd(task.gradient, rows, data, self.lr, steps=steps, **sgd)


@dataclass(frozen=True, kw_only=True)
class UCFLParallel(UCFL):
    """UCFL whose clients train every stream's model: exact, at as many times the cost."""

    name: ClassVar[str] = "ucfl-parallel"

    def message(self, server: State, cohort: Sequence[int], round: Round) -> Message:
        if "mixing" not in server:
            return super().message(server, cohort, round)
        return Message(shared={"streams": server["weights"]}, own={"stream": server["stream"][list(cohort)]})

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        if "streams" not in message:  # the survey, or rounds after one in which no upload counted
            return super().local_update(task, message, state, data, round)
        streams: Rows = message["streams"]
        return {f"weights{i}": self._train(task, streams[i : i + 1], data) for i in range(len(streams))}, state

    def upload(self, start: Rows, server: State, round: Round) -> State:
        if "mixing" not in server:
            return super().upload(start, server, round)
        return {f"weights{i}": start for i in range(len(server["weights"]))}

    def origin(self, task: Task, message: Message, name: str) -> Rows | float | None:
        if "streams" not in message:
            return super().origin(task, message, name)
        at = int(name.removeprefix("weights"))
        begun: Rows = message["streams"][at : at + 1]
        return begun

    def workload(self, server: State, round: Round) -> float:
        return super().workload(server, round) * (len(server["weights"]) if "weights" in server else 1)

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        rows: Rows = message["streams"][message["stream"]] if "streams" in message else message["weights"]
        return rows

    def _mixed(self, shares: Tensor, uploads: Uploads, stream: Tensor) -> tuple[Rows, Rows]:
        trained: list[Rows] = [uploads[f"weights{i}"] for i in range(len(shares))]  # θ_{i,j} of all j, for each i
        mixed = Rows.cat([shares[i : i + 1] @ rows for i, rows in enumerate(trained)])  # (13)
        return mixed, Rows.cat(trained)[stream * len(uploads) + torch.arange(len(uploads))]


def gradient_noise(batches: Matrix | Iterable[Matrix], mean: Matrix, counts: Matrix | None = None) -> Array:
    """σ² = (1/K) Σ_k ‖g^k − g‖² (10); NaN, undefined, for fewer than two batches.

    batches  the batches' gradients, one after the other: a (K, D) matrix against one mean (D,), or K matrices (C, D)
             of a cohort against (C, D)
    counts   how many of them count for each client, if not all
    """
    g = _array(mean)
    each = _array(batches) if isinstance(batches, Rows) else batches
    squares = np.array([np.square(_array(batch) - g).sum(-1) for batch in each]).reshape(-1, *g.shape[:-1])
    num = np.broadcast_to(len(squares) if counts is None else _array(counts), g.shape[:-1])
    inside = np.arange(len(squares)).reshape(-1, *[1] * num.ndim) < num
    return np.where(num < 2, np.nan, (squares * inside).sum(0) / np.maximum(num, 1))[()]


def collaboration(gradients: Matrix, variances: Matrix, sizes: Matrix) -> Array:
    """W, (m, m), rows sum to one (9), from g_i (m, D), σ_i² (m,), NaN where undefined, and n_i (m,)."""
    return _kernel(gradients, variances, gradients, variances, sizes)


def _kernel(to: Matrix, to_variances: Matrix, gradients: Matrix, variances: Matrix, sizes: Matrix) -> Array:
    """The rows of W for some clients, over the columns of all; a row that fits nobody is zero."""
    if not (np.isfinite(_array(to)).all() and np.isfinite(_array(gradients)).all()):
        raise InputError("gradients must be finite, got NaN or infinity; leave such clients out.")
    if (_array(variances) < 0).any() or (_array(to_variances) < 0).any():
        raise InputError("variances must be >= 0, or NaN where they are undefined, got a negative one.")
    distance = cdist(_array(to), _array(gradients), "sqeuclidean")  # Δ, by differences: a Gram matrix would cancel
    own, noise, n = np.sqrt(_array(to_variances)), np.sqrt(_array(variances)), _array(sizes)
    if not distance.shape == (len(own), len(noise)) == (len(own), len(n)):
        raise InputError(
            f"expected one variance and one size for each of {distance.shape[1]} gradients, got {len(noise)} and "
            f"{len(n)}."
        )
    known = noise[~np.isnan(noise)]
    if not len(known):
        return np.tile(n / n.sum(), (len(own), 1))
    own, noise = (np.where(np.isnan(sigma), np.median(known), sigma) for sigma in (own, noise))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        exponent = np.where(distance > 0, -distance / (2 * np.outer(own, noise)), 0.0)
        logits = np.log(n) + exponent
    peak = logits.max(1, keepdims=True)
    weights = np.exp(logits - np.where(np.isfinite(peak), peak, 0.0))
    return np.asarray(weights / np.maximum(weights.sum(1, keepdims=True), NOTHING))


def choose_streams(W: Matrix, penalty: float = 0.0, streams: int | None = None) -> tuple[int, Array, Array]:
    """How many streams are worth it (Algorithm 2), each client's stream, and the silhouettes of k = 1..m.

    k = argmax s_k − penalty · k (12), the fewest on a tie, or `streams`. In the curve, NaN is a k that was not tried.
    """
    from sklearn.cluster import KMeans  # here, because it takes a second to import
    from sklearn.metrics import silhouette_samples

    rows = _array(W)
    m = len(rows)
    offset = rows - rows.mean(0)
    scale = np.abs(offset).max()
    points = np.round(offset / scale, 6) if scale > 1e-9 else 0 * rows  # so that no last bit decides
    distinct = len(np.unique(points, axis=0))
    tree = linkage(pdist(points), "ward") if m > 1 else None
    distances = squareform(pdist(rows))

    def labels(k: int) -> Array:
        if k == m:
            return np.arange(m)
        k = min(k, distinct)
        ward = cut_tree(tree, k)[:, 0]
        centres = np.stack([points[ward == c].mean(0) for c in range(k)])
        found = KMeans(k, init=centres, n_init=1).fit(points).labels_
        order = np.argsort(np.unique(found, return_index=True)[1])  # streams are numbered as they first come
        return np.asarray(np.argsort(order)[found])

    def score(labels: Array) -> float:
        return float(silhouette_samples(distances, labels, metric="precomputed").mean())

    curve = np.full(m, np.nan)
    curve[[0, m - 1]] = 0.0
    k = 2
    while k < m:
        curve[k - 1] = score(labels(k)) if k <= distinct else 0.0
        k += k // 20 if k > EVERY else 1
    best = int(np.nanargmax(curve - penalty * np.arange(1, m + 1))) + 1 if streams is None else streams
    return best, labels(best), curve


def _present(W: Tensor, here: Tensor) -> tuple[Tensor, Tensor]:
    """W's columns of those who are here, rows summing to one again, and which rows have something left."""
    left = W[:, here]
    total = left.sum(1, keepdim=True)
    return left / total.clamp(min=NOTHING), total[:, 0] > NOTHING


def _array(values: Any) -> Array:
    if isinstance(values, Rows):
        values = values.matrix()
    return np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values, dtype=np.float64)
