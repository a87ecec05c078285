"""A run whose workers die twice, or fail, keeps the completed rounds, and the command it suggests resumes it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from bespokefl.cli import main
from bespokefl.core.cohort_data import CohortData
from bespokefl.core.errors import TrainingError
from bespokefl.core.method import Message, Round, State, Update
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.data import Clients
from bespokefl.engines.storage import checkpoint_format, checkpoints
from bespokefl.engines.transports.processes import WorkerError
from bespokefl.methods import Ditto
from bespokefl.workflows.compare.api import compare_config
from bespokefl.workflows.run import jobs
from bespokefl.workflows.run.api import resume, run, run_config
from bespokefl.workflows.tune.api import tune
from tests.faults.test_resume import came_out, config, contents, stop_after, write_data

pytestmark = pytest.mark.slow  # keeps `make check` under two minutes

HERE = os.getpid()
SMALL: dict[str, Any] = {"model": "logistic", "rounds": 5, "eval_every": 2, "chunk": 6, "checkpoint_every": "0"}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def clients() -> Clients:
    """Return eighteen clients, "0" to "17"."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(216, 3))
    return Clients.from_arrays(x, (x[:, 0] > 0).astype(int), np.arange(216) % 18)


@dataclass(frozen=True, kw_only=True)
class Deadly(Ditto):
    """Ditto that kills its worker, or fails, when it trains client "7": twice, then no more."""

    name: ClassVar[str] = "deadly"
    marks: str = ""
    where: str = "train"
    number: int = 3  # the round
    how: str = "kill"

    def local_update(self, task: Task, message: Message, state: State, work: CohortData, round: Round) -> Update:
        self._perhaps("train", work)
        return super().local_update(task, message, state, work, round)

    def personal(self, task: Task, message: Message, state: State, work: CohortData) -> Rows:
        self._perhaps("score", work)
        return super().personal(task, message, state, work)

    def _perhaps(self, where: str, work: CohortData) -> None:
        marks = len(list(Path(self.marks).iterdir()))
        if where != self.where or work.round != self.number or "7" not in work.names or marks == 2:
            return
        (Path(self.marks) / f"{marks}").touch()
        if self.how == "kill":
            assert os.getpid() != HERE
            os.kill(os.getpid(), signal.SIGKILL)
        (Path(self.marks) / "1").touch()  # a failure is reported at once
        raise TrainingError("enough.") if self.how == "fail" else ZeroDivisionError("none")


def of_run(path: Path) -> dict[str, Any]:
    """Return the content of a run directory without timings, config and the number of workers."""
    found = contents(path)
    found.pop("config.toml")
    found["result.json"]["timing"].pop("workers")
    found["result.json"]["settings"].pop("workers")
    return found


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    (tmp_path / "marks").mkdir()
    return tmp_path / "marks"


@pytest.mark.parametrize(
    ("where", "number", "kept"), [("train", 3, 2), ("train", 2, 1), ("score", 2, 2), ("score", 5, 5)]
)
def test_a_second_death_loses_only_its_round(
    where: str, number: int, kept: int, marks: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In training, in the evaluation of round 2, in the final evaluation."""
    method = Deadly(marks=str(marks), where=where, number=number)
    with pytest.raises(WorkerError) as told:
        run(method, clients(), checkpoint=tmp_path / "run", workers=2, **SMALL)
    assert len(list(marks.iterdir())) == 2
    said = re.fullmatch(
        r"a worker process died \(exit code -9\) while it worked on clients (.*), for the second time; the last good "
        rf"checkpoint is of round {kept}; the same call with workers=1 resumes from there and needs less memory\.",
        str(told.value),
    )
    assert said is not None
    named = said[1].split(", ")
    assert "7" in named and set(named) <= set(clients().names)
    assert len(named) == (4 if where == "train" else 9)  # evaluation needs no equal chunks
    assert [one.name for one in (tmp_path / "run" / "checkpoints").iterdir()] == [f"round-{kept:08d}"]
    run(method, clients(), checkpoint=tmp_path / "run", workers=1, **SMALL).save(tmp_path / "run")
    assert f"resuming after round {kept}" in caplog.text
    run(method, clients(), workers=1, **SMALL).save(tmp_path / "whole")  # workers die no more
    found, expected = of_run(tmp_path / "run"), of_run(tmp_path / "whole")
    assert found["result.json"]["communication"] == expected["result.json"]["communication"]
    assert found == expected


def test_without_a_checkpoint_directory_no_resume_is_suggested(marks: Path) -> None:
    with pytest.raises(
        TrainingError,
        match=r", for the second time; if the machine ran out of memory, use fewer workers or a smaller chunk\.$",
    ):
        run(Deadly(marks=str(marks)), clients(), workers=2, **SMALL)


def test_a_second_death_in_the_first_round_keeps_nothing(marks: Path, tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"for the second time; if the machine ran out of memory, use fewer workers"):
        run(Deadly(marks=str(marks), number=1), clients(), checkpoint=tmp_path / "run", workers=2, **SMALL)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("how", "error"), [("fail", TrainingError), ("crash", ArithmeticError)])
def test_any_other_failure_loses_only_its_round(
    how: str, error: type[Exception], workers: int, marks: Path, tmp_path: Path
) -> None:
    method = Deadly(marks=str(marks), how=how)
    with pytest.raises(RuntimeError if (how, workers) == ("crash", 2) else error) as told:
        run(method, clients(), checkpoint=tmp_path / "run", workers=workers, **SMALL)
    assert told.value.__notes__ == ["the last good checkpoint is of round 2; the same call resumes from there"]
    run(method, clients(), checkpoint=tmp_path / "run", workers=workers, **SMALL).save(tmp_path / "run")
    run(method, clients(), workers=workers, **SMALL).save(tmp_path / "whole")
    assert of_run(tmp_path / "run") == of_run(tmp_path / "whole")


def test_diverged_training_saves_nothing(tmp_path: Path) -> None:
    """No resume is suggested, and no directory remains that would prevent a run with a smaller rate."""
    options = SMALL | {"local_steps": 1, "eval_every": 0, "scale": "none", "loss": "mse"}
    x = np.linspace(90, 110, 40)[:, None]
    data = Clients.from_arrays(x, x[:, 0], np.arange(40) % 2)
    with pytest.raises(TrainingError, match=r"non-finite in round [2-5]") as told:
        run(Ditto(lr=1.0), data, checkpoint=tmp_path / "run", workers=1, **options)
    assert not hasattr(told.value, "__notes__") and not (tmp_path / "run").exists()


def test_a_full_disk_at_a_second_death_is_reported_too(
    marks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*given: Any) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_format, "write_tensors", full)
    with pytest.raises(WorkerError, match=r"for the second time; if the machine ran out of memory, use fewer workers"):
        run(Deadly(marks=str(marks)), clients(), checkpoint=tmp_path / "run", workers=2, **SMALL)
    assert "No space left on device; there is no checkpoint yet" in caplog.text


def test_a_full_disk_at_a_second_death_names_the_previous_checkpoint(
    marks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, calls = checkpoint_format.write_tensors, [0]

    def full(*given: Any) -> str:
        calls[0] += 1
        if calls[0] > 1:
            raise OSError(28, "No space left on device")
        return whole(*given)

    monkeypatch.setattr(checkpoint_format, "write_tensors", full)
    options = SMALL | {"checkpoint_every": "2"}  # and the worker dies in round 4, when round 3 is not saved yet
    with pytest.raises(WorkerError, match=r"checkpoint is of round 2; the same call with workers=1 resumes from there"):
        run(Deadly(marks=str(marks), number=4), clients(), checkpoint=tmp_path / "run", workers=2, **options)
    assert calls == [2]


# -- on the command line

MODEL = """
import os, signal
from contextlib import suppress
from pathlib import Path
from torch import nn

HERE, MARKS = os.getpid(), Path({marks!r})


class Deadly(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        if os.getpid() != HERE and (MARKS / "armed").exists():
            seen = MARKS / f"worker{{os.getpid()}}"
            deaths, fresh = len(list(MARKS.glob("death*"))), not seen.exists()
            with seen.open("ab") as file:
                file.write(b".")
            calls = sum(one.stat().st_size for one in MARKS.glob("worker*"))
            if calls > {calls} and (deaths == 0 or (deaths == 1 and fresh)):
                with suppress(FileExistsError):
                    (MARKS / f"death{{deaths}}").touch(exist_ok=False)
                    os.kill(os.getpid(), signal.SIGKILL)
        return self.head(x)


def net():
    return Deadly()
"""


def write_model(path: Path, marks: Path, calls: int) -> None:
    """Write a model that, when armed, kills a worker after so many calls, then the worker that repeats its job."""
    path.write_text(MODEL.format(marks=str(marks), calls=calls))


def told_by(command: str | list[str], place: Path) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PYTHONPATH": f"{place}:{Path(checkpoints.__file__).parents[2]}", "COLUMNS": "4000"}
    return subprocess.run(
        command, shell=isinstance(command, str), cwd=place, env=environment, capture_output=True, text=True, check=False
    )


def test_the_suggested_command_resumes_the_run(marks: Path, tmp_path: Path) -> None:
    write_data(tmp_path / "own.npz")
    write_model(tmp_path / "deadly_net.py", marks, calls=100)

    def words(out: str, workers: int) -> list[str]:
        command = [sys.executable, "-m", "bespokefl.cli", "run", "ditto", "--data", "own.npz"]
        options = {"model": "deadly_net:net", "rounds": 12, "eval-every": 5, "chunk": 2, "workers": workers, "out": out}
        return command + [str(word) for name, value in options.items() for word in (f"--{name}", value)]

    (marks / "armed").touch()
    ended = told_by(words("my $HOME run", 2), tmp_path)
    assert ended.returncode == 2, ended.stderr
    said = re.search(
        r"for the second time; the last good checkpoint is of round (\d+); (bespoke resume .* --workers 1) resumes "
        r"from there and needs less memory\.",
        ended.stderr,
    )
    assert said is not None and 0 < int(said[1]) < 12, ended.stderr
    assert "Traceback" not in ended.stderr
    again = told_by(said[2].replace("bespoke", f"{sys.executable} -m bespokefl.cli", 1), tmp_path)
    assert again.returncode == 0 and f"resuming after round {said[1]}" in again.stderr, again.stderr
    (marks / "armed").unlink()
    assert told_by(words("whole", 2), tmp_path).returncode == 0
    assert of_run(tmp_path / "my $HOME run") == of_run(tmp_path / "whole")


def test_any_other_failure_suggests_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, left = write_data(tmp_path / "own.npz"), iter(range(8))

    def failing(self: Ditto, *given: Any) -> Update:
        if next(left, None) is None:
            raise TrainingError("enough.")
        return whole(self, *given)

    whole = Ditto.local_update
    monkeypatch.setattr(Ditto, "local_update", failing)
    monkeypatch.setenv("COLUMNS", "4000")
    out = tmp_path / "the run"
    with pytest.raises(SystemExit) as ended:
        main(
            ["run", "ditto", "--data", str(data), "--workers", "1", "--chunk", "1", "--rounds", "3", "--out", str(out)]
        )
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"the last good checkpoint is of round 1; bespoke resume '{out}' resumes from there" in said
    assert said.splitlines()[-1].endswith("enough.")


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3)])
def test_resume_with_another_number_of_workers(before: int, after: int, tmp_path: Path) -> None:
    data = write_data(tmp_path / "own.npz")
    first = config(data, "scaffold", tmp_path / "run", checkpoint_every="0", workers=before, chunk=1)
    assert run_config(first, stop_after(2)).interrupted
    assert resume(tmp_path / "run", workers=after).config.workers == after
    assert contents(tmp_path / "run")["result.json"]["timing"]["workers"] == after
    run_config(replace(first, out=str(tmp_path / "whole")))
    assert of_run(tmp_path / "run") == of_run(tmp_path / "whole")


def test_the_same_command_resumes_a_comparison(
    marks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data = write_data(tmp_path / "own.npz")
    write_model(tmp_path / "deadly_compared.py", marks, calls=60)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(jobs, "MAX_PARAMETERS", 0)  # one run after the other, each with all workers
    given = config(data, "compare", tmp_path / "c", model="deadly_compared:net", rounds=12, chunk=2, workers=2)
    given = replace(given, checkpoint_every="0")
    compare_config(replace(given, out=str(tmp_path / "whole")), ["ditto"], seeds=(0,), tune=False)
    (marks / "armed").touch()
    compare_config(given, ["ditto"], seeds=(0,), tune=False)
    said = re.search(
        r"(\w+) failed with seed 0: a worker process died .* for the second time; the last good checkpoint is of round "
        r"(\d+); the same command with --out (\S+)/c --workers 1 resumes from there\.",
        caplog.text,
    )
    assert said is not None and said[3] == str(tmp_path) and len(list(marks.glob("death*"))) == 2
    assert came_out(tmp_path / "c") != came_out(tmp_path / "whole")
    compare_config(replace(given, workers=1), ["ditto"], seeds=(0,), tune=False)
    assert f"resuming after round {said[2]}" in caplog.text
    assert came_out(tmp_path / "c") == came_out(tmp_path / "whole")


def test_a_failed_combination_is_tried_again(marks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single combination is trained with all workers, whose death is not its fault."""
    write_model(tmp_path / "deadly_tuned.py", marks, calls=20)
    monkeypatch.syspath_prepend(tmp_path)
    rng = np.random.default_rng(2)
    data = Clients.from_arrays(rng.normal(size=(120, 4)), np.arange(120) % 3, np.arange(120) % 6)
    given: dict[str, Any] = {
        "grid": {"prox_weight": (0.5,)},
        "workers": 2,
        **SMALL,
        "model": "deadly_tuned:net",
        "chunk": 3,
    }
    (marks / "armed").touch()
    first = tune("ditto", data, out=tmp_path / "t", **given)
    assert "for the second time; if the machine ran out of memory" in first.table[0]["failed"]
    again = tune("ditto", data, out=tmp_path / "t", **given)
    assert again.table[0]["failed"] is None
    assert again.table[0]["validation_loss"] == tune("ditto", data, **given).table[0]["validation_loss"]
