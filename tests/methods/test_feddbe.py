"""FedDBE: a memory of the bias of a client's features, and a mean of features that is common."""

import copy

import pytest
import torch
from torch import Tensor, nn

from bespokefl.core.cohort_data import CohortData
from bespokefl.core.errors import InputError
from bespokefl.core.method import Message, Round
from bespokefl.core.rows import Layout, Rows
from bespokefl.core.task import Task
from bespokefl.engines.faults import Faults
from bespokefl.methods import FedAvg, FedDBE, feddbe
from bespokefl.methods.feddbe import by_memory, descend_, mean_features, shifted
from tests.federations import CLASSES, NAMES, WIDTH, apart, federation, mlp, random_rows, run, simulation, work_of
from tests.methods.plain_sgd import train, weighted

pytestmark = pytest.mark.slow  # `make check` is to stay under two minutes

DATA = federation(dtype=torch.float64)
SIZES = DATA.train.sizes.tolist()
EVERYBODY = range(len(DATA))
FEATURES = 6  # of tests.federations.mlp
TASK = Task(mlp, dtype=torch.float64)
START = Round(number=0, phase="start", seed=0, names=NAMES)


def features_of(model: Rows, x: Tensor) -> Tensor:
    module = mlp().double()
    module.load_state_dict(model.state())
    return module[:2](x)


# -- limits


@pytest.mark.parametrize("weights", ["examples", "equal"])
@pytest.mark.parametrize("participation", [0.5, 1.0])
def test_without_memory_and_regularization_it_is_fedavg(participation: float, weights: str) -> None:
    options = {"rounds": 3, "participation": participation}
    _, found = run(FedDBE(lr=0.2, mean_weight=0.0, memory=False, weights=weights), DATA, **options)
    _, expected = run(FedAvg(lr=0.2, weights=weights), DATA, **options)
    assert apart(found.server["weights"], expected.server["weights"]) < 1e-12
    assert apart(found.personal_rows, expected.personal_rows) < 1e-12
    assert found.communication == expected.communication


def test_either_part_alone_is_not_fedavg() -> None:
    options = {"rounds": 3, "batch_size": 100}  # full batches: those of a later round are the same
    _, expected = run(FedAvg(lr=0.2), DATA, **options)
    for alone in (FedDBE(lr=0.2, mean_weight=0.0), FedDBE(lr=0.2, mean_weight=5.0, memory=False)):
        _, found = run(alone, DATA, **options)
        assert apart(found.server["weights"], expected.server["weights"]) > 1e-3
    _, found = run(FedDBE(lr=0.2, mean_weight=1e-12, memory=False), DATA, **options)
    assert apart(found.server["weights"], expected.server["weights"]) < 1e-9  # the first round leaves no trace


# -- by hand


def trained(
    work: CohortData, k: int, start: Rows, memory: Tensor, mean: Tensor, *, lr: float, kappa: float, mu: float
) -> tuple[Rows, Tensor]:
    """Client k's round in plain torch: the memory is a parameter that is added to the features."""
    module = copy.deepcopy(TASK.module)
    module.load_state_dict(start.state())
    memory = memory.clone().requires_grad_()
    optimizer = torch.optim.SGD([*module.parameters(), memory], lr=lr)
    running = mean
    for batch in work.batches(k):
        own = torch.from_numpy(batch)
        features = module[:2](work.x[own])
        running = (1 - mu) * running.detach() + mu * features.mean(0)
        loss = TASK.loss(module[2](features + memory), work.y[own]).mean()
        optimizer.zero_grad()
        (loss + kappa * 0.5 * (running - mean).square().mean()).backward()
        optimizer.step()
    return Rows.from_state(TASK.layout, dict(module.named_parameters())), memory.detach()


@pytest.mark.parametrize("mu", [1.0, 0.3])
def test_rounds_by_hand(mu: float) -> None:
    made, outcome = run(FedDBE(lr=0.2, mean_weight=5.0, mean_momentum=mu), DATA, rounds=2)
    start = made.task.start
    means = []
    for k in EVERYBODY:  # the first round: as in FedAvg, but only the mean of the features is used
        model = train(made.task, work_of(DATA, round=1), k, start, lr=0.2)
        means.append(features_of(model, DATA.x[DATA.train.of(k)]).mean(0))
    mean = sum(size * one for size, one in zip(SIZES, means, strict=True)) / sum(SIZES)
    torch.testing.assert_close(outcome.server["mean"].matrix()[0], mean.detach(), rtol=1e-9, atol=1e-12)
    common, memories = start, [torch.zeros(FEATURES, dtype=torch.float64)] * 6
    for number in (2, 3):
        work, models = work_of(DATA, round=number), []
        for k in EVERYBODY:
            options = {"lr": 0.2, "kappa": 5.0, "mu": mu}
            model, memories[k] = trained(work, k, common, memories[k], mean.detach(), **options)
            models.append(model)
        common = weighted(models, SIZES)
    assert apart(outcome.server["weights"], common) < 1e-10
    found = made.store.get(EVERYBODY)["memory"]
    torch.testing.assert_close(found, torch.stack(memories), rtol=1e-9, atol=1e-11)
    assert found.norm(dim=1).min() > 1e-3
    for k in EVERYBODY:  # the global model, with the memory added to its features
        x = DATA.x[DATA.test.of(k)]
        head = common.block("head").state()
        expected = (features_of(common, x) + memories[k]) @ head["2.weight"].T + head["2.bias"]
        answers = made.task.predict(outcome.personal_rows[k : k + 1], x.unsqueeze(0))[0]
        torch.testing.assert_close(answers, expected.detach(), rtol=1e-9, atol=1e-11)


def test_momentum_of_the_mean_matters() -> None:
    one, other = (run(FedDBE(mean_weight=5.0, mean_momentum=mu), DATA)[1].server["weights"] for mu in (1.0, 0.3))
    assert apart(one, other) > 1e-5


def test_the_regularization_pulls_means_together() -> None:
    """Clients' mean features under the models that they upload lie closer to each other."""

    def spread(kappa: float) -> float:
        made, _ = run(FedDBE(lr=0.1, mean_weight=kappa), DATA, rounds=10, batch_size=100)
        round = made.federations[0].round(12, "train")
        message = made.method.message(made.server, list(EVERYBODY), round)
        work = work_of(DATA, round=12, batch_size=100, epochs=20)
        upload, _ = made.method.local_update(made.task, message, made.store.get(EVERYBODY), work, round)
        means = mean_features(made.task, upload["weights"], work)
        return float((means - made.server["mean"].matrix()).square().mean())

    assert spread(10.0) < 0.5 * spread(1e-6)


# -- its algebra


def test_a_memory_is_a_shift_of_the_bias() -> None:
    rows, memory = random_rows(TASK, 3, seed=1), torch.randn(3, FEATURES, dtype=torch.float64)
    x = DATA.x[:15].reshape(3, 5, WIDTH)
    found = TASK.predict(shifted(rows, memory), x)
    for k in range(3):
        head = rows[k : k + 1].block("head").state()
        expected = (features_of(rows[k : k + 1], x[k]) + memory[k]) @ head["2.weight"].T + head["2.bias"]
        torch.testing.assert_close(found[k], expected.detach())


def test_gradients_behind_the_shift() -> None:
    rows, memory = random_rows(TASK, 2, seed=1), torch.randn(2, FEATURES, dtype=torch.float64)
    batch = work_of(DATA, [1, 2]).plan().batch(0)
    slope = TASK.gradient(shifted(rows, memory), batch)
    for k in range(2):
        module, own = mlp().double(), memory[k].clone().requires_grad_()
        module.load_state_dict(rows[k : k + 1].state())
        loss = TASK.loss(module[2](module[:2](batch.x[k]) + own), batch.y[k]).mean()
        *expected, by_own = torch.autograd.grad(loss, [*module.parameters(), own])
        moved = (rows * 0.0).clone()
        descend_(moved, slope, memory, -1.0)
        found = moved[k : k + 1]
        for block, one in zip(found.blocks, expected, strict=True):
            torch.testing.assert_close(block[0], one)
        torch.testing.assert_close(by_memory(rows, slope)[k], by_own)


@pytest.mark.parametrize("stacked", [False, True])
def test_the_mean_of_the_features(stacked: bool) -> None:
    data = federation((300, 5), dtype=torch.float64)  # more than a sweep computes at once
    task, rows = Task(mlp, dtype=torch.float64), random_rows(TASK, 2, seed=1)
    if stacked:
        task.stack()
    found = mean_features(task, rows, work_of(data))
    for k in range(2):
        expected = features_of(rows[k : k + 1], data.x[data.train.of(k)]).mean(0)
        torch.testing.assert_close(found[k], expected.detach())


@pytest.mark.parametrize("chunk", [1, 10])
def test_a_logistic_model_in_closed_form_is_the_whole_model(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of its features is the inputs', and its steps are those of the shifted model by autograd."""
    options = {"rounds": 3, "chunk": chunk, "factory": lambda: nn.Linear(WIDTH, CLASSES)}
    made, found = run(FedDBE(lr=0.2), DATA, **options)
    means = torch.stack([DATA.x[DATA.train.of(k)].mean(0) for k in EVERYBODY])
    torch.testing.assert_close(mean_features(made.task, made.task.start, work_of(DATA)), means)
    monkeypatch.setattr(feddbe, "head_inputs", lambda *_: None)
    again, expected = run(FedDBE(lr=0.2), DATA, **options)
    torch.testing.assert_close(mean_features(made.task, made.task.start, work_of(DATA)), means)
    assert apart(found.server["weights"], expected.server["weights"]) < 1e-12
    assert apart(found.server["mean"], expected.server["mean"]) < 1e-12
    memories = (one.store.get(EVERYBODY)["memory"] for one in (made, again))
    torch.testing.assert_close(*memories)
    assert found.history[1]["gradients"] == expected.history[1]["gradients"] > 0


# -- others


def test_what_is_sent() -> None:
    """Once, every client's mean; then a model each way, and the common mean with it."""
    first, *rest = run(FedDBE(), DATA, rounds=2, participation=0.5)[1].history
    width = TASK.layout.width
    assert (first["phase"], first["trained"], first["reported"]) == ("collect", 6, 6)
    assert first["up_bytes"] == 6 * FEATURES * 8 and first["down_bytes"] == 6 * width * 8
    for one in rest:
        assert one["up_bytes"] == 3 * width * 8 and one["down_bytes"] == 3 * (width + FEATURES) * 8


def test_if_no_mean_arrives_there_is_no_regularization() -> None:
    made = simulation(FedDBE(lr=0.2), DATA, rounds=1, batch_size=100)
    alone, expected = run(FedDBE(lr=0.2, mean_weight=0.0), DATA, rounds=1, batch_size=100)
    collect, train_phase = made.method.phases(1)
    here = made.federations[0]
    usual = here.settings
    with made.open():
        here.settings = made.settings.__class__(**(vars(usual) | {"faults": Faults.of("drop:1")}))
        made.round(1, collect)
        here.settings = usual
        made.round(2, train_phase)
    assert apart(made.server["weights"], expected.server["weights"]) < 1e-12
    memories = (one.store.get(EVERYBODY)["memory"] for one in (made, alone))
    torch.testing.assert_close(*memories)


def test_a_newcomers_memory_removes_its_mean_residual() -> None:
    """With squared errors and a fixed model, the best shift of the bias is the mean of what the model misses."""
    data = federation((12, 30), targets="numbers", dtype=torch.float64)
    task = Task(lambda: nn.Linear(WIDTH, 1), "mse", dtype=torch.float64)
    rows = random_rows(task, 1, seed=3)
    method, work = FedDBE(lr=0.2), work_of(data, batch_size=100, expected_rounds=400)
    server = method.start_server(rows, START)
    served = method.newcomer(task, server, work)
    assert apart(served.block("weight"), rows.block("weight")) == 0
    for k in range(2):
        x, y = data.x[data.train.of(k)], data.y[data.train.of(k)]
        weight, _ = (block[0] for block in rows.blocks)
        torch.testing.assert_close(
            served.block("bias").matrix()[k, 0], (y - x @ weight[0]).mean(), rtol=1e-6, atol=1e-8
        )
    without = FedDBE(memory=False).newcomer(task, server, work)
    assert apart(without, rows) < 1e-12


class Squeezed(nn.Module):
    """A model whose outputs are not the head's."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) * 2.0


@pytest.mark.parametrize(
    "factory",
    [Squeezed, lambda: nn.Sequential(nn.Linear(WIDTH, 6), nn.ReLU(), nn.Linear(6, CLASSES, bias=False))],
)
def test_other_heads_are_refused(factory: type[nn.Module]) -> None:
    with pytest.raises(InputError, match="one linear layer, with a bias, of its features"):
        run(FedDBE(), DATA, factory=factory)


def test_a_model_without_a_head_is_refused() -> None:
    layout = Layout(TASK.layout.names, TASK.layout.shapes)
    with pytest.raises(InputError, match="no head"):
        FedDBE().start_clients(Rows(layout, TASK.start.blocks), ["ada"])


def test_the_mean_is_known_after_the_first_round() -> None:
    method, start = FedDBE(), TASK.start
    server = method.start_server(start, START)
    assert "mean" not in method.message(server, [0], START)
    assert method.upload(Message()).keys() == {"mean", "weights"}


@pytest.mark.parametrize(
    ("hyper", "sentence"),
    [
        ({"mean_weight": -1.0}, r"mean_weight must be >= 0, got -1.0 \(κ of feddbe\)"),
        ({"mean_momentum": 0.0}, r"mean_momentum must be in \(0, 1\], got 0.0"),
        ({"lr": 0.0}, "lr must be > 0"),
        ({"weights": "size"}, "weights must be 'examples' or 'equal'"),
    ],
)
def test_senseless_values(hyper: dict[str, float], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        FedDBE(**hyper)
