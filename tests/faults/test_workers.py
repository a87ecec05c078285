"""A killed worker costs time but changes no bit of the result, nor does the number of workers."""

import os
import signal
import struct
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bespokefl.core.cohort_data import CohortData
from bespokefl.core.errors import TrainingError
from bespokefl.core.method import Message, Method, Round, State, Update
from bespokefl.core.task import Task
from bespokefl.methods import UCFL, Ditto, SelfFL
from tests.federations import federation, run, same_bits

pytestmark = pytest.mark.slow  # keeps `make check` under two minutes

DATA = federation()


@dataclass(frozen=True, kw_only=True)
class Deadly(Ditto):
    """Ditto whose worker is killed `deaths` times while it trains "cleo" in round 2."""

    name: ClassVar[str] = "deadly"
    folder: str = ""
    deaths: int = 1

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        marks = len(list(Path(self.folder).iterdir()))
        if round.number == 2 and "cleo" in data.names and marks < self.deaths:
            (Path(self.folder) / f"{marks}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().local_update(task, message, state, data, round)


@pytest.mark.parametrize("chunk", [1, 2])
def test_a_killed_worker_changes_no_bit(chunk: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"rounds": 3, "chunk": chunk, "workers": 2}
    outcome = run(Deadly(folder=str(tmp_path)), DATA, **options)[1]
    assert len(list(tmp_path.iterdir())) == 1
    expected = run(Ditto(), DATA, **options)[1]
    assert same_bits(outcome.personal_rows, expected.personal_rows)
    assert outcome.communication == expected.communication


@pytest.mark.parametrize("length", [2, 4, 30])  # a part of the length prefix, all of it, and a part of the reply
def test_a_worker_killed_while_it_sends_changes_no_bit(
    length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    here, whole = os.getpid(), Connection.send_bytes

    def half(pipe: Connection, answer: bytes) -> None:
        if os.getpid() != here and not any(tmp_path.iterdir()):
            (tmp_path / "died").touch()
            os.write(pipe.fileno(), (struct.pack("!i", len(answer)) + answer)[:length])
            os.kill(os.getpid(), signal.SIGKILL)
        whole(pipe, answer)

    options: dict[str, Any] = {"rounds": 3, "chunk": 2}
    with monkeypatch.context() as patch:
        patch.setattr(Connection, "send_bytes", half)
        outcome = run(Ditto(), DATA, workers=2, **options)[1]
    assert caplog.text.count("the job is repeated") in (1, 2)  # both may have been about to reply
    expected = run(Ditto(), DATA, workers=1, **options)[1]
    assert same_bits(outcome.personal_rows, expected.personal_rows)
    assert outcome.communication == expected.communication


def test_a_second_death_names_the_clients(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"while it worked on clients .*cleo.*, for the second time"):
        run(Deadly(folder=str(tmp_path), deaths=2), DATA, rounds=3, chunk=2, workers=2)


@pytest.mark.parametrize("method", [SelfFL(max_steps=3), UCFL()], ids=["selffl", "ucfl"])
@pytest.mark.parametrize("chunk", [1, 2, 4])
def test_the_number_of_workers_changes_no_bit(method: Method, chunk: int) -> None:
    outcomes = [run(method, DATA, rounds=3, chunk=chunk, workers=workers)[1] for workers in (1, 2, 3)]
    for other in outcomes[1:]:
        assert same_bits(other.personal_rows, outcomes[0].personal_rows)
        for one, two in zip(other.history, outcomes[0].history, strict=True):
            assert one | {"seconds": 0} == two | {"seconds": 0}
