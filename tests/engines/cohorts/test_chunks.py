"""The executor follows from model and work alone, and cohorts are cut the same whatever order they come in."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from bespokefl.core.client_index import ClientIndex
from bespokefl.core.nn import probe
from bespokefl.core.task import Task
from bespokefl.engines.client import Data
from bespokefl.engines.cohorts import chunks
from tests.core.modules import Branch, Dropped, Item, conv, inputs
from tests.devices import CheckedDevice
from tests.federations import CLASSES, mlp

X, Y = inputs("mlp", 3, dtype=torch.float32), torch.tensor([0, 1, 2])


def choose(
    factory: Callable[[], nn.Module], x: torch.Tensor = X, *, batch_size: int = 10, chunk: int | None = None
) -> chunks.Executor:
    task = Task(factory)
    probe.check(task, x, Y, CLASSES)
    return chunks.choose(task, x, Y, batch_size=batch_size, chunk=chunk)


def test_small_models_are_stacked() -> None:
    executor = choose(mlp)
    assert executor.stacked and executor.chunk > 1
    assert "small steps" in executor.reason


def test_the_choice_is_always_the_same() -> None:
    assert len({choose(mlp) for _ in range(5)}) == 1
    assert len({choose(mlp, chunk=7) for _ in range(5)}) == 1


def test_convolutions_are_not_stacked_unless_asked() -> None:
    images = inputs("conv", 3, dtype=torch.float32)
    assert choose(conv, images) == chunks.Executor(
        1, False, "the model has Conv2d layers, which stacking does not speed up"
    )
    assert choose(conv, images, chunk=3) == chunks.Executor(3, True, "chunk 3 was asked for")


def test_large_steps_are_not_stacked() -> None:
    def wide() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 3000), nn.ReLU(), nn.Linear(3000, CLASSES))

    assert choose(wide, batch_size=10).stacked
    executor = choose(wide, batch_size=100_000)
    assert not executor.stacked and "large enough by itself" in executor.reason


def test_one_is_plain() -> None:
    assert choose(mlp, chunk=1) == chunks.Executor(1, False, "chunk 1 was asked for")


def test_as_many_clients_are_scored_at_once_as_make_some_work() -> None:
    def linear(width: int) -> Task:
        return Task(lambda: nn.Linear(width, 2, bias=False))

    def clients(count: int, examples: int, width: int) -> Data:
        part = ClientIndex.of_lists([np.zeros(examples, np.int64)] * count)
        empty = ClientIndex.of_lists([np.zeros(0, np.int64)] * count)
        return Data(torch.zeros(1, width), torch.zeros(1), tuple(map(str, range(count))), part, empty, part)

    # 2 x 10 examples of 2,000 weights: 200 million multiply-adds are 5,000 clients, but they hold 22,000 numbers each.
    assert chunks.to_score(linear(1000), clients(3, 10, 1000)) == 32_000_000 // 22_000
    assert chunks.to_score(linear(10), clients(3, 1000, 10)) == 32_000_000 // 20_020
    assert chunks.to_score(linear(100_000), clients(1, 0, 100_000)) == 32_000_000 // 300_000
    assert chunks.to_score(linear(100), clients(2, 100_000, 100)) == 8  # never fewer
    assert chunks.to_score(linear(4), clients(3, 1, 4)) == chunks.MOST_SCORED  # whose models take some memory, too
    images = clients(2, 1000, 64)
    assert chunks.to_score(Task(conv), images) < chunks.to_score(linear(Task(conv).layout.width // 2), images)


@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize(
    ("factory", "why"),
    [(Item, "vmap failed"), (Branch, "vmap failed"), (Dropped, "draws random numbers")],
)
def test_what_cannot_be_stacked_runs_plain_and_says_why(
    factory: Callable[[], nn.Module], why: str, chunk: int | None
) -> None:
    executor = choose(factory, chunk=chunk)
    assert (executor.chunk, executor.stacked) == (1, False)
    assert executor.reason.startswith("the model cannot be stacked: ") and why in executor.reason


clients_and_sizes = st.lists(st.integers(1, 500), min_size=1, max_size=40).flatmap(
    lambda sizes: st.tuples(
        st.just(sizes), st.lists(st.sampled_from(range(len(sizes))), min_size=1, unique=True), st.integers(1, 50)
    )
)


@given(clients_and_sizes, st.randoms())
def test_cutting(case: tuple[list[int], list[int], int], shuffle: object) -> None:
    sizes, clients, chunk = case
    parts = chunks.cut(clients, sizes, chunk)
    flat = [client for part in parts for client in part]
    assert sorted(flat) == sorted(clients)
    assert all(1 <= len(part) <= chunk for part in parts)
    assert [sizes[client] for client in flat] == sorted((sizes[client] for client in clients), reverse=True)
    assert len(parts) >= min(2, len(clients))
    again = list(clients)
    shuffle.shuffle(again)  # type: ignore[attr-defined]
    assert chunks.cut(again, sizes, chunk) == parts


@pytest.mark.parametrize("count", [30, 60, 100, 150])
def test_equal_clients_are_cut_so_that_two_workers_end_at_about_the_same_time(count: int) -> None:
    """Chunks of at most 13: thirty clients as three chunks would give one worker twice as much as the other."""
    ends = [0, 0]
    for part in chunks.cut(range(count), [100] * count, 13):  # the next chunk goes to the worker that is free first
        ends[ends.index(min(ends))] += len(part)
    assert max(ends) <= count / 2 / 0.9


def test_chunks_that_keep_two_workers_busy_stay_as_few_as_possible() -> None:
    assert [len(part) for part in chunks.cut(range(52), [100] * 52, 13)] == [13] * 4
    assert [len(part) for part in chunks.cut(range(3), [100] * 3, 13)] == [2, 1]
    giant = [1000, *[1] * 40]  # no cut helps
    assert len(chunks.cut(range(41), giant, 13)) == len(chunks._pieces(range(41), giant, 13, 4))


def test_on_a_gpu_convolutions_and_large_steps_are_stacked_too() -> None:
    """By the kind of device alone. The chunk is what fits: 32 million numbers, of which images need more."""

    def wide() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 3000), nn.ReLU(), nn.Linear(3000, CLASSES))

    with CheckedDevice():

        def on_device(factory: Callable[[], nn.Module], x: torch.Tensor, **options: int) -> chunks.Executor:
            task, labels = Task(factory, device="meta"), Y.to("meta")
            probe.check(task, x.to("meta"), labels, CLASSES)
            return chunks.choose(task, x.to("meta"), labels, **{"batch_size": 10} | options)

        images = inputs("conv", 3, dtype=torch.float32)
        expected = "steps on a device of kind meta are stacked"
        assert on_device(conv, images) == chunks.Executor(chunks.ROWS[1], True, expected)
        assert on_device(mlp, X) == chunks.Executor(chunks.ROWS[1], True, expected)
        assert on_device(wide, X).chunk == 32_000_000 // (8 * 3000 + 3000 + 3000 * CLASSES + CLASSES + 10 * 8)
        assert on_device(wide, X, batch_size=1_000_000) == chunks.Executor(
            1, False, "steps on a device of kind meta are large enough by themselves"
        )
        assert on_device(conv, images, chunk=1).chunk == 1
        assert "cannot be stacked" in on_device(Item, X).reason
