"""FedPer: a common base, heads of one's own."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from bespokefl.core import rng
from bespokefl.core.errors import InputError
from bespokefl.core.rows import Layout, Rows
from bespokefl.core.task import Task
from bespokefl.methods import FedAvg, FedPer, Local
from tests.federations import CLASSES, SIZES, WIDTH, apart, federation, mlp, run, same_bits, simulation, work_of
from tests.methods.plain_sgd import train, weighted

pytestmark = pytest.mark.slow  # `make check` is to stay under two minutes

DATA = federation(dtype=torch.float64)
EVERYBODY = list(range(len(DATA)))
SGD = [{}, {"momentum": 0.5, "weight_decay": 0.1}]
BASE, HEAD = 6 * WIDTH + 6, CLASSES * 6 + CLASSES  # numbers in tests.federations.mlp


class AllBase(nn.Module):
    """A model whose head has no columns."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = mlp(), nn.Parameter(torch.zeros(0))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def all_head() -> nn.Module:
    return nn.Linear(WIDTH, CLASSES)


# -- limits


@pytest.mark.parametrize("sgd", SGD)
@pytest.mark.parametrize("weights", ["examples", "equal"])
def test_with_an_empty_head_it_is_fedavg(weights: str, sgd: dict[str, float]) -> None:
    options = {"factory": AllBase, "rounds": 3, "participation": 0.5}
    made, found = run(FedPer(lr=0.2, weights=weights, **sgd), DATA, **options)
    _, expected = run(FedAvg(lr=0.2, weights=weights, **sgd), DATA, **options)
    assert made.task.layout.head == ("head",) and made.task.layout.only(["head"]).width == 0
    assert apart(found.personal_rows, expected.personal_rows) < 1e-12
    assert found.communication == expected.communication
    assert apart(found.personal_rows, made.task.start) > 1e-2


@pytest.mark.parametrize("sgd", SGD)
def test_a_model_that_is_all_head_is_local(sgd: dict[str, float]) -> None:
    options = {"factory": all_head, "rounds": 3, "participation": 0.5}
    made, found = run(FedPer(lr=0.2, **sgd), DATA, **options)
    alone, expected = run(Local(lr=0.2, **sgd), DATA, **options)
    assert same_bits(found.personal_rows, expected.personal_rows)
    assert found.communication.up_bytes == found.communication.down_bytes == 0
    work = work_of(DATA, expected_rounds=3)
    served = made.method.newcomer(made.task, made.server, work)
    assert same_bits(served, alone.method.newcomer(alone.task, alone.server, work))


def test_a_model_without_a_head_is_refused() -> None:
    """It would be FedAvg without anybody knowing."""
    made = simulation(FedPer(), DATA)
    layout = Layout(made.task.layout.names, made.task.layout.shapes)
    with pytest.raises(InputError, match="no head"):
        made.method.start_clients(Rows(layout, made.task.start.blocks), ["ada"])


def test_equal_clients_are_fedavg() -> None:
    """With the same data and full batches the heads never part, so averaging them changes nothing."""
    one = federation((9,), dtype=torch.float64)
    names = ("ada", "ben", "cleo")
    parts = {part: getattr(one, part).take([0, 0, 0]) for part in ("train", "validation", "test")}
    same = replace(one, names=names, **parts)
    options = {"rounds": 3, "batch_size": 100, "local_epochs": 2}
    _, found = run(FedPer(lr=0.2), same, **options)
    _, expected = run(FedAvg(lr=0.2), same, **options)
    assert apart(found.personal_rows, expected.personal_rows) < 1e-12


# -- by hand


@pytest.mark.parametrize("sgd", SGD)
@pytest.mark.parametrize(("weights", "numbers"), [("examples", SIZES), ("equal", (1,) * 6)])
def test_rounds_by_hand(weights: str, numbers: tuple[int, ...], sgd: dict[str, float]) -> None:
    """Base and head in one descent; who is not drawn keeps its head and uses the newest base under it."""
    made, outcome = run(FedPer(lr=0.2, weights=weights, **sgd), DATA, rounds=3, participation=0.5)
    base, heads = made.task.start.block("base"), [made.task.start.block("head")] * 6
    for number in (1, 2, 3):
        drawn = rng.sample(6, 0.5, 0, "cohort", number).tolist()
        work = work_of(DATA, round=number)
        sent = []
        for k in drawn:
            begin = made.task.start.with_block(base).with_block(heads[k])
            trained = train(made.task, work, k, begin, lr=0.2, **sgd)
            sent.append(trained.block("base"))
            heads[k] = trained.block("head")
        base = weighted(sent, [numbers[k] for k in drawn])
    assert apart(outcome.server["base"], base) < 1e-10
    for k in EVERYBODY:
        own = outcome.personal_rows[k : k + 1]
        assert apart(own.block("head"), heads[k]) < 1e-10
        assert same_bits(own.block("base"), outcome.server["base"])
    assert apart(heads[0], heads[1]) > 1e-3


# -- what is sent, what comes out


def test_heads_never_leave_their_clients() -> None:
    made = simulation(FedPer(), DATA)
    head = set(made.task.layout.head)
    round = made.federations[0].round(1, "train")
    message = made.method.message(made.server, EVERYBODY, round)
    upload, _ = made.method.local_update(made.task, message, made.store.get(EVERYBODY), work_of(DATA), round)
    for values in (upload, message.shared, message.own, made.server):
        for rows in values.values():
            assert not head & set(rows.layout.names)
    line = run(FedPer(), DATA, rounds=2, participation=0.5)[1].history[-1]
    assert line["up_bytes"] == line["down_bytes"] == 3 * BASE * 8
    assert made.task.layout.width == BASE + HEAD


def test_there_is_no_common_model() -> None:
    assert run(FedPer(), DATA)[1].global_rows is None


@pytest.mark.parametrize("sgd", SGD)
def test_a_newcomer_trains_a_new_head_on_the_common_base(sgd: dict[str, float]) -> None:
    """From everybody's first head, with the base as constant features, as long as others trained."""
    made, _ = run(FedPer(lr=0.2, **sgd), DATA, rounds=2)
    work = work_of(DATA, round=3, expected_rounds=3)
    served = made.method.newcomer(made.task, made.server, work)
    alone = Task(lambda: nn.Linear(6, CLASSES), dtype=torch.float64)
    first = Rows(alone.layout, made.task.start.block("head").blocks)
    base = made.server["base"].state()
    features = torch.relu(DATA.x @ base["0.weight"].T + base["0.bias"])
    for k in EVERYBODY:
        long = work_of(replace(DATA, x=features), [k], round=3, epochs=3)
        expected = train(alone, long, 0, first, lr=0.2, **sgd)
        own = served[k : k + 1]
        assert same_bits(own.block("base"), made.server["base"])
        assert apart(Rows(alone.layout, own.block("head").blocks), expected) < 1e-10


@pytest.mark.parametrize("hyper", [{"lr": 0.0}, {"momentum": 1.0}, {"weight_decay": -1.0}, {"weights": "size"}])
def test_what_makes_no_sense_is_refused(hyper: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(hyper))):
        FedPer(**hyper)
