"""PersFL: which model becomes the teacher, what is distilled from it, and which point of the grid is kept."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bespokefl import cli, methods
from bespokefl.core.cohort_data import Batch, CohortData
from bespokefl.core.errors import InputError
from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.method import Message, Round, State
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.engines.client import Data
from bespokefl.methods import FedAvg, PersFL, PersFLGD
from tests.federations import CLASSES, WIDTH, apart, federation, line, mlp, random_rows, run, same_bits, work_of

DATA = federation(dtype=torch.float64)  # the last client has no validation data
SEEING = list(range(len(DATA) - 1))
BOTH = pytest.mark.parametrize("stacked", [False, True], ids=["plain", "stacked"])


def task_of(stacked: bool = True) -> Task:
    task = Task(mlp, dtype=torch.float64)
    if stacked:
        task.stack()
    return task


def logistic() -> nn.Module:
    return nn.Linear(WIDTH, CLASSES)


def on_validation(row: Rows, data: Data, client: int, factory: Callable[[], nn.Module] = mlp) -> tuple[float, int]:
    """Cross-entropy and right answers of one model on a client's validation data, by the book."""
    module = factory().double()
    module.load_state_dict(row.state())
    own = data.validation.of(client)
    with torch.no_grad():
        outputs = module(data.x[own])
    return float(F.cross_entropy(outputs, data.y[own])), int((outputs.argmax(1) == data.y[own]).sum())


def receive(method: PersFL, task: Task, models: list[Rows], work: CohortData, distil: Rows | None = None) -> State:
    """The clients' state after these models came, round after round, and perhaps another in the distilling round."""
    state = method.start_clients(task.start, work.names)
    for number, model in enumerate([*models, *([] if distil is None else [distil])], start=1):
        phase = "distil" if number > len(models) else "train"
        round = Round(number=number, phase=phase, seed=0, names=work.names)
        _, state = method.local_update(task, Message({"weights": model}), state, replace(work, round=number), round)
    return state


def distilled(method: PersFL, task: Task, teacher: Rows, work: CohortData) -> tuple[Rows, dict[str, Tensor]]:
    """Stage 2 from this teacher: the personal models and what is noted."""
    work = replace(work, notes={})
    return method.newcomer(task, {"weights": teacher}, work), work.notes


# -- the objective


def example(task: Task, work: CohortData) -> tuple[Rows, Batch, Tensor, Tensor, Tensor]:
    """Students, a batch with filling, teachers' outputs, and λ and T of each row."""
    students, teachers = random_rows(task, len(work), 1), random_rows(task, len(work), 2, scale=1.0)
    plan = work.plan(steps=1)
    batch = plan.batch(0)
    assert batch.weight is not None  # ragged: the smallest client has fewer examples than the batch
    rng = np.random.default_rng(3)
    share, temperature = rng.uniform(0, 1, (len(work), 1)), rng.uniform(0.5, 25, (len(work), 1))
    return students, batch, task.predict(teachers, batch.x), torch.from_numpy(share), torch.from_numpy(temperature)


@BOTH
def test_the_gradients_of_kl_and_of_soft_labels_are_the_same(stacked: bool) -> None:
    task, work = task_of(stacked), work_of(DATA)
    students, batch, *per_row = example(task, work)
    found, expected = (task.gradient(students, batch, m.objective, per_row) for m in (PersFLGD(), PersFL()))
    assert apart(found, expected) <= 1e-10
    assert float(expected.square_norm().min()) > 1e-6  # not the same because they vanish


@BOTH
def test_their_values_differ_by_the_teachers_entropy(stacked: bool) -> None:
    task, work = task_of(stacked), work_of(DATA)
    students, batch, *per_row = example(task, work)
    teachers, share, temperature = per_row
    kl, labels = (task.losses(students, batch, m.objective, per_row) for m in (PersFL(), PersFLGD()))
    p = torch.softmax(teachers / temperature[:, :, None], -1)
    entropy = batch.mean(-(p * p.log()).sum(-1))
    expected = (share * temperature**2)[:, 0] * entropy
    torch.testing.assert_close(labels - kl, expected, rtol=1e-10, atol=1e-10)
    assert float(expected.min()) > 1e-3


def test_the_objective_is_the_papers() -> None:
    """One example, three classes, numbers by hand: the teacher comes first in the KL."""
    student, teacher, share, temperature = [2.0, 0.0, -1.0], [0.5, 1.0, 0.0], 0.25, 5.0
    p = np.exp(np.array(teacher) / temperature) / np.exp(np.array(teacher) / temperature).sum()
    q = np.exp(np.array(student) / temperature) / np.exp(np.array(student) / temperature).sum()
    hard = -np.log(np.exp(0.0) / np.exp(np.array(student)).sum())  # the label is 1
    expected = (1 - share) * hard + share * temperature**2 * (p * np.log(p / q)).sum()
    one = torch.ones(1, 1, dtype=torch.float64)
    batch = Batch(torch.zeros(1, 1, 8), torch.tensor([[1]]))
    outputs, logits = (torch.tensor([[values]], dtype=torch.float64) for values in (student, teacher))
    found = PersFL().objective(outputs, batch, logits, share * one, temperature * one)
    assert found.shape == (1, 1)
    assert float(found) == pytest.approx(expected, rel=1e-12)


# -- stage 1: the teacher


def test_stage_one_is_fedavg() -> None:
    method = PersFL(lr=0.2, momentum=0.5, distil_epochs=1, imitations=(0.0,))
    _, ours = run(method, DATA, rounds=3)
    _, theirs = run(FedAvg(lr=0.2, momentum=0.5), DATA, rounds=3)
    assert same_bits(ours.global_rows, theirs.global_rows)


def test_the_best_of_the_models_received_becomes_the_teacher() -> None:
    """Six random models and, in the middle of them, one that was trained: whose loss is the least is known."""
    task, work = task_of(), work_of(DATA)
    models = [random_rows(task, 1, seed) for seed in range(6)]
    good = local_sgd(task.gradient, task.start, work, 0.1, epochs=60)[2:3]
    models.insert(3, good)
    state = receive(PersFL(), task, models, work)
    table = np.array([[on_validation(model, DATA, k)[0] for model in models] for k in SEEING])
    best = table.argmin(1)
    assert best[2] == 3 and len(set(best)) > 1  # the planted one, and not for everybody
    assert state["teacher_round"].tolist()[:-1] == (best + 1).tolist()
    for k, number in enumerate(best):
        assert same_bits(state["teacher"][k : k + 1], models[number])
        assert float(state["teacher_loss"][k]) == pytest.approx(table[k].min(), rel=1e-12)


@pytest.mark.parametrize("planted", [1, 3, 5, 6])
def test_when_the_loss_rises_after_a_round_that_rounds_model_is_the_teacher(planted: int) -> None:
    """Models on a ray towards what fits the client, farthest out in the planted round; the sixth distils."""
    task, work = Task(logistic, dtype=torch.float64), work_of(DATA, [1])
    fitting = local_sgd(task.gradient, task.start * 0.0, replace(work, train=work.validation), 0.1, steps=50)
    models = [fitting * (1 - 0.1 * abs(number - planted)) for number in range(1, 7)]
    curve = [on_validation(model, DATA, 1, logistic)[0] for model in models]
    assert all((b < a) == (number <= planted) for number, (a, b) in enumerate(pairwise(curve), start=2))
    state = receive(PersFL(distil_epochs=1, imitations=(1.0,)), task, models[:5], work, distil=models[5])
    assert state["teacher_round"].tolist() == [planted]
    assert same_bits(state["teacher"], models[planted - 1])
    assert same_bits(state["personal"], models[planted - 1])  # λ = 1 keeps it


def test_a_run_takes_each_teacher_from_its_round() -> None:
    """Round e's model is the one received in round e: FedAvg's after e − 1 rounds."""
    rounds = 5
    made, outcome = run(PersFL(lr=0.6, distil_epochs=1, imitations=(1.0,)), DATA, rounds=rounds)
    received = [made.task.start]
    for number in range(1, rounds + 1):
        common = run(FedAvg(lr=0.6), DATA, rounds=number)[1].global_rows
        assert common is not None
        received.append(common)
    table = np.array([[on_validation(model, DATA, k)[0] for model in received] for k in SEEING])
    notes = {note["client"]: note for note in outcome.client_notes if note["round"] == rounds + 1}
    found = [notes[DATA.names[k]]["teacher_round"] for k in SEEING]
    assert found == (table.argmin(1) + 1).tolist()
    assert len(set(found)) > 1 and any(number <= rounds for number in found)
    for k in SEEING:
        assert apart(outcome.personal_rows[k : k + 1], received[found[k] - 1]) == 0  # λ = 1
        assert notes[DATA.names[k]]["teacher_loss"] == pytest.approx(table[k].min(), rel=1e-9)
        heard = [note["validation_loss"] for note in outcome.client_notes if note["client"] == DATA.names[k]]
        assert heard == pytest.approx(table[k].tolist(), rel=1e-9)


def test_an_equal_loss_does_not_replace_the_teacher() -> None:
    task, work = task_of(), work_of(DATA, SEEING)
    model = random_rows(task, 1)
    state = receive(PersFL(), task, [model, model, model], work)
    assert state["teacher_round"].tolist() == [1] * len(SEEING)


def test_the_last_model_can_be_asked_for_as_teacher() -> None:
    task, work = task_of(), work_of(DATA)
    first, last = task.start, random_rows(task, 1, scale=3.0)
    method = PersFL(teacher="last", distil_epochs=1, imitations=(1.0,))
    state = receive(method, task, [first, first], work, distil=last)
    assert state["teacher_round"].tolist() == [3] * len(DATA)
    assert same_bits(state["personal"], last.repeat(len(DATA)))


def test_a_loss_that_overflowed_makes_no_teacher() -> None:
    task, work = task_of(), work_of(DATA, SEEING)
    broken = task.start * 1e200  # finite weights, outputs that are not
    assert np.isnan(on_validation(broken, DATA, 0)[0])
    state = receive(PersFL(), task, [broken, task.start, broken], work)
    assert state["teacher_round"].tolist() == [2] * len(SEEING)


# -- stage 2: the grid


@BOTH
def test_without_imitation_it_is_fine_tuning_from_the_teacher(stacked: bool) -> None:
    task, work = task_of(stacked), work_of(DATA)
    teacher = random_rows(task, len(DATA))
    method = PersFL(imitations=(0.0,), distil_lr=0.3, momentum=0.5, distil_epochs=3)
    found, notes = distilled(method, task, teacher, work)
    expected = local_sgd(task.gradient, teacher, work, 0.3, momentum=0.5, epochs=3)
    assert apart(found, expected) <= 1e-10
    assert notes["imitation"].tolist() == [0.0] * len(DATA)
    assert notes["temperature"].tolist() == [1.0] * len(DATA)  # it has no effect: the first


def test_with_nothing_but_imitation_it_is_the_teacher() -> None:
    task, work = task_of(), work_of(DATA)
    teacher = random_rows(task, len(DATA))
    found, notes = distilled(PersFL(imitations=(1,)), task, teacher, work)
    assert same_bits(found, teacher)
    assert same_bits(
        notes["grid_accuracy"], task.score(teacher, work.sweep("validation"))["accuracy"][:, None].repeat(1, 3)
    )


@pytest.mark.parametrize(("kind", "stacked"), [(PersFL, False), (PersFL, True), (PersFLGD, True)])
def test_the_grid_trained_as_rows_is_the_grid_trained_point_by_point(kind: type[PersFL], stacked: bool) -> None:
    task, work = task_of(stacked), work_of(DATA)
    teacher = random_rows(task, len(DATA), scale=0.5)
    method = kind(distil_epochs=2, distil_lr=0.3)
    together, notes = distilled(method, task, teacher, work)
    assert len(method.grid) == 15 and method.grid == sorted(method.grid)
    counts = np.zeros((len(DATA), 15))
    alone: dict[tuple[float, float], Rows] = {}
    for at, (share, temperature) in enumerate(method.grid):
        one = replace(method, imitations=(share,), temperatures=(temperature,))
        rows = alone[share, temperature] = distilled(one, task, teacher, work)[0]
        for k in SEEING:
            loss, right = on_validation(rows[k : k + 1], DATA, k)
            counts[k, at] = right
            assert float(notes["grid_loss"][k, at]) == pytest.approx(loss, rel=1e-9)
            assert float(notes["grid_accuracy"][k, at]) == pytest.approx(right / 4)
    best = counts.argmax(1)  # numpy's is the first of equals, too; without validation data all are
    assert len(set(best)) > 1
    for k, at in enumerate(best):
        share, temperature = method.grid[at]
        assert (float(notes["imitation"][k]), float(notes["temperature"][k])) == (share, temperature)
        assert apart(together[k : k + 1], alone[share, temperature][k : k + 1]) <= 1e-10


def test_a_teacher_answers_once_per_batch_for_the_whole_grid() -> None:
    task, work = task_of(stacked=False), work_of(DATA)
    method = PersFL(distil_epochs=2, imitations=(0.0, 0.5, 1.0), temperatures=(1.0, 5.0))
    predict, seen = task.predict, []

    def watched(rows: Rows, x: Tensor) -> Tensor:
        seen.append(len(rows))
        return predict(rows, x)

    task.predict = watched  # type: ignore[method-assign]
    distilled(method, task, random_rows(task, 1), work)
    assert sum(seen) == int(work.num_steps(2).sum())


def test_ties_keep_the_first_in_ascending_order_however_the_grid_is_written() -> None:
    """With a rate of nearly nothing all students answer as their teacher does."""
    task, work = task_of(), work_of(DATA)
    teacher = random_rows(task, len(DATA))
    for shares, first in (((1.0, 0.5, 0.0, 0.5), 0.0), ((1.0, 0.75, 0.5), 0.5)):
        method = PersFL(imitations=shares, temperatures=(25, 1, 5), distil_lr=1e-12, distil_epochs=1)
        _, notes = distilled(method, task, teacher, work)
        assert notes["imitation"].tolist() == [first] * len(DATA)
        assert notes["temperature"].tolist() == [1.0] * len(DATA)


def test_the_last_bit_of_an_accuracy_breaks_no_tie(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same number of right answers, in other places, can be another mean."""
    task, work = task_of(), work_of(DATA)
    score = task.score

    def rounded_otherwise(rows: Rows, plan: Any) -> dict[str, Tensor]:
        scores = score(rows, plan)
        return scores | {"accuracy": scores["accuracy"] + 1e-15 * torch.arange(len(scores["accuracy"]))}

    monkeypatch.setattr(task, "score", rounded_otherwise)
    _, notes = distilled(PersFL(distil_lr=1e-12, distil_epochs=1), task, random_rows(task, len(DATA)), work)
    assert notes["imitation"].tolist() == [0.0] * len(DATA)


def test_a_student_that_diverged_is_not_chosen() -> None:
    task, work = task_of(), work_of(DATA, SEEING)
    teacher = random_rows(task, len(SEEING), scale=2.0)
    method = PersFL(imitations=(0.0, 1.0))
    object.__setattr__(method, "distil_lr", 1e308)  # more than it takes from a person
    found, notes = distilled(method, task, teacher, work)
    assert not torch.isfinite(notes["grid_loss"][:, 0]).any()  # fine-tuning blew up
    assert torch.isnan(notes["grid_accuracy"][:, 0]).all()
    assert same_bits(found, teacher)


def test_without_validation_data_the_teacher_is_the_last_model_and_the_point_the_first() -> None:
    made, outcome = run(PersFL(distil_epochs=2), DATA, rounds=2)
    note = next(note for note in outcome.client_notes if note["round"] == 3 and note["client"] == DATA.names[-1])
    assert note["teacher_round"] == 3
    assert (note["imitation"], note["temperature"]) == (0.0, 1.0)
    assert np.isnan([note["teacher_loss"], *note["grid_accuracy"], *note["grid_loss"]]).all()
    last = len(DATA) - 1
    work = work_of(DATA, [last], round=3)
    expected = local_sgd(made.task.gradient, made.server["weights"], work, 0.1, epochs=2)
    assert apart(outcome.personal_rows[last:], expected) <= 1e-10


# -- around it


def test_test_labels_choose_nothing() -> None:
    poisoned = DATA.y.clone()
    poisoned[DATA.test.indices] = (poisoned[DATA.test.indices] + 1) % 3
    method = PersFL(distil_epochs=3)
    _, outcome = run(method, DATA, rounds=3)
    _, again = run(method, replace(DATA, y=poisoned), rounds=3)
    assert same_bits(again.personal_rows, outcome.personal_rows)
    assert same_bits(again.client_notes, outcome.client_notes)
    assert not same_bits(again.personal["test_loss"], outcome.personal["test_loss"])


def test_until_it_is_distilled_a_client_uses_the_common_model() -> None:
    made, outcome = run(PersFL(distil_epochs=2), DATA, rounds=3, eval_every=1)
    for before in outcome.history[:-1]:
        assert before["phase"] == "train" and before["personal"] == pytest.approx(before["global"], rel=1e-12)
    last = outcome.history[-1]
    assert last["phase"] == "distil" and last["reported"] == 0 and last["up_bytes"] == 0
    assert last["personal"] != last["global"]
    assert same_bits(outcome.personal_rows, made.store.get(range(len(DATA)))["personal"])


def test_only_weights_are_uploaded() -> None:
    task, work = task_of(), work_of(DATA)
    method = PersFL(distil_epochs=1)
    state = method.start_clients(task.start, work.names)
    for number, (phase, names) in enumerate({"train": {"weights"}, "distil": set()}.items(), start=1):
        round = Round(number=number, phase=phase, seed=0, names=work.names)
        upload, state = method.local_update(task, Message({"weights": task.start}), state, work, round)
        assert upload.keys() == names


def test_a_newcomer_distils_the_common_model() -> None:
    """As if it had been sent that model once, in the distilling round."""
    task, work = task_of(), work_of(DATA)
    common = random_rows(task, 1)
    method = PersFL(distil_epochs=3)
    found = method.newcomer(task, {"weights": common}, work)
    assert same_bits(found, receive(method, task, [], work, distil=common)["personal"])
    assert apart(found, common) > 1e-3


@pytest.mark.parametrize("teacher", ["best", "last"])
def test_a_newcomer_chooses_among_the_rounds_that_were_kept(teacher: str) -> None:
    """By its own validation loss; one without validation data, or if only the last counts, takes the last."""
    task, work = task_of(), work_of(DATA)
    kept = random_rows(task, 4, scale=1.0)
    method = PersFL(distil_epochs=2, teacher=teacher)
    losses = torch.tensor([[on_validation(kept[e : e + 1], DATA, k)[0] for e in range(4)] for k in SEEING])
    best = [*losses.argmin(1).tolist(), 3] if teacher == "best" else [3] * len(DATA)
    assert teacher == "last" or len(set(best[:-1])) > 1  # clients differ, else one choice for all would pass
    found = method.newcomer(task, {"weights": kept[3:], "rounds": kept}, work)
    assert work.notes["teacher_round"].tolist() == [e + 2 for e in best]  # G_2 is the mean of round 1
    assert apart(found, distilled(method, task, kept[best], work)[0]) < 1e-12


@pytest.mark.parametrize(
    ("hyper", "says"),
    [
        ({"imitations": (0.0, 1.5)}, "imitations must be one or more numbers in [0, 1], got (0.0, 1.5)"),
        ({"imitations": (-0.1,)}, "imitations must be"),
        ({"imitations": (float("nan"),)}, "imitations must be"),
        ({"imitations": ()}, "imitations must be"),
        ({"imitations": ("half",)}, "imitations must be"),
        ({"imitations": 0.5}, "imitations must be"),
        ({"temperatures": (1.0, 0.0)}, "temperatures must be one or more numbers > 0, got (1.0, 0.0)"),
        ({"temperatures": (-5.0,)}, "temperatures must be"),
        ({"temperatures": (float("inf"),)}, "temperatures must be"),
        ({"temperatures": []}, "temperatures must be"),
        ({"distil_epochs": 0}, "distil_epochs must be >= 1, got 0"),
        ({"distil_lr": 0.0}, "distil_lr must be > 0"),
        ({"teacher": "first"}, "teacher must be 'best' or 'last', got 'first'"),
        ({"weights": "size"}, "weights must be"),
    ],
)
@pytest.mark.parametrize("kind", [PersFL, PersFLGD])
def test_bad_hyper_parameters_get_a_sentence(kind: type[PersFL], hyper: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as error:
        kind(**hyper)
    assert str(error.value).startswith(says) and str(error.value).endswith(".")


@pytest.mark.parametrize("given", ["imitations=(0,2)", "temperatures=[1,-1]", "imitations=0.5", "temperatures=hot"])
def test_the_command_line_refuses_a_bad_grid(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", "persfl", "--set", given])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_run_directory_has_the_teachers_the_choices_and_the_whole_grid(tmp_path: Path) -> None:
    grid = ["--set", "imitations=(0.5, 0)", "--set", "temperatures=(1, 5)", "--set", "distil_epochs=2"]
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", "persfl", "--rounds", "3", "--clients", "4", *grid, "--out", str(tmp_path / "run"), "--quiet"])
    assert not ended.value.code
    notes = [json.loads(text) for text in (tmp_path / "run" / "client_rounds.jsonl").read_text().splitlines()]
    for client in {note["client"] for note in notes}:
        own = [note for note in notes if note["client"] == client]
        losses = [note["validation_loss"] for note in own]
        assert [note["round"] for note in own] == [1, 2, 3, 4]
        assert own[-1]["teacher_round"] == 1 + int(np.argmin(losses)) and own[-1]["teacher_loss"] == min(losses)
        table = dict(zip(((0.0, 1.0), (0.0, 5.0), (0.5, 1.0), (0.5, 5.0)), own[-1]["grid_accuracy"], strict=True))
        assert (own[-1]["imitation"], own[-1]["temperature"]) == max(table, key=lambda point: table[point])
        assert len(own[-1]["grid_loss"]) == 4 and "imitation" not in own[-2]


def test_both_names_are_registered() -> None:
    assert methods.find("persfl") is PersFL and methods.find("persfl-gd") is PersFLGD
    assert PersFL(imitations=[0.5], temperatures=[5, 1]).grid == [(0.5, 1.0), (0.5, 5.0)]


def test_regression_is_refused_in_the_first_round() -> None:
    data = federation(targets="numbers", dtype=torch.float64)
    with pytest.raises(InputError, match="persfl needs classes"):
        run(PersFL(), data, factory=line, loss="mse")


# -- all of it, once more, in plain torch


def by_the_book(data: Data, start: dict[str, Tensor], *, rounds: int, epochs: int, distil_epochs: int) -> Any:
    """Algorithm 1 for full batches, with modules, torch.optim and torch.nn.KLDivLoss only."""
    parts = [
        {
            part: (data.x[getattr(data, part).of(k)], data.y[getattr(data, part).of(k)])
            for part in ("train", "validation")
        }
        for k in range(len(data))
    ]
    server = mlp().double()
    server.load_state_dict(start)
    teachers: list[Any] = [(np.inf, 0, None)] * len(data)  # loss, round, model

    def look(number: int) -> None:
        for k, own in enumerate(parts):
            loss = F.cross_entropy(server(own["validation"][0]), own["validation"][1]).item()
            if loss < teachers[k][0]:
                teachers[k] = (loss, number, copy.deepcopy(server))

    for number in range(1, rounds + 1):
        look(number)
        trained = []
        for own in parts:
            module = copy.deepcopy(server)
            optimizer = torch.optim.SGD(module.parameters(), lr=1.5)
            for _ in range(epochs):
                optimizer.zero_grad()
                F.cross_entropy(module(own["train"][0]), own["train"][1]).backward()
                optimizer.step()
            trained.append(module.state_dict())
        sizes = [len(own["train"][1]) for own in parts]
        mean = {name: sum(n * one[name] for n, one in zip(sizes, trained, strict=True)) / sum(sizes) for name in start}
        server.load_state_dict(mean)
    look(rounds + 1)

    chosen = []
    for own, (_, number, teacher) in zip(parts, teachers, strict=True):
        (x, y), (x_held, y_held) = own["train"], own["validation"]
        best: Any = (-1, None, None, None)
        for share in (0.0, 0.25, 0.5, 0.75, 1.0):
            for temperature in (1.0, 5.0, 25.0):
                student = copy.deepcopy(teacher)
                optimizer = torch.optim.SGD(student.parameters(), lr=0.3)
                for _ in range(distil_epochs):
                    optimizer.zero_grad()
                    labels = torch.softmax(teacher(x).detach() / temperature, 1)
                    soft = nn.KLDivLoss(reduction="batchmean")(torch.log_softmax(student(x) / temperature, 1), labels)
                    hard = nn.CrossEntropyLoss()(student(x), y)
                    ((1 - share) * hard + share * temperature**2 * soft).backward()
                    optimizer.step()
                right = int((student(x_held).argmax(1) == y_held).sum())
                if right > best[0]:
                    best = (right, share, temperature, student.state_dict())
        chosen.append((number, *best[1:]))
    return server.state_dict(), chosen


@pytest.mark.parametrize("engine", [{}, {"chunk": 1}, {"reference": True}], ids=["stacked", "plain", "reference"])
def test_the_whole_method_equals_a_plain_implementation(engine: dict[str, Any]) -> None:
    full = federation((12, 9, 15, 4), dtype=torch.float64, seed=5)
    parts = {part: getattr(full, part).take(range(3)) for part in ("train", "validation", "test")}
    data = replace(full, names=full.names[:3], **parts)
    method = PersFL(lr=1.5, distil_lr=0.3, distil_epochs=6)
    made, outcome = run(method, data, rounds=4, local_epochs=3, batch_size=20, **engine)
    server, chosen = by_the_book(data, made.task.start.state(), rounds=4, epochs=3, distil_epochs=6)
    for one in range(3):  # teachers of different rounds, different λ, different T
        assert len({choice[one] for choice in chosen}) > 1
    assert outcome.global_rows is not None
    assert apart(outcome.global_rows, Rows.from_state(made.task.layout, server)) <= 1e-10
    notes = [note for note in outcome.client_notes if note["round"] == 5]
    for k, (number, share, temperature, personal) in enumerate(chosen):
        note = next(note for note in notes if note["client"] == data.names[k])
        assert (note["teacher_round"], note["imitation"], note["temperature"]) == (number, share, temperature)
        assert apart(outcome.personal_rows[k : k + 1], Rows.from_state(made.task.layout, personal)) <= 1e-9
