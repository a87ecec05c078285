"""Tables of clients' scores."""

from pathlib import Path

import numpy as np
import pytest

from bespokefl.workflows.results import score_tables


def test_clients_are_written_some_at_a_time_as_all_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_tables, "AT_ONCE", 2)
    names = ("a", "b,c", "d", "e", "f")
    sizes = {part: np.arange(5) for part in score_tables.SIZES}
    values = {"accuracy": np.array([0.1, np.nan, 1 / 3, np.inf, 1.0]), "loss": np.array([1e-9, 2.0, 3.0, 4.0, 5.0])}
    for kinds in (
        {"personal": values, "global": None, "constant": None},
        {"personal": values, "global": values, "constant": {"loss": values["loss"]}},
    ):
        score_tables.write_clients(tmp_path / "clients.csv", names, sizes, kinds)
        rows = score_tables.lines(names, sizes, kinds)
        assert (tmp_path / "clients.csv").read_bytes().decode() == score_tables.csv_text(rows)
    assert [row["personal_accuracy"] for row in rows] == [0.1, None, 1 / 3, "inf", 1.0]
    assert list(rows[0])[:4] == ["client", *score_tables.SIZES] and rows[1]["client"] == "b,c"


def test_the_table_of_a_single_client_without_scores(tmp_path: Path) -> None:
    one = {part: np.ones(1, dtype=np.int64) for part in score_tables.SIZES}
    rows = score_tables.lines(("a",), one, {"personal": {"loss": np.array([np.nan])}, "global": None})
    assert rows == [{"client": "a", "train": 1, "validation": 1, "test": 1, "personal_loss": None, "global_loss": None}]
