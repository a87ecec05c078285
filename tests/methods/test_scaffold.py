"""SCAFFOLD: clients' drift taken out of their steps."""

import pytest
import torch
from torch import Tensor, nn

from bespokefl.core import rng
from bespokefl.core.errors import InputError
from bespokefl.core.rows import Rows
from bespokefl.methods import FedAvg, Scaffold
from tests.federations import SIZES, apart, federation, line, run, same_bits, work_of
from tests.methods.plain_sgd import Extra, train, weighted

DATA = federation(dtype=torch.float64)
EVERYBODY = list(range(len(DATA)))
WEIGHTS = ["equal", "examples"]
WHOLE = 1000  # a batch size that takes everything in


def counted(weights: str) -> Tensor:
    return torch.tensor(SIZES if weights == "examples" else [1] * len(SIZES), dtype=torch.float64)


def along(direction: Rows) -> Extra:
    """⟨direction, w⟩, whose gradient is the direction."""
    fixed = list(direction.state().values())

    def product(module: nn.Module) -> Tensor:
        return torch.stack([(p * d).sum() for p, d in zip(module.parameters(), fixed, strict=True)]).sum()

    return product


# -- one step


@pytest.mark.parametrize("weights", WEIGHTS)
def test_with_one_step_of_everybody_it_is_fedavg(weights: str) -> None:
    """Σ p_k (x − η (g_k − c_k + c)) = x − η Σ p_k g_k, as c = Σ p_k c_k."""
    options = {"rounds": 4, "local_steps": 1}
    _, found = run(Scaffold(lr=0.2, weights=weights), DATA, **options)
    _, expected = run(FedAvg(lr=0.2, weights=weights), DATA, **options)
    assert apart(found.server["weights"], expected.server["weights"]) < 1e-12
    assert apart(found.server["control"], found.server["control"] * 0) > 1e-3


@pytest.mark.parametrize("options", [{"local_steps": 2}, {"local_steps": 1, "participation": 0.5}])
def test_with_more_steps_or_fewer_clients_it_is_not(options: dict[str, float]) -> None:
    _, found = run(Scaffold(lr=0.2), DATA, rounds=3, **options)
    _, expected = run(FedAvg(lr=0.2, weights="equal"), DATA, rounds=3, **options)
    assert apart(found.server["weights"], expected.server["weights"]) > 1e-4


def test_after_one_step_a_control_is_the_gradient_met() -> None:
    """c_k⁺ = c_k − c + (x − y)/η = c_k − c + (g_k − c_k + c) = g_k, whatever the controls were."""
    made, _ = run(Scaffold(lr=0.2), DATA, rounds=2, local_steps=1, batch_size=WHOLE)
    before = run(Scaffold(lr=0.2), DATA, rounds=1, local_steps=1, batch_size=WHOLE)[1].server["weights"]
    controls = made.store.get(EVERYBODY)["control"]
    for k in EVERYBODY:
        stepped = train(made.task, work_of(DATA, [k], batch_size=WHOLE), 0, before, lr=1.0)
        assert apart(controls[k : k + 1], before - stepped) < 1e-12


# -- controls


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_the_servers_control_is_the_mean_of_the_clients(participation: float, weights: str) -> None:
    """So all corrections together, Σ p_k (c − c_k), are nothing. Clients that never trained have c_k = 0."""
    made, outcome = run(Scaffold(lr=0.2, weights=weights), DATA, rounds=6, participation=participation)
    drawn = {int(k) for number in range(1, 7) for k in rng.sample(6, participation, 0, "cohort", number)}
    assert len(drawn) == 6
    controls = made.store.get(EVERYBODY)["control"]
    assert apart(outcome.server["control"], controls.mean(counted(weights))) < 1e-12
    other = next(one for one in WEIGHTS if one != weights)
    assert apart(outcome.server["control"], controls.mean(counted(other))) > 1e-3


def test_a_client_not_yet_heard_of_counts_as_the_others_do_on_average() -> None:
    """c = Σ_S n_k c_k / n, where n is N times the mean n_k of S."""
    made, outcome = run(Scaffold(weights="examples"), DATA, rounds=1, participation=0.5)
    drawn = rng.sample(6, 0.5, 0, "cohort", 1).tolist()
    controls = made.store.get(drawn)["control"]
    sizes = [SIZES[k] for k in drawn]
    parts = [controls[i : i + 1] for i in range(3)]
    assert apart(outcome.server["control"], weighted(parts, sizes) * (3 / 6)) < 1e-12
    assert outcome.server["counts"].tolist() == [SIZES[k] if k in drawn else 0 for k in EVERYBODY]


# -- the optimum


QUADRATICS = federation((60, 90, 44), targets="numbers", dtype=torch.float64)


def optimum(weights: str) -> Tensor:
    """Of Σ p_k F_k, with F_k(w) = mean (x·w − y)²: least squares, every example counting p_k / n_k."""
    left, right = 0.0, 0.0
    for k in range(3):
        own = QUADRATICS.train.of(k)
        x, y = QUADRATICS.x[own], QUADRATICS.y[own]
        share = 1.0 if weights == "examples" else 1 / len(own)
        left, right = left + share * x.T @ x, right + share * x.T @ y
    return torch.linalg.solve(left, right)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("participation", [1.0, 0.67])
def test_it_reaches_the_optimum_that_fedavg_misses(participation: float, weights: str) -> None:
    options = {"factory": line, "loss": "mse", "batch_size": WHOLE, "rounds": 40, "local_steps": 5}
    options["participation"] = participation
    _, found = run(Scaffold(lr=0.1, weights=weights), QUADRATICS, **options)
    _, drifted = run(FedAvg(lr=0.1, weights=weights), QUADRATICS, **options)
    best = optimum(weights)
    assert (found.server["weights"].matrix()[0] - best).norm() < 1e-6
    assert (drifted.server["weights"].matrix()[0] - best).norm() > 1e-2
    assert (optimum("equal") - optimum("examples")).norm() > 1e-2
    assert found.server["control"].matrix().norm() < 1e-5  # the gradient of Σ p_k F_k at its optimum


# -- by hand


@pytest.mark.parametrize("weights", WEIGHTS)
def test_rounds_by_hand(weights: str) -> None:
    """Ragged clients in batches of 4, half of them in each round: everybody has a K of its own, from 2 to 10."""
    method = Scaffold(lr=0.1, server_lr=0.7, weights=weights)
    made, outcome = run(method, DATA, rounds=5, local_epochs=2, participation=0.5)
    x = made.task.start
    controls, c, n = [x * 0.0] * 6, x * 0.0, counted(weights)
    heard: set[int] = set()
    for number in range(1, 6):
        drawn = rng.sample(6, 0.5, 0, "cohort", number).tolist()
        work = work_of(DATA, round=number, epochs=2)
        changes = []
        for k in drawn:
            steps = len(work.batches(k))
            assert steps == 2 * -(-SIZES[k] // 4)
            y = train(made.task, work, k, x, along(c - controls[k]), lr=0.1)
            changes.append(y - x)
            controls[k] = controls[k] - c + (x - y) / (steps * 0.1)
        x = x + weighted(changes, n[drawn].tolist()) * 0.7
        heard |= set(drawn)
        everybody = 6 * float(n[sorted(heard)].mean())
        c = weighted(controls, n.tolist()) * (float(n.sum()) / everybody)
    assert apart(outcome.server["weights"], x) < 1e-10
    assert apart(outcome.server["control"], c) < 1e-10
    assert apart(made.store.get(EVERYBODY)["control"], Rows.cat(controls)) < 1e-10


# -- what is sent, what comes out


def test_it_sends_twice_what_fedavg_sends() -> None:
    options = {"rounds": 3, "participation": 0.5}
    found, once = (run(method, DATA, **options)[1].communication for method in (Scaffold(), FedAvg()))
    assert (found.up_bytes, found.down_bytes) == (2 * once.up_bytes, 2 * once.down_bytes)
    assert (found.up_floats, found.down_floats) == (2 * once.up_floats, 2 * once.down_floats)
    assert once.up_bytes == 3 * 3 * 8 * run(FedAvg(), DATA, rounds=0)[0].task.layout.width


def test_everybody_and_newcomers_use_the_common_model() -> None:
    made, outcome = run(Scaffold(), DATA)
    assert same_bits(outcome.personal_rows, outcome.server["weights"].expand(6))
    assert same_bits(outcome.global_rows, outcome.server["weights"])
    assert same_bits(made.method.newcomer(made.task, made.server, work_of(DATA)), outcome.server["weights"])


@pytest.mark.parametrize("hyper", [{"lr": 0.0}, {"server_lr": -1.0}, {"weights": "size"}])
def test_what_makes_no_sense_is_refused(hyper: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(hyper))):
        Scaffold(**hyper)
