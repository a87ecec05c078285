"""A run's folder appears complete or not at all, and replaces nothing but a run that may be replaced."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from bespokefl.core.errors import InputError
from bespokefl.workflows.compare import storage
from bespokefl.workflows.results import run_directory
from bespokefl.workflows.tune import result as tuning


def fill(text: str):  # type: ignore[no-untyped-def]
    def write(into: Path) -> None:
        for name in run_directory.SIGNS:
            (into / name).write_text(text)

    return write


def everything(path: Path) -> set[str]:
    return {str(one.relative_to(path)) for one in path.rglob("*")}


def test_parents_are_made_and_nothing_else_is_left(tmp_path: Path) -> None:
    run_directory.write(tmp_path / "a" / "b", fill("x"), overwrite=False)
    assert everything(tmp_path) == {"a", "a/b", "a/b/config.toml", "a/b/result.json"}


def test_files_can_be_read_by_whom_the_folder_can(tmp_path: Path) -> None:
    def private(into: Path) -> None:
        fill("x")(into)
        (into / "config.toml").chmod(0o600)

    before = os.umask(0o022)
    try:
        run_directory.write(tmp_path / "run", private, overwrite=False)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "run" / "config.toml").stat().st_mode) == 0o644


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_crash_while_writing_leaves_what_was_there(tmp_path: Path, error: type[BaseException]) -> None:
    run_directory.write(tmp_path / "run", fill("old"), overwrite=False)

    def crash(into: Path) -> None:
        (into / "config.toml").write_text("half")
        raise error

    for place, overwrite in (("new", False), ("run", True)):
        with pytest.raises(error):
            run_directory.write(tmp_path / place, crash, overwrite)
    assert everything(tmp_path) == {"run", "run/config.toml", "run/result.json"}
    assert (tmp_path / "run" / "config.toml").read_text() == "old"


def test_a_run_is_replaced_only_if_asked(tmp_path: Path) -> None:
    run_directory.write(tmp_path / "run", fill("old"), overwrite=False)
    with pytest.raises(InputError, match="already holds a run; use --overwrite"):
        run_directory.write(tmp_path / "run", fill("new"), overwrite=False)
    assert (tmp_path / "run" / "result.json").read_text() == "old"
    run_directory.write(tmp_path / "run", fill("new"), overwrite=True)
    assert (tmp_path / "run" / "result.json").read_text() == "new"
    assert everything(tmp_path) == {"run", "run/config.toml", "run/result.json"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_not_a_run_is_never_replaced(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("years")
    (tmp_path / "file").write_text("x")
    for place, sentence in (("thesis", "is not a run"), ("file", "it is a file"), ("file/under", "cannot write")):
        with pytest.raises(InputError, match=sentence):
            run_directory.write(tmp_path / place, fill("new"), overwrite)
    assert everything(tmp_path) == {"thesis", "thesis/thesis.tex", "file"}


def test_an_empty_folder_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    run_directory.write(tmp_path / "run", fill("x"), overwrite=False)
    assert run_directory.is_run(tmp_path / "run")


def test_fresh_names_are_counted(tmp_path: Path) -> None:
    assert run_directory.fresh(tmp_path, "ditto") == tmp_path / "ditto"
    (tmp_path / "ditto").mkdir()
    (tmp_path / "ditto-2").mkdir()
    assert run_directory.fresh(tmp_path, "ditto") == tmp_path / "ditto-3"


# -- one at a time


def test_whoever_holds_a_folder_works_there_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_directory, "LOCK_TIMEOUT", 0.0)
    path = tmp_path / "runs" / "ditto"
    with run_directory.lock(path) as place:
        assert place == path
        with pytest.raises(InputError, match=r"another process uses '.*ditto'; wait"), run_directory.lock(path):
            pass
        with run_directory.lock(path, rename=True) as second, run_directory.lock(path, rename=True) as third:
            assert (second.name, third.name) == ("ditto-2", "ditto-3")
        path.mkdir()
        run_directory.write(path, lambda into: run_directory.write_text(into / "result.json", "{}"), overwrite=False)
        with (
            pytest.raises(InputError, match="another process"),
            run_directory.lock(path),
        ):  # though the folder is another now
            pass
    assert [one.name for one in path.parent.iterdir()] == ["ditto"]
    with run_directory.lock(path):
        pass


def test_nothing_is_left_of_a_folder_that_was_held_in_vain(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), run_directory.lock(tmp_path / "a" / "b" / "run"):
        raise ZeroDivisionError
    assert not any(tmp_path.iterdir())


def test_what_a_dead_process_was_writing_is_swept(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    for pid in (dead.pid, os.getpid()):
        (tmp_path / f".run.new-{pid}-1").mkdir()
    with run_directory.lock(tmp_path / "run"):
        pass
    assert [one.name for one in tmp_path.iterdir()] == [f".run.new-{os.getpid()}-1"]


def test_a_folder_is_replaced_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At no instant is there neither the old nor the new one; where the system cannot swap there are two steps."""
    new, target = tmp_path / ".run.new-1-1", tmp_path / "run"
    for place, text in ((new, "new"), (target, "old")):
        place.mkdir()
        (place / "file").write_text(text)
    seen: list[bool] = []
    rename = Path.rename
    monkeypatch.setattr(Path, "rename", lambda self, to: seen.append(True) or rename(self, to))
    run_directory._move(new, target)
    assert (target / "file").read_text() == "new" and (new / "file").read_text() == "old" and not seen
    monkeypatch.setattr(run_directory.sys, "platform", "elsewhere")
    run_directory._move(new, target)
    assert (target / "file").read_text() == "old" and not new.exists() and seen


def test_what_was_begun_and_killed_before_its_first_checkpoint_may_begin_again(tmp_path: Path) -> None:
    out = tmp_path / "run"
    (out / "checkpoints").mkdir(parents=True)
    for name in ("config.toml", ".split.json.4711"):
        (out / name).write_text("half")
    run_directory.check(out, overwrite=False)
    run_directory.write(out, fill("new"), overwrite=False)
    assert everything(out) == set(run_directory.SIGNS)
    (out / "result.json").unlink()
    (out / "thesis.docx").write_text("mine")
    with pytest.raises(InputError, match="holds something that is not a run and is left unchanged"):
        run_directory.check(out, overwrite=True)


def test_other_directories_are_recognized_by_the_files_that_they_have() -> None:
    assert run_directory.COMPARISON_SIGNS == storage.SIGNS
    assert run_directory.TUNING_SIGNS == tuning.SIGNS
