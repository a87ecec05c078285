"""Runs that cannot be resumed: the error names the file, the difference, and advice that works."""

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bespokefl import cli
from bespokefl.core.errors import DiskError
from bespokefl.engines.storage.checkpoints import CheckpointInterval, Checkpoints, OtherRunError
from bespokefl.workflows.compare.api import compare_config
from bespokefl.workflows.results import run_directory
from bespokefl.workflows.results.result import load_run
from bespokefl.workflows.run import trainer as training
from bespokefl.workflows.run.api import resume, run, run_config
from tests.faults.test_resume import SMALL, clients, config, stop_after, write_data

MODULE = "from torch import nn\n\ndef net():\n    return nn.Linear(4, {})\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The directory of an unfinished run, with a space in its name."""
    write_data(tmp_path / "own.npz")
    out = tmp_path / "my run"
    with pytest.raises(ZeroDivisionError):
        run_config(config(tmp_path / "own.npz", "ditto", out), end_after(3))
    assert run_directory.is_unfinished(out) and not run_directory.is_run(out)
    return out


def end_after(rounds: int) -> Any:
    def end(now: Any) -> None:
        if now.done == rounds:
            raise ZeroDivisionError

    return end


def told(place: Path, capfd: pytest.CaptureFixture[str]) -> str:
    """Return the error of `bespoke resume`, and check that the directory stays unchanged."""
    before = {one: one.read_bytes() for one in place.rglob("*") if one.is_file()}
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main(["resume", str(place)])
    printed = capfd.readouterr()
    assert ended.value.code == 2 and printed.out == ""
    assert before == {one: one.read_bytes() for one in place.rglob("*") if one.is_file()}
    assert [one for one in place.parent.iterdir() if one.name.startswith(".")] == []
    (line,) = printed.err.splitlines()
    return line.removeprefix("error: ")


def anew(place: Path) -> str:
    return f"or start a new run: bespoke run --config '{place}/config.toml' --out ANOTHER_FOLDER."


def can_begin_anew(sentence: str, place: Path) -> bool:
    """Whether the command that a sentence ends with does what it says."""
    _, _, command = sentence.partition("or start a new run: bespoke ")
    words = shlex.split(command.removesuffix("."))
    with pytest.raises(SystemExit) as ended:
        cli.main([*words[:-1], str(place.parent / "another"), "--quiet"])
    return ended.value.code == 0 and run_directory.is_run(place.parent / "another")


def test_other_data(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = place.parent / "own.npz"
    before, arrays = file.read_bytes(), dict(np.load(file))
    np.savez(file, **arrays | {"x": arrays["x"] + 1})
    said = told(place, capfd)
    hashes = said.partition("(split ")[2].partition(")")[0]
    assert said == (
        f"the checkpoint in '{place}' is of another run: its data or split differ (split {hashes}); "
        f"restore the data '{file}', {anew(place)}"
    )
    assert can_begin_anew(said, place)
    file.write_bytes(before)
    assert not resume(place).interrupted


def test_missing_data(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = place.parent / "own.npz"
    moved = file.rename(place.parent / "moved.npz")
    assert told(place, capfd) == (
        f"the data of the run in '{place}' are missing: there is no '{file}'; restore them, or write their new path "
        f"into '{place}/config.toml'."
    )
    text = (place / "config.toml").read_text()
    (place / "config.toml").write_text(text.replace(str(file), str(moved)))
    assert not resume(place).interrupted


def test_another_version(place: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    was = training.version("bespokefl")
    monkeypatch.setattr(training, "version", lambda name: "99.1")
    assert told(place, capfd) == (
        f"the checkpoint in '{place}' is of another run: it was made by bespokefl {was}, and this is 99.1; use that "
        f"version to resume, {anew(place)}"
    )


def test_another_setting(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = (place / "config.toml").read_text()
    for line, other, difference in (
        ("seed = 0", "seed = 5", "its seed was 0, not 5"),
        ("prox_weight = 1.0", "prox_weight = 0.5", "its prox_weight was 1.0, not 0.5"),
    ):
        assert text.count(line) == 1
        (place / "config.toml").write_text(text.replace(line, other))
        said = told(place, capfd)
        assert said.startswith(f"the checkpoint in '{place}' is of another run: {difference}")
        assert said.endswith(f"; restore that in '{place}/config.toml', {anew(place)}")
    (place / "config.toml").write_text(text)
    assert not resume(place).interrupted


def test_missing_config(place: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    (place / "config.toml").unlink()
    assert told(place, capfd) == (
        f"the run in '{place}' has checkpoints, but no config.toml; restore the file, or repeat the command that "
        "started it, which resumes it."
    )
    run_config(config(place.parent / "own.npz", "ditto", place))
    assert "resuming after round" in caplog.text and run_directory.is_run(place)


def test_missing_config_with_results(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The original command would reject such a directory, so it is not suggested."""
    place = tmp_path / "run"
    assert run_config(config(write_data(tmp_path / "own.npz"), "ditto", place), stop_after(2)).interrupted
    (place / "config.toml").unlink()
    assert told(place, capfd) == f"the run in '{place}' has checkpoints, but no config.toml; restore the file."


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "it has no method; restore the file."),
        ('method = "ditto"\nrounds = 0\n', "rounds must be at least 1, got 0."),
        ('method = "ditto"\nround = 1\n', "unknown key 'round'; did you mean 'rounds'? See \"bespoke run --help\"."),
    ],
)
def test_invalid_config(text: str, what: str, place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (place / "config.toml").write_text(text)
    assert told(place, capfd) == f"'{place}/config.toml' is not as the run wrote it: {what}"


def test_a_comparison(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A comparison that stopped in its first run: the suggested command resumes it."""
    place = tmp_path / "two words"
    given = config(write_data(tmp_path / "own.npz"), "compare", place, participation=1.0)
    with pytest.raises(ZeroDivisionError):
        compare_config(given, ["ditto"], seeds=(0,), tune=False, progress=end_at_once)
    said = told(place, capfd)
    start, _, command = said.partition(": bespoke ")
    assert start == f"'{place}' holds a comparison, not a run; this resumes it"
    assert command.endswith(f" --out '{place}'.")
    with pytest.raises(SystemExit) as ended:
        cli.main([*shlex.split(command.removesuffix(".")), "--quiet"])
    assert ended.value.code == 0 and (place / "compare.json").exists()


def end_at_once(step: Any) -> None:
    raise ZeroDivisionError


def test_another_hyper_parameter_in_a_comparison(place: Path) -> None:
    """The runs of a comparison can be replaced, so --overwrite is suggested."""
    with pytest.raises(
        OtherRunError, match=r"its prox_weight was 1\.0, not 0\.5; use another directory, or --overwrite to repl"
    ):
        run_config(
            replace(config(place.parent / "own.npz", "ditto", place), set={"prox_weight": 0.5}, overwrite=True),
            resumed=True,
        )


def test_other_folders(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.toml").write_text("")
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "tuning.json").write_text("{}")
    for name, what in (
        ("empty", "is not the directory of an unfinished run: it has no checkpoints; name the directory of one."),
        ("file", "is a file; name the directory of an interrupted run."),
        ("none", "does not exist; name the directory of an interrupted run."),
        (
            "tuned",
            f"holds a tuning, not a run; the command that started it, with --out {tmp_path}/tuned, resumes it.",
        ),
    ):
        assert told(tmp_path / name, capfd) == f"'{tmp_path / name}' {what}"
    assert told(tmp_path / "begun", capfd) == (
        f"the run in '{tmp_path}/begun' has no checkpoint yet; the command that started it starts it again."
    )


def test_a_model_from_elsewhere(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules are looked up in the current directory."""
    place, home = tmp_path / "run", tmp_path / "home"
    home.mkdir()
    (home / "own_refused.py").write_text(MODULE.format(3))
    monkeypatch.chdir(home)
    given = config(write_data(tmp_path / "own.npz"), "ditto", place, model="own_refused:net")
    with pytest.raises(ZeroDivisionError):
        run_config(given, end_after(3))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one not in ("", str(home))])
    monkeypatch.delitem(sys.modules, "own_refused")
    assert told(place, capfd).endswith(
        "No module named 'own_refused'; change to its directory, or add that to PYTHONPATH."
    )
    monkeypatch.syspath_prepend(home)
    assert not resume(place).interrupted


def test_data_from_python(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "run"
    run("ditto", clients(), checkpoint=place, checkpoint_every=1, progress=stop_after(3), **SMALL)
    assert told(place, capfd).endswith(
        f"of the run in '{place}' came from Python; the same call of bespokefl.run, with checkpoint='{place}', "
        "resumes it."
    )
    assert run("ditto", clients(), checkpoint=place, **SMALL).about["rounds_done"] == 5


def test_synthetic_data_are_drawn_again(tmp_path: Path) -> None:
    """Synthetic data are not a file that could be missing."""
    given = config(Path("gaussian(clients=4)"), "ditto", tmp_path / "run", model="logistic")
    with pytest.raises(ZeroDivisionError):
        run_config(given, end_after(3))
    resume(tmp_path / "run")
    assert load_run(tmp_path / "run").config.data == "gaussian(clients=4)"


def test_the_error_names_the_value_that_differs(tmp_path: Path) -> None:
    """Nested values too; a different version takes precedence over other differences; long values are cut."""
    base = {"set": {"prox_weight": 1.0, "lr": 0.1}, "rounds": 3, "version": "1"}
    for other, difference in (
        ({"set": {"prox_weight": 1.0, "lr": 0.2}}, "its lr was 0.1, not 0.2;"),
        ({"set": {"lr": 0.1}}, "its prox_weight was 1.0, not None;"),
        ({"version": "2", "a": 1}, "it was made by bespokefl 1, and this is 2;"),
        ({"rounds": "9" * 5000}, f"its rounds was 3, not '{'9' * 198}…;"),
    ):
        now = json.loads(json.dumps(base | other))
        with pytest.raises(OtherRunError) as refused:
            Checkpoints(tmp_path / "checkpoints", CheckpointInterval(), now)._check_identity(base)
        assert difference in str(refused.value)
    Checkpoints(tmp_path / "checkpoints", CheckpointInterval(), base)._check_identity(base)


def test_the_command_suggested_on_a_full_disk_is_quoted(place: Path) -> None:
    strange = place.rename(place.with_name("q$HOME `x`"))
    said = str(run_directory.explain_disk_error(DiskError("cannot write"), strange))
    _, _, command = said.removesuffix(".").partition("then: ")
    assert shlex.split(command) == ["bespoke", "resume", str(strange)] and f"'{strange}'" in command
