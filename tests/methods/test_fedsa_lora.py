"""FedSA-LoRA: matrices A in common, matrices B and heads of one's own."""

import logging

import pytest
import torch
from torch import nn

from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.methods import FedAvg, FedPer, FedSALoRA
from bespokefl.models import lora
from tests.federations import WIDTH, apart, federation, mlp, run, same_bits, work_of

DATA = federation(dtype=torch.float64)
THREE = federation((2, 3, 10), dtype=torch.float64)
LOCAL = ("0.lora_B", "2.weight", "2.bias")
SGD = [{}, {"momentum": 0.5, "weight_decay": 0.1}]


def adapted(unfreeze: str | tuple[()] = "2") -> nn.Module:
    return lora(mlp(), "0", rank=2, unfreeze=unfreeze)


@pytest.mark.parametrize("sgd", SGD)
def test_it_is_fedavg_with_local_b_and_head(sgd: dict[str, float]) -> None:
    options = {"factory": adapted, "rounds": 3, "participation": 0.5}
    _, found = run(FedSALoRA(lr=0.2, **sgd), DATA, **options)
    kept, expected = run(FedAvg(lr=0.2, weights="equal", **sgd), DATA, local_blocks="*lora_B, head", **options)
    assert kept.task.layout.local == LOCAL
    assert same_bits(found.personal_rows.blocks, expected.personal_rows.blocks)
    assert found.communication == expected.communication
    assert found.communication.up_bytes == 8 * 2 * WIDTH * 3 * 3  # A of three clients in three rounds


def test_without_adapters_it_is_fedper_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="bespokefl"):
        _, found = run(FedSALoRA(lr=0.2), DATA, rounds=2)
    assert "the model has no adapters, so that fedsa-lora is fedper" in caplog.messages
    _, expected = run(FedPer(lr=0.2, weights="equal"), DATA, rounds=2)
    assert same_bits(found.personal_rows, expected.personal_rows)


def test_three_clients_by_hand() -> None:
    made, outcome = run(FedSALoRA(lr=0.2), THREE, rounds=2, factory=adapted)
    models = [made.task.start] * 3
    for number in (1, 2):
        work = work_of(THREE, round=number)
        models = [train_adapted(made.task, work, k, models[k]) for k in range(3)]
        shared = Rows.cat([one.block(("0.lora_A",)) for one in models]).mean()
        models = [one.with_block(shared) for one in models]
    for k, model in enumerate(models):
        assert apart(outcome.personal_rows[[k]], model) < 1e-10
    assert outcome.global_rows is None


def train_adapted(task: Task, work: object, k: int, start: Rows) -> Rows:
    """One client's round with torch alone, all of whose columns are trained."""
    module = adapted().double()
    module.load_state_dict(task.module.state_dict() | start.state())
    optimizer = torch.optim.SGD([one for one in module.parameters() if one.requires_grad], lr=0.2)
    for batch in work.batches(k):  # type: ignore[attr-defined]
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(THREE.x[batch]), THREE.y[batch]).backward()
        optimizer.step()
    return Rows.from_state(task.layout, module.state_dict())


def test_a_newcomer_trains_b_and_head() -> None:
    made, _ = run(FedSALoRA(lr=0.2), DATA, factory=adapted)
    rows = made.method.newcomer(made.task, made.server, work_of(DATA, expected_rounds=2))
    assert same_bits(rows.block(("0.lora_A",)), made.server["shared"].expand(len(DATA)).clone())
    assert apart(rows.block(LOCAL), made.task.start.block(LOCAL)) > 1e-2


def test_the_frozen_layer_is_not_trained() -> None:
    made, _ = run(FedAvg(lr=0.2), DATA, factory=adapted)
    expected = dict(Task(adapted, dtype=torch.float64).module.named_parameters())
    for name, value in made.task.module.named_parameters():
        if name in ("0.weight", "0.bias"):
            assert torch.equal(value, expected[name])
