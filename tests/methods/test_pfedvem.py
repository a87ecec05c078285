"""pFedVEM: its closed forms, its posterior where the exact one is known, and two rounds written out in plain torch."""

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from bespokefl import cli
from bespokefl.core import rng as rngs
from bespokefl.core.cohort_data import CohortData
from bespokefl.core.errors import InputError
from bespokefl.core.method import Message, Round, Uploads
from bespokefl.core.rows import Layout, Rows
from bespokefl.core.task import Task
from bespokefl.methods import build
from bespokefl.methods.pfedvem import TERMS, PFedVEM, confidence, divergence
from tests.federations import (
    BATCH,
    CLASSES,
    NAMES,
    WIDTH,
    apart,
    federation,
    mlp,
    random_rows,
    run,
    same_bits,
    simulation,
    work_of,
)

FLOAT64 = torch.float64
HEAD = 6 * CLASSES + CLASSES  # of tests.federations.mlp


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def a_round(number: int = 1, *, warm: bool = False) -> Round:
    return Round(number=number, phase="train", seed=0, names=NAMES, warm=warm)


def logistic() -> nn.Module:
    return nn.Linear(WIDTH, CLASSES)


def begun(method: PFedVEM, task: Task, size: int) -> tuple[Message, dict[str, Any]]:
    """The first message, and the states of clients that never trained."""
    server = method.start_server(task.start, a_round(0))
    return method.message(server, range(size), a_round()), method.start_clients(task.start, NAMES[:size])


# -- the closed forms


def test_the_divergence_is_that_of_torch() -> None:
    mean, latent, std = drawn(4, 7), drawn(4, 7, seed=1), drawn(4, 7, seed=2).exp()
    variance = torch.tensor([0.01, 0.3, 1.0, 5.0], dtype=FLOAT64)
    expected = kl_divergence(Normal(mean, std), Normal(latent, variance.sqrt()[:, None].expand(4, 7))).sum(1)
    torch.testing.assert_close(divergence(mean, std, latent, variance), expected)
    torch.testing.assert_close(divergence(mean[1], std[1], latent[1], 0.3), expected[1])
    numpy = divergence(mean.numpy(), std.numpy(), latent.numpy(), variance.numpy())
    torch.testing.assert_close(numpy, expected)
    layout = Layout(("weight", "bias"), ((2, 3), (1,)))
    rows = [Rows.from_matrix(layout, matrix) for matrix in (mean, std, latent)]
    torch.testing.assert_close(divergence(*rows, variance), expected)


def test_the_divergence_of_a_distribution_from_itself_is_zero() -> None:
    latent = drawn(1, 5)
    assert divergence(latent, torch.full((3, 5), 0.2), latent, 0.04).abs().max() < 1e-12


def test_the_divergence_pulls_the_mean_by_the_confidence() -> None:
    mean, latent, std = drawn(3, 5).requires_grad_(), drawn(1, 5, seed=1), drawn(3, 5, seed=2).exp().requires_grad_()
    tau = confidence(mean, std, latent).detach()
    by_mean, by_std = torch.autograd.grad(divergence(mean, std, latent, 1 / tau).sum(), (mean, std))
    torch.testing.assert_close(by_mean, (mean - latent) * tau[:, None])
    torch.testing.assert_close(by_std, std * tau[:, None] - 1 / std)


def test_the_confidence_by_hand() -> None:
    mean, std, latent = torch.tensor([1.0, 2.0]), torch.tensor([0.5, 1.5]), torch.tensor([0.0, 4.0])
    expected = 2 / (0.25 + 2.25 + 1.0 + 4.0)
    assert float(confidence(mean, std, latent)) == pytest.approx(expected)
    assert float(confidence(mean.numpy(), std.numpy(), latent.numpy())) == pytest.approx(expected)
    assert confidence(mean.expand(3, 2), std, latent).tolist() == pytest.approx([expected] * 3)


def bound(mean: Tensor, std: Tensor, latent: Tensor, variance: Tensor) -> Tensor:
    """(7): Σ_j E log N(w_j; w, ρ_j² I), w_j ~ N(μ_j, diag σ_j²), for which E (w_j − w)² = σ_j² + (μ_j − w)²."""
    expected_squares = std.square() + (mean - latent).square()
    return (-0.5 * torch.log(2 * torch.pi * variance)[:, None] - 0.5 * expected_squares / variance[:, None]).sum()


def server_step(mean: Tensor, tau: Tensor) -> Tensor:
    """(9), as the method's own server half computes it."""
    layout = Layout(("weight",), ((mean.shape[1],),), ("weight",))
    cut = len(mean) // 2
    parts = [
        {"weights": Rows.from_matrix(layout, mean[own]), "confidence": tau[own]}
        for own in (slice(cut), slice(cut, None))
    ]
    uploads = Uploads(range(len(mean)), torch.arange(1, len(mean) + 1), parts)
    weights: Rows = PFedVEM().aggregate({}, uploads, a_round())["weights"]
    return weights.matrix()


def test_confidences_and_latent_head_each_maximise_the_bound() -> None:
    mean, std, latent = drawn(6, 9), drawn(6, 9, seed=1).exp(), drawn(1, 9, seed=2)
    other = drawn(6, seed=3).exp()  # any variances
    best_variance, best_latent = 1 / confidence(mean, std, latent), server_step(mean, 1 / other)

    free = best_variance.clone().requires_grad_()
    assert torch.autograd.grad(bound(mean, std, latent, free), free)[0].abs().max() < 1e-9
    free = best_latent.clone().requires_grad_()
    assert torch.autograd.grad(bound(mean, std, free, other), free)[0].abs().max() < 1e-9
    for seed in range(20):
        nearby = best_variance * (0.3 * drawn(6, seed=seed)).exp()
        assert bound(mean, std, latent, nearby) < bound(mean, std, latent, best_variance)
        moved = best_latent + 0.3 * drawn(1, 9, seed=seed)
        assert bound(mean, std, moved, other) < bound(mean, std, best_latent, other)


def test_taking_turns_converges() -> None:
    mean, std, latent = drawn(6, 9), drawn(6, 9, seed=1).exp(), 3 * drawn(1, 9, seed=2)
    seen = []
    for _ in range(200):
        tau = confidence(mean, std, latent)
        moved = server_step(mean, tau)
        seen.append(float(bound(mean, std, moved, 1 / tau)))
        step, latent = float((moved - latent).norm()), moved
    assert np.diff(seen).min() > -1e-10 and seen[-1] > seen[0] + 0.1
    assert step < 1e-12
    free = (latent.clone().requires_grad_(), (1 / confidence(mean, std, latent)).requires_grad_())
    for slope in torch.autograd.grad(bound(mean, std, *free), free):
        assert slope.abs().max() < 1e-9


# -- a posterior that is known


@dataclass(frozen=True)
class Quadrature(CohortData):
    """Instead of noise the points ±√d e_i, whose moments up to the second are those of a standard normal."""

    def normals(self, purpose: str, rows: Sequence[int], shape: tuple[int, ...]) -> np.ndarray:
        corners = np.sqrt(shape[1]) * np.eye(shape[1])
        return np.stack([np.concatenate([corners, -corners])] * len(rows))


NOISE = 0.5  # of the targets in the linear-Gaussian model
INPUTS = 3


def gaussian(outputs: Tensor, targets: Tensor) -> Tensor:
    """−log N(y; f(x), NOISE²), up to a constant."""
    return (outputs.reshape(len(targets)) - targets).square() / (2 * NOISE**2)


def linear_posterior(method: PFedVEM, clients: list[int], *, exact: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The means and standard deviations that the client half finds, and those of the best factorised Gaussian.

    The exact posterior is N(m, A⁻¹), A = XᵀX/s² + τI, A m = Xᵀy/s² + τw. Of all Gaussians with a diagonal covariance
    the one nearest to it in KL(q ‖ p) has its mean and the variances 1/A_ii.
    """
    data = federation((3, 17, 8), targets="numbers", dtype=FLOAT64, width=INPUTS)
    task = Task(lambda: nn.Linear(INPUTS, 1, bias=False), gaussian, dtype=FLOAT64)
    work = work_of(data, clients)
    if exact:
        work = Quadrature(**{name: getattr(work, name) for name in work.__dataclass_fields__})
    message, state = begun(method, task, len(clients))
    upload, new = method.local_update(task, message, state, work, a_round())
    assert work.notes["restored"].tolist() == [0] * len(clients)
    expected_mean, expected_std = [], []
    tau, latent = 1 / method.initial_variance, message["weights"].matrix()[0]
    for client in clients:
        own = data.train.of(client)
        x, y = data.x[own], data.y[own]
        precision = x.T @ x / NOISE**2 + tau * torch.eye(INPUTS, dtype=FLOAT64)
        expected_mean.append(torch.linalg.solve(precision, x.T @ y / NOISE**2 + tau * latent))
        expected_std.append(precision.diagonal().rsqrt())
    return upload["weights"].matrix(), F.softplus(new["raw"].matrix()), *map(torch.stack, (expected_mean, expected_std))


def test_the_posterior_of_a_linear_gaussian_head_is_recovered() -> None:
    method = PFedVEM(samples=2 * INPUTS, head_steps=300, head_lr=0.01, momentum=0.8, initial_variance=0.3)
    mean, std, expected_mean, expected_std = linear_posterior(method, [0, 1, 2], exact=True)
    torch.testing.assert_close(mean, expected_mean, rtol=0, atol=1e-8)
    torch.testing.assert_close(std, expected_std, rtol=0, atol=1e-8)


def test_drawn_heads_find_it_too() -> None:
    method = PFedVEM(samples=10, head_steps=150, head_lr=0.002, initial_variance=0.3)
    mean, std, expected_mean, expected_std = linear_posterior(method, [1], exact=False)
    assert (mean - expected_mean).abs().max() < 0.05
    assert (std / expected_std - 1).abs().max() < 0.1


# -- the client's half


def test_the_first_prior_variance_is_the_one_given() -> None:
    data, task = federation(), Task(mlp)
    for terms in TERMS:
        method = PFedVEM(initial_variance=0.07, confidence=terms)
        message, state = begun(method, task, len(data))
        torch.testing.assert_close(F.softplus(state["raw"].matrix()).square(), torch.full((len(data), HEAD), 0.07))
        work = work_of(data)
        upload, _ = method.local_update(task, message, state, work, a_round())
        assert same_bits(upload["confidence"], 1 / torch.full((len(data),), 0.07))
        assert work.notes["deviation"].tolist() == [0.0] * len(data)
        assert work.notes["trace"].tolist() == pytest.approx([0.07 * HEAD] * len(data), rel=1e-5)


@pytest.mark.parametrize("terms", TERMS)
def test_confidence_comes_from_the_old_posterior_and_the_received_head(terms: str) -> None:
    data, task, method = federation(), Task(mlp, dtype=FLOAT64), PFedVEM(confidence=terms)
    received = random_rows(task, 1, seed=1)
    state = {
        "personal": random_rows(task, len(data), seed=2),
        "raw": random_rows(task, len(data), seed=3, scale=1.0).block("head"),
        "rounds": torch.full((len(data),), 4),
    }
    mean, std = state["personal"].block("head").matrix(), F.softplus(state["raw"].matrix())
    trace, deviation = std.square().sum(1), (mean - received.block("head").matrix()).square().sum(1)
    expected = {"full": HEAD / (trace + deviation), "uncertainty": HEAD / trace, "deviation": HEAD / deviation}[terms]
    work = work_of(federation(dtype=FLOAT64))
    upload, new = method.local_update(task, Message({"weights": received}), state, work, a_round())
    torch.testing.assert_close(upload["confidence"], expected)
    torch.testing.assert_close(work.notes["confidence"], expected)
    torch.testing.assert_close(work.notes["trace"], trace)
    torch.testing.assert_close(work.notes["deviation"], deviation)
    assert new["rounds"].tolist() == [5] * len(data)


def test_a_mean_on_the_latent_head_has_a_finite_confidence() -> None:
    data, task, method = federation(), Task(mlp), PFedVEM(confidence="deviation", head_lr=1e-9)
    received = random_rows(task, 1)
    state = method.start_clients(task.start, NAMES) | {"personal": received.expand(6), "rounds": torch.ones(6)}
    upload, _ = method.local_update(task, Message({"weights": received}), state, work_of(data), a_round())
    assert upload["confidence"].tolist() == pytest.approx([1e12] * 6)


def test_a_stiff_prior_does_not_make_the_steps_diverge() -> None:
    """The pull towards w alone, with a step η τ = 10⁴, would multiply a deviation by −10⁴ at every step."""
    data, task, method = federation(), Task(mlp), PFedVEM(initial_variance=1e-6, head_lr=0.01)
    message, state = begun(method, task, len(data))
    work = work_of(data)
    upload, _ = method.local_update(task, message, state, work, a_round())
    assert upload["confidence"].tolist() == pytest.approx([1e6] * 6)  # what the server is told
    assert work.notes["restored"].tolist() == [0] * 6
    moved = (upload["weights"] - message["weights"]).block("head").square_norm().sqrt()
    assert float(moved.min()) > 0 and float(moved.max()) < 1


def test_the_variance_is_never_sent() -> None:
    data, method = federation(), PFedVEM()
    made, outcome = run(method, data, rounds=3, participation=0.5)
    reported = sum(row["reported"] for row in outcome.history)
    assert outcome.communication.up_floats == reported * (made.task.layout.width + 1)  # θ_j, μ_j and τ_j

    message, state = begun(method, made.task, len(data))
    upload, new = method.local_update(made.task, message, state, work_of(data), a_round())
    assert upload.keys() == {"weights", "confidence"} and upload["confidence"].shape == (len(data),)
    assert same_bits(upload["weights"], new["personal"])
    secret = torch.cat([new["raw"].matrix(), F.softplus(new["raw"].matrix())]).unique()
    assert not torch.isin(upload["weights"].matrix(), secret).any()


def test_a_head_that_blows_up_is_taken_back() -> None:
    data, task, method = federation(), Task(mlp), PFedVEM(head_lr=1e30)
    message, state = begun(method, task, len(data))
    work = work_of(data)
    upload, new = method.local_update(task, message, state, work, a_round())
    received: Rows = message["weights"]
    assert work.notes["restored"].tolist() == [1] * len(data)
    assert same_bits(new["raw"], state["raw"].clone())
    assert same_bits(upload["weights"].block("head"), received.block("head").expand(len(data)))
    assert (upload["weights"] - received).block("base").square_norm().min() > 0  # the base trains on


def test_only_the_client_that_blew_up_is_taken_back() -> None:
    data, method = federation(), PFedVEM()
    broken = copy.deepcopy(data)
    broken.x[data.train.of(2)] *= 1e30
    found = []
    for given in (data, broken):
        task = Task(logistic)
        message, state = begun(method, task, len(data))
        work = work_of(given)
        found.append((method.local_update(task, message, state, work, a_round()), work.notes["restored"].tolist()))
    (fine, _), counts = found[0]
    (upload, new), broken_counts = found[1]
    assert (counts, broken_counts) == ([0] * 6, [0, 0, 1, 0, 0, 0])
    others = torch.tensor([0, 1, 3, 4, 5])
    assert apart(upload["weights"][others], fine["weights"][others]) < 1e-6
    assert new["personal"].finite().all() and new["raw"].finite().all()
    made, outcome = run(method, broken, factory=logistic, rounds=2)
    counted = [row["restored"] for row in outcome.client_notes if row["client"] == NAMES[2]]
    assert counted == [1, 1]
    assert made.server["weights"].finite().all()


@pytest.mark.parametrize("stacked", [False, True])
def test_a_cohort_is_its_clients_one_by_one(stacked: bool) -> None:
    data, task, method = federation(dtype=FLOAT64), Task(mlp, dtype=FLOAT64), PFedVEM(head_steps=3)
    message, state = begun(method, task, len(data))
    state |= {"personal": random_rows(task, 6), "rounds": torch.tensor([0, 1, 0, 2, 3, 1])}
    if stacked:
        task.stack()
    upload, new = method.local_update(task, message, state, work_of(data, epochs=2), a_round())
    for k in range(len(data)):
        own = {name: value[k : k + 1] for name, value in state.items()}
        alone = method.local_update(task, message, own, work_of(data, [k], epochs=2), a_round())
        assert apart(upload["weights"][k : k + 1], alone[0]["weights"]) < 1e-10
        assert apart(new["raw"][k : k + 1], alone[1]["raw"]) < 1e-10


# -- server, personal models, newcomers


def test_everybody_trains_and_some_report() -> None:
    data, method = federation(), PFedVEM()
    made = simulation(method, data, rounds=1, participation=0.5)
    (phase,) = method.phases(7)
    assert (phase.rounds, phase.trains, phase.reports, phase.sampling) == (7, "all", "sample", "bernoulli")
    sizes = set()
    with made.open():
        for number in range(1, 6):
            before = made.store.get(range(6))["personal"].clone() if number > 1 else None
            made.round(number, phase)
            row = made.federations[0].history[-1]
            drawn = rngs.sample(6, 0.5, 0, "cohort", number, sampling="bernoulli").tolist()
            state = made.store.get(range(6))
            assert (row["trained"], row["reported"]) == (6, len(drawn))
            assert state["rounds"].tolist() == [number] * 6
            assert before is None or (state["personal"] - before).square_norm().min() > 0
            notes = [note for note in made.federations[0].client_notes if note["round"] == number]
            tau = torch.tensor([{n["client"]: n["confidence"] for n in notes}[data.names[i]] for i in drawn])
            models: Rows = state["personal"][drawn]
            latent = (tau[:, None] * models.block("head").matrix()).sum(0) / tau.sum()  # (9)
            n = data.train.sizes[drawn].float()
            base = (n[:, None] * models.block("base").matrix()).sum(0) / n.sum()
            found: Rows = made.server["weights"]
            torch.testing.assert_close(found.block("head").matrix()[0], latent, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(found.block("base").matrix()[0], base, rtol=1e-5, atol=1e-6)
            assert float(made.server["variance"]) == pytest.approx(float((1 / tau).mean()), rel=1e-5)
            assert row["prior_variance"] == float(made.server["variance"])
            sizes.add(len(drawn))
    assert len(sizes) > 1


def test_the_latent_head_is_drawn_unless_weights_are_given() -> None:
    task = Task(mlp, dtype=FLOAT64)
    server = PFedVEM().start_server(task.start, a_round(0))
    expected = rngs.generator(0, "pfedvem head", 0).standard_normal(HEAD)
    assert server["weights"].block("head").matrix()[0].tolist() == expected.tolist()
    assert same_bits(server["weights"].block("base"), task.start.block("base"))
    assert same_bits(PFedVEM().start_server(task.start, a_round(0, warm=True))["weights"], task.start)


def test_before_its_first_round_a_client_uses_what_it_receives() -> None:
    task, method = Task(mlp), PFedVEM()
    message, state = begun(method, task, 3)
    state["rounds"][1] = 2
    rows = method.personal(task, message, state, work_of(federation(), [0, 1, 2]))
    received: Rows = message["weights"]
    assert same_bits(rows, Rows.cat([received, task.start, received]))


def test_the_personal_model_is_the_own_base_and_the_head_mean() -> None:
    made, outcome = run(PFedVEM(), federation(), rounds=2)
    assert same_bits(outcome.personal_rows, made.store.get(range(6))["personal"])
    assert outcome.global_rows is not None and same_bits(outcome.global_rows, made.server["weights"])


def test_a_newcomer_has_the_posterior_from_the_reported_prior() -> None:
    """What a client does in its first round, with the server's variance and for `lifetime` times as many head steps."""
    data, task = federation(), Task(mlp)
    method = PFedVEM(initial_variance=0.2, head_steps=6)
    message, state = begun(method, task, len(data))
    upload, _ = method.local_update(task, message, state, work_of(data), a_round())
    server = {"weights": message["weights"], "variance": torch.tensor([0.2], dtype=FLOAT64)}
    short = PFedVEM(initial_variance=5.0, head_steps=2)
    assert apart(short.newcomer(task, server, work_of(data, expected_rounds=3)), upload["weights"]) < 1e-6


def test_a_model_may_be_all_head() -> None:
    data = federation()
    made, outcome = run(PFedVEM(), data, factory=logistic, rounds=3, participation=0.5)
    assert outcome.personal_rows.layout.base == ()
    assert outcome.personal_rows.finite().all() and made.server["weights"].finite().all()
    newcomer = PFedVEM().newcomer(made.task, made.server, work_of(data))
    assert len(newcomer) == 6 and newcomer.finite().all()


class Scaled(nn.Module):
    """A head that is named, and is not the last thing that happens."""

    def __init__(self, after: bool = True) -> None:
        super().__init__()
        self.top, self.body, self.after = nn.Linear(6, CLASSES), nn.Linear(WIDTH, 6), after

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.top(torch.relu(self.body(x)))
        return 1.0 * outputs if self.after else outputs


@pytest.mark.parametrize("stacked", [False, True])
def test_any_model_that_names_its_head(stacked: bool) -> None:
    """Where the features cannot be told apart from the head, all is computed anew for every head, to the same end."""
    data, method = federation(dtype=FLOAT64), PFedVEM(head_steps=3)
    found = []
    for after in (True, False):
        task = Task(lambda after=after: Scaled(after), head="top", dtype=FLOAT64)
        assert (task.without_head(data.x[:2]) is None) == after
        if stacked:
            task.stack()
        message, state = begun(method, task, len(data))
        found.append(method.local_update(task, message, state, work_of(data, epochs=2), a_round()))
    (whole, whole_state), (split, split_state) = found
    assert split["weights"].layout.head == ("top.weight", "top.bias")
    assert apart(split["weights"], whole["weights"]) < 1e-10
    assert apart(split_state["raw"], whole_state["raw"]) < 1e-10


def test_a_model_needs_a_head() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.scale)[:, :CLASSES]

    with pytest.raises(InputError, match=r"no head"):
        simulation(PFedVEM(), federation(), factory=Scale)


def bespoke(*words: str) -> int:
    """Run the command in this process; its exit code."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", "pfedvem", "--rounds", "2", "--clients", "4", "--workers", "1", "--quiet", *words])
    return int(ended.value.code or 0)


def test_the_run_directory_has_each_clients_confidence_and_its_two_terms(tmp_path: Path) -> None:
    assert bespoke("--participation", "0.5", "--out", str(tmp_path / "run")) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "client_rounds.jsonl").read_text().splitlines()]
    assert [(line["round"], line["client"]) for line in lines] == [(r, c) for r in (1, 2) for c in "0123"]
    width = 100 * 10 + 10  # of the head of digits' mlp
    for line in lines:
        assert line["confidence"] == pytest.approx(width / (line["trace"] + line["deviation"]), rel=1e-4)
        assert line["restored"] == 0 and line["trace"] > 0 and (line["deviation"] > 0) == (line["round"] == 2)


def test_the_command_line_refuses_a_head_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bespoke("--head", "crown", "--out", str(tmp_path / "run")) == 2
    error = capsys.readouterr().err
    assert "the model has no head 'crown'" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("hyper", "sentence"),
    [
        ({"initial_variance": 0.0}, "initial_variance must be > 0"),
        ({"initial_variance": float("inf")}, "initial_variance must be > 0"),
        ({"head_steps": 0}, "head_steps must be >= 1"),
        ({"samples": 0}, "samples must be >= 1"),
        ({"confidence": "both"}, "confidence must be 'full', 'uncertainty' or 'deviation', got 'both'"),
        ({"head_lr": 0.0}, "head_lr must be > 0"),
        ({"base_lr": -1.0}, "base_lr must be > 0"),
    ],
)
def test_hyper_parameters_that_make_no_sense(hyper: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        build("pfedvem", hyper)


# -- the whole method again, in plain torch


class Client:
    """A client's half as the paper's algorithm box says it, on modules, autograd and torch.optim."""

    def __init__(self, name: str, x: Tensor, y: Tensor, method: PFedVEM) -> None:
        self.name, self.x, self.y, self.method = name, x, y, method
        self.mean: Tensor | None = None
        self.std = torch.full((HEAD,), method.initial_variance, dtype=FLOAT64).sqrt()

    def noise(self, purpose: str, round: int, step: int) -> Tensor:
        rng = rngs.generator(0, f"pfedvem {purpose}/{step}", round, self.name, 0)
        return torch.from_numpy(rng.standard_normal((self.method.samples, HEAD)))

    def update(self, base: nn.Module, latent: Tensor, round: int, batches: list[np.ndarray]) -> None:
        self.mean = latent.clone() if self.mean is None else self.mean
        self.tau = HEAD / (self.std.square().sum() + (self.mean - latent).square().sum())  # (8)
        prior = Normal(latent, self.tau.rsqrt())
        self.base = copy.deepcopy(base)
        features = self.base(self.x).detach()
        mean = self.mean.clone().requires_grad_()
        raw = self.std.expm1().log().requires_grad_()
        rate = self.method.mean_head_lr / len(self.y) if self.method.head_lr is None else self.method.head_lr
        optimizer = torch.optim.SGD([mean, raw], lr=rate, momentum=self.method.momentum)
        for step in range(self.method.head_steps):
            optimizer.zero_grad()
            std = F.softplus(raw)
            fits = [
                F.cross_entropy(self.apply(mean + std * noise, features), self.y, reduction="sum")
                for noise in self.noise("posterior", round, step)
            ]
            (torch.stack(fits).mean() + kl_divergence(Normal(mean, std), prior).sum()).backward()
            optimizer.step()
        self.mean, self.std = mean.detach(), F.softplus(raw).detach()
        optimizer = torch.optim.SGD(self.base.parameters(), lr=self.method.base_lr, momentum=self.method.momentum)
        for step, own in enumerate(batches):
            optimizer.zero_grad()
            features = self.base(self.x[own])
            fits = [
                F.cross_entropy(self.apply(self.mean + self.std * noise, features), self.y[own])
                for noise in self.noise("base", round, step)
            ]
            torch.stack(fits).mean().backward()
            optimizer.step()

    @staticmethod
    def apply(head: Tensor, features: Tensor) -> Tensor:
        return features @ head[: 6 * CLASSES].reshape(CLASSES, 6).T + head[6 * CLASSES :]


@pytest.mark.parametrize("rate", [{"head_lr": 0.01}, {"mean_head_lr": 0.05}])
def test_two_rounds_are_those_of_a_plain_loop(rate: dict[str, float]) -> None:
    data = federation((3, 17, 8), dtype=FLOAT64)
    method = PFedVEM(head_steps=4, samples=3, base_lr=0.05, initial_variance=0.1, **rate)
    for reference in (False, True):
        made, outcome = run(
            method, data, participation=0.6, rounds=2, local_epochs=2, reference=reference, start=lambda rows: rows
        )
        base = nn.Sequential(nn.Linear(WIDTH, 6), nn.ReLU()).to(FLOAT64)
        base.load_state_dict({name: value for name, value in made.task.start.state().items() if name.startswith("0.")})
        latent = torch.from_numpy(rngs.generator(0, "pfedvem head", 0).standard_normal(HEAD))
        clients = [Client(data.names[k], data.x[data.train.of(k)], data.y[data.train.of(k)], method) for k in range(3)]
        for round in (1, 2):
            work = work_of(data, epochs=2, round=round)
            for k, client in enumerate(clients):
                place = {int(example): at for at, example in enumerate(data.train.of(k))}
                batches = [np.array([place[int(i)] for i in batch]) for batch in work.batches(k)]
                assert max(map(len, batches)) <= BATCH
                client.update(base, latent, round, batches)
            kept = rngs.sample(3, 0.6, 0, "cohort", round, sampling="bernoulli").tolist()
            tau = torch.stack([clients[k].tau for k in kept])
            latent = sum(clients[k].tau * clients[k].mean for k in kept) / tau.sum()
            shares = data.train.sizes[kept].double() / data.train.sizes[kept].sum()
            with torch.no_grad():
                for name, parameter in base.named_parameters():
                    own = [dict(clients[k].base.named_parameters())[name] for k in kept]
                    parameter.copy_(sum(share * one for share, one in zip(shares, own, strict=True)))
        for k, client in enumerate(clients):
            expected = torch.cat([*(p.detach().flatten() for p in client.base.parameters()), client.mean])
            torch.testing.assert_close(outcome.personal_rows.matrix()[k], expected, rtol=1e-9, atol=1e-11)
            state = made.store.get([k])
            torch.testing.assert_close(F.softplus(state["raw"].matrix()[0]), client.std, rtol=1e-9, atol=1e-11)
            (noted,) = [n for n in outcome.client_notes if n["client"] == client.name and n["round"] == 2]
            assert noted["confidence"] == pytest.approx(float(client.tau), rel=1e-9)
        expected = torch.cat([*(p.detach().flatten() for p in base.parameters()), latent])
        assert outcome.global_rows is not None
        torch.testing.assert_close(outcome.global_rows.matrix()[0], expected, rtol=1e-9, atol=1e-11)
