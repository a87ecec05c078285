"""FedALA: training starts from an element-wise mixture, learned by each client, of its own and the common model."""

import pytest
import torch
from torch import Tensor, nn

from bespokefl.core import rng
from bespokefl.core.cohort_data import CohortData
from bespokefl.core.errors import InputError
from bespokefl.core.method import Message, Round
from bespokefl.core.rows import Layout, Rows
from bespokefl.core.task import Task
from bespokefl.methods import FedALA, FedAvg, FedPer, Local
from bespokefl.methods.fedala import MOST_EPOCHS, WINDOW, higher_layers, mixed
from tests.federations import CLASSES, NAMES, WIDTH, apart, federation, line, mlp, random_rows, run, work_of
from tests.methods.plain_sgd import train, weighted

pytestmark = pytest.mark.slow  # `make check` is to stay under two minutes

DATA = federation(dtype=torch.float64)
SIZES = DATA.train.sizes.tolist()
EVERYBODY = range(len(DATA))
ROUND = Round(number=1, phase="train", seed=0, names=NAMES)
SGD = [{}, {"momentum": 0.5, "weight_decay": 0.1}]
HEAD = CLASSES * 6 + CLASSES  # numbers in the last layer of tests.federations.mlp


def state_of(own: Rows, mixing: Rows, rounds: int) -> dict[str, Rows | Tensor]:
    return {"own": own, "mixing": mixing, "rounds": torch.full((len(own),), rounds)}


def learned(
    task: Task, sample: CohortData, k: int, rate: float, models: tuple[Rows, Rows], W: Tensor, *, layers: int = 1
) -> Tensor:
    """W of client k after an epoch of its sample, by autograd: all columns, of which those of lower layers stay 1."""
    (common,), (own,) = (one.matrix() for one in models)
    sizes, shapes = task.layout.sizes, task.layout.shapes
    for batch in sample.batches(k, epochs=1):
        examples, leaf = torch.from_numpy(batch), W.detach().clone().requires_grad_()
        mixture = own + (common - own) * leaf
        blocks = [part.reshape(shape) for part, shape in zip(mixture.split(sizes), shapes, strict=True)]
        weights = dict(zip(task.layout.names, blocks, strict=True))
        outputs = torch.func.functional_call(task.module, weights, sample.x[examples])
        (slope,) = torch.autograd.grad(task.loss(outputs, sample.y[examples]).mean(), leaf)
        W = (W - rate * slope).clamp(0, 1)
        W[: task.layout.width - HEAD if layers == 1 else 0] = 1.0
    return W


def ones(task: Task) -> Tensor:
    return torch.ones(task.layout.width, dtype=torch.float64)


# -- limits


@pytest.mark.parametrize("sgd", SGD)
@pytest.mark.parametrize("weights", ["examples", "equal"])
def test_with_a_fixed_weight_of_one_it_is_fedavg(weights: str, sgd: dict[str, float]) -> None:
    options = {"rounds": 3, "participation": 0.5}
    made, found = run(FedALA(lr=0.2, mixing_rate=0.0, weights=weights, **sgd), DATA, **options)
    _, expected = run(FedAvg(lr=0.2, weights=weights, **sgd), DATA, **options)
    assert apart(found.server["weights"], expected.server["weights"]) < 1e-12
    assert apart(found.server["weights"], made.task.start) > 1e-2
    assert found.communication == expected.communication  # W and the own model stay at home


def test_with_a_fixed_weight_of_zero_in_all_layers_it_is_local() -> None:
    _, found = run(FedALA(lr=0.2, mixing=0.0, mixing_rate=0.0, layers=2), DATA, rounds=3)
    _, expected = run(Local(lr=0.2), DATA, rounds=3)
    assert apart(found.personal_rows, expected.personal_rows) < 1e-12


def test_with_a_fixed_weight_of_zero_in_the_last_layer_it_is_fedper() -> None:
    _, found = run(FedALA(lr=0.2, mixing=0.0, mixing_rate=0.0), DATA, rounds=3)
    _, expected = run(FedPer(lr=0.2), DATA, rounds=3)
    assert apart(found.server["weights"].block("base"), expected.server["base"]) < 1e-12
    assert apart(found.personal_rows.block("head"), expected.personal_rows.block("head")) < 1e-12


# -- by hand


@pytest.mark.parametrize("layers", [1, 2])
def test_rounds_by_hand(layers: int) -> None:
    method = FedALA(lr=0.2, layers=layers, mixing_rate=20.0, threshold=100.0)  # converges as soon as it may
    made, outcome = run(method, DATA, rounds=4, participation=0.5)
    task = made.task
    common, own, taken = task.start, [task.start] * 6, [0] * 6
    W = [ones(task)] * 6
    for number in (1, 2, 3, 4):
        work, drawn = work_of(DATA, round=number), rng.sample(6, 0.5, 0, "cohort", number).tolist()
        sample = work.sampled(0.8, "fedala")
        for k in drawn:
            mine = own[k] if taken[k] else common
            for _ in range({0: 0, 1: WINDOW + 1}.get(taken[k], 1)):
                W[k] = learned(task, sample, k, 20.0, (common, mine), W[k], layers=layers)
            own[k] = train(task, work, k, mine + (common - mine) * Rows.from_matrix(task.layout, W[k][None]), lr=0.2)
            taken[k] += 1
        common = weighted([own[k] for k in drawn], [SIZES[k] for k in drawn])
    assert max(taken) > 2 and {0, 1} & set(taken)
    assert apart(outcome.server["weights"], common) < 1e-10
    state = made.store.get(EVERYBODY)
    assert state["rounds"].tolist() == taken
    expected = torch.stack(W)[:, -state["mixing"].layout.width :]
    torch.testing.assert_close(state["mixing"].matrix(), expected, rtol=1e-9, atol=1e-9)
    assert [bool((row < 0.99).any()) for row in expected] == [times > 1 for times in taken]
    for k in EVERYBODY:
        assert apart(outcome.personal_rows[k : k + 1], own[k] if taken[k] else common) < 1e-10


def test_the_first_weights_of_a_quadratic() -> None:
    """F = ½ wᵀ H w − bᵀ w: a full-batch step on W is clip(W − η (H Θ̂ − b) ⊙ (Θ − Θ_i)); no loss is ever steady."""
    data = federation((60, 90), targets="numbers", dtype=torch.float64)
    task = Task(line, "mse", dtype=torch.float64)
    common, own = random_rows(task, 1, seed=1, scale=1.0), random_rows(task, 2, seed=2, scale=1.0)
    method = FedALA(sample_share=1.0, mixing_rate=0.3, threshold=0.0)
    mixing = Rows.from_matrix(task.layout, torch.ones(2, WIDTH, dtype=torch.float64))
    work = work_of(data, batch_size=1000)
    _, new = method.local_update(task, Message({"weights": common}), state_of(own, mixing, 1), work, ROUND)
    for k in range(2):
        x, y = data.x[data.train.of(k)], data.y[data.train.of(k)]
        H, b = 2 * x.T @ x / len(x), 2 * x.T @ y / len(x)
        gap, W = (common.matrix() - own.matrix())[0 if k == 0 else 1], torch.ones(WIDTH, dtype=torch.float64)
        for _ in range(MOST_EPOCHS):
            W = (W - 0.3 * (H @ (own.matrix()[k] + gap * W) - b) * gap).clamp(0, 1)
        torch.testing.assert_close(new["mixing"].matrix()[k], W, rtol=1e-9, atol=1e-9)
        slope = (H @ (own.matrix()[k] + gap * W) - b) * gap  # the mixture is the best one in the box
        inside = (W > 1e-6) & (W < 1 - 1e-6)
        assert inside.any() and slope[inside].abs().max() < 0.01
        assert (slope[W <= 1e-6] > -0.01).all() and (slope[W >= 1 - 1e-6] < 0.01).all()


def test_each_client_stops_when_its_losses_are_steady() -> None:
    """A client whose model is the global one has nothing to learn and stops after eleven epochs; others go on."""
    task, work = Task(mlp, dtype=torch.float64), work_of(DATA)
    common, own = random_rows(task, 1, seed=1, scale=1.0), random_rows(task, 6, seed=2, scale=1.0)
    own = own.replace([0], common)
    method = FedALA(sample_share=1.0, mixing_rate=0.05, threshold=1e-2)
    start = state_of(own, own.block("head") * 0.0 + 1.0, 1)
    _, new = method.local_update(task, Message({"weights": common}), start, work, ROUND)
    sample, epochs = work.sampled(1.0, "fedala"), []
    for k in EVERYBODY:
        W, losses, mine = ones(task), torch.zeros(0, dtype=torch.float64), own[k : k + 1]
        while len(losses) <= WINDOW or losses[-WINDOW:].std(correction=0) >= 1e-2:
            W = learned(task, sample, k, 0.05, (common, mine), W)
            mixture = mine + (common - mine) * Rows.from_matrix(task.layout, W[None])
            losses = torch.cat([losses, task.score(mixture, sample.take([k]).sweep())["loss"]])
        torch.testing.assert_close(new["mixing"].matrix()[k], W[-HEAD:], rtol=1e-9, atol=1e-9)
        epochs.append(len(losses))
    assert epochs[0] == WINDOW + 1 < max(epochs) < MOST_EPOCHS and len(set(epochs)) > 2


# -- W


def test_the_weights_stay_between_zero_and_one() -> None:
    made, outcome = run(FedALA(lr=0.2, mixing_rate=1e6), DATA, rounds=3)
    values = made.store.get(EVERYBODY)["mixing"].matrix()
    assert set(values.unique().tolist()) == {0.0, 1.0} and outcome.personal_rows.finite().all()


def test_what_is_logged_is_the_mean_weight() -> None:
    made, outcome = run(FedALA(lr=0.2, mixing_rate=20.0), DATA, rounds=3)
    last = {record["client"]: record["mixing"] for record in outcome.client_notes if record["round"] == 3}
    values = made.store.get(EVERYBODY)["mixing"].matrix().mean(1)
    assert [last[name] for name in DATA.names] == pytest.approx(values.tolist()) and float(values.max()) < 1


def test_the_highest_layers() -> None:
    layout = Layout(
        ("a.weight", "top.weight", "top.bias", "scale", "b.weight", "b.bias"), ((2,),) * 6, ("top.weight", "top.bias")
    )
    assert higher_layers(layout, 1) == ["top.weight", "top.bias"]
    assert higher_layers(layout, 2) == ["b.weight", "b.bias", "top.weight", "top.bias"]
    assert higher_layers(layout, 3)[0] == "scale" and set(higher_layers(layout, 99)) == set(layout.names)
    headless = Layout(("a.weight", "b.weight", "b.bias"), ((2,),) * 3)
    assert higher_layers(headless, 1) == ["b.weight", "b.bias"]


def test_lower_layers_take_the_global_model() -> None:
    task = Task(mlp, dtype=torch.float64)
    common, own = random_rows(task, 1, seed=1), random_rows(task, 3, seed=2)
    found = mixed(common, own, own.block("head") * 0.0 + 0.25)
    assert apart(found.block("base"), common.block("base")) == 0
    assert apart(found.block("head"), own.block("head") * 0.75 + common.block("head") * 0.25) < 1e-12


# -- others


def test_a_newcomer_has_two_rounds_with_the_final_model() -> None:
    method = FedALA(lr=0.2, mixing_rate=20.0, threshold=100.0)
    made, _ = run(method, DATA, rounds=3)
    common, work = made.server["weights"], work_of(DATA, round=4, expected_rounds=3)
    served = made.method.newcomer(made.task, made.server, work)
    sample = work.sampled(0.8, "fedala")
    for k in EVERYBODY:
        own = train(made.task, work, k, common, lr=0.2)
        W = ones(made.task)
        for _ in range(WINDOW + 1):
            W = learned(made.task, sample, k, 20.0, (common, own), W)
        start = own + (common - own) * Rows.from_matrix(common.layout, W[None])
        assert apart(served[k : k + 1], train(made.task, work, k, start, lr=0.2)) < 1e-10


def test_a_model_without_layers_below_the_head() -> None:
    _, outcome = run(FedALA(layers=3), DATA, factory=lambda: nn.Linear(WIDTH, CLASSES), rounds=3)
    assert outcome.personal_rows.finite().all()


@pytest.mark.parametrize(
    ("hyper", "sentence"),
    [
        ({"layers": 0}, r"layers must be >= 1, got 0 \(p of fedala\)"),
        ({"sample_share": 0.0}, r"sample_share must be in \(0, 1\], got 0.0"),
        ({"mixing": 1.5}, r"mixing must be in \[0, 1\], got 1.5"),
        ({"mixing_rate": -1.0}, "mixing_rate must be >= 0"),
        ({"threshold": float("nan")}, "threshold must be >= 0"),
        ({"lr": 0.0}, "lr must be > 0"),
    ],
)
def test_senseless_values(hyper: dict[str, float], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        FedALA(**hyper)
