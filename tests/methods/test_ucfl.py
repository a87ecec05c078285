"""User-Centric FL: who looks like whom, how many streams, and every client's own mixture."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.metrics import silhouette_samples
from torch import nn

from bespokefl import cli
from bespokefl.core import rng as rngs
from bespokefl.core.client_index import ClientIndex
from bespokefl.core.errors import InputError
from bespokefl.core.method import ALL, NONE, Phase, Round, Uploads
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.engines.client import Data
from bespokefl.methods import UCFL, FedAvg, Local, UCFLParallel, build
from bespokefl.methods.ucfl import choose_streams, collaboration, gradient_noise, similarity
from bespokefl.methods.ucfl.similarity import k_means
from tests.federations import CLASSES, SIZES, WIDTH, apart, federation, random_rows, run, simulation, work_of
from tests.methods.plain_sgd import train, weighted

DATA = federation(dtype=torch.float64)
M = len(DATA)


def logistic() -> nn.Module:
    return nn.Linear(WIDTH, CLASSES)


def collaboration_of(outcome: Any) -> np.ndarray:
    return np.array(outcome.history[0]["collaboration"])


# -- W


def test_collaboration_by_hand() -> None:
    gradients = [[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]]  # Δ_12 = 1, Δ_13 = 4, Δ_23 = 5
    variances, n = [1.0, 4.0, 0.25], [10, 20, 30]  # σ = 1, 2, ½
    raw = np.array(
        [
            [10, 20 * np.exp(-1 / 4), 30 * np.exp(-4 / 1)],
            [10 * np.exp(-1 / 4), 20, 30 * np.exp(-5 / 2)],
            [10 * np.exp(-4 / 1), 20 * np.exp(-5 / 2), 30],
        ]
    )
    expected = raw / raw.sum(1, keepdims=True)
    np.testing.assert_allclose(collaboration(gradients, variances, n), expected, rtol=1e-14)
    tensors = (torch.tensor(gradients), torch.tensor(variances), torch.tensor(n))
    np.testing.assert_allclose(collaboration(*tensors), expected, rtol=1e-14)
    layout = Task(lambda: nn.Linear(2, 1, bias=False)).layout
    rows = Rows.from_matrix(layout, torch.tensor(gradients))
    np.testing.assert_allclose(collaboration(rows, variances, n), expected, rtol=1e-14)


@pytest.mark.parametrize("variances", [[1.0, 2.0, 3.0], [0.0, 0.0, 1.0], [np.nan, 1.0, 0.0], [np.nan] * 3])
def test_equal_gradients_give_the_weights_of_fedavg(variances: list[float]) -> None:
    W = collaboration(np.full((3, 4), 0.7), variances, [1, 2, 5])
    np.testing.assert_allclose(W, [[1 / 8, 2 / 8, 5 / 8]] * 3, rtol=1e-14)


def test_groups_far_apart_make_w_block_diagonal() -> None:
    group = np.array([0, 1, 0, 1, 1, 0])
    W = collaboration(1e3 * group[:, None] + np.zeros((6, 5)), np.ones(6), SIZES)
    for i in range(6):
        own = np.where(group == group[i], SIZES, 0)
        np.testing.assert_allclose(W[i], own / own.sum(), rtol=1e-12, atol=1e-300)


def test_much_more_certain_gradients_degenerate_to_local() -> None:
    rng = np.random.default_rng(0)
    gradients, n = rng.standard_normal((4, 6)), np.array([5, 5, 5, 500])
    W = collaboration(gradients, [1e-8, 10, 10, 10], n)
    np.testing.assert_allclose(W[0], [1, 0, 0, 0], atol=1e-12)  # however many examples another has
    assert (W[1:, 1:] > 1e-3).all()  # the others still collaborate


@given(
    gradients=st.lists(st.lists(st.floats(-5e5, 5e5), min_size=3, max_size=3), min_size=1, max_size=6),
    variances=st.lists(
        st.one_of(st.just(0.0), st.just(np.nan), st.floats(0, 1e-12), st.floats(1e-300, 1e12)), min_size=6, max_size=6
    ),
    sizes=st.lists(st.integers(1, 10**6), min_size=6, max_size=6),
)
def test_rows_sum_to_one_whatever_comes(gradients: list[list[float]], variances: list[float], sizes: list[int]) -> None:
    m = len(gradients)  # Δ is up to 3e12
    W = collaboration(gradients, variances[:m], sizes[:m])
    assert (W >= 0).all()
    np.testing.assert_allclose(W.sum(1), 1, rtol=1e-12)
    assert (np.diag(W) > 0).all()


def test_extreme_distances_do_not_vanish() -> None:
    W = collaboration([[0.0], [1e6], [1e6]], [1e-200, 1e-200, 0.0], [1, 1, 3])  # Δ = 1e12, σ² down to 0
    np.testing.assert_array_equal(W, [[1, 0, 0], [0, 1 / 4, 3 / 4], [0, 1 / 4, 3 / 4]])


def test_who_has_no_noise_collaborates_with_nobody_else() -> None:
    W = collaboration([[0.0], [0.0], [1e-9]], [0.0, 1.0, 1.0], [1, 1, 2])
    np.testing.assert_allclose(W, [[1 / 2, 1 / 2, 0], [1 / 4, 1 / 4, 1 / 2], [0, 1 / 3, 2 / 3]], rtol=1e-9)


def test_an_undefined_noise_is_the_median_of_the_known() -> None:
    gradients, n = np.random.default_rng(3).standard_normal((5, 4)), np.arange(1, 6)
    found = collaboration(gradients, [1.0, np.nan, 9.0, 4.0, 100.0], n)
    expected = collaboration(gradients, [1.0, 2.5**2, 9.0, 4.0, 100.0], n)  # σ = 1, 2, 3, 10
    np.testing.assert_allclose(found, expected, rtol=1e-14)
    np.testing.assert_allclose(collaboration(gradients, [np.nan] * 5, n), np.tile(n / 15, (5, 1)), rtol=1e-14)


def test_sizes_that_do_not_fit() -> None:
    with pytest.raises(InputError, match="expected one variance and one size for each of 3 gradients, got 2 and 3"):
        collaboration(np.zeros((3, 2)), [1.0, 1.0], [1, 1, 1])


def test_gradient_noise_by_hand() -> None:
    batches = np.array([[1.0, 0.0], [0.0, 2.0], [2.0, 1.0]])
    mean = [1.0, 1.0]  # squares: 1, 1 + 1, 1
    assert gradient_noise(batches, mean) == pytest.approx(4 / 3)
    assert gradient_noise(torch.from_numpy(batches), torch.tensor(mean)) == pytest.approx(4 / 3)
    assert gradient_noise(batches[[0, 0]], batches[0]) == 0
    assert np.isnan(gradient_noise(batches[:1], mean))
    cohort = [np.stack([batch, batch, batch]) for batch in batches]  # three clients; the last has one batch only
    found = gradient_noise(iter(cohort), np.tile(mean, (3, 1)), counts=[3, 2, 1])
    np.testing.assert_allclose(found, [4 / 3, 3 / 2, np.nan])


# -- streams


def silhouette(W: np.ndarray, labels: np.ndarray) -> float:
    """The paper's a, b and s, client by client; a client alone in its stream has 0."""
    values = []
    for i in range(len(W)):
        distance = np.linalg.norm(W - W[i], axis=1)
        own = labels == labels[i]
        if own.sum() == 1:
            values.append(0.0)
            continue
        a = distance[own].sum() / (own.sum() - 1)
        b = min(distance[labels == other].mean() for other in set(labels) - {labels[i]})
        values.append((b - a) / max(a, b))
    return float(np.mean(values))


def noisy_blocks(group: np.ndarray, noise: float = 0.02) -> np.ndarray:
    W = (group[:, None] == group[None]) + noise * np.random.default_rng(0).random((len(group), len(group)))
    return W / W.sum(1, keepdims=True)


def test_streams_are_the_groups_and_the_curve_is_their_silhouette() -> None:
    group = np.array([0, 1, 2, 0, 3, 1, 2, 3, 0, 1, 2, 3])
    W = noisy_blocks(group)
    k, labels, curve = choose_streams(W)
    assert k == 4
    assert labels.tolist() == group.tolist()  # numbered as they first come
    assert len(curve) == len(W)
    assert curve[0] == curve[-1] == 0
    for streams in range(2, len(W)):
        same, own, again = choose_streams(W, streams=streams)
        assert (same, len(set(own))) == (streams, streams)
        np.testing.assert_array_equal(again, curve)
        assert curve[streams - 1] == pytest.approx(silhouette(W, own), abs=1e-6)


def test_k_means_leaves_nobody_nearer_to_another_centroid() -> None:
    W = np.random.default_rng(5).dirichlet(np.ones(15), size=15)
    for streams in (2, 5, 9):
        _, labels, _ = choose_streams(W, streams=streams)
        centroids = np.stack([W[labels == stream].mean(0) for stream in range(streams)])
        nearest = np.linalg.norm(W[:, None] - centroids[None], axis=2).argmin(1)
        np.testing.assert_array_equal(labels, nearest)


def test_clusters_and_silhouettes_are_those_of_scikit_learn() -> None:
    draws = np.random.default_rng(3)
    for m, k in ((30, 4), (60, 25), (60, 59)):
        points, begin = draws.random((m, 5)), np.concatenate([np.arange(k), draws.integers(k, size=m - k)])
        found = k_means(points, begin, k)
        centres = np.stack([points[begin == c].mean(0) for c in range(k)])
        np.testing.assert_array_equal(found, KMeans(k, init=centres, n_init=1).fit(points).labels_)
        distances = np.linalg.norm(points[:, None] - points, axis=2)
        expected = silhouette_samples(distances, found, metric="precomputed").mean()
        assert similarity.silhouette(distances, found) == pytest.approx(expected, rel=1e-12)


def test_a_cluster_that_loses_its_points_gets_the_farthest_one() -> None:
    points = np.array([[0.0], [0.1], [10.0], [10.6], [5.0], [5.4]])
    found = k_means(points, np.array([0, 2, 0, 2, 1, 1]), 3)  # centres at 5, 5.2 and 5.35
    assert found.tolist() == [0, 0, 1, 1, 2, 2]
    init = np.array([[5.0], [5.2], [5.35]])
    np.testing.assert_array_equal(found, KMeans(3, init=init, n_init=1).fit(points).labels_)


def test_a_penalty_asks_for_fewer_streams() -> None:
    W = noisy_blocks(np.array([0, 0, 1, 1, 2, 2]), noise=0.5)
    free, _, curve = choose_streams(W)
    chosen = [choose_streams(W, penalty)[0] for penalty in (0.0, 0.05, 0.2, 1.0)]
    assert chosen == [int(np.argmax(curve - penalty * np.arange(1, 7))) + 1 for penalty in (0.0, 0.05, 0.2, 1.0)]
    assert chosen[0] == free == 3
    assert chosen[-1] == 1


def test_equal_rows_need_one_stream() -> None:
    k, labels, curve = choose_streams(np.tile([0.2, 0.3, 0.5], (3, 1)) + 1e-17)
    assert (k, labels.tolist(), curve.tolist()) == (1, [0, 0, 0], [0, 0, 0])
    exact = np.kron(np.eye(2), np.full((3, 3), 1 / 3))  # two distinct rows: no third stream can be found
    k, labels, curve = choose_streams(exact, streams=4)
    assert labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert curve.tolist() == [0, 1, 0, 0, 0, 0]


@pytest.mark.parametrize("m", [1, 2])
def test_few_clients(m: int) -> None:
    k, labels, curve = choose_streams(np.eye(m))
    assert (k, labels.tolist(), curve.tolist()) == (1, [0] * m, [0] * m)
    assert choose_streams(np.eye(m), streams=m)[1].tolist() == list(range(m))


def test_many_clients_are_not_tried_one_by_one() -> None:
    k, _, curve = choose_streams(noisy_blocks(np.arange(130) % 3))
    assert k == 3
    assert not np.isnan(curve[:101]).any()
    assert np.isnan(curve[101:129]).sum() == 28 - 5  # 106, 111, 116, 121, 127


# -- planted groups


def digits(kind: str, clients: int, seed: int) -> Data:
    """Digits in four groups: turned by a multiple of 90°, or with labels of the group's own."""
    x, y = load_digits(return_X_y=True)
    images, labels = x.reshape(-1, 8, 8) / 16, y.copy()
    rng = np.random.default_rng(seed)
    parts = np.array_split(rng.permutation(len(y)), clients)
    relabel = [rng.permutation(10) for _ in range(4)]
    for i, own in enumerate(parts):
        if kind == "rotation":
            images[own] = np.rot90(images[own], i % 4, axes=(1, 2))
        else:
            labels[own] = relabel[i % 4][labels[own]]
    cut = [np.split(own, [len(own) - 20, len(own) - 10]) for own in parts]
    train, validation, test = (ClientIndex.of_lists(lists) for lists in zip(*cut, strict=True))
    flat = torch.from_numpy(images.reshape(len(y), 64).copy())
    names = tuple(f"c{i:02d}" for i in range(clients))
    return Data(flat, torch.from_numpy(labels), names, train, validation, test)


@pytest.mark.parametrize("kind", ["rotation", "labels"])
def test_four_planted_groups_are_found(kind: str) -> None:
    data = digits(kind, clients=12, seed=0)
    _, outcome = run(UCFL(streams="auto"), data, factory=lambda: nn.Linear(64, 10), rounds=1, batch_size=32)
    survey = outcome.history[0]
    assert survey["streams"] == 4
    assert survey["stream"] == [0, 1, 2, 3] * 3
    curve = np.array(survey["silhouette"])
    assert curve.argmax() == 3
    assert np.sort(curve)[-1] - np.sort(curve)[-2] > 0.01  # no near tie
    for i, j in ((0, 4), (0, 8), (1, 5)):
        assert same_model(outcome.personal_rows, i, j)
    assert not same_model(outcome.personal_rows, 0, 1)


def same_model(rows: Rows, i: int, j: int) -> bool:
    return bool(torch.equal(rows[i : i + 1].matrix(), rows[j : j + 1].matrix()))


# -- the whole, against plain numpy


def softmax_gradient(theta: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of the mean cross-entropy of logits x Aᵀ + b, θ = (A, b)."""
    A, b = theta[:-CLASSES].reshape(CLASSES, WIDTH), theta[-CLASSES:]
    logits = x @ A.T + b
    p = np.exp(logits - logits.max(1, keepdims=True))
    p = p / p.sum(1, keepdims=True) - np.eye(CLASSES)[y]
    return np.concatenate([(p.T @ x).ravel(), p.sum(0)]) / len(y)


@pytest.mark.parametrize("survey", [{}, {"survey_batches": 4}, {"survey_size": 2}])
@pytest.mark.parametrize("parallel", [False, True])
def test_survey_and_two_rounds_in_plain_numpy(survey: dict[str, int], parallel: bool) -> None:
    """Algorithm 1 with full batches, two epochs and momentum; its own code from end to end."""
    data = federation((7, 10, 5), dtype=torch.float64)
    method = (UCFLParallel if parallel else UCFL)(lr=0.5, momentum=0.9, **survey)
    made, outcome = run(method, data, factory=logistic, batch_size=32, local_epochs=2, rounds=2)
    own = [(data.x[data.train.of(i)].numpy(), data.y[data.train.of(i)].numpy()) for i in range(3)]
    start = made.task.start.matrix()[0].numpy()

    g = np.stack([softmax_gradient(start, x, y) for x, y in own])
    variance = []
    for i, (x, y) in enumerate(own):
        order = rngs.generator(0, "survey", 1, data.names[i], 0).permutation(len(y))
        size = survey.get("survey_size", len(y) // survey.get("survey_batches", 3))
        num = len(y) // size
        batches = [order[k * size : (k + 1) * size] for k in range(num)]
        variance.append(np.mean([np.sum((softmax_gradient(start, x[b], y[b]) - g[i]) ** 2) for b in batches]))
    W = np.zeros((3, 3))
    for i in range(3):
        for j in range(3):
            delta = np.sum((g[i] - g[j]) ** 2)
            W[i, j] = len(own[j][1]) * np.exp(-delta / (2 * np.sqrt(variance[i] * variance[j])))
    W /= W.sum(1, keepdims=True)
    np.testing.assert_allclose([note["variance"] for note in by_client(outcome, data)], variance, rtol=1e-10)
    np.testing.assert_allclose(collaboration_of(outcome), W, rtol=1e-10)

    def trained(theta: np.ndarray, j: int) -> np.ndarray:
        velocity = np.zeros_like(theta)
        for _ in range(2):
            velocity = 0.9 * velocity + softmax_gradient(theta, *own[j])
            theta = theta - 0.5 * velocity
        return theta

    theta = np.stack([start] * 3)
    for _ in range(2):
        if parallel:
            theta = np.stack([sum(W[i, j] * trained(theta[i], j) for j in range(3)) for i in range(3)])
        else:
            theta = W @ np.stack([trained(theta[j], j) for j in range(3)])
    np.testing.assert_allclose(outcome.personal_rows.matrix().numpy(), theta, rtol=1e-9, atol=1e-12)


def by_client(outcome: Any, data: Data) -> list[dict[str, Any]]:
    notes = {note["client"]: note for note in outcome.client_notes if note["round"] == 1}
    return [notes[name] for name in data.names]


# -- rounds


def test_the_survey_comes_first_and_asks_everybody() -> None:
    _, outcome = run(UCFL(), DATA, rounds=2, participation=0.5)
    assert [(row["phase"], row["trained"], row["reported"]) for row in outcome.history] == [
        ("survey", 6, 6),
        ("train", 3, 3),
        ("train", 3, 3),
    ]
    assert outcome.global_rows is None
    assert outcome.history[0]["streams"] == M
    assert outcome.history[0]["stream"] == list(range(M))
    assert len(outcome.history[0]["silhouette"]) == M
    assert [note["round"] for note in outcome.client_notes] == [1] * M


@pytest.mark.parametrize("streams", ["all", 2])
@pytest.mark.parametrize("parallel", [False, True])
def test_partial_participation(parallel: bool, streams: int | str) -> None:
    """Columns of the absent are dropped, all rows renormalised, also those of the absent."""
    method = (UCFLParallel if parallel else UCFL)(lr=0.1, momentum=0.5, weight_decay=0.1, streams=streams)
    made, outcome = run(method, DATA, rounds=3, participation=0.5)
    W, labels = collaboration_of(outcome), np.array(outcome.history[0]["stream"])
    mixing = np.stack([W[labels == stream].mean(0) for stream in range(labels.max() + 1)])
    assert len(mixing) == (M if streams == "all" else 2)
    models = [made.task.start] * len(mixing)
    sgd = {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.1}
    for number in (2, 3, 4):
        work, here = (
            work_of(DATA, round=number),
            rngs.sample(M, 0.5, 0, "cohort", number - 1).tolist(),
        )  # the survey was round 1
        if not parallel:
            own = [train(made.task, work, j, models[labels[j]], **sgd) for j in here]
        models = [
            weighted([train(made.task, work, j, model, **sgd) for j in here] if parallel else own, mixing[i, here])
            for i, model in enumerate(models)
        ]
    for i in range(M):
        assert apart(outcome.personal_rows[i : i + 1], models[labels[i]]) < 1e-10


def after_survey(method: UCFL, gradients: np.ndarray) -> tuple[Task, dict[str, Any], Round]:
    """A server that was told these gradients of one scale, of clients of SIZES."""
    task = Task(logistic, dtype=torch.float64)
    rows = random_rows(task, M) * 0.0 + torch.from_numpy(gradients)
    known = Round(1, "survey", 0, DATA.names, reporting=tuple(range(M)))
    chunk = {"gradient": rows, "variance": torch.ones(M, dtype=torch.float64)}
    server = method.aggregate(
        method.start_server(task.start, known), Uploads(range(M), torch.tensor(SIZES), [chunk]), known
    )
    return task, server, Round(2, "train", 0, DATA.names)


@pytest.mark.parametrize("parallel", [False, True])
def test_a_row_with_nothing_left_keeps_its_model(parallel: bool) -> None:
    """Two groups so far apart that W between them is zero, or as good as; only the first reports."""
    method = UCFLParallel() if parallel else UCFL()
    for far in (3.0, 100.0):  # exp(−27 · 9 / 2) ≈ 1e-53, and exactly 0
        task, server, known = after_survey(method, far * np.array([0.0, 1, 0, 1, 0, 1]))
        assert 0 <= server["mixing"][0, 1] < 1e-50
        trained = random_rows(task, 2)
        names = [f"weights{i}" for i in range(M)] if parallel else ["weights"]
        upload = Uploads((0, 4), torch.tensor([3, 5]), [dict.fromkeys(names, trained)])
        new = method.aggregate(server, upload, known)
        for i in range(M):
            expected = task.start if i % 2 else weighted([trained[:1], trained[1:]], [3, 5])
            assert apart(new["weights"][i : i + 1], expected) < 1e-12
        assert new["reported"].tolist() == [True, False, False, False, True, False]
        assert apart(new["uploads"][[0, 4]], trained) == 0
        nobody = method.aggregate(server, Uploads((1,), torch.tensor([17]), [dict.fromkeys(names, trained[:1])]), known)
        assert apart(nobody["weights"][[0, 2, 4]], task.start) == 0


def test_who_missed_the_survey_gets_the_weights_of_fedavg() -> None:
    method, task = UCFL(), Task(logistic, dtype=torch.float64)
    known = Round(1, "survey", 0, DATA.names)
    here = (4, 0, 2)  # in the order of arrival
    rows = random_rows(task, 3, scale=1.0)
    variance = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    uploads = Uploads(here, torch.tensor([5, 3, 8]), [{"gradient": rows, "variance": variance}])
    server = method.aggregate(method.start_server(task.start, known), uploads, known)
    W = server["mixing"].numpy()
    np.testing.assert_allclose(W[np.ix_(here, here)], collaboration(rows, variance, [5, 3, 8]), rtol=1e-12)
    np.testing.assert_allclose(W[[1, 3, 5]], [[3 / 16, 0, 8 / 16, 0, 5 / 16, 0]] * 3)
    assert (W[:, [1, 3, 5]] == 0).all()
    assert server["surveyed"].tolist() == [0, 2, 4]
    assert apart(server["gradients"], rows[[1, 2, 0]]) == 0


# -- limits


class Surveyed(FedAvg):
    """FedAvg after a round in which nobody reports: its batches and clients are those after a survey."""

    def phases(self, rounds: int) -> list[Phase]:
        return [Phase("survey", 1, trains=ALL, reports=NONE), Phase("train", rounds)]


def test_training_draws_the_clients_that_other_methods_draw() -> None:
    """The survey is everybody's, and no draw is lost to it."""
    trained = simulation(UCFL(), DATA, rounds=3, participation=0.5)
    other = simulation(FedAvg(), DATA, rounds=3, participation=0.5)
    for number in (1, 2, 3):
        drawn = other.federations[0].draw(number, Phase("train", 3)).trains
        assert trained.federations[0].draw(number + 1, UCFL().phases(3)[1]).trains == drawn


def test_with_equal_rows_plain_parallel_and_fedavg_are_one() -> None:
    """One survey batch each: no noise is known, so W has FedAvg's weights."""
    data = federation((6, 9, 7, 10), dtype=torch.float64)
    sgd = {"lr": 0.1, "momentum": 0.5}
    options = {"rounds": 2, "participation": 0.5}
    _, plain = run(UCFL(survey_size=6, **sgd), data, **options)
    _, parallel = run(UCFLParallel(survey_size=6, **sgd), data, **options)
    np.testing.assert_allclose(collaboration_of(plain), np.tile(np.array([6, 9, 7, 10]) / 32, (4, 1)), rtol=1e-14)
    assert apart(parallel.personal_rows, plain.personal_rows) < 1e-12
    made, _ = run(Surveyed(**sgd), data, **options)
    assert apart(plain.personal_rows, made.server["weights"]) < 1e-12


def test_parallel_differs_from_plain_where_clients_differ() -> None:
    _, plain = run(UCFL(lr=0.1), DATA, rounds=2)
    _, parallel = run(UCFLParallel(lr=0.1), DATA, rounds=2)
    assert apart(parallel.personal_rows, plain.personal_rows) > 1e-3


def test_one_stream_is_one_model() -> None:
    _, outcome = run(UCFL(streams=1), DATA)
    assert apart(outcome.personal_rows, outcome.personal_rows[:1]) == 0
    np.testing.assert_allclose(outcome.server["mixing"][0], collaboration_of(outcome).mean(0))


def test_streams_cost_the_parallel_variant_uploads() -> None:
    _, plain = run(UCFL(streams=2), DATA)
    _, parallel = run(UCFLParallel(streams=2), DATA)
    model = 8 * plain.personal_rows.layout.width
    assert [row["up_bytes"] for row in plain.history] == [M * (model + 8), M * model, M * model]
    assert [row["up_bytes"] for row in parallel.history] == [M * (model + 8), 2 * M * model, 2 * M * model]
    assert [row["down_bytes"] for row in plain.history] == [M * model] * 3
    assert [row["down_bytes"] for row in parallel.history] == [M * model, *[M * (2 * model + 8)] * 2]


# -- newcomers


@pytest.mark.parametrize("kind", [UCFL, UCFLParallel])
def test_a_newcomer_with_the_data_of_a_client_gets_its_row(kind: type[UCFL]) -> None:
    """Plain, everybody reporting: W's row from the same gradients, noise and uploads is the client's own."""
    method = kind(lr=0.1)
    made, outcome = run(method, DATA, rounds=2)
    served = method.newcomer(made.task, made.server, work_of(DATA))
    W = collaboration_of(outcome)
    if kind is UCFL:
        assert apart(served, outcome.personal_rows) < 1e-10
    assert apart(served, torch.from_numpy(W) @ made.server["uploads"]) < 1e-10
    others = work_of(federation((9, 6), seed=5, dtype=torch.float64))
    alone = [method.newcomer(made.task, made.server, work_of(DATA, [k])) for k in range(M)]
    assert apart(Rows.cat(alone), served) < 1e-12  # a cohort of newcomers is no federation
    assert apart(method.newcomer(made.task, made.server, others), outcome.personal_rows[:2]) > 1e-3


@pytest.mark.parametrize("kind", [UCFL, UCFLParallel])
def test_a_newcomer_uses_the_last_upload_of_those_who_ever_sent_one(kind: type[UCFL]) -> None:
    """The upload of a client is what it made of its own model, also where it trained the others' as well."""
    method = kind(lr=0.1, momentum=0.0)
    made, outcome = run(method, DATA, rounds=2, participation=0.34)
    W = collaboration_of(outcome)
    models, last = [made.task.start] * M, {}
    for number in (2, 3):
        work, here = (
            work_of(DATA, round=number),
            rngs.sample(M, 0.34, 0, "cohort", number - 1).tolist(),
        )  # the survey was round 1
        last |= {j: train(made.task, work, j, models[j], lr=0.1) for j in here}
        every = [
            [train(made.task, work, j, model, lr=0.1) for j in here]
            if kind is UCFLParallel
            else [last[j] for j in here]
            for model in models
        ]
        models = [weighted(every[i], W[i, here]) for i in range(M)]
    seen = sorted(last)
    assert 2 < len(seen) < M  # somebody never sent a model, somebody only in the first round
    served = method.newcomer(made.task, made.server, work_of(DATA))
    for i in range(M):
        assert apart(served[i : i + 1], weighted([last[j] for j in seen], W[i, seen])) < 1e-10


def test_a_newcomer_with_nobody_to_turn_to_trains_alone() -> None:
    made, _ = run(UCFL(lr=0.1), DATA, rounds=0)  # the survey only
    work = work_of(DATA, expected_rounds=3)
    served = UCFL(lr=0.1).newcomer(made.task, made.server, work)
    local = Local(lr=0.1, momentum=0.9).newcomer(made.task, {"start": made.task.start}, work)
    assert apart(served, local) < 1e-12


# -- bad input


@pytest.mark.parametrize(
    ("hyper", "sentence"),
    [
        ({"streams": 0}, "streams must be 'all', 'auto' or an integer >= 1, got 0"),
        ({"streams": 2.5}, "streams of ucfl.* must be (a whole number|an integer) or text, got 2.5"),
        ({"streams": "some"}, "streams must be 'all', 'auto' or an integer >= 1, got 'some'"),
        ({"penalty": -1.0}, r"penalty must be >= 0, got -1.0 \(λ of ucfl"),
        ({"survey_batches": 1}, "survey_batches must be >= 2, got 1"),
        ({"survey_size": 0}, "survey_size must be >= 1, got 0"),
        ({"survey_size": 2.5}, "survey_size of ucfl.* must be (a whole number|an integer), got 2.5"),
    ],
)
def test_senseless_hyper_parameters(hyper: dict[str, Any], sentence: str) -> None:
    for name in ("ucfl", "ucfl-parallel"):
        with pytest.raises(InputError, match=sentence):
            build(name, hyper)


def test_streams_may_be_a_number_or_a_word() -> None:
    assert build("ucfl", {"streams": 4}) == UCFL(streams=4)
    assert build("ucfl", {"streams": "auto", "penalty": 1}) == UCFL(streams="auto", penalty=1.0)


def test_more_streams_than_clients() -> None:
    with pytest.raises(InputError, match=r"streams must be in 1..6, as there are 6 clients, got 7"):
        simulation(UCFL(streams=7), DATA)
    simulation(UCFL(streams=6), DATA)


@pytest.mark.parametrize("workers", [1, 2])
def test_fewer_examples_than_a_survey_batch(workers: int) -> None:
    with pytest.raises(InputError, match="client 'ada' has 3 training examples, fewer than the 4 of a survey batch"):
        run(UCFL(survey_size=4), DATA, workers=workers)


def test_a_client_with_one_batch_has_no_noise_of_its_own() -> None:
    _, outcome = run(UCFL(survey_size=3), DATA, rounds=1)
    variances = [note["variance"] for note in by_client(outcome, DATA)]
    assert [np.isnan(value) for value in variances] == [size // 3 < 2 for size in SIZES]


def bespoke(*words: str) -> int:
    """Run the command in this process; its exit code."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", "ucfl", "--rounds", "1", "--clients", "5", "--workers", "1", "--quiet", *words])
    return int(ended.value.code or 0)


def test_the_run_directory_has_w_the_silhouettes_and_the_streams(tmp_path: Path) -> None:
    assert bespoke("--set", "streams=auto", "--out", str(tmp_path / "run")) == 0
    survey = json.loads((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()[0])
    k, labels, curve = choose_streams(survey["collaboration"])
    np.testing.assert_allclose(np.sum(survey["collaboration"], axis=1), 1, rtol=1e-12)
    assert (survey["streams"], survey["stream"]) == (k, labels.tolist())
    np.testing.assert_allclose(survey["silhouette"], curve, atol=1e-12)
    lines = [json.loads(line) for line in (tmp_path / "run" / "client_rounds.jsonl").read_text().splitlines()]
    assert [line["client"] for line in lines if line.get("variance", 0) > 0] == list("01234")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("streams=0", "streams must be 'all', 'auto' or an integer >= 1, got 0."),
        ("streams=6", "streams must be in 1..5, as there are 5 clients, got 6."),
        ("survey_size=5000", "fewer than the 5000 of a survey batch"),
    ],
)
def test_the_command_line_refuses_what_cannot_be(
    given: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bespoke("--set", given, "--out", str(tmp_path / "run")) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1
