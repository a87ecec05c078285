"""Callbacks are told every event once, in order, with fresh scores only, and cannot harm the run."""

import logging
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bespokefl as bf
from bespokefl.core.callback import Callback, Evaluation, RunEnd, RunInfo
from bespokefl.core.errors import InputError
from bespokefl.data import Clients
from bespokefl.engines.outcome import Progress

SMALL: dict[str, Any] = {"model": "logistic", "rounds": 5, "workers": 1, "eval_every": 2}
FINITE = {"personal/validation_accuracy", "personal/test_loss", "global/train_loss"}


@pytest.fixture(scope="module")
def clients() -> Clients:
    x = np.random.default_rng(1).normal(size=(60, 3))
    return Clients.from_arrays(x, (x[:, 0] > 0).astype(int), np.arange(60) % 3)


class Recorder(Callback):
    """Keeps all events; `count` survives an interruption."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.evaluations: list[Evaluation] = []
        self.scores: dict[int, Mapping[str, float]] = {}
        self.checkpoints: list[int] = []
        self.count = 0

    def on_run_begin(self, run: RunInfo) -> None:
        self.run = run
        self.events.append(("begin", len(run.history)))

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self.evaluations.append(evaluation)
        self.events.append(("evaluation", evaluation.round, evaluation.final))

    def on_round_end(self, record: Mapping[str, Any], scores: Mapping[str, float]) -> None:
        assert record["seconds"] > 0 and "up_bytes" in record and not {"personal", "global"} & record.keys()
        self.count += 1
        self.scores[record["round"]] = scores
        self.events.append(("round", record["round"], bool(scores)))

    def on_checkpoint(self, round: int, path: Path) -> None:
        assert path.is_dir()
        self.checkpoints.append(round)

    def on_run_end(self, end: RunEnd) -> None:
        self.end = end
        self.events.append(("end", end.status, end.rounds))

    def state(self) -> dict[str, Any]:
        return {"count": self.count}

    def restore(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


WHOLE = [
    ("begin", 0),
    ("round", 1, False),
    ("evaluation", 2, False),
    ("round", 2, True),
    ("round", 3, False),
    ("evaluation", 4, False),
    ("round", 4, True),
    ("evaluation", 5, True),
    ("round", 5, True),
    ("end", "finished", 5),
]


@pytest.mark.parametrize("workers", [1, 2])
def test_every_event_once_and_in_order(clients: Clients, workers: int, tmp_path: Path) -> None:
    seen = Recorder()
    storage = {"checkpoint": tmp_path / "run", "checkpoint_every": 1}
    result = bf.run("ditto", clients, callbacks=[seen], **SMALL | {"workers": workers} | storage)
    assert seen.events == WHOLE and seen.checkpoints == [1, 2, 3, 4]
    assert seen.run.name == "run" and seen.run.rounds == 5 and seen.run.clients == clients.names
    assert seen.run.settings["method"] == "ditto" and seen.run.settings["set"]["prox_weight"] == 1.0
    assert seen.run.initial.keys() >= FINITE
    for line in result.rounds:  # the scores are those of rounds.jsonl, and only of evaluated rounds
        found = seen.scores[line["round"]]
        assert bool(found) == ("personal" in line)
        if found:
            assert found.keys() >= FINITE
            assert found["personal/validation_loss"] == line["personal"]["validation_loss"]
            assert found["global/test_loss"] == line["global"]["test_loss"]
    accuracy = result.personal["accuracy"]
    assert seen.end.scores["personal/test_accuracy"] == pytest.approx(float(np.nanmean(accuracy)))
    assert "personal/test_balanced_accuracy" in seen.end.scores
    by_client = seen.evaluations[-1].by_client()
    order = [by_client[name]["personal/test_accuracy"] for name in result.names]
    assert order == pytest.approx(list(accuracy))


def test_a_method_without_a_global_model(clients: Clients) -> None:
    seen = Recorder()
    bf.run("local", clients, callbacks=[seen], **SMALL)
    names = {*seen.run.initial, *seen.scores[5], *seen.end.scores}
    assert names and all(name.startswith("personal/") for name in names)


def test_an_interrupted_run_is_resumed_with_the_callback_s_state(clients: Clients, tmp_path: Path) -> None:
    whole = bf.run("ditto", clients, **SMALL)

    def stop(now: Progress) -> None:
        if now.done == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    first, second = Recorder(), Recorder()
    given = {"checkpoint": tmp_path / "run", "checkpoint_every": 0, **SMALL}
    bf.run("ditto", clients, progress=stop, callbacks=[first], **given)
    assert first.events == [*WHOLE[:4], ("evaluation", 3, True), ("round", 3, True), ("end", "interrupted", 3)]
    result = bf.run("ditto", clients, callbacks=[second], **given)
    assert second.events == [("begin", 3), *WHOLE[5:]]
    assert second.count == 5 and [line["round"] for line in second.run.history] == [1, 2, 3]
    assert torch.equal(result.weights.personal.matrix(), whole.weights.personal.matrix())


def test_a_failed_run_ends_too(clients: Clients, tmp_path: Path) -> None:
    """The states are those of the last round, also of one after the last checkpoint."""

    def fail(now: Progress) -> None:
        if now.done == 3:
            raise ZeroDivisionError

    first, second = Recorder(), Recorder()
    given = {"checkpoint": tmp_path / "run", "checkpoint_every": 2, **SMALL}
    with pytest.raises(ZeroDivisionError):
        bf.run("ditto", clients, progress=fail, callbacks=[first], **given)
    assert first.events == [*WHOLE[:5], ("end", "failed", 3)] and first.checkpoints == [2]
    bf.run("ditto", clients, callbacks=[second], **given)
    assert second.events[:2] == [("begin", 2), ("round", 3, False)]
    assert second.count == 3 + 3  # rounds 3, 4 and 5 after those before the failure


class Failing(Recorder):
    def on_round_end(self, record: Mapping[str, Any], scores: Mapping[str, float]) -> None:
        super().on_round_end(record, scores)
        if record["round"] == 2:
            raise OSError("no such tracker")


def test_a_callback_that_fails_is_left_out_and_the_run_goes_on(
    clients: Clients, caplog: pytest.LogCaptureFixture
) -> None:
    failing, sound = Failing(), Recorder()
    with caplog.at_level(logging.WARNING, "bespokefl"):
        result = bf.run("ditto", clients, callbacks=[failing, sound], **SMALL)
    assert not result.interrupted and result.about["rounds_done"] == 5
    assert failing.events == WHOLE[:4] and sound.events == WHOLE
    sentence = "the callback Failing failed in on_round_end (OSError: no such tracker); the run goes on without it"
    assert [record.getMessage() for record in caplog.records if "callback" in record.getMessage()] == [sentence]


def test_callbacks_change_no_bit(clients: Clients) -> None:
    without, watched = bf.run("ditto", clients, **SMALL), bf.run("ditto", clients, callbacks=[Recorder()], **SMALL)
    assert torch.equal(without.weights.personal.matrix(), watched.weights.personal.matrix())


@pytest.mark.parametrize("given", [Recorder(), [print]])
def test_what_is_no_callback_is_rejected(clients: Clients, given: Any) -> None:
    with pytest.raises(InputError, match=r"callbacks must be a list of objects derived from bf\.Callback"):
        bf.run("ditto", clients, callbacks=given, **SMALL)


def test_comparisons_and_tunings_take_trackers_instead(clients: Clients) -> None:
    with pytest.raises(InputError, match="a comparison does not take callbacks"):
        bf.compare(["ditto"], clients, callbacks=[Recorder()])
    with pytest.raises(InputError, match="tuning does not take callbacks"):
        bf.tune("ditto", clients, grid={"lr": (0.1,)}, callbacks=[Recorder()])


def test_progress_has_fresh_scores_only_and_the_final_ones(clients: Clients) -> None:
    seen: list[Progress] = []
    result = bf.run("ditto", clients, progress=seen.append, **SMALL)
    assert [now.done for now in seen] == [1, 2, 3, 4, 5]
    assert [bool(now.scores) for now in seen] == [False, True, False, True, True]
    final = result.rounds[-1]["personal"]
    assert seen[-1].scores == {name: final[name] for name in ("validation_loss", "validation_accuracy")}
