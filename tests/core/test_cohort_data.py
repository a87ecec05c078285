"""Batches: every epoch sees every example once, part batches count by their size, and clients do not meet."""

from dataclasses import replace
from itertools import chain, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bespokefl.core import rng
from bespokefl.core.client_index import ClientIndex
from bespokefl.core.cohort_data import Batch, BatchSchedule, CohortData
from bespokefl.core.errors import InputError
from bespokefl.core.rows import Layout, Rows
from tests.federations import BATCH, NAMES, SIZES, federation, work_of


def little(sizes: list[int], batch_size: int = BATCH, **options: object) -> CohortData:
    """Clients whose examples are numbered through: example i has x = i."""
    ends = np.cumsum([0, *sizes])
    lists = [np.arange(a, b) for a, b in pairwise(ends)]
    part = ClientIndex.of_lists(lists)
    x = torch.arange(ends[-1], dtype=torch.float64)[:, None]
    names = tuple(f"c{k}" for k in range(len(sizes)))
    return CohortData(x, x[:, 0], part, part, names, seed=0, round=1, batch_size=batch_size, **options)  # type: ignore[arg-type]


def examples(plan: BatchSchedule, row: int) -> list[list[int]]:
    """The batches that a row of the cohort sees, read from its numbered examples."""
    at = row if plan.order is None else plan.order.tolist().index(row)
    batches = [plan.batch(step) for step in range(int(plan.steps[at]))]
    return [batch.x[at, : batch.count(at), 0].tolist() for batch in batches]


def planned(work: CohortData, row: int, **options: int | str | torch.Tensor) -> list[list[int]]:
    """The same, as the work says it."""
    return [batch.tolist() for batch in work.batches(row, **options)]  # type: ignore[arg-type]


class TestPlan:
    @given(st.lists(st.integers(1, 13), min_size=1, max_size=5), st.integers(1, 6), st.integers(1, 3))
    def test_every_epoch_uses_every_example_once(self, sizes: list[int], batch_size: int, epochs: int) -> None:
        work = little(sizes, batch_size, epochs=epochs)
        plan = work.plan()
        for k, size in enumerate(sizes):
            batches = examples(plan, k)
            assert batches == planned(work, k)
            per_epoch = -(-size // batch_size)
            assert len(batches) == epochs * per_epoch
            for epoch in range(epochs):
                own = batches[epoch * per_epoch : (epoch + 1) * per_epoch]
                assert sorted(i for batch in own for i in batch) == work.train.of(k).tolist()
                assert [len(batch) for batch in own[:-1]] == [batch_size] * (per_epoch - 1)

    @given(st.lists(st.integers(1, 13), min_size=1, max_size=5), st.integers(1, 6))
    def test_batches_hold_the_planned_examples_with_weights_that_sum_to_one(
        self, sizes: list[int], batch_size: int
    ) -> None:
        work = little(sizes, batch_size)
        plan = work.plan()
        order = range(len(sizes)) if plan.order is None else plan.order.tolist()
        seen: dict[int, int] = dict.fromkeys(range(len(sizes)), 0)
        for step in range(len(plan)):
            batch = plan.batch(step)
            assert len(batch) == plan.active(step)
            for at, k in enumerate(list(order)[: plan.active(step)]):
                expected = planned(work, k)[step]
                seen[k] += 1
                width = len(expected)
                assert batch.x[at, :width, 0].tolist() == expected
                assert torch.equal(batch.x[at, :, 0], batch.y[at])
                if batch.weight is None:
                    assert batch.x.shape[1] == width
                else:
                    assert batch.weight[at, :width].tolist() == pytest.approx([1 / width] * width)
                    assert not batch.weight[at, width:].any()
                row = batch.row(at)
                assert batch.count(at) == row.count(0) == width
                assert row.x[0, :width, 0].tolist() == expected
                assert row.mean(row.y).item() == pytest.approx(np.mean(expected))
            torch.testing.assert_close(
                batch.mean(batch.y), torch.tensor([np.mean(planned(work, k)[step]) for k in list(order)[: len(batch)]])
            )
        assert seen == {k: len(planned(work, k)) for k in range(len(sizes))}

    def test_rows_with_the_most_steps_come_first(self) -> None:
        plan = little([3, 17, 8, 12, 5]).plan()  # 1, 5, 2, 3, 2 steps
        assert plan.order is not None and plan.order.tolist() == [1, 3, 2, 4, 0]
        assert plan.steps.tolist() == [5, 3, 2, 2, 1]
        assert [plan.active(step) for step in range(len(plan))] == [5, 4, 2, 1, 1]

    def test_sort_and_unsort(self) -> None:
        plan = little([3, 17, 8, 12, 5]).plan()
        values = torch.tensor([30, 170, 80, 120, 50])
        assert plan.sort(values).tolist() == [170, 120, 80, 50, 30]
        assert torch.equal(plan.unsort(plan.sort(values)), values)
        rows = Rows(Layout(("w",), ((),)), [values.double()])
        assert plan.sort(rows).matrix().flatten().tolist() == [170, 120, 80, 50, 30]
        assert torch.equal(plan.unsort(plan.sort(rows)).matrix(), rows.matrix())
        assert len(plan.sort(rows[:1])) == 1

    def test_a_sweep_uses_every_example_once_in_order(self) -> None:
        work = little([5, 0, 11, 2])
        plan = work.sweep(size=4)
        assert [list(chain(*examples(plan, k))) for k in range(4)] == [work.train.of(k).tolist() for k in range(4)]
        means = torch.zeros(4, dtype=torch.float64)
        for step in range(len(plan)):
            batch = plan.batch(step)
            means[: len(batch)] += batch.mean(batch.y)
        expected = [np.mean(work.train.of(k).numpy()) if k != 1 else 0.0 for k in range(4)]
        torch.testing.assert_close(plan.unsort(means), torch.tensor(expected, dtype=torch.float64))

    def test_weights_of_whole_numbers_are_exact(self) -> None:
        x = torch.arange(5)  # tokens
        plan = BatchSchedule.of_lists(x, x, [[np.array([0, 1, 2])], [np.array([3])]])
        weight = plan.batch(0).weight
        assert weight is not None and weight[0].sum().item() == pytest.approx(1.0, abs=1e-15)
        # A model of float64 keeps its precision, one of float32 its type.
        values = torch.tensor([[1.0, 2.0, 4.0], [8.0, 0.0, 0.0]], dtype=torch.float64)
        torch.testing.assert_close(
            plan.batch(0).mean(values), torch.tensor([7 / 3, 8.0], dtype=torch.float64), rtol=1e-15, atol=0
        )
        assert plan.batch(0).mean(values.float()).dtype == torch.float32


class TestWork:
    def test_the_same_purpose_the_same_batches(self) -> None:
        data = federation()
        a, b = work_of(data), work_of(data)
        for k in range(len(data)):
            assert planned(a, k) == planned(b, k)
            assert planned(a, k, steps=2) == planned(a, k, steps=5)[:2]
        assert planned(a, 1, purpose="other") != planned(a, 1)

    def test_batches_differ_by_round_seed_and_client(self) -> None:
        data = federation((12, 12))
        first = planned(work_of(data), 0)
        assert planned(work_of(data, round=2), 0) != first
        assert planned(work_of(data, seed=1), 0) != first
        positions = [data.train.of(k).tolist() for k in range(2)]
        drawn = [[positions[k].index(i) for i in chain(*planned(work_of(data), k))] for k in range(2)]
        assert drawn[0] != drawn[1]

    def test_a_client_draws_the_same_alone_and_in_company(self) -> None:
        data = federation()
        together = work_of(data)
        for k in range(len(data)):
            assert planned(work_of(data, [k]), 0) == planned(together, k)

    def test_the_order_is_that_of_the_clients_own_generator(self) -> None:
        data = federation()
        own = data.train.of(1).numpy()
        shuffled = own[rng.generator(0, "batches", 1, NAMES[1]).permutation(len(own))]
        expected = [shuffled[at : at + BATCH].tolist() for at in range(0, len(own), BATCH)]
        assert planned(work_of(data), 1) == expected

    def test_budgets(self) -> None:
        data = federation()
        per_epoch = [-(-size // BATCH) for size in SIZES]
        assert work_of(data).num_steps().tolist() == per_epoch
        assert work_of(data, epochs=3).num_steps().tolist() == [3 * steps for steps in per_epoch]
        assert work_of(data, steps=7).num_steps().tolist() == [7] * 6
        assert work_of(data, steps=7).num_steps(epochs=2).tolist() == [2 * steps for steps in per_epoch]
        assert [len(planned(work_of(data, steps=7), k)) for k in range(6)] == [7] * 6
        assert [len(planned(work_of(data), k, epochs=2)) for k in range(6)] == [2 * s for s in per_epoch]
        assert work_of(data).n.tolist() == list(SIZES)

    def test_steps_may_differ_from_row_to_row(self) -> None:
        work = little(list(SIZES))
        steps = torch.tensor([4, 0, 2, 9, 1, 1])
        for k, count in enumerate(steps.tolist()):
            assert len(planned(work, k, steps=steps)) == count
            assert examples(work.plan(steps=steps), k) == planned(work, k, steps=steps)
        assert len(work.plan(steps=0)) == 0

    def test_repeat_gives_rows_with_the_same_batches(self) -> None:
        data = federation()
        work = work_of(data, [1, 4])
        three = work.repeat(3)
        assert three.names == ("ben",) * 3 + ("eve",) * 3
        assert three.copies == (0, 1, 2, 0, 1, 2)
        assert three.n.tolist() == [17] * 3 + [5] * 3
        for k in range(6):
            assert planned(three, k) == planned(work, k // 3)

    def test_repeats_of_repeats_are_told_apart(self) -> None:
        six = work_of(federation(), [1]).repeat(2).repeat(3)
        assert six.names == ("ben",) * 6
        assert six.copies == (0, 1, 2, 3, 4, 5)

    def test_copies_draw_differently_clients_draw_alike(self) -> None:
        data = federation()
        layout = Layout(("a", "b"), ((2, 2), (3,)))
        like = Rows.from_matrix(layout, torch.zeros(1, 7))
        work = work_of(data, [1, 4])
        noise = work.repeat(2).normal(like, "noise").matrix()
        assert len({tuple(row) for row in noise.tolist()}) == 4
        assert torch.equal(noise[[0, 2]], work.normal(like, "noise").matrix())
        assert torch.equal(work.normal(like, "noise").matrix()[1:], work_of(data, [4]).normal(like, "noise").matrix())
        assert not torch.equal(work.normal(like, "noise").matrix(), work.normal(like, "noise", draw=1).matrix())
        assert not torch.equal(work.normal(like, "noise").matrix(), work.normal(like, "other").matrix())

    def test_noise_is_what_the_generators_of_its_rows_draw(self) -> None:
        work = work_of(federation()).repeat(2)
        drawn = work.normals("noise", [4, 1, 5], (2, 3))
        expected = [work.generator("noise", row).standard_normal((2, 3)) for row in (4, 1, 5)]
        assert np.array_equal(drawn, np.stack(expected))

    def test_quantile_noise_is_drawn_row_by_row_and_leaves_statistics_alone(self) -> None:
        layout = Layout(("a", "s", "b"), ((2, 2), (2,), (3,)), statistics=("s",))
        like, work = Rows.from_matrix(layout, torch.zeros(1, 9)), work_of(federation()).repeat(2)
        noise = work.quantile_noise(like, "noise", [4, 1, 5])
        bits = [np.frombuffer(work.generator("noise", row).bytes(18), np.uint16) for row in (4, 1, 5)]
        expected = torch.from_numpy(rng.normal_quantiles(np.float32)[np.stack(bits)])
        expected[:, layout.columns("s")] = 0.0
        assert torch.equal(noise.matrix(), expected)

    def test_noise_is_standard_normal(self) -> None:
        like = Rows.from_matrix(Layout(("a",), ((20000,),)), torch.zeros(1, 20000))
        noise = work_of(federation(), [1]).normal(like, "noise").matrix()
        # The standard error of the mean is 0.007, of the variance 0.01.
        assert abs(noise.mean()) < 0.035 and abs(noise.var() - 1) < 0.05

    def test_other_inputs_come_in_the_same_batches(self) -> None:
        data = federation()
        work = work_of(data, [4, 1, 2]).repeat(2)
        doubled = work.with_inputs(2 * data.x[work.train.indices])
        plan, other = work.plan(epochs=2, purpose="head"), doubled.plan(epochs=2, purpose="head")
        assert len(plan) == len(other) and doubled.validation.sizes.tolist() == [0] * 6
        for step in range(len(plan)):
            before, after = plan.batch(step), other.batch(step)
            assert torch.equal(2 * before.x, after.x) and torch.equal(before.y, after.y)

    def test_a_sample_is_a_random_share_without_repetition(self) -> None:
        work = little([100, 3, 1, 10])
        found = work.sampled(0.29, "part")
        assert found.n.tolist() == [29, 1, 1, 2]
        for k in range(4):
            own = found.train.of(k).tolist()
            assert own == sorted({*own}) and {*own} <= {*work.train.of(k).tolist()}
        drawn = found.train.of(0).tolist()
        assert work.sampled(0.29, "part").train.of(0).tolist() == drawn
        assert work.sampled(0.29, "other").train.of(0).tolist() != drawn
        assert replace(work, round=2).sampled(0.29, "part").train.of(0).tolist() != drawn
        assert work.take([0]).sampled(0.29, "part").train.of(0).tolist() == drawn  # alone as in company
        assert torch.equal(work.sampled(1.0, "part").train.indices, work.train.indices)

    def test_notes_are_kept(self) -> None:
        work = work_of(federation())
        work.note(loss=torch.zeros(6))
        work.note(steps=torch.ones(6))
        assert set(work.notes) == {"loss", "steps"}

    def test_nothing_to_train_on(self) -> None:
        with pytest.raises(InputError, match="client 'ben' has no training examples"):
            work_of(federation((3, 0))).plan()

    def test_there_is_no_test_data(self) -> None:
        data = federation()
        work = work_of(data)
        assert not hasattr(work, "test")
        test = set(data.test.indices.tolist())
        assert not test & {*work.train.indices.tolist(), *work.validation.indices.tolist()}


def test_a_row_of_a_batch() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    batch = Batch(x, x, weight=torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]), step=4, keys=((1,), (2,)))
    row = batch.row(0)
    assert row.x.tolist() == [[0.0, 1.0, 2.0]] and row.keys == ((1,),) and row.step == 4
    assert row.mean(row.y).tolist() == [0.5] and batch.mean(batch.y).tolist() == pytest.approx([0.5, 4.3])
    assert [batch.count(k) for k in range(2)] == [2, 3] and Batch(x, x).count(0) == 3


def test_the_mean_of_vectors_over_a_batch() -> None:
    values = torch.arange(12.0).reshape(2, 3, 2)
    weight = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])
    batch, weighted = Batch(values, values), Batch(values, values, weight=weight)
    assert torch.equal(batch.mean(values), values.mean(1))
    torch.testing.assert_close(weighted.mean(values), torch.einsum("kb,kbf->kf", weight, values))
