"""`bespoke data` shows, fetches and locates named sets."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from bespokefl.cli.commands.data import app
from bespokefl.core.errors import InputError
from bespokefl.data.sources import cache, hub
from bespokefl.data.sources.catalogue import CATALOGUE
from tests.data import miniature


@pytest.fixture(autouse=True)
def mini(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One small set more, and nothing to fetch it with."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(hub, "installed", lambda: False)
    miniature.named(tmp_path, monkeypatch)


def run(*words: str) -> Result:
    done = CliRunner().invoke(app, list(words))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def flat(text: str) -> str:
    return " ".join(text.split())


def test_list(tmp_path: Path) -> None:
    said = run("list").stdout
    assert all(name in said for name in CATALOGUE)
    assert "built in" in said
    assert "bespoke data fetch mini --from PATH" in flat(said)
    run("fetch", "mini", "--from", str(tmp_path / "files"))
    assert "decoded in" in run("list").stdout


def test_fetch_and_path(tmp_path: Path) -> None:
    assert run("path").stdout.strip() == str(tmp_path / "data")
    with pytest.raises(InputError, match='mini is not in the data directory; use "bespoke data fetch mini"'):
        run("path", "mini")
    with pytest.raises(InputError, match="mini is not on this machine"):
        run("fetch", "mini")
    said = run("fetch", "mini", "--from", str(tmp_path / "files")).stdout
    entry = cache.find("mini")
    assert entry is not None
    assert flat(said) == (
        f"mini is in {cache.path_of(entry)}, from {tmp_path / 'files'}; sha256 {entry.hash[:16]}…, as expected."
    )
    assert run("path", "mini").stdout.strip() == str(cache.path_of(entry))
    shutil.rmtree(tmp_path / "files")
    assert run("fetch", "mini").stdout == said


def test_what_nobody_has_said_to_expect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    miniature.named(tmp_path, monkeypatch, hash=None)
    assert "no expected value is known" in run("fetch", "mini", "--from", str(tmp_path / "files")).stdout
    assert "(of the copy in the cache)" in flat(run("info", "mini").stdout)


def test_info(tmp_path: Path) -> None:
    said = flat(run("info", "mini").stdout)
    assert "8, 3 of them for test, of shape (1, 2, 3)" in said
    run("fetch", "mini", "--from", str(tmp_path / "files"))
    said = flat(run("info", "mini").stdout)
    for part in ("3: a, b, c", "8 of shape (1, 2, 3), 3 of them for test", "decoded in", "A. Nobody, 2020", "licence"):
        assert part in said, part
    assert CATALOGUE["mini"].hash in said


@pytest.mark.parametrize("name", [name for name in CATALOGUE if name != "mini"])
def test_info_of_every_set(name: str) -> None:
    said = flat(run("info", name).stdout)
    assert flat(CATALOGUE[name].description) in said
    assert str(CATALOGUE[name].classes) in said


def test_digits_need_no_fetching() -> None:
    with pytest.raises(InputError, match="digits needs no fetching"):
        run("fetch", "digits")
    with pytest.raises(InputError, match=r"part of scikit-learn"):
        run("path", "digits")
    assert "1797 of shape (1, 8, 8)" in run("info", "digits").stdout


@pytest.mark.parametrize("command", ["info", "fetch", "path"])
def test_unknown(command: str) -> None:
    with pytest.raises(InputError, match="unknown data 'minni'; did you mean 'mini'"):
        run(command, "minni")
