"""A task computes what the module itself would, one client at a time: plain and stacked."""

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bespokefl.core.client_index import ClientIndex
from bespokefl.core.cohort_data import Batch, BatchSchedule
from bespokefl.core.errors import InputError
from bespokefl.core.nn import probe
from bespokefl.core.nn.losses import cross_entropy
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.workflows.run.initial_weights import load_into
from tests.core.modules import (
    PLAIN_ONLY,
    RANDOM,
    STACKABLE,
    Counting,
    Dropped,
    Noise,
    Pretrained,
    Temperature,
    Tied,
    conv,
    inputs,
)
from tests.federations import CLASSES, WIDTH, apart, federation, line, mlp, random_rows, same_bits, work_of

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
DOUBLE = torch.float64


def ragged(name: str, dtype: torch.dtype) -> tuple[Batch, tuple[int, ...]]:
    """Three clients with 4, 2 and 1 examples; the rest is filling that must not count."""
    sizes = (4, 2, 1)
    x = inputs(name, 3, 4, dtype=dtype)
    y = torch.arange(12).reshape(3, 4) % CLASSES
    inside = torch.arange(4)[None, :] < torch.tensor(sizes)[:, None]
    return Batch(x, y, (inside / inside.sum(1, keepdim=True)).to(dtype)), sizes


def by_hand(task: Task, rows: Rows, loss: Callable[[nn.Module, int], Tensor]) -> tuple[Rows, Tensor]:
    """Gradients and losses from the module itself, with load_state_dict and backward."""
    gradients, losses = [], []
    for k in range(len(rows)):
        module = copy.deepcopy(task.module)
        module.load_state_dict(rows.state(k), strict=False)
        module.zero_grad()
        module.train()
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name in task.layout.names)
        value = loss(module, k)
        value.backward()
        found = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in module.named_parameters()}
        gradients.append(Rows.from_state(task.layout, found))
        losses.append(value.detach())
    return Rows.cat(gradients), torch.stack(losses)


class TestGradients:
    @pytest.mark.parametrize("dtype", [torch.float32, DOUBLE], ids=["float32", "float64"])
    @pytest.mark.parametrize("stacked", [False, True], ids=["plain", "stacked"])
    @pytest.mark.parametrize("name", STACKABLE)
    def test_of_ragged_clients(self, name: str, stacked: bool, dtype: torch.dtype) -> None:
        task = Task(STACKABLE[name], dtype=dtype)
        rows = random_rows(task, 3) + task.start
        batch, sizes = ragged(name, dtype)
        expected, losses = by_hand(
            task, rows, lambda module, k: F.cross_entropy(module(batch.x[k, : sizes[k]]), batch.y[k, : sizes[k]])
        )
        if stacked:
            assert probe.why_not_stacked(task, batch.x[0], batch.y[0]) is None
            task.stack()
        assert apart(task.gradient(rows, batch), expected) < TOLERANCE[dtype]
        torch.testing.assert_close(task.losses(rows, batch), losses, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])

    @pytest.mark.parametrize("stacked", [False, True], ids=["plain", "stacked"])
    def test_of_one_row_on_many_batches(self, stacked: bool) -> None:
        task = Task(mlp, dtype=DOUBLE)
        batch, _ = ragged("mlp", DOUBLE)
        expected = task.gradient(task.start.expand(3), batch)
        if stacked:
            task.stack()
        assert apart(task.gradient(task.start, batch), expected) < 1e-10

    @pytest.mark.parametrize("stacked", [False, True], ids=["plain", "stacked"])
    def test_leave_out_what_is_frozen_for_now(self, stacked: bool) -> None:
        task = Task(mlp, dtype=DOUBLE)
        batch, _ = ragged("mlp", DOUBLE)
        rows = random_rows(task, 3)
        whole = task.gradient(rows, batch)
        if stacked:
            task.stack()
        part = task.gradient(rows.freeze(task.layout.base), batch)
        assert not part.block("base").matrix().any()
        assert apart(part.block("head"), whole.block("head")) < 1e-10
        assert not task.gradient(rows.freeze(task.layout.names), batch).matrix().any()
        assert apart(task.gradient(rows, batch), whole) < 1e-10  # the mark leaves no trace

    @pytest.mark.parametrize("stacked", [False, True], ids=["plain", "stacked"])
    def test_of_another_objective_with_values_per_row_and_per_example(self, stacked: bool) -> None:
        task = Task(mlp, dtype=DOUBLE)
        rows = random_rows(task, 3)
        batch, sizes = ragged("mlp", DOUBLE)
        scale = torch.tensor([1.0, 2.0, -3.0], dtype=DOUBLE)
        taught = task.predict(random_rows(task, 1, seed=1), batch.x)  # (3, 4, classes), filling and all

        def objective(outputs: Tensor, batch: Batch, own: Tensor, taught: Tensor) -> Tensor:
            return (outputs - taught).square().sum(-1) * own[:, None]

        def loss(module: nn.Module, k: int) -> Tensor:
            return scale[k] * (module(batch.x[k, : sizes[k]]) - taught[k, : sizes[k]]).square().sum(-1).mean()

        expected, losses = by_hand(task, rows, loss)
        if stacked:
            task.stack()
        assert apart(task.gradient(rows, batch, objective, [scale, taught]), expected) < 1e-10
        torch.testing.assert_close(task.losses(rows, batch, objective, [scale, taught]), losses)

    def test_change_nothing(self) -> None:
        task = Task(mlp)
        rows = random_rows(task, 3)
        before, start = rows.clone(), task.start.clone()
        batch, _ = ragged("mlp", torch.float32)
        for stacked in (False, True):
            if stacked:
                task.stack()
            task.gradient(rows, batch)
            task.losses(rows, batch)
            task.predict(rows, batch.x)
            assert same_bits(rows, before) and same_bits(task.start, start)

    @pytest.mark.parametrize("stacked", [False, True], ids=["plain", "stacked"])
    def test_over_a_whole_sweep(self, stacked: bool) -> None:
        data = federation(dtype=DOUBLE)
        task = Task(mlp, dtype=DOUBLE)
        rows = random_rows(task, len(data))

        def loss(module: nn.Module, k: int) -> Tensor:
            own = data.train.of(k)
            return F.cross_entropy(module(data.x[own]), data.y[own])

        expected, _ = by_hand(task, rows, loss)
        if stacked:
            task.stack()
        assert apart(task.sweep_gradient(rows, work_of(data).sweep("train", size=5)), expected) < 1e-10
        expected, _ = by_hand(task, task.start.expand(len(data)), loss)
        assert apart(task.sweep_gradient(task.start, work_of(data).sweep("train")), expected) < 1e-10


class TestHessian:
    @pytest.mark.parametrize("stacked", [False, True], ids=["plain", "stacked"])
    def test_product(self, stacked: bool) -> None:
        def tiny() -> nn.Module:
            return nn.Sequential(nn.Linear(WIDTH, 2), nn.Tanh(), nn.Linear(2, CLASSES))

        task = Task(tiny, dtype=DOUBLE)
        rows, direction = random_rows(task, 3), random_rows(task, 3, seed=1)
        batch, sizes = ragged("mlp", DOUBLE)
        products = []
        for k in range(3):

            def loss(flat: Tensor, k: int = k) -> Tensor:
                weights = Rows.from_matrix(task.layout, flat[None]).state()
                outputs = torch.func.functional_call(task.module, weights, (batch.x[k, : sizes[k]],))
                return F.cross_entropy(outputs, batch.y[k, : sizes[k]])

            hessian = torch.autograd.functional.hessian(loss, rows.matrix()[k])
            products.append(hessian @ direction.matrix()[k])
        expected = Rows.from_matrix(task.layout, torch.stack(products))
        if stacked:
            task.stack()
        assert apart(task.hessian_product(rows, batch, direction), expected) < 1e-10


class TestPredictAndScore:
    @pytest.mark.parametrize("stacked", [False, True], ids=["plain", "stacked"])
    def test_predict(self, stacked: bool) -> None:
        task = Task(lambda: nn.Sequential(nn.Linear(WIDTH, 6), nn.Dropout(0.9), nn.Linear(6, CLASSES)), dtype=DOUBLE)
        rows = random_rows(task, 3)
        x = inputs("mlp", 3, 4, dtype=DOUBLE)
        if stacked:
            task.stack()
        weights = [rows.state(k) for k in range(3)]
        expected = torch.stack(
            [
                (x[k] @ weights[k]["0.weight"].T + weights[k]["0.bias"]) @ weights[k]["2.weight"].T
                + weights[k]["2.bias"]
                for k in range(3)
            ]
        )  # without dropout
        torch.testing.assert_close(task.predict(rows, x), expected)
        torch.testing.assert_close(task.predict(rows[:1], x)[0], expected[0])
        assert task.predict(rows[:1], x).shape == (3, 4, CLASSES)

    @pytest.mark.parametrize("one", [False, True])
    def test_scores_are_those_of_every_client_by_itself(self, one: bool) -> None:
        """Few examples and many, of which a model has one pass for all or one for each, and more than one step."""
        rng = np.random.default_rng(0)
        task = Task(mlp, dtype=DOUBLE)
        task.stack()
        x, y = torch.from_numpy(rng.normal(size=(900, WIDTH))), torch.from_numpy(rng.integers(0, CLASSES, 900))
        for sizes in ((5, 0, 2), (300, 80, 520), (300, 3, 0)):
            ends = np.cumsum(sizes)
            lists = [np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]
            rows = random_rows(task, 1 if one else 3)
            found = task.score(rows, BatchSchedule.sweep(x, y, ClientIndex.of_lists(lists)), by_class=True)
            for k, own in enumerate(lists):
                alone = task.score(
                    rows if one else rows[k : k + 1],
                    BatchSchedule.sweep(x, y, ClientIndex.of_lists([own])),
                    by_class=True,
                )
                for name, values in alone.items():
                    torch.testing.assert_close(found[name][k], values[0], rtol=1e-12, atol=1e-12, equal_nan=True)

    @pytest.mark.parametrize("one", [False, True])
    def test_a_module_may_give_its_input_back(self, one: bool) -> None:
        """The examples of a pass are gathered into the memory of those before them."""

        class Echo(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.head = nn.Linear(CLASSES, CLASSES)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x

        rng = np.random.default_rng(0)
        task = Task(Echo, dtype=DOUBLE)
        x, y = torch.from_numpy(rng.normal(size=(700, CLASSES))), torch.from_numpy(rng.integers(0, CLASSES, 700))
        lists = [np.arange(300), np.arange(300, 400), np.arange(400, 700)]
        found = task.score(random_rows(task, 1 if one else 3), BatchSchedule.sweep(x, y, ClientIndex.of_lists(lists)))
        for k, own in enumerate(lists):
            assert found["loss"][k].item() == pytest.approx(F.cross_entropy(x[own], y[own]).item())
            assert found["accuracy"][k].item() == (x[own].argmax(1) == y[own]).double().mean()

    @pytest.mark.parametrize("classes", [2, 10, 15, 16, 40])
    def test_the_cross_entropy_is_torch_s_with_and_without_a_gradient(self, classes: int) -> None:
        rng = np.random.default_rng(classes)
        outputs = torch.from_numpy(rng.normal(size=(50, classes), scale=30))
        y = torch.from_numpy(rng.integers(0, classes, 50))
        expected = F.cross_entropy(outputs, y, reduction="none")
        torch.testing.assert_close(cross_entropy(outputs, y), expected, rtol=1e-14, atol=1e-14)
        torch.testing.assert_close(cross_entropy(outputs.requires_grad_(), y), expected, rtol=1e-14, atol=1e-14)

    @pytest.mark.parametrize("stacked", [False, True], ids=["plain", "stacked"])
    def test_score_by_hand(self, stacked: bool) -> None:
        # Outputs are the inputs: three numbers, the largest of which is the answer.
        task = Task(lambda: nn.Linear(CLASSES, CLASSES, bias=False), dtype=DOUBLE)
        x = torch.tensor([[3.0, 0, 0], [0, 3.0, 0], [0, 0, 3.0], [1.0, 0, 0], [0, 2.0, 0]], dtype=DOUBLE)
        y = torch.tensor([0, 1, 0, 1, 1])
        part = ClientIndex.of_lists([np.array([3]), np.array([0, 1, 2]), np.array([]), np.array([4, 2])])
        rows = Rows.from_matrix(task.layout, torch.eye(CLASSES, dtype=DOUBLE).reshape(1, -1))
        if stacked:
            task.stack()

        def loss(largest: float, right: bool) -> float:  # −log softmax of outputs (largest, 0, 0)
            return float(np.log(np.exp(largest) + 2) - (largest if right else 0.0))

        expected = {
            "accuracy": [0.0, 2 / 3, np.nan, 1 / 2],
            "loss": [
                loss(1, False),
                (loss(3, True) + loss(3, True) + loss(3, False)) / 3,
                np.nan,
                (loss(2, True) + loss(3, False)) / 2,
            ],
        }
        for many in (rows, rows.expand(4)):
            for size in (1, 2, 256):
                scores = task.score(many, BatchSchedule.sweep(x, y, part, size))
                assert set(scores) == {"accuracy", "loss"}
                for name, values in expected.items():
                    np.testing.assert_allclose(scores[name].numpy(), values, rtol=1e-10)

    @pytest.mark.parametrize("stacked", [False, True], ids=["plain", "stacked"])
    def test_every_row_is_scored_on_its_own_data(self, stacked: bool) -> None:
        data = federation(dtype=DOUBLE)
        task = Task(mlp, dtype=DOUBLE)
        rows = random_rows(task, len(data), scale=1.0)
        if stacked:
            task.stack()
        scores = task.score(rows, BatchSchedule.sweep(data.x, data.y, data.train, 5))
        for k in range(len(data)):
            own = data.train.of(k)
            outputs = torch.func.functional_call(task.module, rows.state(k), (data.x[own],))
            assert scores["accuracy"][k].item() == pytest.approx((outputs.argmax(1) == data.y[own]).double().mean())
            assert scores["loss"][k].item() == pytest.approx(F.cross_entropy(outputs, data.y[own]).item())

    @pytest.mark.parametrize("stacked", [False, True])
    def test_the_best_fit_of_several_models(self, stacked: bool) -> None:
        data = federation(dtype=DOUBLE)
        task = Task(mlp, dtype=DOUBLE)
        each, one = random_rows(task, len(data), seed=1, scale=1.0), random_rows(task, 1, seed=2, scale=1.0)
        if stacked:
            task.stack()
        found = task.best_fit([each, one, one], work_of(data).sweep("train")).tolist()  # a tie goes to the first
        for k in range(len(data)):
            own = data.train.of(k)
            states = (each.state(k), one.state())
            outputs = [torch.func.functional_call(task.module, state, (data.x[own],)) for state in states]
            first, second = (F.cross_entropy(out, data.y[own]).item() for out in outputs)
            assert found[k] == (0 if first < second else 1)
        assert set(found) == {0, 1}

    @pytest.mark.parametrize("size", [5, 256], ids=["small", "whole"])
    @pytest.mark.parametrize("stacked", [False, True], ids=["plain", "stacked"])
    def test_losses_of_several_models(self, stacked: bool, size: int) -> None:
        data = federation((40, 70, 1), dtype=DOUBLE)
        task = Task(mlp, dtype=DOUBLE)
        each = [random_rows(task, len(data), seed=seed, scale=1.0) for seed in (1, 2)]
        if stacked:
            task.stack()
        for part in (data.train, data.validation):  # in the latter, a client has no examples
            plan = BatchSchedule.sweep(data.x, data.y, part, size)
            for choices in (each, [*each, task.start], [task.start, each[0][:1]]):
                found = task.sweep_losses(choices, plan)
                expected = [task.score(rows, plan)["loss"] for rows in choices]
                torch.testing.assert_close(found, torch.stack(expected, 1), rtol=1e-10, atol=0, equal_nan=True)

    def test_regression_has_no_accuracy(self) -> None:
        data = federation(targets="numbers", dtype=DOUBLE)
        task = Task(line, "mse", dtype=DOUBLE)
        scores = task.score(task.start, BatchSchedule.sweep(data.x, data.y, data.test))
        assert set(scores) == {"loss"}
        for k in range(len(data)):
            own = data.test.of(k)
            expected = (data.x[own] @ task.start.matrix()[0] - data.y[own]).square().mean()
            assert scores["loss"][k].item() == pytest.approx(expected.item())


class TestColumns:
    def test_frozen_parameters_are_shared_and_no_columns(self) -> None:
        task = Task(Pretrained)
        assert task.layout.names == ("head.weight", "head.bias")
        assert task.layout.width == 5 * CLASSES + CLASSES
        assert task.layout.head == ("head.weight", "head.bias")
        before = task.module.backbone.weight.clone()
        batch, _ = ragged("mlp", torch.float32)
        task.gradient(random_rows(task, 3), batch)
        assert torch.equal(task.module.backbone.weight, before)
        assert not task.module.backbone.weight.requires_grad

    def test_tied_parameters_are_one_block(self) -> None:
        names = Task(Tied).layout.names
        assert "up.weight" in names and "down.weight" not in names and "down.bias" in names

    def test_unused_parameters_have_no_gradient(self) -> None:
        task = Task(Temperature)
        batch, _ = ragged("mlp", torch.float32)
        assert not task.gradient(task.start, batch).block("spare").matrix().any()

    def test_the_start_follows_the_seed_alone(self) -> None:
        before = torch.get_rng_state()
        assert same_bits(Task(mlp, seed=3).start, Task(mlp, seed=3).start)
        assert not same_bits(Task(mlp, seed=3).start, Task(mlp, seed=4).start)
        assert torch.equal(before, torch.get_rng_state())

    @pytest.mark.parametrize(
        ("factory", "head"),
        [
            (mlp, ("2.weight", "2.bias")),
            (conv, ("4.weight", "4.bias")),
            (Pretrained, ("head.weight", "head.bias")),
            (lambda: nn.Linear(2, 2), ("weight", "bias")),
            (lambda: nn.Conv2d(1, 1, 1), ()),
        ],
    )
    def test_the_head_is_found(self, factory: Callable[[], nn.Module], head: tuple[str, ...]) -> None:
        assert Task(factory).layout.head == head

    def test_the_head_is_chosen(self) -> None:
        assert Task(mlp, head="0").layout.head == ("0.weight", "0.bias")
        with pytest.raises(InputError, match=r"no head 'top'; its trainable layers are 0, 2\."):
            Task(mlp, head="top")

    def test_nothing_to_train(self) -> None:
        with pytest.raises(InputError, match="no trainable parameters"):
            Task(lambda: nn.Linear(2, 2).requires_grad_(False))


class TestRefusals:
    x, y = inputs("mlp", 3, dtype=torch.float32), torch.tensor([0, 1, 2])

    def test_batch_norm_without_running_statistics(self) -> None:
        layer = nn.BatchNorm1d(6, track_running_stats=False)
        with pytest.raises(InputError, match=r"layer '1' is a BatchNorm1d without running.*GroupNorm or LayerNorm"):
            Task(lambda: nn.Sequential(nn.Linear(WIDTH, 6), layer, nn.Linear(6, CLASSES)))

    def test_a_frozen_batch_norm_is_a_constant(self) -> None:
        norm = nn.BatchNorm1d(6).requires_grad_(False)
        norm.running_mean, norm.running_var = torch.linspace(-1, 1, 6), torch.linspace(0.5, 2, 6)
        task = Task(lambda: nn.Sequential(nn.Linear(WIDTH, 6), norm, nn.Linear(6, CLASSES)))
        probe.check(task, self.x, self.y, CLASSES)
        assert probe.why_not_stacked(task, self.x, self.y) is None
        rows = random_rows(task, 2)
        batch = Batch(torch.stack([self.x, self.x + 1]), torch.stack([self.y, self.y]))

        def loss(module: nn.Module, k: int) -> Tensor:
            module[1].eval()  # type: ignore[index]
            return F.cross_entropy(module(batch.x[k]), batch.y[k])

        expected, _ = by_hand(task, rows, loss)
        assert apart(task.gradient(rows, batch), expected) < 1e-5
        task.stack()
        assert apart(task.gradient(rows, batch), expected) < 1e-5
        assert torch.equal(task.module[1].running_mean, norm.running_mean)  # type: ignore[index]

    def test_buffers_that_training_changes(self) -> None:
        with pytest.raises(InputError, match=r"buffer 'seen' changes in training.*running_statistics = \(\"seen\",\)"):
            probe.check(Task(Counting), self.x, self.y, CLASSES)

    def test_running_statistics_that_do_not_exist(self) -> None:
        class Misnamed(Counting):
            running_statistics = ("sean",)

        with pytest.raises(InputError, match="'sean' in running_statistics, which is no buffer"):
            Task(Misnamed)

    def test_wrong_inputs(self) -> None:
        with pytest.raises(InputError, match=r"the model Sequential cannot take 3 examples of shape \(5,\)"):
            probe.check(Task(mlp), torch.zeros(3, 5), self.y, CLASSES)

    def test_a_model_that_fails_on_some_number_of_examples(self) -> None:
        class Picky(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                if len(x) == 7:
                    raise ValueError("seven")
                return super().forward(x)

        task = Task(lambda: Picky(WIDTH, CLASSES))
        probe.check(task, self.x, self.y, CLASSES)
        with pytest.raises(InputError, match=r"the model Picky cannot take 7 examples of shape \(\d+,\): seven"):
            task.predict(task.start, torch.zeros(1, 7, WIDTH))

    def test_a_lazy_layer(self) -> None:
        with pytest.raises(InputError, match="'weight' has no shape yet"):
            Task(lambda: nn.LazyLinear(CLASSES))

    def test_a_loss_that_is_a_mean_already(self) -> None:
        with pytest.raises(
            InputError, match=r'one value for each of 3 examples, shape \(3,\), got \(\);.*reduction="none"'
        ):
            probe.check(Task(mlp, nn.functional.cross_entropy), self.x, self.y, CLASSES)

    def test_a_loss_of_another_kind(self) -> None:
        with pytest.raises(InputError, match="the loss cannot take the model's outputs and the labels: "):
            probe.check(Task(mlp, lambda outputs, y: outputs @ y), self.x, self.y, CLASSES)

    def test_wrong_outputs(self) -> None:
        with pytest.raises(InputError, match=r"expected \(3, 7\).*got \(3, 3\); give the last layer 7 outputs"):
            probe.check(Task(mlp), self.x, self.y, 7)
        with pytest.raises(InputError, match="does not fit the targets"):
            probe.check(Task(mlp, "mse"), self.x, torch.zeros(3), None)

    def test_several_outputs(self) -> None:
        class Two(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x), x  # type: ignore[return-value]

        with pytest.raises(InputError, match="must return one tensor, got tuple"):
            probe.check(Task(lambda: Two(WIDTH, CLASSES)), self.x, self.y, CLASSES)

    def test_more_outputs_than_classes_are_fine(self) -> None:
        probe.check(Task(mlp), self.x, self.y, 2)


class TestFallingBack:
    x, y = inputs("mlp", 3, dtype=torch.float32), torch.tensor([0, 1, 2])

    @pytest.mark.parametrize("name", PLAIN_ONLY)
    def test_what_vmap_cannot_take_runs_plain(self, name: str) -> None:
        task = Task(PLAIN_ONLY[name])
        probe.check(task, self.x, self.y, CLASSES)
        reason = probe.why_not_stacked(task, self.x, self.y)
        assert reason is not None and reason.startswith("vmap failed (")
        assert not task.stacked
        batch, sizes = ragged("mlp", torch.float32)
        expected, _ = by_hand(
            task,
            task.start.expand(3),
            lambda module, k: F.cross_entropy(module(batch.x[k, : sizes[k]]), batch.y[k, : sizes[k]]),
        )
        assert apart(task.gradient(task.start, batch), expected) < 1e-5

    def test_what_vmap_gets_wrong_runs_plain(self) -> None:
        class Wrong(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                double = 2.0 if torch._C._functorch.is_batchedtensor(x) else 1.0
                return super().forward(x) * double

        task = Task(lambda: Wrong(WIDTH, CLASSES))
        assert probe.why_not_stacked(task, self.x, self.y) == "its stacked gradients differ from the plain ones"

    @pytest.mark.parametrize("factory", [Dropped, Noise, lambda: Dropped(1e-6)])
    def test_modules_that_draw_run_plain(self, factory: Callable[[], nn.Module]) -> None:
        task = Task(factory)
        probe.check(task, self.x, self.y, CLASSES)
        assert task.draws
        assert "draws random numbers" in str(probe.why_not_stacked(task, self.x, self.y))

    def test_modules_that_do_not(self) -> None:
        task = Task(lambda: Dropped(0.0))
        probe.check(task, self.x, self.y, CLASSES)
        assert not task.draws and probe.why_not_stacked(task, self.x, self.y) is None

    @pytest.mark.parametrize("name", RANDOM)
    def test_their_draws_follow_from_the_key_alone(self, name: str) -> None:
        data = federation()
        task = Task(RANDOM[name])
        probe.check(task, data.x[:3], data.y[:3], CLASSES)
        before = torch.get_rng_state()
        together = work_of(data).plan()
        for step in range(len(together)):
            batch = together.batch(step)
            found = task.gradient(task.start, batch)
            assert same_bits(found, task.gradient(task.start, batch))
            for at, k in enumerate(together.order.tolist()[: len(batch)]):  # type: ignore[union-attr]
                alone = task.gradient(task.start, work_of(data, [k]).plan().batch(step))
                assert apart(found[at : at + 1], alone) < 1e-6  # a part batch is summed in another order
        sweep = task.sweep_gradient(task.start, work_of(data).sweep())
        assert same_bits(sweep, task.sweep_gradient(task.start, work_of(data).sweep()))
        assert torch.equal(before, torch.get_rng_state())
        other = replace(together.batch(0), keys=together.batch(1).keys + together.batch(0).keys)
        assert not same_bits(task.gradient(task.start, together.batch(0)), task.gradient(task.start, other))

    def test_rounds_and_copies_draw_differently(self) -> None:
        data = federation()
        task = Task(Dropped)
        probe.check(task, data.x[:3], data.y[:3], CLASSES)
        twice = work_of(data, [1]).repeat(2).plan().batch(0)
        first = task.gradient(task.start, twice)
        assert torch.equal(twice.x[0], twice.x[1]) and not same_bits(first[:1], first[1:])
        alone = task.gradient(task.start, work_of(data, [1]).plan().batch(0))
        assert same_bits(first[:1], alone)


def test_frozen_values_share_memory_with_the_given_module() -> None:
    """A large model is in memory once, and the given one does not change."""
    given = Pretrained()
    before = {name: value.clone() for name, value in given.state_dict().items()}
    task = Task(lambda: given)
    assert task.module.backbone.weight.data_ptr() == given.backbone.weight.data_ptr()
    assert task.module.head.weight.data_ptr() != given.head.weight.data_ptr()
    load_into(task, {name: value + 1 for name, value in before.items()})
    torch.testing.assert_close(task.module.backbone.weight, before["backbone.weight"] + 1)
    double = Task(lambda: given, dtype=torch.float64)
    assert double.module.backbone.weight.dtype == torch.float64
    assert all(torch.equal(value, before[name]) for name, value in given.state_dict().items())
