"""Self-FL: every client works out from two variances how far to leave the common model.

Chen et al., NeurIPS 2022, "Self-Aware Personalized Federated Learning", Algorithm 1 (`augmented`: Algorithm 2).
    θ_m^INIT = θ − (w_m / S₋ₘ) (θ_m − θ),   w_k = (σ_0² + σ_k²)⁻¹,   S₋ₘ = Σ_{k≠m} w_k        (10)
    (1 − η/(B σ_m²))^ℓ = S₋ₘ / (1/σ_m² + S₋ₘ)                                                 (8)
    θ ← (1 − C) θ + C Σ w_m θ_m / Σ w_m                                                       (11), §4.1
σ_m² is the variance of a client's earlier personal weights, σ_0² that between the active clients' weights.

Differs from the paper:
- The server sends S₋ₘ, over all clients whose σ_k² it has been told (`peers="active"`: only the round's).
- Algorithm 1 cites (7) for the start; that needs unknown quantities, so it is (10). ℓ is rounded, within 1..ℓ_max.
- (19) lacks a square. σ_m² is the exact variance (18) of the weights before this round, the order of (20).
- Undefined σ_m² (fewer than two activations) or empty S₋ₘ: start at θ, ℓ_max steps. In (11) an undefined σ_m² counts
  as the median of the known ones; if none is known, all weigh the same. η/(Bσ²) >= 1: one step. σ_0² + σ_m² >= 1e-12.
- A single active client says nothing about σ_0²: the last one stays (0, if it was always a single one). A client never
  active uses θ.
- Variances may be given. σ_m² by client (`variances`) is known to the server from the start; v² (`noise`), of which a
  client makes v²/n_m, only once the client has reported: the server does not know n_m before.
- Losses are means over the batch; `divisor` says what stands for B in (8): the run's batch size by default, whether
  or not a client has as many examples.
- "Converges" in Algorithm 2: the training loss changes by less than `tolerance`, or `extra_epochs` are over.
- Clusters (G.4): (11) within a cluster, and again across the clusters' newest models; a cluster's σ² is its clients'
  mean, weighted as in (11). Clusters never active are left out. Those by σ² are equal shares of its ranks.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from bespokefl.core.cohort_data import CohortData
from bespokefl.core.errors import InputError, listing, unknown
from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.method import REAL, Message, Method, Round, State, Update, Uploads
from bespokefl.core.rows import Rows, RunningVariance
from bespokefl.core.task import Task

Pairs = Sequence[tuple[str, float]]
FLOOR = 1e-12  # of σ_0² + σ_m²
CHOICES = {
    "peers": ("known", "active"),
    "divisor": ("batch", "examples", "one", "1", 1),
    "clusters": ("none", "groups", "variance"),
}
LEAST = {"max_steps": 1, "smoothing": 0, "between": 0, "noise": 0, "extra_epochs": 1, "tolerance": 0, "num_clusters": 1}


@dataclass(frozen=True, kw_only=True)
class SelfFL(Method):
    """Start, local steps and aggregation follow from the uncertainty within and between clients."""

    name: ClassVar[str] = "selffl"
    citation: ClassVar[str] = """@inproceedings{chen2022self,
  title={Self-Aware Personalized Federated Learning},
  author={Chen, Huili and Ding, Jie and Tramel, Eric and Wu, Shuang and Sahu, Anit Kumar and Avestimehr, Salman and
    Zhang, Tao},
  booktitle={NeurIPS},
  year={2022}
}"""
    positive: ClassVar[tuple[str, ...]] = ("variance",)
    undefined: ClassVar[tuple[str, ...]] = ("variance",)

    lr: float = 0.03  # η
    max_steps: int = 40  # ℓ_max
    smoothing: float | None = None  # weight of a round's estimate in θ; None: the participation C
    initialise: bool = True  # (10); off: start at θ
    adapt_steps: bool = True  # (8); off: the run's budget of local steps
    variance_weights: bool = True  # (11); off: n_k
    peers: str = "known"  # whose σ_k² are in S₋ₘ: of all that ever reported one, or of the "active"
    divisor: str | int = "batch"  # what stands for B in (8): "batch", "examples" or 1
    between: float | None = None  # σ_0², where it is known
    noise: float | None = None  # v², where it is known: σ_m² = v²/n_m (15)(16)
    variances: Mapping[str, float] | Pairs | None = None  # σ_m² by the client's name, where they are known
    augmented: bool = False  # Algorithm 2
    extra_epochs: int = 5  # of Algorithm 2, at most
    tolerance: float = 1e-3  # relative change of the training loss that counts as converged
    clusters: str = "none"  # "groups": the split's true ones; "variance": by σ_m²
    num_clusters: int = 5  # of clusters by variance

    def __post_init__(self) -> None:
        if isinstance(self.variances, Mapping):  # pairs can be written into a run's config
            object.__setattr__(self, "variances", tuple(self.variances.items()))
        super().__post_init__()

    def check(self) -> None:
        super().check()
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise unknown(
                    f"{name} of selffl", str(getattr(self, name)), map(str, known), see="bespoke methods selffl"
                )
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and not least <= value < math.inf:
                raise InputError(f"{name} must be a number >= {least}, got {value!r} (Self-FL).")
        if self.smoothing is not None and not 0 < self.smoothing <= 1:
            raise InputError(f"smoothing must be in (0, 1], got {self.smoothing} (weight of a round's estimate in θ).")
        if self.variances is not None and not _are_variances(self.variances):
            raise InputError(
                f"variances must be a number >= 0 for each client's name, got {self.variances!r} (Self-FL)."
            )
        if self.variances is not None and self.noise is not None:
            raise InputError("noise and variances both say what σ_m² is: give one of them (Self-FL).")
        if self.clusters != "none" and not self.variance_weights:
            raise InputError("clusters are aggregated by variance, got variance_weights=False; set clusters to 'none'.")

    @property
    def needs_groups(self) -> bool:
        return self.clusters == "groups"

    def start_server(self, start: Rows, round: Round) -> State:
        variances = self._given(round.names)
        missing = [name for name, absent in zip(round.names, variances.isnan().tolist(), strict=True) if absent]
        if self.variances is not None and missing:
            raise InputError(f"variances must have every client's σ_m², got none for {listing(missing)} (Self-FL).")
        server = {
            "weights": start,  # θ
            "between": torch.tensor(self.between or 0.0, dtype=torch.float64),  # σ_0²
            "variances": variances,  # σ_k², as given or last reported
        }
        if self.clusters == "none":
            return server
        num = len(set(round.groups)) if round.groups is not None else self.num_clusters
        return server | {
            "cluster_weights": start.expand(num),  # the newest model of each
            "cluster_variances": torch.full((num,), math.nan, dtype=torch.float64),
            "cluster_seen": torch.zeros(num, dtype=torch.bool),
        }

    def start_clients(self, start: Rows, cohort: Sequence[str]) -> State:
        rows = start.expand(len(cohort))
        state = {"personal": rows, **vars(RunningVariance.empty(rows))}
        return state | {"optimum": rows} if self.augmented else state

    def message(self, server: State, cohort: Sequence[int], round: Round) -> Message:
        weights = precision(server["variances"], server["between"]).nan_to_num(0.0)  # w_k
        if self.peers == "active":
            active = torch.tensor(round.reporting, dtype=torch.int64)
            weights = torch.zeros_like(weights).index_copy_(0, active, weights.index_select(0, active))
        others = sums_of_others(weights).index_select(0, torch.tensor(cohort, dtype=torch.int64))  # S₋ₘ
        return Message({"weights": server["weights"], "between": server["between"]}, {"others": others})

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        theta, between, others = message["weights"], message["between"], message["others"]
        spread = RunningVariance(state["count"], state["mean"], state["squares"])
        variance = self._given(data.names, data.n) if self._is_given else spread.variance.cpu()  # σ_m² (15) (20)
        start = theta
        if self.initialise:
            ratio = torch.where(others > 0, precision(variance, between) / others, 0.0).nan_to_num(0.0)
            start = theta - (state["optimum" if self.augmented else "personal"] - theta) * ratio  # (10) (21)
        wanted, steps = self._steps(variance, others, data)
        data.note(variance=variance, wanted_steps=wanted, steps=steps)
        personal = local_sgd(task.gradient, start, data, self.lr, steps=steps)  # θ_m^t
        if not self.augmented:
            return {"weights": personal, "variance": variance}, {"personal": personal, **vars(spread.add(personal))}
        optimum = self._converged(task, personal, data)  # θ_{m,t}
        upload = {"weights": personal, "optimum": optimum, "variance": variance}
        return upload, {"personal": personal, "optimum": optimum, **vars(spread.add(optimum))}

    def upload(self, start: Rows, server: State, round: Round) -> State:
        return {"weights": start, "variance": REAL} | ({"optimum": start} if self.augmented else {})

    def origin(self, task: Task, message: Message, name: str) -> Rows | float | None:
        return super().origin(task, message, "weights" if name == "optimum" else name)

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        name, variance = "optimum" if self.augmented else "weights", uploads["variance"]
        new = server | {"variances": server["variances"].index_copy(0, torch.tensor(uploads.clients), variance)}
        if self.between is None and len(uploads) > 1:
            mean = uploads.mean(name, by="equal")
            squares = [(chunk[name] - mean).square_norm().double().sum().cpu() for chunk in uploads]
            new["between"] = torch.stack(squares).sum() / len(uploads)  # (14) (22)
        round.note(between=new["between"])
        if self.clusters != "none":
            new |= self._clustered(new, uploads, name, round)
            seen, variance = new["cluster_seen"], new["cluster_variances"]
            estimate = new["cluster_weights"][seen].mean(shares(variance, variance, new["between"])[seen])
        elif self.variance_weights:
            estimate = uploads.mean(name, by=shares(variance, new["variances"], new["between"]))  # (11) (23)
        else:
            estimate = uploads.mean(name, by="examples")
        share = round.participation if self.smoothing is None else self.smoothing
        return new | {"weights": estimate if share == 1 else server["weights"] * (1 - share) + estimate * share}

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        theta: Rows = message["weights"]
        been = state["count"] > 0
        return theta.expand(len(data)).replace(been, state["personal"][been])

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        variance = self._given(data.names, data.n)
        others = precision(server["variances"], server["between"]).nansum()
        return local_sgd(task.gradient, server["weights"], data, self.lr, steps=self._steps(variance, others, data)[1])

    @property
    def _is_given(self) -> bool:
        return self.noise is not None or self.variances is not None

    def _given(self, names: Sequence[str], sizes: Tensor | None = None) -> Tensor:
        """σ_m² of these clients as far as it was given, NaN where not; v²/n_m (15)(16) takes their sizes."""
        if self.noise is not None and sizes is not None:
            return self.noise / sizes.double()
        known = dict(self.variances or ())
        return torch.tensor([known.get(name, math.nan) for name in names], dtype=torch.float64)

    def _steps(self, variance: Tensor, others: Tensor, data: CohortData) -> tuple[Tensor, Tensor]:
        """What (8) says, and the steps to take."""
        size = {"batch": data.batch_size, "examples": data.n}.get(str(self.divisor), 1)
        wanted = wanted_steps(variance, others, self.lr, size)
        return wanted, whole_steps(wanted, self.max_steps) if self.adapt_steps else data.num_steps()

    def _converged(self, task: Task, rows: Rows, data: CohortData) -> Rows:
        """Trained on, an epoch at a time, each row until its own training loss hardly changes."""
        loss = task.score(rows, data.sweep())["loss"]
        going, epochs = torch.ones(len(data), dtype=torch.bool), torch.zeros(len(data), dtype=torch.int64)
        for epoch in range(self.extra_epochs):
            rows = local_sgd(task.gradient, rows, data, self.lr, steps=data.num_steps(1) * going, purpose=f"on/{epoch}")
            before, loss = loss, task.score(rows, data.sweep())["loss"]
            epochs += going
            going &= (loss - before).abs() >= self.tolerance * before.abs()
            if not going.any():
                break
        data.note(extra_epochs=epochs)
        return rows

    def _clustered(self, server: State, uploads: Uploads, name: str, round: Round) -> State:
        """The newest model of every cluster, and its variance."""
        known, variance = server["variances"], uploads["variance"]
        if round.groups is None:
            labels = ranked(known, self.num_clusters)
        else:
            labels = torch.tensor(round.groups).unique(return_inverse=True)[1]
        labels = labels[list(uploads.clients)]
        rows, variances, seen = (server[f"cluster_{what}"].clone() for what in ("weights", "variances", "seen"))
        for cluster in labels.unique().tolist():
            inside = shares(variance, known, server["between"]) * (labels == cluster)
            rows = rows.replace([cluster], uploads.mean(name, by=inside))
            variances[cluster] = (inside * filled(variance, known)).sum() / inside.sum()
            seen[cluster] = True
        return {"cluster_weights": rows, "cluster_variances": variances, "cluster_seen": seen}


def local_steps(variance: Any, inverse_sum_others: Any, lr: float, batch_size: Any, max_steps: int) -> Tensor:
    """The steps for σ_m² (NaN: undefined) and S₋ₘ (0: nobody known): (8) as a whole number in 1..max_steps."""
    if max_steps < 1:
        raise InputError(f"max_steps must be >= 1, got {max_steps} (Self-FL's ℓ_max).")
    return whole_steps(wanted_steps(variance, inverse_sum_others, lr, batch_size), max_steps)


def wanted_steps(variance: Any, inverse_sum_others: Any, lr: float, batch_size: Any) -> Tensor:
    """ℓ of (8), unrounded: NaN if σ_m² is undefined, infinite if nobody else is known, 0 if one step overshoots."""
    own, others, size = (torch.as_tensor(v, dtype=torch.float64) for v in (variance, inverse_sum_others, batch_size))
    pace = lr / (size * own)
    steps = torch.where(pace < 1, torch.log1p(1 / (own * others)) / -torch.log1p(-pace), 0.0)
    return torch.where(own.isnan(), math.nan, torch.where(others > 0, steps, math.inf))


def whole_steps(wanted: Tensor, max_steps: int) -> Tensor:
    return wanted.nan_to_num(nan=math.inf).round().clamp(1, max_steps).long()


def _are_variances(pairs: Any) -> bool:
    try:
        found = [(name, value) for name, value in pairs]
    except (TypeError, ValueError):  # not pairs
        return False
    numbers = all(isinstance(value, Real) and not isinstance(value, bool) for _, value in found)
    return numbers and all(isinstance(name, str) and 0 <= value < math.inf for name, value in found)


def precision(variance: Tensor, between: Tensor) -> Tensor:
    """(σ_0² + σ_m²)⁻¹."""
    return 1 / (between + variance).clamp(min=FLOOR)


def sums_of_others(values: Tensor) -> Tensor:
    """Σ_{k≠m} values_k by sums from both ends: total − own would cancel where one client dominates."""
    own = values.numpy()  # numpy's calls are the cheaper ones, and the server makes them for every client it asks
    found = np.zeros_like(own)
    found[1:] = np.cumsum(own[:-1])
    found[:-1] += np.cumsum(own[:0:-1])[::-1]
    return torch.from_numpy(found)


def filled(variance: Tensor, known: Tensor) -> Tensor:
    """Undefined variances as the median of the known ones; NaN if there are none."""
    undefined = variance.isnan()
    return torch.where(undefined, known.nanquantile(0.5), variance) if undefined.any() else variance


def shares(variance: Tensor, known: Tensor, between: Tensor) -> Tensor:
    """The weights of (11), up to a factor: all the same if no variance is known."""
    return precision(filled(variance, known), between).nan_to_num(1.0)


def ranked(variance: Tensor, num: int) -> Tensor:
    """A cluster for every client: equal shares of the ranks of the known variances, the undefined in the middle."""
    known = variance[~variance.isnan()].sort()[0]
    ranks = torch.searchsorted(known, filled(variance, variance))
    return (ranks * num // max(1, len(known))).clamp(max=num - 1)
