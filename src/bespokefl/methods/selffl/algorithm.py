"""Self-FL: each client derives from two variances how far to move away from the global model.

Chen et al., NeurIPS 2022, "Self-Aware Personalized Federated Learning", Algorithm 1 (`augmented`: Algorithm 2).
    θ_m^INIT = θ − (w_m / S₋ₘ) (θ_m − θ),   w_k = (σ_0² + σ_k²)⁻¹,   S₋ₘ = Σ_{k≠m} w_k        (10)
    (1 − η/(B σ_m²))^ℓ = S₋ₘ / (1/σ_m² + S₋ₘ)                                                 (8)
    θ ← (1 − C) θ + C Σ w_m θ_m / Σ w_m                                                       (11), §4.1
σ_m² is the variance of a client's earlier personal weights, σ_0² that between the active clients' weights.

Differs from the paper:
- The server sends S₋ₘ, over the round's clients that have reported a σ_k² (`peers="known"`: over all that ever have).
- The variance of vectors is the trace of their scatter matrix, undivided, as §3.2 prints it; (18) divides it by their
  number (`variance="mean"`). `trace` and `active` reproduce most of the paper's statements: docs/methods/selffl.md.
- Algorithm 1 cites (7) for the initialization; that needs unknown quantities, so this is (10). ℓ is rounded and kept
  within 1..ℓ_max.
- (19) lacks a square. σ_m² is exact, of the weights before this round, the order of (20).
- Undefined σ_m² (fewer than two activations) or empty S₋ₘ: start at θ, ℓ_max steps. In (11) an undefined σ_m² is
  replaced by the median of the known ones; if none is known, weights are equal. η/(Bσ²) >= 1: one step.
  σ_0² + σ_m² >= 1e-12.
- With a single active client σ_0² keeps its last value (0 if there never were more). Clients never active use θ.
- Variances may be given. σ_m² by client (`variances`) is known to the server from the start; v² (`noise`), from which a
  client computes v²/n_m, only after the client has reported, as the server does not know n_m before.
- Losses are means over the batch; `divisor` is what stands for B in (8): by default the run's batch size, even if a
  client has fewer examples.
- Algorithm 2 has converged if the training loss changes by less than `tolerance`, or after `extra_epochs`.
- Of batch norm, (10) takes θ's running statistics, and no variance counts them; (11) averages them.
- Clusters (G.4): (11) within a cluster, and again across the clusters' latest models; the σ² of a cluster is its
  clients' mean, weighted as in (11). Clusters never active are left out. Clusters by σ² are equal shares of its ranks.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bespokefl.core.errors import InputError, listing
from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.method import CohortData, Message, Method, Round, Rows, State, Task, Update, Uploads
from bespokefl.core.rows import RunningVariance
from bespokefl.core.uploads import Declarations, Scalar, Weights
from bespokefl.core.user_input.hyper_parameters import at_least, interval, one_of
from bespokefl.methods.selffl import uncertainty
from bespokefl.methods.selffl.uncertainty import precision, rounded_steps, shares, sums_without, wanted_steps

Pairs = Sequence[tuple[str, float]]


@dataclass(frozen=True, kw_only=True)
class SelfFL(Method):
    """Each client derives its initial model and local steps from variances within and between clients."""

    name = "selffl"
    limits = {
        "max_steps": at_least(1, "ℓ_max"),
        "smoothing": interval("(0, 1]"),
        "variance": one_of("trace", "mean"),
        "peers": one_of("known", "active"),
        "overshoot": one_of("one", "max"),
        "divisor": one_of("batch", "examples", "one", "1", 1),
        "between": at_least(0, "σ_0²"),
        "noise": at_least(0, "v²"),
        "extra_epochs": at_least(1),
        "tolerance": at_least(0),
        "clusters": one_of("none", "groups", "variance"),
        "num_clusters": at_least(1),
    }

    lr: float = 0.03  # η
    max_steps: int = 40  # ℓ_max
    limit_steps: bool = False  # keep ℓ within the run's number of local steps, too
    smoothing: float | None = None  # weight of a round's estimate in θ; None: the participation C
    initialise: bool = True  # (10); off: start at θ
    adapt_steps: bool = True  # (8); off: the run's number of local steps
    variance_weights: bool = True  # (11); off: n_k
    variance: str = "trace"  # of vectors: the trace of their scatter matrix (§3.2), or its "mean" over them (18)
    peers: str = "active"  # whose σ_k² are in S₋ₘ: the round's clients', or those of all "known" ones
    divisor: str | int = "batch"  # what stands for B in (8): "batch", "examples" or 1
    overshoot: str = "one"  # steps where η/(Bσ_m²) >= 1 and (8) has no solution: "one", or "max" for ℓ_max
    between: float | None = None  # σ_0², if it is known
    noise: float | None = None  # v², if it is known: σ_m² = v²/n_m (15)(16)
    variances: Mapping[str, float] | Pairs | None = None  # σ_m² by the client's name, if they are known
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
        if self.variances is not None and not uncertainty.are_variances(self.variances):
            raise InputError(
                f"variances must be a number >= 0 for each client's name, got {self.variances!r} (Self-FL)."
            )
        if self.variances is not None and self.noise is not None:
            raise InputError("noise and variances both define σ_m²: give only one of them (Self-FL).")
        if self.clusters != "none" and not self.variance_weights:
            raise InputError("clusters are aggregated by variance, got variance_weights=False; set clusters to 'none'.")

    @property
    def needs_groups(self) -> bool:
        return self.clusters == "groups"

    def within_budget(self) -> Method:
        return replace(self, limit_steps=True)

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
        return server | uncertainty.start_clusters(
            start, self.num_clusters if round.groups is None else len(set(round.groups))
        )

    def start_clients(self, start: Rows, cohort: Sequence[str]) -> State:
        rows = start.expand(len(cohort))
        state = {"personal": rows, **vars(RunningVariance.empty(rows))}
        return state | {"optimum": rows} if self.augmented else state

    def message(self, server: State, cohort: Sequence[int], round: Round) -> Message:
        num, active = len(round.names), sorted(round.reporting)
        peers = torch.arange(num) if self.peers == "known" else torch.tensor(active, dtype=torch.int64)
        weights = precision(server["variances"].index_select(0, peers), server["between"]).nan_to_num(0.0)  # w_k
        others = sums_without(weights, peers, torch.tensor(cohort, dtype=torch.int64))  # S₋ₘ
        return Message({"weights": server["weights"], "between": server["between"]}, {"others": others})

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        theta, between, others = message["weights"], message["between"], message["others"]
        running = RunningVariance(state["count"], state["mean"], state["squares"])
        given, divided = self.noise is not None or self.variances is not None, self.variance == "mean"
        observed = running.variance if divided else running.variance * running.count
        variance = self._given(data.names, data.n) if given else observed.cpu()  # σ_m² (15) (20)
        start = theta
        if self.initialise:
            ratio = torch.where(others > 0, precision(variance, between) / others, 0.0).nan_to_num(0.0)
            start = theta - (state["optimum" if self.augmented else "personal"] - theta) * ratio  # (10) (21)
            start = start.with_statistics(theta)
        wanted, steps = self._steps(variance, others, data)
        data.note(variance=variance, wanted_steps=wanted, steps=steps)
        personal = local_sgd(task.gradient, start, data, self.lr, steps=steps)  # θ_m^t
        if not self.augmented:
            return {"weights": personal, "variance": variance}, {"personal": personal, **vars(running.add(personal))}
        optimum = self._converged(task, personal, data)  # θ_{m,t}
        upload = {"weights": personal, "optimum": optimum, "variance": variance}
        return upload, {"personal": personal, "optimum": optimum, **vars(running.add(optimum))}

    def upload(self, message: Message) -> Declarations:
        declared: Declarations = {"weights": Weights(), "variance": Scalar(minimum=0, may_be_undefined=True)}
        return {**declared, "optimum": Weights(reference="weights")} if self.augmented else declared

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        name, variance = "optimum" if self.augmented else "weights", uploads["variance"]
        new = server | {"variances": server["variances"].index_copy(0, torch.tensor(uploads.clients), variance)}
        if self.between is None and len(uploads) > 1:
            mean = uploads.mean(name, by="equal")
            squares = [(chunk[name] - mean).square_norm().double().sum().cpu() for chunk in uploads]
            divisor = len(uploads) if self.variance == "mean" else 1
            new["between"] = torch.stack(squares).sum() / divisor  # (14) (22)
        round.note(between=new["between"])
        if self.clusters != "none":
            new |= uncertainty.aggregate_clusters(new, uploads, name, self.num_clusters, round)
            estimate = uncertainty.mean_of_clusters(new)
        elif self.variance_weights:
            estimate = uploads.mean(name, by=shares(variance, new["variances"], new["between"]))  # (11) (23)
        else:
            estimate = uploads.mean(name, by="examples")
        share = round.participation if self.smoothing is None else self.smoothing
        return new | {"weights": estimate if share == 1 else server["weights"] * (1 - share) + estimate * share}

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        theta: Rows = message["weights"]
        trained = state["count"] > 0
        return theta.expand(len(data)).replace(trained, state["personal"][trained])

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        variance = self._given(data.names, data.n)
        others = precision(server["variances"], server["between"]).nansum()
        return local_sgd(task.gradient, server["weights"], data, self.lr, steps=self._steps(variance, others, data)[1])

    def _given(self, names: Sequence[str], sizes: Tensor | None = None) -> Tensor:
        """The given σ_m² of these clients, NaN where none is given; v²/n_m (15)(16) needs their sizes."""
        if self.noise is not None and sizes is not None:
            return self.noise / sizes.double()
        known = dict(self.variances or ())
        return torch.tensor([known.get(name, math.nan) for name in names], dtype=torch.float64)

    def _steps(self, variance: Tensor, others: Tensor, data: CohortData) -> tuple[Tensor, Tensor]:
        """ℓ of (8), and the number of local steps."""
        size = {"batch": data.batch_size, "examples": data.n}.get(str(self.divisor), 1)
        wanted = wanted_steps(variance, others, self.lr, size)
        if self.overshoot == "max":
            wanted = torch.where(wanted == 0, math.inf, wanted)
        if not self.adapt_steps:
            return wanted, data.num_steps()
        steps = rounded_steps(wanted, self.max_steps)
        return wanted, torch.minimum(steps, data.num_steps()) if self.limit_steps else steps

    def _converged(self, task: Task, rows: Rows, data: CohortData) -> Rows:
        """Train each row, epoch by epoch, until its training loss changes by less than `tolerance`, relative to it."""
        loss = task.score(rows, data.sweep())["loss"]
        active, epochs = torch.ones(len(data), dtype=torch.bool), torch.zeros(len(data), dtype=torch.int64)
        for epoch in range(self.extra_epochs):
            steps = data.num_steps(1) * active
            rows = local_sgd(task.gradient, rows, data, self.lr, steps=steps, purpose=f"on/{epoch}")
            before, loss = loss, task.score(rows, data.sweep())["loss"]
            epochs += active
            active &= (loss - before).abs() >= self.tolerance * before.abs()
            if not active.any():
                break
        data.note(extra_epochs=epochs)
        return rows
