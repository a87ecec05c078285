"""The lean loop computes what the simulation does, and the simulation stays faster."""

import pytest
import torch
from bespokefl_evidence.benchmarks import scored

from tests.speed import TRIES


def test_both_score_the_same() -> None:
    data = scored.federation()
    run, lean = scored.simulate(data, 1), scored.LeanLoop(data)
    lean.server = [block[0] for block in run.task.start.blocks]
    with run.open():
        scores = run.evaluate(0, 0)[0]
    assert set(scores) == {f"{part}_{name}" for part in ("validation", "test") for name in ("loss", "accuracy")}
    loss, accuracy = lean.scores()
    torch.testing.assert_close(scores["test_loss"].float(), loss)
    torch.testing.assert_close(scores["test_accuracy"].float(), accuracy)


@pytest.mark.slow
@pytest.mark.alone
def test_rounds_with_scores_are_faster_than_a_lean_loop() -> None:
    """Idle: 2.7 by processor time, with one worker."""
    assert any(scored.measure(workers=(1,), repeats=5).processor > 1.6 for _ in range(TRIES))
