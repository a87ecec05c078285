"""Tables become data: what each column is, what is refused, and that a second file is read as the first was."""

import math
import sys
import time
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bespokefl.core.errors import InputError
from bespokefl.data.tables import table as tables
from bespokefl.data.tables.features import Table

ROWS = """age,smoker,town,ill,hospital
30,true,Rome,yes,north
41.5,False,Oslo,no,north
52,TRUE,Rome,no,south
"""


def write(folder: Path, content: str | bytes, name: str = "patients.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def load(folder: Path, content: str = ROWS, **options: object) -> Table:
    return tables.load(write(folder, content), **({"label": "ill", "client": "hospital"} | options))


class TestColumns:
    def test_numbers_truth_values_and_categories(self, tmp_path: Path) -> None:
        table = load(tmp_path)
        assert table.features.names == ("age", "smoker", "town=Oslo", "town=Rome")
        assert table.x.tolist() == [[30, 1, 0, 1], [41.5, 0, 1, 0], [52, 1, 0, 1]]
        assert table.label_names == ("no", "yes")
        assert table.y.tolist() == [1, 0, 0]
        assert table.client is not None
        assert table.client.tolist() == ["north", "north", "south"]
        assert table.name == "patients"
        assert table.split("by_column").names == ("north", "south")

    @pytest.mark.parametrize("change", [str.strip, lambda s: s.replace(",", ";"), lambda s: s.replace(",", "\t")])
    def test_other_ways_to_write_it(self, tmp_path: Path, change: object) -> None:
        assert load(tmp_path, change(ROWS)).x.tolist() == load(tmp_path).x.tolist()

    def test_quotes_byte_order_mark_and_empty_lines(self, tmp_path: Path) -> None:
        content = '\ufeffage,town,ill\r\n1,"Rome, the\ncity",0\r\n\r\n 2 , Oslo ,1\r\n'
        table = tables.load(write(tmp_path, content), label="ill")
        assert table.features.names == ("age", "town=Oslo", "town=Rome, the\ncity")
        assert table.x.tolist() == [[1, 0, 1], [2, 1, 0]]

    def test_a_column_that_only_looks_like_numbers_at_first(self, tmp_path: Path, monkeypatch: object) -> None:
        monkeypatch.setattr("bespokefl.data.tables.table_files.BLOCK", 2)
        content = "code,a,y\n01,1,0\n1,2,1\n1,3,0\nx,4,1\n1_2,5,0\n"
        table = tables.load(write(tmp_path, content))
        assert table.features.columns[0].values == ("01", "1", "1_2", "x")
        assert table.x[:, -1].tolist() == [1, 2, 3, 4, 5]

    def test_underscores_are_no_numbers(self, tmp_path: Path) -> None:
        table = tables.load(write(tmp_path, "code,y\n1_2,0\n1_2,1\n"))
        assert table.features.columns[0].values == ("1_2",)

    def test_blocks_do_not_matter(self, tmp_path: Path, monkeypatch: object) -> None:
        lines = [f"{i / 8},{'' if i == 7 else i},{'a' if i % 3 else 'b'},{i % 2}" for i in range(25)]
        path = write(tmp_path, "\n".join(["p,q,r,y", *lines]))
        whole = tables.load(path, missing="mean").x
        monkeypatch.setattr("bespokefl.data.tables.table_files.BLOCK", 4)
        assert torch.equal(tables.load(path, missing="mean").x.nan_to_num(-1), whole.nan_to_num(-1))
        assert whole[:, 0].tolist() == [i / 8 for i in range(25)]

    def test_clients_and_classes_are_as_written(self, tmp_path: Path) -> None:
        table = tables.load(write(tmp_path, "a,y,client\n1,0,007\n2,1,7\n3,0,7.0\n"))
        assert table.client is not None
        assert table.client.tolist() == ["007", "7", "7.0"]
        table = tables.load(write(tmp_path, "a,y,client\n1,10,10\n2,9,9\n"))
        assert table.client is not None
        assert (table.client.tolist(), table.label_names) == ([10, 9], ("9", "10"))

    def test_files_of_arrays(self, tmp_path: Path) -> None:
        series = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
        np.savez(tmp_path / "a.npz", x=series, y=[0, 1, 0, 1], client=["a", "a", "b", "b"])
        table = tables.load(tmp_path / "a.npz")
        assert table.shape == (3, 2)
        assert np.array_equal(table.x.numpy(), series)
        np.savez(tmp_path / "b.npz", age=[1, 2, 3], scan=np.ones((3, 2)), sick=[True, False, True], kind=list("uvu"))
        table = tables.load(tmp_path / "b.npz", label="sick")
        assert table.features.names == ("age", "scan[0]", "scan[1]", "kind=u", "kind=v")
        assert table.classes == 2
        np.savez(tmp_path / "c.npz", x=np.full((2, 1, 2, 2), 255, dtype=np.uint8), y=[0, 1])
        assert tables.load(tmp_path / "c.npz").x.unique().tolist() == [1]

    def test_python_columns(self) -> None:
        table = tables.from_columns({"a": [1, None, 3], "b": [True, None, False], "y": [0, 1, 1]}, missing="mean")
        assert [column.kind for column in table.features.columns] == ["number", "truth"]
        assert table.x.nan_to_num(-1).tolist() == [[1, 1], [-1, -1], [3, 0]]
        assert tables.from_columns({"a": [1, 2], "b": [3, 4], "y": [0, 1]}, drop="b").features.names == ("a",)


class TestLabels:
    @pytest.mark.parametrize(
        ("values", "task", "classes", "y"),
        [
            ("3 5 3", None, 2, [0, 1, 0]),
            ("b a b", None, 2, [1, 0, 1]),
            ("True False True", None, 2, [1, 0, 1]),
            ("0.5 1 2", None, None, [0.5, 1, 2]),
            ("1 2 3", "regression", None, [1, 2, 3]),
            ("1.0 2.0 1.0", "classification", 2, [0, 1, 0]),
            ("0.5 1.5 0.5", "classification", 2, [0, 1, 0]),
        ],
    )
    def test_kinds(self, tmp_path: Path, values: str, task: str | None, classes: int | None, y: list[float]) -> None:
        content = "a,y\n" + "".join(f"{i},{value}\n" for i, value in enumerate(values.split()))
        table = tables.load(write(tmp_path, content), task=task)
        assert (table.classes, table.y.tolist()) == (classes, y)

    def test_many_whole_numbers_are_asked_about(self) -> None:
        columns = {"a": np.arange(300.0), "y": np.arange(300)}
        with pytest.raises(InputError, match="300 different integers in 300 rows; use task='regression' or"):
            tables.from_columns(columns)
        assert tables.from_columns(columns, task="regression").classes is None
        assert tables.from_columns(columns, task="classification").classes == 300


class TestMissing:
    GAPS = "a,b,y\n1,u,0\n,v,1\n3,NA,0\n4,u,1\n"

    def test_refused_with_column_and_row(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"column 'a' lacks 1 of 4 values, the first in row 2; fill them"):
            tables.load(write(tmp_path, self.GAPS))
        with pytest.raises(InputError, match=r"column 'b' lacks 1 of 4 values, the first in row 3"):
            tables.load(write(tmp_path, self.GAPS), drop=["a"])

    def test_kept_for_later(self, tmp_path: Path) -> None:
        x = tables.load(write(tmp_path, self.GAPS), missing="mean").x
        assert x.nan_to_num(-1).tolist() == [[1, 1, 0], [-1, 0, 1], [3, -1, -1], [4, 1, 0]]

    def test_rows_left_out_are_counted(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        table = tables.load(write(tmp_path, self.GAPS), missing="drop")
        assert table.x.tolist() == [[1, 1], [4, 1]]  # b is u, its only text that is left
        assert "2 of 4 rows lack a value and are dropped" in caplog.text

    @pytest.mark.parametrize("column", ["y", "client"])
    def test_labels_and_clients_are_never_made_up(self, column: str) -> None:
        columns = {"a": [1, 2, 3], "y": ["p", "q", "p"], "client": ["u", "v", "v"]}
        columns[column] = [columns[column][0], None, columns[column][2]]
        with pytest.raises(InputError, match=rf"column '{column}' lacks 1 of 3 values, the first in row 2"):
            tables.from_columns(columns, missing="mean")


class TestRefused:
    @pytest.mark.parametrize(
        ("content", "options", "sentence"),
        [
            (ROWS, {"label": "il"}, "unknown column for the label 'il'; did you mean 'ill'?"),
            (ROWS, {"client": "hopital"}, "unknown column for the client 'hopital'; did you mean 'hospital'?"),
            (ROWS, {"label": None}, "column to predict is not known; the data have age, smoker, town, ill, hospital"),
            (ROWS, {"client": "ill"}, "label, client and text must be different columns"),
            (ROWS, {"drop": ["wages"]}, "has no column 'wages' to drop"),
            (ROWS, {"missing": "guess"}, "unknown missing 'guess'; known: drop, mean, refuse."),
            (ROWS, {"task": "ranking"}, "unknown task 'ranking'; known: classification, regression."),
            (
                ROWS,
                {"task": "regression"},
                "the label 'ill' must hold numbers for a regression, got text such as 'yes'",
            ),
            (ROWS.replace("yes", "no"), {}, "the label 'ill' must differ between rows, got only 'no'"),
            ("a,ill,hospital\n1,2.5,n\n2,2.5,n\n", {}, "the label 'ill' must differ between rows, got only 2.5"),
            ("ill,hospital\n1,n\n2,n\n", {}, "must have a column besides 'ill' to learn from, got none"),
            ("day,ill,hospital\n2020-01-31,1,n\n2020-02-01,0,n\n", {}, "column 'day' holds dates or times"),
            ("day,ill,hospital\n31.1.2020,1,n\n1.2.2020,0,n\n", {}, "column 'day' holds dates or times"),
            ("a,ill,hospital\n1,0,n\n2,1\n", {}, "must have 3 cells, like the header, got 2"),
            ("a,a,ill,hospital\n1,1,0,n\n", {}, "must have different names, got 'a' twice"),
            ("a,ill,hospital\n", {}, "must hold at least one row"),
            ("", {}, "must start with a line of column names, got an empty file"),
            ('a,ill,hospital\n"1,0,n\n', {}, "cannot read"),
            (
                "a,ill,hospital\ninf,0,n\n1,1,n\n",
                {},
                "column 'a' must hold finite numbers (in float32), got inf in row 1",
            ),
            ("a,ill,hospital\n1e99,0,n\n1,1,n\n", {}, "column 'a' must hold finite numbers (in float32)"),
        ],
    )
    def test_sentences(self, tmp_path: Path, content: str, options: dict[str, object], sentence: str) -> None:
        with pytest.raises(InputError) as error:
            load(tmp_path, content, **options)
        assert sentence in str(error.value)
        assert "\n" not in str(error.value)

    def test_too_many_categories(self) -> None:
        columns = {"name": [f"person {i}" for i in range(101)], "y": [0, 1] * 50 + [0]}
        with pytest.raises(
            InputError, match="column 'name' has 101 different texts, such as 'person 0', and at most 100"
        ):
            tables.from_columns(columns)
        assert tables.from_columns({key: value[:100] for key, value in columns.items()}).shape == (100,)

    @pytest.mark.parametrize(
        ("name", "content", "sentence"),
        [
            ("a.csv", b"PK\x03\x04 a zip file", "must be a table of text, got other bytes"),
            ("a.csv", b"a,b\n\xff\xfe\x00,1\n", "must be text in UTF-8, got other bytes"),
            ("a.npz", b"a,b\n1,2\n", "cannot read"),
            ("a.txt", b"a,b\n1,2\n", "must be a file that ends in .csv, .tsv, .parquet, .npz"),
        ],
    )
    def test_not_what_the_name_says(self, tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
        with pytest.raises(InputError) as error:
            tables.load(write(tmp_path, content, name))
        assert sentence in str(error.value)
        assert "\n" not in str(error.value)

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"expected a file '.*none.csv', got none of that name"):
            tables.load(tmp_path / "none.csv")

    def test_arrays_that_do_not_fit(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "a.npz", x=np.ones((3, 2)), y=[0, 1, 0], scale=[1.0])
        with pytest.raises(InputError, match="'scale' has 1 and the label 'y' 3; drop it if it is something else"):
            tables.load(tmp_path / "a.npz")
        assert tables.load(tmp_path / "a.npz", drop=["scale"]).shape == (2,)
        with pytest.raises(InputError, match=r"column 'x' holds an array of shape \(2, 2\) for each row"):
            tables.from_columns({"x": np.ones((3, 2, 2)), "a": [1, 2, 3], "y": [0, 1, 0]})


class TestParquet:
    def test_without_pyarrow(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
        with pytest.raises(
            InputError, match=r'needs pyarrow, which is not installed; pip install "bespokefl\[tables\]"'
        ):
            tables.load(write(tmp_path, b"PAR1", "a.parquet"))

    def test_columns_of_a_stand_in(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What pyarrow gives: columns with a type, to_numpy and to_pylist."""

        def column(kind: str, values: list[object]) -> SimpleNamespace:
            return SimpleNamespace(type=kind, to_pylist=lambda: values, to_numpy=lambda: np.array(values))

        found = {
            "a": column("double", [1.5, math.nan]),
            "b": column("bool", [True, None]),
            "c": column("string", ["u", "v"]),
            "when": column("timestamp[us]", [datetime(2024, 5, 6, 7, 30), None]),
            "y": column("int64", [0, 1]),
        }
        table = SimpleNamespace(column_names=list(found), column=found.__getitem__)
        monkeypatch.setitem(sys.modules, "pyarrow.parquet", SimpleNamespace(read_table=lambda path: table))
        path = write(tmp_path, b"PAR1", "a.parquet")
        loaded = tables.load(path, missing="mean", drop=["when"])
        assert loaded.features.names == ("a", "b", "c=u", "c=v")
        assert loaded.x.nan_to_num(-1).tolist() == [[1.5, 1, 1, 0], [-1, -1, 0, 1]]
        with pytest.raises(InputError, match="column 'when' holds dates or times"):
            tables.load(path, missing="mean")
        dated = tables.load(path, missing="mean", dates=True)
        assert dated.x[0, 4:].tolist() == [2024, 5, 6, 1, 7.5]


class TestLater:
    """Another file for the same models."""

    def test_read_as_the_first_was(self, tmp_path: Path) -> None:
        features = load(tmp_path).features
        path = write(tmp_path, "town,extra,smoker,age,hospital\nOslo,9,false,1,west\nParis,9,true,2,west\n", "new.csv")
        found = tables.inputs(path, features)
        assert found.x.tolist() == [[1, 0, 1, 0], [2, 1, 0, 0]]  # Paris was not in the first file
        assert found.y is None
        assert found.client is not None
        assert found.client.tolist() == ["west", "west"]
        again = tables.inputs(tmp_path / "patients.csv", features)
        assert np.array_equal(again.x, load(tmp_path).x.numpy())
        assert again.y is not None
        assert again.y.tolist() == ["yes", "no", "no"]

    def test_categories_that_look_like_numbers(self, tmp_path: Path) -> None:
        features = tables.load(write(tmp_path, "code,y\n01,0\nx,1\n")).features
        assert tables.inputs(write(tmp_path, "code\n01\n", "new.csv"), features).x.tolist() == [[1, 0]]

    def test_arrays(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "a.npz", age=[1, 2, 3], scan=np.ones((3, 2)), y=[0, 1, 0])
        features = tables.load(tmp_path / "a.npz").features
        np.savez(tmp_path / "b.npz", scan=[[5, 6]], age=[7])
        assert tables.inputs(tmp_path / "b.npz", features).x.tolist() == [[7, 5, 6]]

    def test_refused(self, tmp_path: Path) -> None:
        features = load(tmp_path).features
        with pytest.raises(
            InputError, match="must have a column 'age', like the training data; they have smoker, town"
        ):
            tables.inputs(write(tmp_path, "smoker,town\ntrue,Rome\n", "new.csv"), features)
        with pytest.raises(InputError, match=r"column 'age' must hold a number, got 'old' in row 1 of '.*new.csv'"):
            tables.inputs(write(tmp_path, "age,smoker,town\nold,true,Rome\n", "new.csv"), features)
        with pytest.raises(InputError, match="column 'smoker' must hold true or false, got 'maybe' in row 1"):
            tables.inputs(write(tmp_path, "age,smoker,town\n1,maybe,Rome\n", "new.csv"), features)


def wide(folder: Path, columns: int, kind: str) -> float:
    """Seconds of work to read so many columns."""
    cells = {"numbers": "1.5", "decimal commas": "1,5", "texts": "a", "half dropped": "1"}[kind]
    lines = [[f"c{at}" for at in range(columns)] + ["y"], *([cells] * columns + [str(y)] for y in (0, 1))]
    path = write(folder, "\n".join((";" if kind == "decimal commas" else ",").join(line) for line in lines) + "\n")
    drop = lines[0][:-1:2] if kind == "half dropped" else []
    started = time.process_time()
    table = tables.load(path, drop=drop)
    taken = time.process_time() - started
    assert table.shape == (columns - len(drop),)
    return taken


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["numbers", "decimal commas", "texts", "half dropped"])
def test_four_times_the_columns_take_four_times_as_long(tmp_path: Path, kind: str) -> None:
    """Sixteen times as long, if every column were looked for among all others."""
    taken = [(wide(tmp_path, 5_000, kind), wide(tmp_path, 20_000, kind)) for _ in range(3)]
    few, many = (min(seconds) for seconds in zip(*taken, strict=True))
    assert many < 8 * few


def test_what_is_not_there_among_many_is_a_short_sentence(tmp_path: Path) -> None:
    names = [f"c{at}" for at in range(1_000)]
    with pytest.raises(InputError, match=r"unknown column for the label 'nothing'; known: c0, .* and 960 more\.$"):
        load(tmp_path, ",".join(names) + "\n" + ",".join("1" * 1_000) + "\n", label="nothing")


def test_a_quote_in_the_header_that_nobody_closes_soon(tmp_path: Path) -> None:
    """What it swallows becomes a column's name: it is told in one line, or refused if it is long."""
    with pytest.raises(InputError, match=r"unknown column for the label 'ill'; known: a, b ill 1 2\.$"):
        load(tmp_path, 'a,"b\nill\n1\n2\n"\n1,2\n')
    with pytest.raises(
        InputError, match=r"at most 200 characters, got 205 that start with 'ill 1 2 .*…'; check its quotes$"
    ):
        load(tmp_path, f'a,"ill\n{"1 2 " * 50}x"\n1,2\n')
