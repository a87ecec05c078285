"""Where clients' states were kept is said: in the terminal, if nobody asked for it, and in result.json."""

import json
from pathlib import Path

import numpy as np
import pytest

from bespokefl import cli
from bespokefl.core.system import memory

LINE = ["run", "ditto", "--data", "own.npz", "--model", "mlp(50)", "--rounds", "2", "--workers", "1", "--out", "run"]


@pytest.mark.parametrize(
    ("limit", "more", "where", "told"),
    [
        (None, (), "memory", False),
        (100_000.0, (), "files", True),
        (None, ("--state-dir", "states"), "files", False),
        (None, ("--state-dir", "states", "--verbose"), "files", True),
    ],
)
def test_it_is_said(
    limit: float | None,
    more: tuple[str, ...],
    where: str,
    told: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.savez("own.npz", x=rng.normal(size=(400, 4)), y=np.arange(400) % 3, client=np.arange(400) % 80)
    if limit is not None:
        monkeypatch.setattr(memory, "limit", lambda: limit)  # everybody's models are 80 x 1612 bytes
    with pytest.raises(SystemExit) as ended:
        cli.main([*LINE, *more])
    assert not ended.value.code
    said = [line for line in capfd.readouterr().err.splitlines() if "memory-mapped" in line]
    assert len(said) == told and all(line.startswith("note: clients' states (up to ") for line in said)
    assert json.loads(Path("run/result.json").read_text())["timing"]["states"] == where
