"""Running statistics: the same as torch's own training, one client after the other or stacked."""

import logging
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bespokefl.core.cohort_data import Batch
from bespokefl.core.errors import InputError
from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.nn import probe
from bespokefl.core.nn.heads import train_head
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.engines.protection.clipping import Privacy
from bespokefl.methods import FedAvg, FedPer, Local
from tests.core.modules import Counting
from tests.federations import CLASSES, WIDTH, apart, federation, run, same_bits, work_of

DATA = federation((3, 18, 8, 12, 6, 10), dtype=torch.float64)  # no batch of one example, with batches of 4


def dense(**options: float | bool | None) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 5), nn.BatchNorm1d(5, **options), nn.ReLU(), nn.Linear(5, CLASSES))


def conv() -> nn.Module:
    layers = [nn.Unflatten(1, (1, 2, 4)), nn.Conv2d(1, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(24, CLASSES))


def series() -> nn.Module:
    layers = [nn.Unflatten(1, (2, 4)), nn.BatchNorm1d(2), nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3, affine=False)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(6, CLASSES))


class Seen(Counting):
    """Counts examples, in a buffer that it names, and replaces it."""

    running_statistics = ("seen",)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen = self.seen + len(x)
        return self.body(x)


def instance() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (2, 4)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten(), Seen())


FACTORIES: dict[str, Callable[[], nn.Module]] = {
    "dense": dense,
    "cumulative": lambda: dense(momentum=None),
    "no bias": lambda: dense(bias=False),
    "conv": conv,
    "series": series,
    "instance": instance,
}


def by_torch(task: Task, factory: Callable[[], nn.Module], k: int, lr: float, epochs: int) -> nn.Module:
    """Client k's training with torch alone."""
    work = work_of(DATA, epochs=epochs)
    module = factory().double()
    module.load_state_dict(task.start.state(), strict=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=lr, momentum=0.9, weight_decay=0.01)
    for batch in work.batches(k):
        optimizer.zero_grad()
        F.cross_entropy(module(DATA.x[batch]), DATA.y[batch]).backward()
        optimizer.step()
    return module.eval()


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize("stacked", [False, True], ids=["plain", "stacked"])
def test_training_and_evaluation_are_torchs(name: str, stacked: bool) -> None:
    """Momentum and weight decay do not touch statistics; padding of smaller batches enters none."""
    factory = FACTORIES[name]
    task = Task(factory, dtype=torch.float64)
    probe.check(task, DATA.x[:3], DATA.y[:3], CLASSES)
    obstacle = probe.why_not_stacked(task, DATA.x[:3], DATA.y[:3])
    assert (obstacle is None) == (name != "instance"), obstacle
    if stacked and obstacle is None:
        task.stack()
    rows = local_sgd(task.gradient, task.start, work_of(DATA, epochs=3), 0.1, momentum=0.9, weight_decay=0.01)
    outputs = task.predict(rows, DATA.x[:7].expand(len(DATA), 7, WIDTH))
    for k in range(len(DATA)):
        module = by_torch(task, factory, k, lr=0.1, epochs=3)
        state = {key: value.double() for key, value in module.state_dict().items() if key in task.layout.names}
        assert state.keys() == set(task.layout.names) and len(task.layout.statistics) >= 2
        for key, value in rows[k : k + 1].state().items():
            torch.testing.assert_close(value, state[key], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(outputs[k], module(DATA.x[:7]), rtol=1e-9, atol=1e-9)


def test_a_module_that_is_tried_keeps_its_statistics() -> None:
    task = Task(dense, dtype=torch.float64)
    before = {name: value.clone() for name, value in task.module.named_buffers()}
    probe.check(task, DATA.x[:3], DATA.y[:3], CLASSES)
    task.gradient(task.start, Batch(DATA.x[None, :3], DATA.y[None, :3]))
    assert same_bits(dict(task.module.named_buffers()), before)


@pytest.mark.parametrize("stacked", [False, True], ids=["plain", "stacked"])
def test_a_batch_of_one_example_uses_the_statistics_and_keeps_them(stacked: bool) -> None:
    """Torch has no variance then, and raises; with several values per channel (images) it computes one."""
    task = Task(dense, dtype=torch.float64)
    start = task.start.with_block(task.start.block("1") + 0.5)
    if stacked:
        task.stack()
    x, y = DATA.x[:2, None], DATA.y[:2, None]
    found = task.gradient(start.expand(2), Batch(x, y))
    assert found.observed is not None
    for name, value in found.observed.items():
        assert torch.equal(value, start.expand(2).block((name,)).blocks[0])
    module = dense().double()
    module.load_state_dict(start.state(), strict=False)
    F.cross_entropy(module.eval()(x[1]), y[1]).backward()
    torch.testing.assert_close(found[1:].state()["0.weight"], module[0].weight.grad)  # type: ignore[index]
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        module.train()(x[1])


def test_clients_with_batches_of_one_example_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="bespokefl"):
        run(Local(), federation((3, 5, 9, 8)), rounds=1, factory=dense)
    assert [one for one in caplog.messages if "one example" in one] == [
        "2 clients have a batch of one example, from which batch norm cannot compute a variance: it uses the running "
        "statistics there, and leaves them unchanged"
    ]
    caplog.clear()
    run(Local(), DATA, rounds=1, factory=dense)
    run(Local(), federation((3, 5)), rounds=1, factory=conv)
    assert not any("one example" in one for one in caplog.messages)


def test_frozen_columns_are_normalized_by_their_statistics() -> None:
    """A frozen base is a constant, whose features may be computed once; gradients of the head agree with that."""
    task = Task(dense, dtype=torch.float64)
    start = task.start.with_block(task.start.block("1") + 0.5)
    work = work_of(DATA, epochs=2)
    whole = local_sgd(task.gradient, start, work, 0.1, frozen="base")
    assert same_bits(whole.block("base"), start.block("base").expand(len(DATA)).clone())
    head = train_head(task, start.block("base"), start.block("head"), work, 0.1)
    assert apart(head, whole.block("head")) < 1e-10


def test_statistics_of_clients_that_are_done_stay() -> None:
    task = Task(dense, dtype=torch.float64)

    def stop(rows: Rows, batch: Batch) -> Tensor:
        return torch.tensor([True, *[False] * (len(rows) - 1)])

    rows = local_sgd(task.gradient, task.start, work_of(DATA, epochs=2), 0.1, stop=stop)
    largest = int(DATA.train.sizes.argmax())  # is the first in the schedule
    once = local_sgd(task.gradient, task.start, work_of(DATA), 0.1, steps=torch.ones(len(DATA), dtype=torch.int64))
    assert apart(rows[[largest]], once[[largest]]) < 1e-12


def test_a_layer_of_ones_own() -> None:
    """Names its buffer, which then counts the examples of each client."""
    task = Task(Seen, dtype=torch.float64)
    probe.check(task, DATA.x[:3], DATA.y[:3], CLASSES)
    assert task.layout.statistics == ("seen",)
    rows = local_sgd(task.gradient, task.start, work_of(DATA, epochs=2), 0.1)
    assert torch.equal(rows.block(("seen",)).blocks[0], 2 * DATA.train.sizes.double())


def test_norm_layers_are_known() -> None:
    task = Task(lambda: nn.Sequential(nn.Linear(WIDTH, 4), nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.Linear(4, CLASSES)))
    assert task.layout.norm == ("1.weight", "1.bias", "2.weight", "2.bias") and not task.layout.statistics
    task = Task(dense)
    assert set(task.layout.norm) == {"1.weight", "1.bias", "1.running_mean", "1.running_var"}


def test_noise_refuses_running_statistics() -> None:
    """Which FedPer with a head of all layers but the first would not upload."""
    start = Task(dense).start
    with pytest.raises(InputError, match=r"fedavg uploads running statistics \(1.running_mean, 1.running_var\)"):
        Privacy(1.0, 0.5).check(FedAvg(), start)
    Privacy(1.0).check(FedAvg(), start)
    Privacy(1.0, 0.5).check(FedPer(), Task(lambda: nn.Sequential(nn.Linear(WIDTH, 5), dense()), head="1").start)
