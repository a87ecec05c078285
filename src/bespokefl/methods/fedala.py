"""FedALA: each client learns, entry by entry, how much of the global model its training starts from.

Zhang et al., AAAI 2023, arXiv:2212.01197, Algorithm 1. Θ is the received global model, Θ_i the client's own; W_i has an
entry for every parameter of the p highest layers. Lower layers take the global model.
    Θ̂_i = Θ_i + (Θ − Θ_i) ⊙ W_i,   W_i ← clip(W_i − η ∇_W F_i(Θ̂_i), 0, 1),   ∇_W F_i(Θ̂_i) = ∇F_i(Θ̂_i) ⊙ (Θ − Θ_i)
W_i is learned on a random share s of the client's data: until it converges at its first activation, then for one epoch
per round. Θ_i is Θ̂_i after local training.
Differs from the paper:
- A client's first round is the first in which it takes part: it has no own model and starts from Θ. Clients that are
  not drawn do nothing (in the authors' code all clients aggregate in every round).
- W has converged when the losses of the last ten epochs have a standard deviation below the threshold, as in the
  authors' code, but of losses over the whole sample, not of its last batch; it is trained for 100 epochs at most.
- The sample is drawn without replacement, at least one example, and its batches include the last, smaller one. That
  code takes a random window of the data and drops this batch.
- The head counts as the highest layer. A layer is a module with parameters of its own.
- A client uses its trained Θ_i; that code evaluates Θ̂_i of the newest Θ.
- A newcomer, which the paper does not discuss, does what clients do in their first two rounds, with the final Θ.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bespokefl.core.cohort_data import Batch
from bespokefl.core.local_sgd import iterate, local_sgd
from bespokefl.core.method import CohortData, Message, Method, Round, Rows, State, Task, Update, Uploads
from bespokefl.core.nn.heads import head_gradient
from bespokefl.core.rows import Layout
from bespokefl.core.uploads import Declarations, Weights
from bespokefl.core.user_input.hyper_parameters import at_least, interval

WINDOW = 10  # epochs whose losses decide whether W has converged
MOST_EPOCHS = 100  # of W's first training


@dataclass(frozen=True, kw_only=True)
class FedALA(Method):
    """Each client learns an element-wise mixture of its own and the global model, and trains from there."""

    name = "fedala"
    limits = {
        "layers": at_least(1, "p"),
        "sample_share": interval("(0, 1]", "s"),
        "mixing": interval("[0, 1]", "W"),
        "mixing_rate": at_least(0, "η"),
        "threshold": at_least(0),
    }

    # All but the rate of local training, .005 there, as in the authors' code: github.com/TsingZ0/FedALA, system/main.py
    # and run_me.sh, where p is two tensors, the weight and bias of the last layer.
    lr: float = 0.05  # of local training
    layers: int = 1  # p
    sample_share: float = 0.8  # s
    mixing: float = 1.0  # W at the start; with mixing_rate 0, 1 is FedAvg, and 0 keeps the higher layers at the clients
    mixing_rate: float = 1.0  # η; 0 keeps W
    threshold: float = 0.1  # of the losses' standard deviation
    momentum: float = 0.0
    weight_decay: float = 0.0
    weights: str = "examples"  # n_k / n, or "equal"

    def start_clients(self, start: Rows, cohort: Sequence[str]) -> State:
        higher = start.only(higher_layers(start.layout, self.layers))
        mixing = (higher * 0.0 + self.mixing).expand(len(cohort))
        rounds = torch.zeros(len(cohort), dtype=torch.int64)
        return {"own": start.expand(len(cohort)), "mixing": mixing, "rounds": rounds}

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        state = self._train(task, message["weights"], state, data)
        data.note(mixing=state["mixing"].matrix().double().mean(1))
        return {"weights": state["own"]}, state

    def upload(self, message: Message) -> Declarations:
        return {"weights": Weights()}

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        return {"weights": uploads.mean("weights", by=self.weights)}  # Σ n_i/n Θ_i

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        return current(state, message["weights"])

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        received: Rows = server["weights"]
        state = self.start_clients(received, data.names)
        for _ in range(2):
            state = self._train(task, received, state, data)
        return state["own"]

    def _train(self, task: Task, received: Rows, state: State, data: CohortData) -> State:
        """A client's round: local aggregation, then local training."""
        mixing = self._learn(task, received, state, data)
        start = mixed(received, current(state, received), mixing)
        own = local_sgd(task.gradient, start, data, self.lr, **self.sgd)
        return {"own": own, "mixing": mixing, "rounds": state["rounds"] + 1}

    def _learn(self, task: Task, received: Rows, state: State, data: CohortData) -> Rows:
        """W_i of this round; unchanged in a client's first round."""
        mixing: Rows = state["mixing"]
        learns, first = state["rounds"] > 0, (state["rounds"] == 1).nonzero().flatten()
        if not self.mixing_rate or not learns.any():
            return mixing
        sample = data.sampled(self.sample_share, "fedala")
        fit = _Fit(task, received, state["own"], mixing.layout, sample)
        mixing = self._epoch(fit, mixing, learns)
        if not len(first):
            return mixing
        return mixing.replace(first, self._converge(fit.take(first.tolist()), mixing[first]))

    def _converge(self, fit: "_Fit", mixing: Rows) -> Rows:
        """Further epochs, until the losses of the last ones hardly differ."""
        losses: list[Tensor] = []
        active = torch.full((len(mixing),), True)
        while True:
            losses.append(fit.losses(mixing))
            if len(losses) > WINDOW:
                active &= torch.stack(losses[-WINDOW:]).std(0, correction=0) >= self.threshold
            if len(losses) == MOST_EPOCHS or not active.any():
                return mixing
            mixing = self._epoch(fit, mixing, active)

    def _epoch(self, fit: "_Fit", mixing: Rows, active: Tensor) -> Rows:
        """An epoch of projected gradient steps on W, of the active rows."""

        def step(mixing: Rows, own: Rows, gap: Rows, received: Rows, batch: Batch) -> tuple[Rows, Rows, Rows, Rows]:
            slope = fit.gradient(own, gap, mixing, received, batch)  # ∇F_i(Θ̂_i)
            terms = zip(mixing.blocks, slope.blocks, gap.blocks, strict=True)
            blocks = [torch.addcmul(w, *rest, value=-self.mixing_rate).clamp_(0, 1) for w, *rest in terms]
            return Rows(mixing.layout, blocks), own, gap, received

        values = (mixing, fit.own, fit.gap, fit.lower)
        found: Rows = iterate(step, values, fit.data, steps=fit.data.num_steps(1) * active)[0]
        return found


class _Fit:
    """The loss of mixed models as a function of W; features of lower layers that do not change are computed once."""

    def __init__(self, task: Task, received: Rows, own: Rows, layout: Layout, sample: CohortData) -> None:
        self.task, self.sample, self.received, self.whole = task, sample, received, own
        self.own = own.only(layout.names)
        self.gap = received.only(layout.names) - self.own  # Θ − Θ_i
        self._frozen = set(task.layout.names) - set(layout.names)
        on_head = set(layout.names) == set(task.layout.head)
        found = head_gradient(task, received.block("base"), sample, sample.num_steps(1)) if on_head else None
        self._on_features = None if found is None else found[0]
        self.data = sample if found is None else found[1]

    @property
    def lower(self) -> Rows:
        """The received model, as far as the gradient needs it."""
        return self.received if self._on_features is None else Rows(Layout((), ()), (), size=len(self.own))

    def take(self, rows: list[int]) -> "_Fit":
        """The fit of some clients."""
        fit = copy.copy(self)
        fit.sample, fit.data = self.sample.take(rows), self.data.take(rows)
        fit.received = self.received if len(self.received) == 1 else self.received[rows]
        fit.whole, fit.own, fit.gap = self.whole[rows], self.own[rows], self.gap[rows]
        return fit

    def losses(self, mixing: Rows) -> Tensor:
        """Each client's loss over its sample."""
        return self.task.score(mixed(self.received, self.whole, mixing), self.sample.sweep())["loss"]

    def gradient(self, own: Rows, gap: Rows, mixing: Rows, received: Rows, batch: Batch) -> Rows:
        """The gradient with respect to the layers that W has."""
        terms = zip(own.blocks, gap.blocks, mixing.blocks, strict=True)
        rows = Rows(mixing.layout, [torch.addcmul(*one) for one in terms])  # Θ̂_i
        if self._on_features is not None:
            return self._on_features(rows, batch)
        found = self.task.gradient(received.with_block(rows).freeze(self._frozen), batch)
        return found.only(mixing.layout.names)


def higher_layers(layout: Layout, num: int) -> list[str]:
    """The parameters of the highest layers, the head being the last."""
    names = (*layout.base, *layout.head)
    trained = [name for name in names if name not in layout.statistics]  # in the order of the model
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in trained))[-num:]
    return [name for name in names if name.rpartition(".")[0] in layers]


def current(state: State, received: Rows) -> Rows:
    """Each client's own model; before its first round, the received one."""
    own: Rows = state["own"]
    trained = state["rounds"] > 0
    return received.expand(len(own)).replace(trained, own[trained])


def mixed(received: Rows, own: Rows, mixing: Rows) -> Rows:
    """Θ̂_i = Θ_i + (Θ − Θ_i) ⊙ W_i in the layers that W has, Θ in the others."""
    names = mixing.layout.names
    mine = own.only(names)
    return received.with_block(mine + (received.only(names) - mine) * mixing)
