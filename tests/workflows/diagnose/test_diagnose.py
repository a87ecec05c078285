"""Whether a diagnosis is right: on planted federations, with seeds and sizes that it was not built with.

It was built (thresholds, steps, what is compared) on digits with split seeds 0, 1, 2 and 20 or 30 clients, and seeds 20
to 24 with 6, 8, 20 or 40 clients; what tells kinds of shift apart also on Fashion-MNIST with seeds 0, 1 and 30 clients.
None of these are used here.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.metrics import adjusted_rand_score

import bespokefl as bf
from bespokefl.cli import main
from bespokefl.core.errors import InputError
from bespokefl.core.rows import Layout, Rows
from bespokefl.data.clients import Clients
from bespokefl.engines.client import Data
from bespokefl.theory.two_level import bayes_gain, gain
from bespokefl.workflows.diagnose import api as diagnose
from bespokefl.workflows.diagnose import heterogeneity, similarity, trials
from bespokefl.workflows.diagnose.recommendation import recommend_by_rule
from bespokefl.workflows.diagnose.result import MIN_GAIN, STAY, Diagnosis
from tests.requirements import require_fashion_mnist

pytestmark = pytest.mark.slow  # `make check` is to stay under two minutes

# split -> likeness, groups (None: none are planted), kinds of difference, recommended
PLANTED = {
    "iid": ("alike", 1, set(), {"fedavg"}),
    "iid + rotation(groups=4)": ("groups", 4, {"feature"}, {"ifca", "ucfl"}),
    "iid + permuted_labels(groups=4)": ("groups", 4, {"concept"}, {"cfl", "ucfl"}),
    "quantity": ("alike", 1, {"size"}, {"fedavg"}),
    "dirichlet(alpha=1) + rotation(groups=2)": ("partly", 2, {"label", "feature"}, {"ifca", "ucfl"}),
    "quantity + permuted_labels(groups=2)": ("groups", 2, {"size", "concept"}, {"cfl", "ucfl"}),
    "dirichlet(alpha=0.4)": ("single", None, {"label"}, {"persfl"}),
}


def clients_of(split: str, seed: int, num: int, data: str = "digits") -> Clients:
    return bf.load(data).split(split, clients=num, seed=seed)


@pytest.fixture(scope="module")
def rotated() -> Clients:
    return clients_of("iid + rotation(groups=2)", seed=7, num=12)


def by_rule(clients: Clients, seed: int) -> Diagnosis:
    """A diagnosis without trials: the advice follows from how clients differ."""
    return bf.diagnose(clients, seed=seed, workers=1, trial_rounds=0)


@pytest.fixture(scope="module")
def found(rotated: Clients) -> Diagnosis:
    return by_rule(rotated, seed=7)


@pytest.fixture(scope="module")
def tried(rotated: Clients) -> Diagnosis:
    return bf.diagnose(rotated, seed=7, workers=1, trial_rounds=1)


def check(split: str, clients: Clients, seed: int) -> None:
    kind, num, expected, methods = PLANTED[split]
    found = by_rule(clients, seed)
    if num is not None:
        assert (found.likeness, found.streams) == (kind, num)
    else:
        assert found.likeness in ("single", "partly")  # few clients may well share classes with one another by chance
    present = set(found.present)
    if split.startswith("dirichlet"):
        present.discard("size")  # which such a split draws by the way, more or less
    assert present == expected
    assert found.recommendation.method in methods
    if clients.groups is not None:
        # by their examples: who has two of them cannot be told
        sizes = clients.train.sizes.numpy()
        weight = np.repeat(np.arange(len(clients)), sizes)
        assert adjusted_rand_score(np.array(clients.groups)[weight], np.array(found.groups)[weight]) > 0.9


@pytest.mark.parametrize("split", PLANTED)
def test_planted_federations_are_recognised(split: str) -> None:
    check(split, clients_of(split, seed=7, num=16), seed=7)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "num"), [(8, 24), (9, 12), (10, 36)])
@pytest.mark.parametrize("split", PLANTED)
def test_planted_federations_of_other_seeds_and_sizes(split: str, seed: int, num: int) -> None:
    check(split, clients_of(split, seed, num), seed)


# -- variances and gains


def rows_of(matrix: np.ndarray) -> Rows:
    return Rows.from_matrix(Layout(("w",), ((matrix.shape[1],),)), torch.from_numpy(matrix))


def test_variances_are_those_of_the_two_level_model() -> None:
    rng = np.random.default_rng(0)
    num, width, var0, spread = 30, 4000, 0.5, 40.0
    sizes = rng.integers(20, 200, num)
    centres = np.sqrt(var0 / width) * rng.standard_normal((num, width))
    halves = [
        centres + np.sqrt(2 * spread / sizes / width)[:, None] * rng.standard_normal((num, width)) for _ in range(2)
    ]
    alike = similarity.compare(*(rows_of(one) for one in halves), sizes, seed=0)
    np.testing.assert_allclose(alike.variances, spread / sizes, rtol=0.1)  # σ_m² = v² / n_m
    assert alike.between == pytest.approx(var0, rel=0.15)
    assert alike.kind == "single"


def test_variance_between_two_clients_by_hand() -> None:
    a, b = np.array([[1.0, 0.0], [3.0, 0.0]]), np.array([[0.0, 2.0], [4.0, 2.0]])
    # halves of the first client are 1 and 2 from their means, those of the second as far on the other side
    together = np.zeros(2, dtype=np.int64)
    assert similarity.between(a, b, np.array([0.5, 0.5]), together) == (1 * 2 + 1 * 2) / (2 - 1)
    assert similarity.between(a, b, np.array([0.5, 0.5]), np.arange(2)) == 0.0


def test_without_a_difference_the_variance_between_clients_is_zero() -> None:
    rng = np.random.default_rng(1)
    sizes = np.full(20, 50)
    alike = similarity.compare(*(rows_of(rng.standard_normal((20, 500))) for _ in range(2)), sizes, seed=0)
    assert (alike.kind, alike.between, set(alike.groups)) == ("alike", 0.0, {0})


def test_few_examples_borrow_their_variance_from_all() -> None:
    sizes = np.array([1, 100, 300])
    raw = np.array([7.0, 2.0, 1.0])  # the first is of no use: one example has no halves
    pooled = (100 * 200.0 + 300 * 300.0) / 400  # v² = n σ²
    expected = [pooled / 1, (100 * 200 + similarity.PRIOR * pooled) / (100 + similarity.PRIOR) / 100]
    np.testing.assert_allclose(similarity.shrunken(raw, sizes)[:2], expected)


def test_gains_are_the_theory_s(found: Diagnosis) -> None:
    variances = np.array([one.variance for one in found.clients])
    np.testing.assert_allclose(
        [one.gain_with_all for one in found.clients], bayes_gain(found.between, variances), rtol=1e-9
    )
    np.testing.assert_allclose([one.paper_gain for one in found.clients], gain(found.between, variances), rtol=1e-9)
    first = np.array(found.groups) == 0
    np.testing.assert_allclose(
        [one.gain_in_group for one in found.clients if one.group == 0],
        bayes_gain(found.within, variances[first]),
        rtol=1e-9,
    )
    assert all(one.advice == "with its group" for one in found.clients)


def test_it_can_say_stay_alone() -> None:
    clients = clients_of("classes(k=2)", seed=7, num=12)
    found = by_rule(clients, seed=7)
    assert found.recommendation.method == "local"
    assert sum(one.advice == STAY for one in found.clients) > 6
    assert np.median(found.gains) < MIN_GAIN
    assert min(one.paper_gain for one in found.clients) > MIN_GAIN  # which never says so


# -- who decides what


def test_test_data_decide_nothing(rotated: Clients, tried: Diagnosis) -> None:
    y, x = rotated.y.clone(), rotated.x.clone()
    y[rotated.test.indices] = (y[rotated.test.indices] + 3) % 10
    x[rotated.test.indices] = torch.nan_to_num(x[rotated.test.indices] * 0 + 1e6)
    assert same(bf.diagnose(replace(rotated, x=x, y=y), seed=7, workers=1, trial_rounds=1), tried)


def test_no_engine_is_given_test_data(rotated: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    class Watched(diagnose.Simulation):
        def __init__(self, method: Any, task: Any, data: Data, *rest: Any) -> None:
            given.append(int(data.test.sizes.sum()))
            super().__init__(method, task, data, *rest)

    monkeypatch.setattr(diagnose, "Simulation", Watched)
    bf.diagnose(rotated, seed=7, steps=2, workers=1, trial_rounds=0)
    assert given == [0, 0]


def test_true_groups_decide_nothing(rotated: Clients, tried: Diagnosis) -> None:
    again = bf.diagnose(replace(rotated, groups=None), seed=7, workers=1, trial_rounds=1)
    assert same(replace(again, true_groups=tried.true_groups), tried)


def test_order_of_clients_decides_nothing(rotated: Clients, tried: Diagnosis) -> None:
    order = np.random.default_rng(0).permutation(len(rotated))
    other = replace(
        rotated,
        names=tuple(rotated.names[i] for i in order),
        train=rotated.train.take(order),
        validation=rotated.validation.take(order),
        test=rotated.test.take(order),
        groups=tuple(rotated.groups[i] for i in order) if rotated.groups else None,
    )
    again = bf.diagnose(other, seed=7, workers=1, trial_rounds=1)
    by_name = {one.name: one for one in again.clients}
    for one in tried.clients:
        assert by_name[one.name].gain == one.gain
        assert by_name[one.name].predicted == one.predicted is not None
        assert by_name[one.name].nearest == one.nearest
    assert same(again.in_order(np.argsort(order)), tried)


def same(first: Diagnosis, second: Diagnosis) -> bool:
    left, right = (replace(one, about={}).document() for one in (first, second))
    return left == right


# -- kinds


def test_label_skew_is_measured_beyond_chance() -> None:
    few = clients_of("iid", seed=11, num=60)
    known = heterogeneity.measure(few, np.zeros(60, dtype=np.int64), differ=False, seed=0)
    assert known.details["label_distance"] > 0.2  # 18 examples of 10 classes are never alike
    assert known.details["label_distance_by_chance"] == pytest.approx(known.details["label_distance"], abs=0.03)
    assert known.figures["label"] < 0.05


@pytest.mark.parametrize(
    ("change", "known", "expected"),
    [
        ("permuted_labels(groups=2)", True, "concept"),
        ("rotation(groups=2)", True, "feature"),
        ("permuted_labels(groups=2)", False, "shift"),  # five classes of ten have few counterparts
        ("rotation(groups=2)", False, "feature"),
    ],
)
def test_shifts_among_skewed_labels(change: str, known: bool, expected: str) -> None:
    """If groups are known they are told apart; else it is said where that cannot be done."""
    clients = clients_of(f"classes(k=5) + {change}", seed=7, num=16)
    groups = np.array(clients.groups) if known else np.arange(16)
    found = heterogeneity.measure(clients, groups, differ=True, seed=7)
    assert {name for name, there in found.present.items() if there} == {"label", expected}


@pytest.mark.parametrize(
    ("labelled", "matched", "whole", "skewed", "expected"),
    [
        (0.4, 0.1, 0.1, False, "concept"),  # matching labels removes three quarters
        (0.4, 0.3, 0.0, False, "concept"),  # the inputs as a whole are the same
        (0.4, 0.3, 0.1, False, "feature"),
        (0.4, 0.3, 0.2, True, "feature"),  # the inputs as a whole differ half as much as classes do
        (0.4, 0.3, 0.1, True, "shift"),
    ],
)
def test_which_shift_it_is(labelled: float, matched: float, whole: float, skewed: bool, expected: str) -> None:
    apart: dict[str, float | None] = {"as_labelled": labelled, "as_matched": matched, "inputs_between": whole}
    assert [name for name, figure in heterogeneity._kind_of_shift(apart, skewed).items() if figure] == [expected]


def test_real_valued_targets_have_kinds_too() -> None:
    data = bf.load("gaussian(between=1.0)").split("by_column")
    found = bf.diagnose(data, model="logistic", workers=1, trial_rounds=2)
    assert found.kinds["label"] > 0.8
    assert "concept" in found.present
    assert recommend_by_rule(found).method == "local"
    assert found.trials is not None and found.trials.metric == "loss"


# -- bad input


def test_one_client_is_refused() -> None:
    with pytest.raises(InputError, match="at least 2 clients, got 1"):
        bf.diagnose(clients_of("iid", seed=7, num=1))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"steps": 0}, "steps must be"),
        ({"lr": -1.0}, "lr must be"),
        ({"trial_rounds": -1}, "trial_rounds must be an integer of at least 0, got -1"),
        ({"metric": "rmse"}, "the metric 'rmse' is not defined for these models"),
        ({"loss": "mse"}, "the loss 'mse' does not fit the data"),
        ({"precision": "half"}, "precision must be"),
    ],
)
def test_wrong_options_are_refused(rotated: Clients, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        bf.diagnose(rotated, **options)  # type: ignore[arg-type]


def test_what_is_there_is_not_replaced_unasked(found: Diagnosis, tmp_path: Path) -> None:
    found.save(tmp_path / "one")
    with pytest.raises(InputError, match="already holds a diagnosis"):
        found.save(tmp_path / "one")
    found.save(tmp_path / "one", overwrite=True)


# -- the command


def test_command_writes_and_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, split = tmp_path / "out", ["--split", "iid + permuted_labels(groups=2)"]
    with pytest.raises(SystemExit) as ended:
        main(["diagnose", *split, "--clients", "9", "--seed", "7", "--trial-rounds", "4", "--out", str(target)])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert trials.COVERAGE in " ".join(printed.split())
    page = (target / "diagnosis.html").read_text(encoding="utf-8")
    assert f"The interval is too narrow: {trials.COVERAGE}." in page
    assert "They form 2 groups" in printed
    assert "Concept shift" in printed
    assert "Recommended: " in printed
    assert "Predicted gain: accuracy with " in printed
    assert "promises no accuracy" in printed
    known = json.loads((target / "diagnosis.json").read_text())
    assert known["streams"] == 2
    assert known["recommendation"]["flags"] in printed
    page = (target / "diagnosis.html").read_text()
    assert all(f'data-key="{key}"' in page for key in ("map", "groups", "survey", "gains"))


def test_quiet_command_prints_only_what_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options = ["--trial-rounds", "0", "-q", "--out", str(tmp_path / "out")]
        main(["diagnose", "--split", "iid", "--clients", "6", *options])
    assert capsys.readouterr().out == "fedavg\n"


# -- against what happens in earnest


RANKED = {  # with how many clients; in all of them gains differ for a reason
    "quantity": 24,
    "quantity + permuted_labels(groups=2)": 24,
    "quantity + rotation(groups=4)": 32,
    "lognormal(k=4)": 16,
    "dirichlet(alpha=0.4)": 24,
    "dirichlet(alpha=1) + rotation(groups=2)": 24,
}


def trained(
    name: str, clients: Clients, seed: int, score: str, hyper: Mapping[str, object], rounds: int = 20
) -> np.ndarray:
    """Everybody's test score after a longer training; rates as one would choose them for digits."""
    rates = {name: {"lr": 0.2} for name in ("local", "fedavg", "cfl", "ifca", "persfl")}
    settings = {"rounds": rounds, "local_epochs": 3, "seed": seed, "eval_every": 0, "workers": 1}
    found = bf.run(bf.methods.build(name, rates.get(name, {}) | {**hyper}), clients, **settings).personal[score]
    return np.asarray(found)


def ranking(split: str, num: int, seed: int) -> tuple[str, float, float]:
    """The recommended method, and how its gain in test loss over Local follows the predicted one, and 1/n."""
    clients = bf.load("digits").split(split, clients=num, seed=seed, fractions=(0.4, 0.2, 0.4))
    found = by_rule(clients, seed)
    advised = found.recommendation
    losses = [
        trained(name, clients, seed, "loss", hyper, rounds=10)  # enough for who gains most to be seen
        for name, hyper in (("local", {}), (advised.method, advised.hyper))
    ]
    measured = losses[0] - losses[1]
    there = np.isfinite(measured)
    predicted, sizes = found.gains[there], clients.train.sizes.numpy()[there]
    figures = [float(spearmanr(one, measured[there]).statistic) for one in (predicted, 1 / sizes)]
    return advised.method, figures[0], figures[1]


@pytest.mark.slow
def test_predicted_gains_rank_clients_as_measured_ones_do() -> None:
    """With -s it prints the table."""
    lines = []
    for split, num in RANKED.items():
        runs = [ranking(split, num, seed) for seed in (11, 12)]
        lines.append((split, num, runs[0][0], *np.mean([[one[1], one[2]] for one in runs], axis=0)))
        print(f"| `{split}` | {num} | {lines[-1][2]} | {lines[-1][3]:.2f} | {lines[-1][4]:.2f} |")
    predicted = {line[0]: line[3] for line in lines}
    assert predicted["quantity"] > 0.8
    assert np.mean(list(predicted.values())) > 0.4
    assert min(predicted.values()) > 0.0


@pytest.mark.slow
def test_recommended_method_is_worth_it() -> None:
    """With -s it prints the table. docs/diagnose-calibration.md is about advice by trials."""
    for split in [*PLANTED, "classes(k=2)"]:
        clients = clients_of(split, seed=11, num=24)
        advised = by_rule(clients, seed=11).recommendation
        means = {
            name: float(np.nanmean(trained(name, clients, 11, "accuracy", hyper)))
            for name, hyper in {"local": {}, "fedavg": {}, advised.method: advised.hyper}.items()
        }
        figures = " | ".join(f"{means[name]:.3f}" for name in (advised.method, "local", "fedavg"))
        print(f"| `{split}` | {advised.flags} | {figures} |")
        assert means[advised.method] >= max(means.values()) - 0.02


@pytest.mark.slow
@pytest.mark.parametrize("split", ["iid", "iid + rotation(groups=4)", "iid + permuted_labels(groups=4)", "quantity"])
def test_other_data(split: str) -> None:
    """Fashion-MNIST, where it is installed."""
    require_fashion_mnist()
    clients = bf.load("fashion-mnist").split(f"{split} + sample(examples=4000)", clients=20, seed=7)
    check(split, clients, seed=7)
