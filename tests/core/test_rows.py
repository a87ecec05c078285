"""Rows behave as the (K, D) matrix they stand for; `RunningVariance` as the variance of the values it was given."""

import operator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bespokefl.core.errors import InputError
from bespokefl.core.rows import Layout, Rows, RunningVariance

# A layer, a single number (a learnt temperature, say), and a head.
LAYOUT = Layout(
    names=("body.weight", "body.bias", "scale", "top.weight"),
    shapes=((2, 3), (2,), (), (3, 2)),
    head=("top.weight",),
)
WIDTH = 6 + 2 + 1 + 6


def draw(count: int, seed: int = 0) -> tuple[Rows, torch.Tensor]:
    matrix = torch.from_numpy(np.random.default_rng(seed).standard_normal((count, WIDTH)))
    return Rows.from_matrix(LAYOUT, matrix), matrix


class TestLayout:
    def test_columns_are_where_the_matrix_has_them(self) -> None:
        rows, matrix = draw(3)
        assert LAYOUT.width == WIDTH
        assert LAYOUT.sizes == (6, 2, 1, 6)
        for name, block in zip(LAYOUT.names, rows.blocks, strict=True):
            torch.testing.assert_close(matrix[:, LAYOUT.columns(name)], block.reshape(3, -1))

    def test_blocks(self) -> None:
        assert LAYOUT.block("head") == ("top.weight",)
        assert LAYOUT.block("base") == ("body.weight", "body.bias", "scale")
        assert LAYOUT.block("body") == ("body.weight", "body.bias")
        assert LAYOUT.block("body.bias") == ("body.bias",)

    def test_a_prefix_is_a_whole_name(self) -> None:
        with pytest.raises(InputError, match="no parameters named 'bod'"):
            LAYOUT.block("bod")

    def test_a_missing_head_is_refused(self) -> None:
        with pytest.raises(InputError, match="no head"):
            Layout(("a",), ((1,),)).block("head")

    def test_only_keeps_order_and_head(self) -> None:
        assert LAYOUT.only(["top.weight", "scale"]) == Layout(("scale", "top.weight"), ((), (3, 2)), ("top.weight",))


class TestArithmetic:
    @given(
        seed=st.integers(0, 2**32 - 1),
        counts=st.sampled_from([(1, 1), (4, 4), (4, 1), (1, 4)]),
        operation=st.sampled_from([operator.add, operator.sub, operator.mul, operator.truediv]),
    )
    def test_rows_with_rows(self, seed: int, counts: tuple[int, int], operation) -> None:  # type: ignore[no-untyped-def]
        (a, matrix_a), (b, matrix_b) = draw(counts[0], seed), draw(counts[1], seed + 1)
        torch.testing.assert_close(operation(a, b).matrix(), operation(matrix_a, matrix_b))

    @pytest.mark.parametrize("counts", [(1, 1), (4, 4), (4, 1), (1, 4)])
    def test_sums_in_one_pass(self, counts: tuple[int, int]) -> None:
        (a, matrix_a), (b, matrix_b) = draw(counts[0]), draw(counts[1], 1)
        each = torch.linspace(-0.5, 1.5, max(counts), dtype=torch.float64)
        for factor in (0.3, each):
            column = factor if isinstance(factor, float) else factor.to(matrix_a.dtype)[:, None]
            torch.testing.assert_close(a.plus(b, factor).matrix(), matrix_a + column * matrix_b)
            torch.testing.assert_close(a.toward(b, factor).matrix(), (1 - column) * matrix_a + column * matrix_b)
            assert len(a.plus(b, factor)) == len(a.toward(b, factor)) == max(counts)
        assert torch.equal(a.toward(b, 0.0).matrix(), a.expand(max(counts)).matrix())
        assert torch.equal(a.toward(b, 1.0).matrix(), b.expand(max(counts)).matrix())

    @given(
        number=st.floats(-3, 3).filter(lambda x: abs(x) > 1e-3),
        operation=st.sampled_from([operator.add, operator.sub, operator.mul, operator.truediv]),
        kind=st.sampled_from([float, torch.tensor, np.float64]),
    )
    def test_rows_with_a_number(self, number: float, operation, kind) -> None:  # type: ignore[no-untyped-def]
        rows, matrix = draw(3)
        torch.testing.assert_close(operation(rows, kind(number)).matrix(), operation(matrix, float(kind(number))))

    @pytest.mark.parametrize("kind", [float, torch.tensor, np.float32])
    def test_a_number_with_rows(self, kind) -> None:  # type: ignore[no-untyped-def]
        rows, matrix = draw(3)
        torch.testing.assert_close((kind(0.5) + rows).matrix(), 0.5 + matrix)
        torch.testing.assert_close((kind(0.5) - rows).matrix(), 0.5 - matrix)
        torch.testing.assert_close((kind(0.5) * rows).matrix(), 0.5 * matrix)

    @pytest.mark.parametrize("operation", [operator.add, operator.sub, operator.mul])
    def test_one_number_per_row(self, operation) -> None:  # type: ignore[no-untyped-def]
        rows, matrix = draw(3)
        values = torch.tensor([0.5, -2.0, 3.0])
        torch.testing.assert_close(operation(rows, values).matrix(), operation(matrix, values.double()[:, None]))
        torch.testing.assert_close(operation(values, rows).matrix(), operation(values.double()[:, None], matrix))

    def test_one_row_and_a_number_per_client(self) -> None:
        rows, matrix = draw(1)
        values = torch.tensor([0.5, -2.0, 3.0])
        torch.testing.assert_close((rows * values).matrix(), matrix * values.double()[:, None])

    def test_negation_and_map(self) -> None:
        rows, matrix = draw(3)
        torch.testing.assert_close((-rows).matrix(), -matrix)
        torch.testing.assert_close(rows.map(torch.exp).matrix(), matrix.exp())

    def test_rows_of_different_cohorts_are_refused(self) -> None:
        with pytest.raises(ValueError, match="rows of 3 and 2 clients"):
            draw(3)[0] + draw(2)[0]

    @given(seed=st.integers(0, 2**32 - 1), out=st.integers(1, 4), count=st.integers(1, 5))
    def test_mixing(self, seed: int, out: int, count: int) -> None:
        rows, matrix = draw(count, seed)
        weights = np.random.default_rng(seed).random((out, count))
        torch.testing.assert_close((torch.from_numpy(weights) @ rows).matrix(), torch.from_numpy(weights) @ matrix)
        torch.testing.assert_close((weights @ rows).matrix(), torch.from_numpy(weights) @ matrix)

    def test_nothing_is_changed(self) -> None:
        rows, matrix = draw(3)
        other = draw(3, 1)[0]
        _ = rows + other, rows - 1.0, rows * torch.ones(3), rows / 2, -rows, torch.eye(3) @ rows
        _ = rows.replace([0], other[:1]), rows.with_block(other.block("head")), rows.mean()
        assert torch.equal(rows.matrix(), matrix)


class TestSums:
    def test_mean(self) -> None:
        rows, matrix = draw(3)
        torch.testing.assert_close(rows.mean().matrix(), (matrix[0] + matrix[1] + matrix[2])[None] / 3)
        expected = (1 * matrix[0] + 2 * matrix[1] + 5 * matrix[2])[None] / 8
        torch.testing.assert_close(rows.mean(torch.tensor([1, 2, 5])).matrix(), expected)

    def test_products_and_norms(self) -> None:
        (a, matrix_a), (b, matrix_b) = draw(4), draw(4, 1)
        torch.testing.assert_close(a.dot(b), (matrix_a * matrix_b).sum(1))
        torch.testing.assert_close(a.dot(b[:1]), matrix_a @ matrix_b[0])
        torch.testing.assert_close(a.square_norm(), matrix_a.square().sum(1))

    def test_distances(self) -> None:
        rows, matrix = draw(4)
        torch.testing.assert_close(rows.square_distances(), torch.cdist(matrix, matrix).square())

    def test_distances_of_near_rows_do_not_cancel(self) -> None:
        rows, _ = draw(1)
        far = rows.to(dtype=torch.float32) + 1000.0
        near = Rows.cat([far, far + 0.5])
        # ‖0.5 · 1‖² = 0.25 · WIDTH; ‖a‖² + ‖b‖² − 2⟨a, b⟩ in float32 would be off by more than that.
        torch.testing.assert_close(near.square_distances()[0, 1].item(), 0.25 * WIDTH, rtol=1e-3, atol=0)

    def test_finite(self) -> None:
        _, matrix = draw(4)
        matrix[1, LAYOUT.columns("scale")] = torch.nan
        matrix[3, LAYOUT.columns("top.weight").start] = -torch.inf
        assert Rows.from_matrix(LAYOUT, matrix).finite().tolist() == [True, False, True, False]


class TestShape:
    def test_some_rows(self) -> None:
        rows, matrix = draw(4)
        assert torch.equal(rows[1:3].matrix(), matrix[1:3])
        assert torch.equal(rows[[3, 0]].matrix(), matrix[[3, 0]])
        assert torch.equal(rows[torch.tensor([2, 2])].matrix(), matrix[[2, 2]])
        assert torch.equal(rows[torch.tensor([True, False, False, True])].matrix(), matrix[[0, 3]])
        assert len(rows[[]]) == 0

    @pytest.mark.parametrize("which", [slice(1, 3), [1, 2], torch.tensor([False, True, True, False])])
    def test_replace(self, which) -> None:  # type: ignore[no-untyped-def]
        (rows, matrix), (other, others) = draw(4), draw(2, 1)
        assert torch.equal(rows.replace(which, other).matrix(), torch.stack([matrix[0], *others, matrix[3]]))

    def test_expand_repeat_cat(self) -> None:
        rows, matrix = draw(2)
        assert torch.equal(rows[:1].expand(3).matrix(), matrix[[0, 0, 0]])
        assert torch.equal(rows.repeat(2).matrix(), matrix[[0, 0, 1, 1]])
        assert torch.equal(Rows.cat([rows, rows[1:]]).matrix(), matrix[[0, 1, 1]])

    def test_a_clone_shares_nothing(self) -> None:
        rows, matrix = draw(1)
        copy = rows.expand(3).clone()
        copy.blocks[0].zero_()
        assert torch.equal(rows.matrix(), matrix)

    def test_state_dicts(self) -> None:
        rows, matrix = draw(2)
        state = rows.state(1)
        assert {name: tuple(value.shape) for name, value in state.items()} == dict(
            zip(LAYOUT.names, LAYOUT.shapes, strict=True)
        )
        back = Rows.from_state(LAYOUT, state)
        assert torch.equal(back.matrix(), matrix[1:])
        back.blocks[0].zero_()
        assert torch.equal(rows.matrix(), matrix)

    def test_dtype(self) -> None:
        rows, matrix = draw(2)
        assert torch.equal(rows.to(dtype=torch.float32).matrix(), matrix.float())


class TestBlocks:
    def test_base_and_head(self) -> None:
        rows, matrix = draw(3)
        assert torch.equal(rows.block("head").matrix(), matrix[:, LAYOUT.columns("top.weight")])
        assert torch.equal(rows.block("base").matrix(), matrix[:, : WIDTH - 6])
        assert rows.block("head").layout.names == ("top.weight",)

    def test_some_parameters(self) -> None:
        """In the order of the layout, whatever the order of the names."""
        rows, matrix = draw(3)
        names = (LAYOUT.names[-1], LAYOUT.names[0])
        columns = [LAYOUT.columns(name) for name in names[::-1]]
        assert torch.equal(rows.only(names).matrix(), torch.cat([matrix[:, own] for own in columns], dim=1))
        assert rows.only(names).layout == LAYOUT.only(names) and len(rows.only(())) == 3

    def test_with_block(self) -> None:
        (rows, matrix), (other, others) = draw(3), draw(3, 1)
        expected = torch.cat([matrix[:, : WIDTH - 6], others[:, WIDTH - 6 :]], dim=1)
        assert torch.equal(rows.with_block(other.block("head")).matrix(), expected)

    def test_one_base_for_many_heads(self) -> None:
        (rows, matrix), (other, others) = draw(1), draw(3, 1)
        expected = torch.cat([matrix[:, : WIDTH - 6].expand(3, -1), others[:, WIDTH - 6 :]], dim=1)
        assert torch.equal(rows.with_block(other.block("head")).matrix(), expected)
        expected = torch.cat([others[:, : WIDTH - 6], matrix[:, WIDTH - 6 :].expand(3, -1)], dim=1)
        assert torch.equal(other.with_block(rows.block("head")).matrix(), expected)

    def test_freezing_is_a_mark_that_arithmetic_keeps(self) -> None:
        rows, matrix = draw(2)
        frozen = rows.freeze(["scale"])
        assert frozen.frozen == {"scale"} and not rows.frozen
        assert (2.0 * frozen)[:1].frozen == {"scale"}
        assert torch.equal(frozen.matrix(), matrix)


class TestRunningVariance:
    @given(seed=st.integers(0, 2**32 - 1), count=st.integers(2, 6))
    def test_online_is_batch(self, seed: int, count: int) -> None:
        history = torch.stack([draw(3, seed + i)[1] for i in range(count)])  # (count, clients, columns)
        spread = RunningVariance.empty(draw(3)[0])
        for matrix in history:
            spread = spread.add(Rows.from_matrix(LAYOUT, matrix))
        # The variance of a vector is its trace, divisor `count`.
        expected = (history - history.mean(0)).square().sum(2).mean(0)
        torch.testing.assert_close(spread.variance, expected)
        torch.testing.assert_close(spread.mean.matrix(), history.mean(0))
        assert spread.count.tolist() == [count] * 3

    def test_undefined_below_two_values(self) -> None:
        spread = RunningVariance.empty(draw(2)[0])
        assert spread.variance.isnan().all()
        assert spread.add(draw(2)[0]).variance.isnan().all()

    def test_same_values_have_no_variance(self) -> None:
        rows, _ = draw(2)
        assert RunningVariance.empty(rows).add(rows).add(rows).variance.tolist() == [0.0, 0.0]

    def test_far_from_zero(self) -> None:
        rows, _ = draw(1)
        spread = RunningVariance.empty(rows).add(rows * 0.0 + 1e6).add(rows * 0.0 + (1e6 + 2.0))
        # Two values that differ by 2 in every column: variance 1 per column.
        assert spread.variance.item() == pytest.approx(WIDTH)


def test_the_largest_entry_of_each_row() -> None:
    layout = Layout(("w", "b", "none"), ((2,), (), (0,)))
    blocks = [torch.tensor([[1.0, -5.0], [torch.nan, 2.0], [3.0, 0.0]]), torch.tensor([4.0, 1.0, -torch.inf])]
    found = Rows(layout, [*blocks, torch.zeros(3, 0)]).largest()
    assert found[0] == 5 and found[1].isnan() and found[2] == torch.inf
    assert Rows(Layout((), ()), [], size=2).largest().tolist() == [0, 0]
