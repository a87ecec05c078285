"""FedFOMO: others' models, weighed by what they are worth on one's validation data."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bespokefl.core.errors import InputError
from bespokefl.core.method import Round
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.engines.client import Data
from bespokefl.methods import FedFOMO, Local
from bespokefl.methods.fedfomo import mix, weights, worth
from tests.federations import CLASSES, apart, federation, mlp, random_rows, run, same_bits, work_of
from tests.methods.plain_sgd import train

pytestmark = pytest.mark.slow  # `make check` is to stay under two minutes

DATA = federation(dtype=torch.float64)
THREE = federation((9, 6, 12, 3), dtype=torch.float64)  # the fourth has no validation data


def validation_loss(task: Task, row: Rows, data: Data, k: int) -> float:
    own = data.validation.of(k)
    with torch.no_grad():
        return F.cross_entropy(torch.func.functional_call(task.module, row.state(), (data.x[own],)), data.y[own]).item()


def value(task: Task, base: Rows, row: Rows, data: Data, k: int) -> float:
    """(3), one model and client at a time."""
    distance = float((row - base).square_norm().sqrt())
    if distance == 0 or not len(data.validation.of(k)):
        return 0.0
    return (validation_loss(task, base, data, k) - validation_loss(task, row, data, k)) / distance


# -- weights


def test_weights_by_hand() -> None:
    found = weights(torch.tensor([[1.0, 3.0, -2.0], [-1.0, -2.0, 0.0], [0.0, 0.0, 0.5]], dtype=torch.float64))
    assert found.tolist() == [[0.25, 0.75, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]


def test_worth_of_models_for_three_clients() -> None:
    task = Task(mlp, dtype=torch.float64)
    base, first, second = (random_rows(task, 3, seed=seed) for seed in (0, 1, 2))
    found = worth(task, base, [first, second], work_of(THREE, [0, 1, 2]))
    for k in range(3):
        for m, rows in enumerate((first, second)):
            expected = value(task, base[k : k + 1], rows[k : k + 1], THREE, k)
            assert found[k, m].item() == pytest.approx(expected, rel=1e-10)
    assert (found > 0).any() and (found < 0).any()


def test_only_validation_data_count() -> None:
    task = Task(mlp, dtype=torch.float64)
    models = [random_rows(task, 3, seed=seed) for seed in (1, 2)]
    expected = worth(task, task.start, models, work_of(THREE, [0, 1, 2]))
    for part, same in (("train", True), ("test", True), ("validation", False)):
        y, own = THREE.y.clone(), getattr(THREE, part).indices
        y[own] = (y[own] + 1) % CLASSES
        found = worth(task, task.start, models, work_of(replace(THREE, y=y), [0, 1, 2]))
        assert same_bits(found, expected) == same


def test_identical_models_keep_their_own() -> None:
    task = Task(mlp, dtype=torch.float64)
    own, work = random_rows(task, 3), work_of(THREE, [0, 1, 2])
    for base in (own, random_rows(task, 3, seed=5)):
        assert apart(mix([own, own, own], worth(task, base, [own, own, own], work)), own) < 1e-12


def test_nobody_better_keeps_its_own() -> None:
    task = Task(mlp, dtype=torch.float64)
    own = random_rows(task, 2)
    found = mix([own, random_rows(task, 2, seed=1)], torch.tensor([[-1.0, -0.5], [0.0, 0.0]]))
    assert same_bits(found, own)


# -- rounds


def test_three_rounds_by_hand() -> None:
    """Four clients who all download from all: what they choose first does not matter."""
    made, outcome = run(FedFOMO(lr=0.2, momentum=0.5, downloads=3), THREE, rounds=3)
    task, everybody = made.task, range(4)
    base, own = [task.start] * 4, [task.start] * 4
    affinity = torch.zeros(4, 4, dtype=torch.float64)
    mixed_something = False
    for number in (1, 2, 3):
        before, work = list(own), work_of(THREE, round=number)
        for i in everybody:
            values = {n: value(task, base[i], before[n], THREE, i) for n in everybody}
            total = sum(max(0.0, one) for one in values.values())
            sizes = sum(abs(one) for one in values.values())
            start = before[i]
            if total > 0:
                start = base[i]
                for n in everybody:
                    start = start + (before[n] - base[i]) * (max(0.0, values[n]) / total)
                mixed_something |= any(values[n] > 0 for n in everybody if n != i)
            for n in everybody:
                affinity[i, n] += values[n] / sizes if sizes and n != i else 0.0
            base[i], own[i] = start, train(task, work, i, start, lr=0.2, momentum=0.5)
    assert mixed_something
    assert apart(outcome.personal_rows, Rows.cat(own)) < 1e-10
    assert apart(outcome.server["models"], Rows.cat(own)) < 1e-10
    torch.testing.assert_close(outcome.server["affinity"], affinity, rtol=1e-8, atol=1e-10)


def test_without_validation_data_it_is_local() -> None:
    _, found = run(FedFOMO(lr=0.2), DATA, rounds=4, participation=0.5)
    _, local = run(Local(lr=0.2), DATA, rounds=4, participation=0.5)
    assert len(DATA.validation.of(5)) == 0
    assert apart(found.personal_rows[5:], local.personal_rows[5:]) < 1e-12
    assert apart(found.personal_rows[:5], local.personal_rows[:5]) > 1e-3


def test_who_did_not_take_part_keeps_its_model() -> None:
    made, outcome = run(FedFOMO(), DATA, rounds=1, participation=0.5)
    known = made.server["known"].tolist()
    assert sum(known) == 3
    for k in range(6):
        assert same_bits(outcome.personal_rows[k : k + 1], made.task.start) == (not known[k])


@pytest.mark.parametrize(("downloads", "count"), [(2, 2), (9, 5)])
def test_a_few_models_down_and_one_up(downloads: int, count: int) -> None:
    made, outcome = run(FedFOMO(downloads=downloads), DATA, rounds=2)
    model = made.task.layout.width * 8
    for line in outcome.history:
        assert line["down_bytes"] == 6 * count * model
        assert line["up_bytes"] == 6 * (model + count * 8)  # and what they were worth


# -- who is chosen


def choices(method: FedFOMO, affinity: Tensor, known: list[bool], number: int = 1, seed: int = 0) -> list[list[int]]:
    """Whose models each of five clients gets."""
    round = Round(number, "train", seed, tuple("abcde"))
    server = method.start_server(Task(mlp).start, round) | {"affinity": affinity, "known": torch.tensor(known)}
    chosen: list[list[int]] = method._chosen(server, range(5), round).tolist()
    return chosen


AFFINITY = torch.tensor(
    [[0, 4, -3, 2, 1], [5, 0, 6, 7, 8], [0, -1, 0, -2, -3], [9, 8, 7, 0, 6], [1, 2, 3, 4, 0]]
).double()


def test_greedy_takes_the_highest_affinities() -> None:
    expected = [[1, 3], [4, 3], [0, 1], [0, 1], [3, 2]]
    assert choices(FedFOMO(downloads=2, explore=0.0), AFFINITY, [True] * 5) == expected
    late = choices(FedFOMO(downloads=2, explore=1.0, decay=0.1), AFFINITY, [True] * 5, number=11)
    assert late == expected  # ε is used up


def test_who_never_uploaded_comes_last() -> None:
    chosen = choices(FedFOMO(downloads=3, explore=0.5, decay=0), AFFINITY, [False, True, False, True, False])
    assert set(chosen[0][:2]) == {1, 3} and chosen[1][0] == 3 and chosen[3][0] == 1
    assert all(len(set(own)) == 3 and k not in own for k, own in enumerate(chosen))


def test_exploring_is_uniform() -> None:
    """800 first choices of client 0 among four: 200 each, with a standard deviation of 12."""
    method = FedFOMO(downloads=1, explore=1.0, decay=0.0)
    first = Counter(choices(method, AFFINITY, [True] * 5, seed=seed)[0][0] for seed in range(800))
    assert set(first) == {1, 2, 3, 4} and all(150 < count < 250 for count in first.values())


def test_a_share_of_choices_is_random() -> None:
    """ε = .4 in round 2; a quarter of that hits the best anyway: 1 − .4 · ¾ = .7 of 800, 560 with a deviation of 13."""
    method = FedFOMO(downloads=1, explore=0.5, decay=0.1)
    best = sum(choices(method, AFFINITY, [True] * 5, number=2, seed=seed)[0][0] == 1 for seed in range(800))
    assert 500 < best < 620


def test_ties_are_broken_at_random() -> None:
    zero, method = torch.zeros(5, 5, dtype=torch.float64), FedFOMO(downloads=1, explore=0.0)
    assert {choices(method, zero, [True] * 5, seed=seed)[0][0] for seed in range(60)} == {1, 2, 3, 4}


# -- others


def test_a_newcomer_looks_at_all_models() -> None:
    method = FedFOMO(lr=0.2, momentum=0.5)
    made, outcome = run(method, DATA, rounds=3, participation=0.5)
    new = replace(THREE, names=("new a", "new b", "new c", "new d"))
    served = method.newcomer(made.task, made.server, work_of(new, expected_rounds=2))
    known, start = made.server["known"], made.task.start
    models = [outcome.server["models"][j : j + 1] for j in known.nonzero().flatten().tolist()]
    for k in range(4):
        values = [max(0.0, value(made.task, start, row, new, k)) for row in models]
        row = start
        for one, model in zip(values, models, strict=True):
            row = row + (model - start) * (one / sum(values) if sum(values) else 0.0)
        expected = train(made.task, work_of(new, [k], epochs=2), 0, row, lr=0.2, momentum=0.5)
        assert apart(served[k : k + 1], expected) < 1e-10


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"downloads": 0}, r"^downloads must be >= 1, got 0 \(M of fedfomo\)\.$"),
        ({"explore": 1.2}, r"^explore must be in \[0, 1\], got 1.2 \(ε of fedfomo\)\.$"),
        ({"decay": -0.1}, r"^decay must be >= 0, got -0.1"),
    ],
)
def test_senseless_values(given: dict[str, float], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        FedFOMO(**given)
