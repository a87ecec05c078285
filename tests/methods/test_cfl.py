"""CFL: clusters that are split where updates disagree."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bespokefl.core.errors import InputError
from bespokefl.core.method import Round, State, Uploads
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.methods import CFL, FedAvg
from bespokefl.methods.cfl import bipartition, similarity
from tests.federations import apart, federation, mlp, planted, random_rows, run, same_bits, simulation, work_of
from tests.methods.plain_sgd import train, weighted

pytestmark = pytest.mark.slow  # `make check` is to stay under two minutes

DATA = federation(dtype=torch.float64)
ALWAYS = {"small": 1e9, "large": 1e-9, "across": 1.0, "relative": False, "patience": 0}  # splits whatever it can
NEVER = {"small": 1e-9, "relative": False}
LONG = {"rounds": 25, "batch_size": 10, "local_epochs": 5}


def cosines(count: int, seed: int) -> Tensor:
    vectors = np.random.default_rng(seed).standard_normal((count, 4))
    unit = torch.from_numpy(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    return unit @ unit.T


def across(cosine: Tensor, part: Tensor) -> float:
    """The largest cosine between the two parts."""
    return float(cosine[part][:, ~part].max())


def splits(count: int) -> list[Tensor]:
    """All ways to make two parts, the first client in the first."""
    return [torch.tensor((False, *rest)) for rest in product((False, True), repeat=count - 1) if any(rest)]


# -- the bipartition


@given(st.integers(2, 8), st.integers(0, 10_000))
def test_the_bipartition_is_the_best_of_all(count: int, seed: int) -> None:
    cosine = cosines(count, seed)
    found = bipartition(cosine)
    best = min(splits(count), key=lambda part: across(cosine, part))
    assert not found[0] and across(cosine, found) == pytest.approx(across(cosine, best), abs=1e-12)


@pytest.mark.parametrize("method", ["single", "complete"])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_there_are_two_parts_even_where_all_agree(method: str, count: int) -> None:
    part = bipartition(torch.ones(count, count, dtype=torch.float64), method)
    assert 0 < int(part.sum()) < count and not part[0]


def test_the_two_linkages() -> None:
    """Single: the widest gap, 23°, before the last. Complete: {0, 10}, {25, 45}, then 68 joins the nearer, 43 < 45."""
    angles = torch.tensor([0.0, 10.0, 25.0, 45.0, 68.0], dtype=torch.float64) * torch.pi / 180
    cosine = torch.cos(angles[:, None] - angles)
    assert bipartition(cosine, "single").tolist() == [False, False, False, False, True]
    assert bipartition(cosine, "complete").tolist() == [False, False, True, True, True]


def test_cosines_of_updates() -> None:
    rows = random_rows(Task(mlp, dtype=torch.float64), 3)
    flat = rows.matrix()
    expected = torch.nn.functional.cosine_similarity(flat[:, None], flat, dim=2)
    torch.testing.assert_close(similarity(rows), expected)
    assert similarity(rows * torch.tensor([1.0, 0.0, 1.0]))[1].tolist() == [0.0, 0.0, 0.0]  # who did not move


# -- rounds


@pytest.mark.parametrize("weights", ["equal", "examples"])
@pytest.mark.parametrize("participation", [0.5, 1.0])
def test_without_a_split_it_is_fedavg(participation: float, weights: str) -> None:
    options = {"rounds": 3, "participation": participation}
    _, found = run(CFL(lr=0.2, momentum=0.5, weights=weights, **NEVER), DATA, **options)
    _, expected = run(FedAvg(lr=0.2, momentum=0.5, weights=weights), DATA, **options)
    assert apart(found.personal_rows, expected.personal_rows) < 1e-12
    assert found.communication == expected.communication  # one model down, one up


def test_two_rounds_by_hand() -> None:
    """Everybody's updates, the best of all bipartitions, then a mean for each part."""
    made, outcome = run(CFL(lr=0.2, **ALWAYS), federation((7, 5, 9), dtype=torch.float64), rounds=2)
    data, start = made.data, made.task.start
    first = [train(made.task, work_of(data, round=1), k, start, lr=0.2) for k in range(3)]
    cosine = similarity(Rows.cat([row - start for row in first]))
    part = min(splits(3), key=lambda one: across(cosine, one)).tolist()
    common = weighted(first, [1, 1, 1])
    second = [train(made.task, work_of(data, round=2), k, common, lr=0.2) for k in range(3)]
    for k in range(3):
        inside = [second[j] for j in range(3) if part[j] == part[k]]
        assert apart(outcome.personal_rows[k : k + 1], weighted(inside, [1] * len(inside))) < 1e-10
    assert [line["clusters"] for line in outcome.history] == [2, 2]  # two clients are not split
    assert outcome.history[1]["cluster"] == [int(one) for one in part]


def received(clients: list[int], moves: list[float], task: Task) -> Uploads:
    """Updates along one direction, each with a little of its own."""
    along, noise = random_rows(task, 1, seed=1), random_rows(task, len(clients), seed=2, scale=0.01)
    change = along.expand(len(clients)) * torch.tensor(moves, dtype=torch.float64) + noise
    return Uploads(clients, torch.ones(len(clients)), [{"change": change[:2]}, {"change": change[2:]}])


def test_a_split_of_a_split_is_about_clients_not_places_in_the_cohort() -> None:
    """Ten clients, some of them in each round, and given in no order."""
    method, task = CFL(**ALWAYS), Task(mlp, dtype=torch.float64)

    def round(number: int) -> Round:
        return Round(number, "train", 0, tuple("abcdefghij"))

    server: State = method.start_server(task.start, round(0))
    one = received([8, 1, 5, 4, 7, 2], [-1, 1, -1, 1, 1, -1], task)
    server = method.aggregate(server, one, round(1))
    assert server["cluster"].tolist() == [0, 0, 1, 0, 0, 1, 0, 0, 1, 0]  # 2, 5, 8; absent clients stay
    moved = task.start + one["change"].mean()
    assert apart(server["models"], moved) < 1e-12 and len(server["models"]) == 2
    two = received([5, 8, 0, 2], [1, -1, 3, -1], task)
    server = method.aggregate(server, two, round(2))
    assert server["cluster"].tolist() == [0, 0, 1, 0, 0, 2, 0, 0, 1, 0]  # 5 leaves; 0, alone today, is not split
    change = two["change"]
    assert apart(server["models"][:1], moved + change[2:3]) < 1e-12
    assert apart(server["models"][1:], moved + change[[0, 1, 3]].mean()) < 1e-12
    message = method.message(server, [5, 9, 2], round(3))
    assert same_bits(message["weights"], server["models"][[2, 0, 1]])


@pytest.mark.parametrize(
    ("change", "clusters"),
    [({}, 2), ({"patience": 1}, 1), ({"small": 0.1}, 1), ({"large": 1.2}, 1), ({"across": -0.9999}, 1)],
)
def test_what_a_split_needs(change: dict[str, float], clusters: int) -> None:
    """Moves of 1, 1, −1 and −.4 along a line: their mean is .15 long, the longest 1, cosines across hardly above −1."""
    method = CFL(**(ALWAYS | {"small": 0.5, "large": 0.8, "across": -0.5} | change))
    task, round = Task(mlp, dtype=torch.float64), Round(1, "train", 0, tuple("abcd"))
    along, noise = random_rows(task, 1, seed=1), random_rows(task, 4, seed=2, scale=0.005)
    moves = torch.tensor([1, 1, -1, -0.4], dtype=torch.float64) / along.square_norm().sqrt()
    uploads = Uploads([0, 1, 2, 3], torch.ones(4), [{"change": along.expand(4) * moves + noise}])
    server = method.aggregate(method.start_server(task.start, round), uploads, round)
    assert len(server["models"]) == clusters


def test_thresholds_are_shares_of_the_first_rounds_updates() -> None:
    """Or of 1: lengths as they are."""
    made, outcome = run(CFL(), DATA, rounds=2)
    task = made.task
    moves = [train(task, work_of(DATA), k, task.start, lr=0.1) - task.start for k in range(6)]
    length = Rows.cat(moves).square_norm().sqrt().mean()
    torch.testing.assert_close(outcome.server["unit"], length)
    assert simulation(CFL(relative=False), DATA).server["unit"] == 1


def test_clients_who_agree_are_not_split() -> None:
    """With the default thresholds."""
    for seed in (0, 1):
        _, outcome = run(CFL(), planted((0,) * 8, seed=seed), **LONG)
        assert outcome.history[-1]["clusters"] == 1


@pytest.mark.parametrize(("linkage", "seed"), [("single", 0), ("single", 1), ("complete", 0)])
def test_planted_groups_are_separated(linkage: str, seed: int) -> None:
    """With the default thresholds. No cluster has clients of two groups."""
    groups = (0, 1, 1, 0, 0, 1, 0, 1)
    _, outcome = run(CFL(linkage=linkage), planted(groups, seed=seed), **LONG)
    found = outcome.history[-1]["cluster"]
    assert len(set(zip(found, groups, strict=True))) == len(set(found)) >= 2
    assert outcome.personal["test_accuracy"].mean() > 0.8


def test_a_newcomer_gets_the_cluster_that_fits_its_training_data() -> None:
    method, task = CFL(), Task(mlp, dtype=torch.float64)
    data = planted((0, 1))
    own = Rows.cat([train(task, work_of(data, epochs=20), k, task.start, lr=0.2) for k in (0, 1)])
    served = method.newcomer(task, {"models": own}, work_of(planted((1, 0, 1))))
    assert same_bits(served, own[[1, 0, 1]])


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"small": 0.0}, r"^small must be > 0, got 0.0 \(ε₁ of cfl\)\.$"),
        ({"large": float("nan")}, r"^large must be > 0, got nan"),
        ({"across": 1.5}, r"^across must be in \[-1, 1\], got 1.5"),
        ({"patience": -1}, r"^patience must be >= 0, got -1"),
        ({"linkage": "ward"}, r"^linkage must be 'single' or 'complete', got 'ward'\.$"),
    ],
)
def test_senseless_values(given: dict[str, float], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        CFL(**given)
