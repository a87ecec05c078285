"""Columns that stay with each client, for every method that uploads a model."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from bespokefl.core.blocks.local import STATE, KeepLocal, keep_local
from bespokefl.core.blocks.matching import matching
from bespokefl.core.errors import InputError
from bespokefl.core.method import Message, Method, Update
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.engines.simulation import Simulation
from bespokefl.methods import REGISTRY, FedAvg, FedBN, FedPer, FedProx, Local, PFedVEM, UCFLParallel
from tests.contract.conftest import params, quick
from tests.contract.probes import PROBES
from tests.contract.test_batch_norm import off_zero
from tests.contract.test_methods import (
    ALONE,
    DOUBLE,
    EVERYBODY,
    HALF,
    MIXED,
    NEWCOMERS,
    SINGLE,
    result,
    rounds_of,
)
from tests.federations import CLASSES, WIDTH, apart, run, same_bits, simulation, work_of

SGD = [{}, {"momentum": 0.5, "weight_decay": 0.1}]
NOT_KEPT = {"ucfl-parallel", "fedbn", "local"}  # clients train several models at once, or share no norm anyway
OPTIONS = {"start": off_zero}


def normed() -> nn.Module:
    """As in `test_batch_norm`, so that its start fits."""
    return nn.Sequential(nn.Linear(WIDTH, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, CLASSES))


def served(made: Simulation) -> Rows:
    """Models of newcomers."""
    data = work_of(replace(DOUBLE, names=NEWCOMERS), expected_rounds=2)
    return made.side.method.newcomer(made.task, made.server, data).expand(len(data))


@pytest.fixture(params=params(name for name in REGISTRY if name not in NOT_KEPT))
def method(request: pytest.FixtureRequest) -> Method:
    return quick(REGISTRY[request.param])


# -- limits


@pytest.mark.parametrize("sgd", SGD)
def test_fedper_is_fedavg_with_a_local_head(sgd: dict[str, float]) -> None:
    for options in ({"participation": 0.5, "rounds": 3}, {"rounds": 2, "chunk": 3}):
        kept, found = run(FedAvg(lr=0.1, **sgd), DOUBLE, local_blocks="head", **options)
        made, expected = run(FedPer(lr=0.1, **sgd), DOUBLE, **options)
        assert same_bits(found.personal_rows.blocks, expected.personal_rows.blocks)
        assert found.communication == expected.communication
        assert same_bits(kept.server["weights"].blocks, made.server["base"].blocks)
        assert apart(served(kept), served(made)) < 1e-10
        assert found.global_rows is None


@pytest.mark.parametrize("sgd", SGD)
def test_fedbn_is_fedavg_with_local_norm(sgd: dict[str, float]) -> None:
    for options in ({"participation": 0.5, "rounds": 3}, {"rounds": 2, "chunk": 3}):
        options |= {"factory": normed} | OPTIONS
        kept, found = run(FedAvg(lr=0.1, weights="equal", **sgd), DOUBLE, local_blocks="norm", **options)
        made, expected = run(FedBN(lr=0.1, **sgd), DOUBLE, **options)
        assert same_bits(found.personal_rows.blocks, expected.personal_rows.blocks)
        assert found.communication == expected.communication
        assert same_bits(served(kept).blocks, served(made).blocks)
        assert apart(found.personal_rows, run(FedAvg(lr=0.1, **sgd), DOUBLE, **options)[1].personal_rows) > 1e-3


def test_what_stays_local_never_reaches_the_server() -> None:
    """Nor do lengths that the server or a client computes count it."""
    made, outcome = run(FedProx(lr=0.1), DOUBLE, local_blocks="norm", factory=normed, **HALF)
    kept = {"1.weight", "1.bias", "1.running_mean", "1.running_var"}
    assert set(made.server["weights"].layout.names) == set(made.task.layout.names) - kept
    width = made.task.layout.width - 20
    assert outcome.history[0]["up_bytes"] == 8 * width * outcome.history[0]["reported"]
    rows = made.task.start
    far = rows.with_block(rows.block("1") + 100.0)
    assert torch.equal(rows.square_norm(), far.square_norm()) and rows.measured().layout.width == width


def test_clients_that_did_not_train_keep_theirs() -> None:
    made, _ = run(FedAvg(lr=0.1), DOUBLE, local_blocks="norm", factory=normed, participation=0.5, rounds=1)
    own: Rows = made.store.get(EVERYBODY)[STATE + "weights"]
    moved = (own - made.task.start.block(own.layout.names)).matrix().norm(dim=1) > 0
    assert moved.sum() == 3


# -- every method


def test_chunks_do_not_matter(method: Method) -> None:
    made = simulation(method, DOUBLE, local_blocks="norm", factory=normed, **HALF, **OPTIONS)
    kept = made.side.method
    assert isinstance(kept, KeepLocal)
    with made.open():
        for number, phase in rounds_of(method):
            round = made.federations[0].round(number, phase.name, tuple(EVERYBODY))
            models = []
            for stacked, cut in ((False, ALONE), (True, MIXED)):
                made.task.stacked = False
                if stacked:
                    made.task.stack()
                parts = [(kept.message(made.server, part, round), made.store.get(part), list(part)) for part in cut]
                replies = [made.side.train(part, message, state, round) for message, state, part in parts]
                back = torch.argsort(torch.tensor([client for part in cut for client in part]))
                rows = [made.side.personal(part, message, state, round.number) for message, state, part in parts]
                models.append(Rows.cat([one.expand(len(part)) for one, part in zip(rows, cut, strict=True)])[back])
                for reply in replies:
                    uploaded = [value for value in reply.upload.values() if isinstance(value, Rows)]
                    assert not any("1.running_var" in value.layout.names for value in uploaded)
            assert apart(models[1], models[0]) < 1e-10
            made.round(number, phase)
    outcome = made.run()
    assert outcome.personal_rows.finite().all() and outcome.personal_rows.layout == made.task.layout


def test_workers_change_no_bit_and_newcomers_are_served(method: Method) -> None:
    options = {"local_blocks": "norm", "factory": normed, "chunk": 2} | HALF | OPTIONS
    made, outcome = run(method, SINGLE, **options)
    found = result(*run(method, SINGLE, workers=2, **options))
    assert same_bits(found, result(made, outcome))
    kept = keep_local(method, made.task.layout)
    assert kept.name == method.name and kept.hyper() == method.hyper()
    data = replace(SINGLE, names=NEWCOMERS)
    rows = kept.newcomer(made.task, made.server, work_of(data, expected_rounds=2))
    assert len(rows) == len(SINGLE) and rows.finite().all() and rows.layout == made.task.layout
    assert apart(rows.block("1"), made.task.start.block("1")) > 1e-3


# -- which columns


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Linear(WIDTH, 4), nn.GroupNorm(2, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.stem(x))
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ("head", {"head.weight", "head.bias"}),
        ("norm", {"norm.weight", "norm.bias"}),
        ("biases", {"stem.bias", "norm.bias", "layers.0.bias", "layers.1.bias", "head.bias"}),
        ("layers.1, stem.bias", {"layers.1.weight", "layers.1.bias", "stem.bias"}),
        ("layers.[1-9].*", {"layers.1.weight", "layers.1.bias"}),
        ("", set()),
    ],
)
def test_blocks_are_named(blocks: str, expected: set[str]) -> None:
    assert set(matching(Task(Blocks).layout, blocks)) == expected


@pytest.mark.parametrize(
    ("blocks", "sentence"),
    [
        ("adapters", "local_blocks names adapters, but the model has no adapters; it has stem.weight"),
        ("*.wieght", r"no column of the model matches '\*.wieght' \(local_blocks\)"),
        ("laers", "the model has no parameters named 'laers'"),
        ("base, head", "are all columns of the model: nothing would be shared; use local"),
    ],
)
def test_blocks_that_do_not_fit(blocks: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Task(Blocks, local_blocks=blocks)


def test_without_blocks_a_method_is_itself() -> None:
    method = FedAvg()
    assert keep_local(method, Task(Blocks).layout) is method
    kept = keep_local(method, Task(Blocks, local_blocks="head").layout)
    assert keep_local(kept, Task(Blocks, local_blocks="head").layout) is kept


# -- methods that do not fit


def test_methods_that_cannot_keep_columns() -> None:
    head = {"local_blocks": "head"}
    with pytest.raises(InputError, match="ucfl-parallel sends several models to each client at once"):
        run(UCFLParallel(streams=2), DOUBLE, **head)
    with pytest.raises(InputError, match=r"fedper shares none of 2\.weight, 2\.bias: leave local_blocks out"):
        run(FedPer(), DOUBLE, **head)
    with pytest.raises(InputError, match="the model has no head"):
        run(PFedVEM(), DOUBLE, **head)

    class Undeclared(FedAvg):
        name = "undeclared"

        def local_update(self, *given: Any) -> Update:
            return super().local_update(*given)

        def upload(self, message: Message) -> Any:
            return None

    with pytest.raises(InputError, match="needs a method that declares its uploads, which undeclared does not"):
        run(Undeclared(), DOUBLE, **head)
    assert simulation(Local(), DOUBLE, **head).method == Local()  # which shares nothing anyway


def test_probes() -> None:
    """A method that reads the interface in other ways: all train and a sample reports, phases without uploads."""
    for name in ("listening", "ending", "two-passes"):
        made, outcome = run(PROBES[name](), DOUBLE, local_blocks="0.bias", **HALF)
        assert outcome.personal_rows.finite().all()
        assert "0.bias" not in made.server["weights"].layout.names


def test_functions_are_those_of_the_method() -> None:
    method = quick(REGISTRY["selffl"])
    kept = keep_local(method, Task(Blocks, local_blocks="head").layout)
    assert kept.phases(3) == method.phases(3) and kept.needs_groups == method.needs_groups
    bounded = kept.within_budget()
    assert isinstance(bounded, KeepLocal) and bounded.method == method.within_budget()
