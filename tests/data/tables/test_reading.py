"""Columns of real tables: numbers with a few texts among them, values that mean "missing", and dates."""

import logging
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bespokefl.core.errors import COMMAND_LINE, InputError, settings_written_in
from bespokefl.data import load, tables
from bespokefl.data.tables.features import Features, merge_features

DOSES = "dose,y\n0.5,a\nunknown,b\n<0.1,a\n2,b\n3,a\n4,b\n"


def write(folder: Path, content: str, name: str = "t.csv") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


class TestNumbersWithTexts:
    def test_the_choice_is_named(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        path = write(tmp_path, DOSES)
        with settings_written_in(COMMAND_LINE):
            found = load(path)
        assert found.x.shape == (6, 6)
        assert caplog.messages == [
            "column 'dose' has numbers and 2 of 6 values that are not ('unknown', '<0.1'); each value becomes a "
            "category: --as-number dose makes them missing and the others numbers, --missing-values '<0.1,unknown' "
            "only those that it lists"
        ]

    def test_categories_without_numbers_raise_no_warning(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        load(write(tmp_path, "town,y\nRome,a\nOslo,b\n12,a\n"))
        assert not caplog.records

    def test_too_many_texts(self, tmp_path: Path) -> None:
        lines = "".join(f"{at / 7},{at % 2}\n" for at in range(200))
        with pytest.raises(
            InputError, match=r"column 'dose' has numbers and 1 of 201 values that are not \('n\.d\.'\)"
        ):
            load(write(tmp_path, f"dose,y\nn.d.,1\n{lines}"))

    def test_as_number(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        found = load(write(tmp_path, DOSES), as_number=["dose"], missing="mean")
        assert found.x[:, 0].nan_to_num(-1).tolist() == [0.5, -1, -1, 2, 3, 4]
        assert caplog.messages == [
            "column 'dose': 2 of 6 values are not numbers ('unknown', '<0.1') and count as missing"
        ]
        with pytest.raises(InputError, match="column 'dose' lacks 2 of 6 values, the first in row 2"):
            load(tmp_path / "t.csv", as_number="dose")
        with pytest.raises(InputError, match="unknown column to read as numbers 'does'; did you mean 'dose'"):
            load(tmp_path / "t.csv", as_number=["does"])

    def test_missing_values(self, tmp_path: Path) -> None:
        found = load(write(tmp_path, DOSES), missing_values=["UNKNOWN", "<0.1"], missing="drop")
        assert found.x[:, 0].tolist() == [0.5, 2, 3, 4]

    def test_numbers_that_mean_missing(self, tmp_path: Path) -> None:
        content = "age,y\n30,a\n-999,b\n41,a\n"
        for name, text in {"t.csv": content, "quoted.csv": content.replace("30", '"30"')}.items():
            found = load(write(tmp_path, text, name), missing_values=["-999"], missing="mean")
            assert found.x[:, 0].nan_to_num(-1).tolist() == [30, -1, 41]

    def test_decimal_commas(self, tmp_path: Path) -> None:
        found = load(write(tmp_path, "dose;y\n0,5;a\n<0,1;b\n2;a\n"), as_number=["dose"], missing="mean")
        assert found.x[:, 0].nan_to_num(-1).tolist() == [0.5, -1, 2]

    def test_a_label_may_be_missing(self, tmp_path: Path) -> None:
        path = write(tmp_path, "a,y\n1,0.5\n2,pending\n3,0.7\n")
        for options in ({"missing_values": ["pending"]}, {"as_number": ["y"]}):
            found = load(path, missing="drop", **options)
            assert found.classes is None and found.y.tolist() == pytest.approx([0.5, 0.7])

    def test_one_message_for_all_clients(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        for client in ("a", "b"):
            write(tmp_path, DOSES, f"{client}/1.csv")
        found = load(tmp_path, as_number=["dose"], missing="mean")
        assert found.x[:, 0].nan_to_num(-1).tolist() == [0.5, -1, -1, 2, 3, 4] * 2
        assert caplog.messages == [
            "column 'dose': 4 of 12 values are not numbers ('unknown', '<0.1') and count as missing"
        ]

    def test_columns_in_memory(self) -> None:
        found = tables.from_columns(
            {"dose": ["1", "2", "?x"], "age": [1, 2, 99], "y": [0, 1, 0]},
            as_number=["dose"],
            missing_values=["99"],
            missing="mean",
        )
        assert found.x.nan_to_num(-1).tolist() == [[1, 1], [2, 2], [-1, -1]]

    def test_new_examples_are_read_in_the_same_way(self, tmp_path: Path) -> None:
        table = load(write(tmp_path, DOSES), as_number=["dose"], missing_values=["2"], missing="mean")
        features = Features.from_dict(table.features.to_dict())
        new = tables.inputs(write(tmp_path, "dose\nnone of it\n7\n2\n", "new.csv"), features)
        np.testing.assert_array_equal(new.x, [[np.nan], [7], [np.nan]])


def parts(values: list[Any], **options: Any) -> tuple[tuple[str, ...], list[list[float]]]:
    y = [at % 2 for at in range(len(values))]
    found = tables.from_columns({"day": values, "y": y}, dates=True, missing="mean", **options)
    return found.features.names, torch.nan_to_num(found.x, -1).tolist()


class TestDates:
    @pytest.mark.parametrize(
        "values",
        [
            ["2024-12-31", "2025-1-2", None],
            ["31.12.2024", "2.1.2025", ""],
            ["12/31/2024", "1/2/2025", "NA"],  # 31 shows that the month is first
            ["31/12/24", "2/1/25", "NA"],
            [date(2024, 12, 31), date(2025, 1, 2), None],
            np.array(["2024-12-31", "2025-01-02", "NaT"], dtype="datetime64[D]"),
        ],
    )
    def test_days(self, values: list[Any]) -> None:
        names, x = parts(values)
        assert names == ("day.year", "day.month", "day.day", "day.weekday")
        assert x == [[2024, 12, 31, 2], [2025, 1, 2, 4], [-1] * 4]  # a Tuesday and a Thursday

    @pytest.mark.parametrize(
        "values",
        [
            ["2024-12-31 23:30", "2025-01-02 00:00:00"],
            ["2024-12-31T23:30:00Z", "2025-01-02T00:00:00+01:00"],
            [datetime(2024, 12, 31, 23, 30), datetime(2025, 1, 2)],
            np.array(["2024-12-31T23:30", "2025-01-02T00:00"], dtype="datetime64[ns]"),
        ],
    )
    def test_hours(self, values: list[Any]) -> None:
        names, x = parts(values)
        assert names[-1] == "day.hour" and [row[-1] for row in x] == [23.5, 0]
        assert x[0][:4] == [2024, 12, 31, 2]

    def test_times_of_day(self) -> None:
        assert parts(["7:15", "19:00"]) == (("day.hour",), [[7.25], [19]])

    @pytest.mark.parametrize(
        ("values", "sentence"),
        [
            (["1/2/2024", "3/4/2024"], r"dates such as '1/2/2024', which do not show whether the day or the month"),
            (["13/2/2024", "3/14/2024"], "do not show whether the day or the month"),
            (["2024-13-01", "2024-01-01"], r"must hold dates such as 2024-12-31 or .*, got '2024-13-01'"),
            (["2024-01-01 late", "2024-01-01"], "got '2024-01-01 late'; correct it, or let it count as missing"),
            (["2024-01-01", "12:00"], "must hold dates or times of day, got both"),
        ],
    )
    def test_what_is_not_known_is_rejected(self, values: list[str], sentence: str) -> None:
        with pytest.raises(InputError, match=sentence):
            parts(values)

    def test_without_the_option(self, tmp_path: Path) -> None:
        path = write(tmp_path, "day,a,y\n2024-01-01,1,0\n2024-01-02,2,1\n")
        with settings_written_in(COMMAND_LINE), pytest.raises(InputError, match="--dates makes year, month"):
            load(path)
        assert load(path, drop=["day"]).features.names == ("a",)

    def test_new_examples_have_the_order_of_the_training_data(self, tmp_path: Path) -> None:
        table = load(write(tmp_path, "day,y\n12/31/2024 10:00,0\n1/2/2024 11:30,1\n"), dates=True)
        features = Features.from_dict(table.features.to_dict())
        new = tables.inputs(write(tmp_path, "day\n2/3/2024\n", "new.csv"), features)
        np.testing.assert_array_equal(new.x, [[2024, 2, 3, 6, 0]])

    def test_owners_with_another_order(self) -> None:
        orders = {"a": ["31/12/2024", "1/1/2024"], "b": ["12/31/2024", "1/1/2024"]}
        made = {
            name: tables.from_columns({"day": days, "y": [0, 1]}, dates=True).features for name, days in orders.items()
        }
        with pytest.raises(InputError, match=r"the dates in column 'day' must have one order .* but b has another"):
            merge_features(made)

    def test_a_column_of_that_name(self) -> None:
        with pytest.raises(InputError, match=r"'day\.year' of the dates in 'day' is also a column"):
            tables.from_columns({"day": ["2024-01-01", "2024-01-02"], "day.year": [1, 2], "y": [0, 1]}, dates=True)


def test_settings_of_a_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Names separated by commas, as on the command line and in TOML files."""
    from bespokefl.workflows.run.client_loading import load_clients
    from bespokefl.workflows.run.settings import RunSettings

    lines = "".join(f"{at},{'n/d' if at == 3 else at},2024-01-{at + 1:02},{at % 2},c{at % 2}\n" for at in range(20))
    path = write(tmp_path, f"dose,age,day,y,client\n{lines}")
    settings = RunSettings(
        method="local", data=str(path), as_number="dose, age", missing_values="-9, n/a", dates=True, missing="mean"
    )
    with caplog.at_level(logging.WARNING):
        clients = load_clients(settings)
    assert clients.shape == (6,) and "'n/d'" in caplog.text
