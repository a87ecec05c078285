"""Extreme numbers, names and files: the command prints one sentence, exits with code 2 and leaves no files behind."""

import json
import os
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bespokefl import cli
from bespokefl.core.errors import InputError
from bespokefl.core.system.files import unwritten
from bespokefl.data.dataset import Dataset
from bespokefl.data.sources.loader import load
from bespokefl.engines.storage.checkpoints import CheckpointInterval, Checkpoints
from bespokefl.workflows.run.settings import RunSettings

DIGITS = "9" * 5000
QUICK = "--data own.npz --model logistic --rounds 2 --workers 1 --out run"
BASE = 'method = "ditto"\ndata = "own.npz"\nmodel = "logistic"\nrounds = 2\nworkers = 1\n'


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.savez("own.npz", x=rng.normal(size=(40, 4)), y=np.arange(40) % 3, client=np.arange(40) % 4)
    os.mkfifo("pipe.npz")
    os.mkfifo("pipe.json")
    os.mkfifo("pipe.safetensors")
    Path("deep.toml").write_text("a = " + "[" * 5000 + "]" * 5000)
    Path("digits.toml").write_text(f"{BASE}seed = {DIGITS}\n")
    Path("nul.toml").write_text(f'{BASE}state_dir = "a\\u0000b"\n')
    _leaf("huge", "a", [[10**400] * 3] * 12)
    _leaf("surrogate", "\ud800", [[0.5] * 3] * 12)
    return tmp_path


def _leaf(folder: str, user: str, x: list[Any]) -> None:
    Path(folder).mkdir()
    data = {"users": [user], "user_data": {user: {"x": x, "y": [0, 1] * 6}}}
    Path(folder, "all.json").write_text(json.dumps(data))


LINES = {
    "run --config deep.toml": "'deep.toml' must be a TOML file, which it is not",
    "run --config digits.toml": "'digits.toml' must be a TOML file, which it is not",
    "run --config nul.toml": "state_dir must be a directory, without NUL in its name",
    f"run ditto {QUICK} --checkpoint-every {DIGITS}": "must have at most 9 digits, got '9999",
    f"run ditto {QUICK} --checkpoint-every {'9' * 400}s": "must have at most 9 digits, got '9999",
    f"run ditto {QUICK} --batch-size 99999999999999999999": "--batch-size must be at most 1,000,000,000, got 9999",
    f"run ditto {QUICK} --local-steps 99999999999999999999999999": "--local-steps must be at most 1,000,000,000",
    f"run ditto {QUICK} --rounds 9223372036854775808": "rounds must be at most 1,000,000,000",
    f"run ditto {QUICK} --set lr=1e300": "lr must be at most 1e+38, got 1e+300",
    f"run ditto {QUICK} --model 'mlp(hidden=(10000000000,))'": "GB, more than this machine has in memory",
    f"run ditto {QUICK} --model 'mlp(hidden=(100000000000000000000,))'": "more bytes than can be counted",
    f"run ditto {QUICK} --model 'mlp(hidden=(10000000000, 10000000000))'": "more bytes than can be counted",
    f"run ditto {QUICK} --out {'a' * 300}": "File name too long; use a shorter name",
    f"run ditto {QUICK} --data pipe.npz": "'pipe.npz' must be a file, got a pipe or a device",
    f"run ditto {QUICK} --split pipe.json": "'pipe.json' must be a file, got a pipe or a device",
    f"run ditto {QUICK} --start pipe.safetensors": "'pipe.safetensors' must be a file, got a pipe or a device",
    f"run ditto {QUICK} --data huge": "x of user 'a' must be lists of numbers",
    f"run ditto {QUICK} --data surrogate": "client ids must be text that can be encoded as UTF-8",
    f"run ditto {QUICK} --state-dir own.npz": "give --state-dir a writable directory, then: start it again",
}


@pytest.mark.parametrize("line", LINES, ids=lambda line: str(line).replace(QUICK, "")[:60])
def test_bad_input_prints_one_sentence(line: str, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = sorted(one.name for one in here.iterdir())
    with pytest.raises(SystemExit) as ended:
        cli.main(shlex.split(line))
    printed = capfd.readouterr()
    assert ended.value.code == 2 and printed.out == "", printed.err
    (sentence,) = printed.err.splitlines()
    assert sentence.startswith("error: ") and LINES[line] in sentence
    assert sorted(one.name for one in here.iterdir()) == before


def test_a_deeply_nested_record_is_a_damaged_checkpoint(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = here / "checkpoints" / "round-00000001"
    place.mkdir(parents=True)
    (place / "record.json").write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(InputError, match=r"no checkpoint in .* is intact"):
        Checkpoints(place.parent, CheckpointInterval(rounds=1), {}).load_latest(1, 1)
    assert "is damaged" in caplog.text


@pytest.mark.parametrize("text", ["0", "000000000", "999999999", " 60 s "])
def test_checkpoint_intervals_of_any_length_are_accepted(text: str) -> None:
    found = CheckpointInterval.of(text)
    assert (found.rounds or found.seconds or 0) == int(text.strip(" s"))


def test_the_largest_counts_are_accepted() -> None:
    assert RunSettings(method="ditto", batch_size=10**9, local_steps=10**9).batch_size == 10**9


def test_client_names_must_be_valid_utf8() -> None:
    with pytest.raises(InputError, match="UTF-8"):
        Dataset.from_arrays(np.zeros((2, 3)), np.array([0, 1]), np.array(["a", "b\udcff"]))


def test_a_directory_is_not_reported_as_a_pipe(here: Path) -> None:
    (here / "folder.npz").mkdir()
    with pytest.raises(InputError, match="cannot read"):
        load("folder.npz")


def test_only_a_full_disk_is_advised_to_make_room() -> None:
    assert str(unwritten("a", OSError(28, "No space left on device"))).endswith("; make room.")
    assert str(unwritten("a", OSError(13, "Permission denied"))) == (
        "cannot write to 'a': Permission denied; make it writable, or use another path."
    )
