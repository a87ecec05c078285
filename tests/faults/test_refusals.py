"""What cannot be gone on with: which file is wrong, in what, and an advice that works for the command in hand."""

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
    """An unfinished run, with a space in its name."""
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
    """What `bespoke resume` says; the folder stays as it is."""
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
    return f"or begin anew: bespoke run --config '{place}/config.toml' --out ANOTHER_FOLDER."


def can_begin_anew(sentence: str, place: Path) -> bool:
    """Whether the command that a sentence ends with does what it says."""
    _, _, command = sentence.partition("or begin anew: bespoke ")
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
        f"put the data '{file}' back as they were, {anew(place)}"
    )
    assert can_begin_anew(said, place)
    file.write_bytes(before)
    assert not resume(place).interrupted


def test_data_that_are_gone(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = place.parent / "own.npz"
    moved = file.rename(place.parent / "moved.npz")
    assert told(place, capfd) == (
        f"the data of the run in '{place}' are gone: there is no '{file}'; put them back, or write their new place "
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
        f"version to go on, {anew(place)}"
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
        assert said.endswith(f"; put that back in '{place}/config.toml', {anew(place)}")
    (place / "config.toml").write_text(text)
    assert not resume(place).interrupted


def test_no_config(place: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    (place / "config.toml").unlink()
    assert told(place, capfd) == (
        f"the run in '{place}' has checkpoints, but its config.toml is gone; put it back, or give the command that "
        "began it once more: it goes on."
    )
    run_config(config(place.parent / "own.npz", "ditto", place))
    assert "resuming after round" in caplog.text and run_directory.is_run(place)


def test_no_config_beside_results(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Then the command that began it finds something strange, and is no advice."""
    place = tmp_path / "run"
    assert run_config(config(write_data(tmp_path / "own.npz"), "ditto", place), stop_after(2)).interrupted
    (place / "config.toml").unlink()
    assert told(place, capfd) == f"the run in '{place}' has checkpoints, but its config.toml is gone; put it back."


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "it names no method; put it back as it was."),
        ('method = "ditto"\nrounds = 0\n', "rounds must be at least 1, got 0."),
        ('method = "ditto"\nround = 1\n', "unknown key 'round'; did you mean 'rounds'? See \"bespoke run --help\"."),
    ],
)
def test_a_config_that_is_none(text: str, what: str, place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (place / "config.toml").write_text(text)
    assert told(place, capfd) == f"'{place}/config.toml' is not as the run wrote it: {what}"


def test_a_comparison(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Stopped in its first run; the command that is said goes on with it."""
    place = tmp_path / "two words"
    given = config(write_data(tmp_path / "own.npz"), "compare", place, participation=1.0)
    with pytest.raises(ZeroDivisionError):
        compare_config(given, ["ditto"], seeds=(0,), progress=end_at_once)
    said = told(place, capfd)
    start, _, command = said.partition(": bespoke ")
    assert start == f"'{place}' holds a comparison, not a run; this goes on with it"
    assert command.endswith(f" --out '{place}'.")
    with pytest.raises(SystemExit) as ended:
        cli.main([*shlex.split(command.removesuffix(".")), "--quiet"])
    assert ended.value.code == 0 and (place / "compare.json").exists()


def end_at_once(step: Any) -> None:
    raise ZeroDivisionError


def test_another_hyper_parameter_in_a_comparison(place: Path) -> None:
    """Its runs can be replaced, and --overwrite is one of its options."""
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
        ("empty", "is not the folder of an unfinished run: it has no checkpoints; name the folder of one."),
        ("file", "is a file; name the folder of a run that was stopped or killed."),
        ("none", "is not there; name the folder of a run that was stopped or killed."),
        (
            "tuned",
            f"holds a tuning, not a run; the command that began it, with --out {tmp_path}/tuned, goes on with it.",
        ),
    ):
        assert told(tmp_path / name, capfd) == f"'{tmp_path / name}' {what}"
    assert told(tmp_path / "begun", capfd) == (
        f"the run in '{tmp_path}/begun' has no checkpoint yet; the command that began it starts it again."
    )


def test_a_model_from_elsewhere(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked for where one stands."""
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
        "No module named 'own_refused'; go to the folder that it is in, or name that in PYTHONPATH."
    )
    monkeypatch.syspath_prepend(home)
    assert not resume(place).interrupted


def test_what_came_from_python(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "run"
    run("ditto", clients(), checkpoint=place, checkpoint_every=1, progress=stop_after(3), **SMALL)
    assert told(place, capfd).endswith(
        f"of the run in '{place}' came from Python; the same call of bespokefl.run, with checkpoint='{place}', goes on "
        "with it."
    )
    assert run("ditto", clients(), checkpoint=place, **SMALL).about["rounds_done"] == 5


def test_drawn_data_are_drawn_again(tmp_path: Path) -> None:
    """They are no file."""
    given = config(Path("gaussian(clients=4)"), "ditto", tmp_path / "run", model="logistic")
    with pytest.raises(ZeroDivisionError):
        run_config(given, end_after(3))
    resume(tmp_path / "run")
    assert load_run(tmp_path / "run").config.data == "gaussian(clients=4)"


def test_the_one_value_that_differs(tmp_path: Path) -> None:
    """Of nested ones, too; another version comes before what it may have changed; what is long is cut."""
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


def test_advice_about_a_full_disk_can_be_pasted(place: Path) -> None:
    strange = place.rename(place.with_name("q$HOME `x`"))
    said = str(run_directory.no_room(DiskError("cannot write"), strange))
    _, _, command = said.removesuffix(".").partition("then: ")
    assert shlex.split(command) == ["bespoke", "resume", str(strange)] and f"'{strange}'" in command
