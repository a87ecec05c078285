"""What evaluations keep: scores of the initial weights, means between rounds, and all metrics at the end."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import precision_recall_fscore_support

from bespokefl.core.client_index import PARTS
from bespokefl.core.method import Method
from bespokefl.core.scores import measures
from bespokefl.methods import Ditto, FedAvg
from tests.federations import CLASSES, federation, line, run, same_bits

DATA = federation()


@pytest.mark.parametrize("options", [{"chunk": 1}, {"chunk": 4}, {"workers": 2}], ids=str)
def test_figures_by_class_are_those_of_the_predictions(options: dict[str, int]) -> None:
    made, outcome = run(Ditto(lr=0.1), DATA, **options)
    common = outcome.global_rows
    assert common is not None and outcome.globally is not None
    for scores, rows in ((outcome.personal, outcome.personal_rows), (outcome.globally, common.expand(len(DATA)))):
        for part in PARTS:
            for k in range(len(DATA)):
                own = getattr(DATA, part).of(k)
                found = [scores[f"{part}_{name}"][k].item() for name in ("precision", "recall", "f1")]
                if not len(own):
                    assert torch.tensor(found).isnan().all()
                    continue
                outputs = made.task.predict(rows[k : k + 1], DATA.x[own].unsqueeze(0))[0]
                expected = precision_recall_fscore_support(
                    DATA.y[own], outputs.argmax(-1), average="macro", zero_division=0
                )
                assert found == pytest.approx(list(expected[:3]))


def test_the_course_of_a_run_has_loss_and_accuracy_only() -> None:
    history = run(Ditto(), DATA, eval_every=1)[1].history
    names = {f"{part}_{name}" for part in PARTS for name in ("loss", "accuracy")}
    assert [set(entry["personal"]) for entry in history] == [names] * len(history)


@pytest.mark.parametrize("method", [FedAvg(), Ditto()], ids=["shared", "personal"])
def test_training_data_are_scored_at_the_end_only_if_that_is_asked_for(method: Method) -> None:
    less, whole = (run(method, DATA, rounds=3, eval_every=1, skip_train_scores=skip)[1] for skip in (True, False))
    for entry, other in zip(less.history[:-1], whole.history, strict=False):
        assert entry["personal"] == {k: v for k, v in other["personal"].items() if not k.startswith("train_")}
    assert less.history[-1]["personal"] == whole.history[-1]["personal"]
    assert less.initial is not None and not any(name.startswith("train_") for name in less.initial)
    assert same_bits(less.personal_rows, whole.personal_rows)
    torch.testing.assert_close(less.personal, whole.personal, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["auc", "f1", "accuracy"])
def test_another_metric_can_be_followed(name: str) -> None:
    outcome, expected = (run(Ditto(), DATA, eval_every=1, follow=one)[1] for one in (name, None))
    for entry, other in zip(outcome.history, expected.history, strict=True):
        more = {key: value for key, value in entry["personal"].items() if key.endswith(f"_{name}")}
        assert entry["personal"] == other["personal"] | more and 0 <= more[f"test_{name}"] <= 1
    names = {"round", "loss", "accuracy", name}
    assert [set(line) for line in outcome.client_scores] == [names] * (1 + len(outcome.history))
    assert torch.equal(outcome.personal["test_loss"], expected.personal["test_loss"])
    known = [value for value in outcome.client_scores[-1][name] if value is not None]
    assert np.mean(known) == pytest.approx(float(outcome.personal[f"test_{name}"].nanmean()), abs=1e-5)


def test_regression_has_no_classes() -> None:
    scores = run(Ditto(), federation(targets="numbers"), factory=line, loss="mse")[1].personal
    measured = {f"{part}_{name}" for part in PARTS[1:] for name in ("rmse", "mae", "r2")}
    assert set(scores) == {f"{part}_loss" for part in PARTS} | measured


def test_measures_are_those_of_the_models_on_validation_and_test_data() -> None:
    made, outcome = run(Ditto(lr=0.1), DATA)
    assert not any(f"train_{name}" in outcome.personal for name in measures.CLASSIFICATION)
    for part in PARTS[1:]:
        for k in range(len(DATA)):
            own = getattr(DATA, part).of(k)
            outputs = made.task.predict(outcome.personal_rows[k : k + 1], DATA.x[own].unsqueeze(0))[0]
            alone = measures.OutputMeasures(1, classifies=True)
            if len(own):
                alone.add(np.zeros(len(own), np.int64), DATA.y[own], outputs)
            for name, values in alone.scores().items():
                torch.testing.assert_close(
                    outcome.personal[f"{part}_{name}"][k], values[0], rtol=1e-5, atol=1e-6, equal_nan=True
                )


@pytest.mark.parametrize("options", [{"chunk": 2}, {"workers": 2}], ids=str)
def test_the_constant_predictor_knows_the_training_labels_only(options: dict[str, int]) -> None:
    scores = run(FedAvg(), DATA, **options)[1].constant
    assert scores is not None
    for k in range(len(DATA)):
        counts = DATA.y[DATA.train.of(k)].bincount(minlength=CLASSES)
        labels = DATA.y[DATA.test.of(k)]
        shares = (counts + 1) / (counts.sum() + CLASSES)  # each class counts once more than it occurs
        assert scores["test_accuracy"][k] == (labels == counts.argmax()).double().mean()
        assert scores["test_loss"][k].item() == pytest.approx(-shares[labels].log().mean().item(), rel=1e-5)
        assert scores["test_auc"][k].item() == 0.5 or len(labels.unique()) == 1
    changed = replace(DATA, x=torch.randn_like(DATA.x))
    again = run(FedAvg(), changed, **options)[1].constant
    assert same_bits(again, scores)


def test_the_constant_predictor_of_regression_is_the_mean() -> None:
    data = federation(targets="numbers")
    scores = run(Ditto(), data, factory=line, loss="mse")[1].constant
    assert scores is not None
    for k in range(len(data)):
        error = data.y[data.test.of(k)] - data.y[data.train.of(k)].mean()
        assert scores["test_rmse"][k].item() == pytest.approx(error.square().mean().sqrt().item(), rel=1e-5)
        assert scores["test_loss"][k].item() == pytest.approx(error.square().mean().item(), rel=1e-5)


def test_round_0_scores_the_initial_weights_and_changes_nothing() -> None:
    made, outcome = run(Ditto(), DATA, eval_every=1)
    loss = [
        torch.nn.functional.cross_entropy(
            made.task.predict(made.task.start, DATA.x[own].unsqueeze(0))[0], DATA.y[own]
        ).item()
        for own in (DATA.test.of(k) for k in range(len(DATA)))
    ]
    assert outcome.initial["test_loss"] == pytest.approx(sum(loss) / len(loss), rel=1e-5)
    assert made.federations[0].record()["initial"] == outcome.initial  # a resumed run has it from its checkpoint
    unscored = run(Ditto(), DATA, eval_every=0)[1]
    assert unscored.initial == {}
    assert same_bits(unscored.personal, outcome.personal) and same_bits(unscored.models, outcome.models)
