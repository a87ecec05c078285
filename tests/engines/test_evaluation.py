"""What the last evaluation keeps of every client: also F1, precision and recall."""

import pytest
import torch
from sklearn.metrics import precision_recall_fscore_support

from bespokefl.engines.client import PARTS
from bespokefl.methods import Ditto
from tests.federations import federation, line, run

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


def test_regression_has_no_classes() -> None:
    scores = run(Ditto(), federation(targets="numbers"), factory=line, loss="mse")[1].personal
    assert set(scores) == {f"{part}_loss" for part in PARTS}
