"""Numbers with a decimal comma are numbers, wherever the comma separates no columns, and nothing else is."""

from pathlib import Path

import numpy as np
import pytest

from bespokefl.core.errors import InputError
from bespokefl.data.tables import client_directories as folder
from bespokefl.data.tables import table as tables
from bespokefl.data.tables.features import Table


def write(folder: Path, content: str, name: str = "prices.csv") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def column(tmp_path: Path, cells: list[str], delimiter: str = ";", **options: object) -> Table:
    """A table of these cells and a label."""
    lines = [f"a{delimiter}y", *(f"{cell}{delimiter}{at % 2}" for at, cell in enumerate(cells))]
    return tables.load(write(tmp_path, "\n".join(lines)), **options)


class TestFeatures:
    @pytest.mark.parametrize("delimiter", [";", "\t"])
    @pytest.mark.parametrize("quote", ["", '"'])
    def test_the_same_as_with_points(self, delimiter: str, quote: str, tmp_path: Path) -> None:
        cells = ["3,14", "-2", "+0,5", ",25", "7,", "1,5e-3", "1,234"]
        table = column(tmp_path, [f"{quote}{cell}{quote}" for cell in cells], delimiter)
        assert [one.kind for one in table.features.columns] == ["number"]
        expected = [3.14, -2, 0.5, 0.25, 7, 0.0015, 1.234]
        assert table.x[:, 0].tolist() == np.array(expected, dtype=np.float32).tolist()

    def test_gaps(self, tmp_path: Path) -> None:
        table = column(tmp_path, ["3,5", "", " NA ", " 4 "], missing="mean")
        assert table.x[:, 0].nan_to_num(-1).tolist() == [3.5, -1, -1, 4]

    @pytest.mark.parametrize(
        "cells",
        [
            ["3,14", "2.5"],  # which of the two is the decimal sign?
            ["1.234,5", "2,5"],
            ["1,234,567", "2,5"],
            ["3,14", "much"],
            ["3,1_4", "2,5"],
            ["3 , 14", "2,5"],
            ["3,14 €", "2,5"],
            [",", "2,5"],
        ],
    )
    @pytest.mark.parametrize("block", [1, 20_000])
    def test_other_texts_stay_texts(
        self, cells: list[str], block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("bespokefl.data.tables.table_files.BLOCK", block)
        for order in (cells, cells[::-1]):
            assert column(tmp_path, order).features.columns[0].values == tuple(sorted(cells))

    def test_between_commas_it_is_a_text(self, tmp_path: Path) -> None:
        assert column(tmp_path, ['"3,14"', '"2,5"'], ",").features.columns[0].values == ("2,5", "3,14")

    def test_commas_in_the_header_s_quotes_separate_nothing(self, tmp_path: Path) -> None:
        table = tables.load(write(tmp_path, '"weight, kg, net";y\n3,5;0\n4,5;1\n'))
        assert table.features.names == ("weight, kg, net",)
        assert table.x[:, 0].tolist() == [3.5, 4.5]

    @pytest.mark.parametrize("block", [1, 2, 3, 20_000])
    def test_blocks_do_not_matter(self, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The first comma comes late in one column, early in another; a third has points, a fourth texts."""
        monkeypatch.setattr("bespokefl.data.tables.table_files.BLOCK", block)
        rows = ["1;1,5;0.5;u;0", "2;2;1.5;v;1", "3;3;2;u,v;0", "4,5;4,5;3;u;1", "5;5;4.5;v;0"]
        table = tables.load(write(tmp_path, "\n".join(["a;b;c;d;y", *rows])))
        assert [one.kind for one in table.features.columns] == ["number", "number", "number", "category"]
        assert table.x[:, :3].tolist() == [[1, 1.5, 0.5], [2, 2, 1.5], [3, 3, 2], [4.5, 4.5, 3], [5, 5, 4.5]]

    @pytest.mark.parametrize("block", [1, 20_000])
    def test_a_point_before_the_commas(self, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("bespokefl.data.tables.table_files.BLOCK", block)
        for cells in (["2.0", "3,5"], ["3,5", "2.0"], ["1", "2.0", "3,5"], ["3,5", "4", "2.0"]):
            assert column(tmp_path, cells).features.columns[0].kind == "category"


class TestOtherColumns:
    def test_a_label_is_a_regression(self, tmp_path: Path) -> None:
        path = write(tmp_path, "a;y\n1;3,5\n2;4\n3;-0,25\n")
        table = tables.load(path)
        assert (table.classes, table.y.tolist()) == (None, [3.5, 4, -0.25])
        later = tables.inputs(path, table.features)
        assert later.y is not None and later.y.tolist() == [3.5, 4, -0.25]

    def test_a_label_of_classes(self, tmp_path: Path) -> None:
        path = write(tmp_path, "a;grade\n1;1,5\n2;2,5\n3;1,5\n")
        assert tables.load(path, label="grade", task="classification").label_names == ("1.5", "2.5")
        texts = write(tmp_path, "a;grade\n1;1,5\n2;good\n3;1,5\n")
        assert tables.load(texts, label="grade").label_names == ("1,5", "good")

    def test_clients_and_documents_are_as_written(self, tmp_path: Path) -> None:
        path = write(tmp_path, "a;y;client\n1,5;0;1,5\n2;1;2,5\n")
        table = tables.load(path)
        assert table.client is not None and table.client.tolist() == ["1,5", "2,5"]
        table = tables.load(path, client="y", label="client", text="a")
        assert table.features.columns[0].values == ("1,5", "2")

    def test_a_feature_may_have_a_label_s_name(self, tmp_path: Path) -> None:
        path = write(tmp_path, "x;y;client;ill;who\n1,5;2,5;3,5;no;u\n2;3;4;yes;v\n")
        table = tables.load(path, label="ill", client="who")
        assert table.x.tolist() == [[1.5, 2.5, 3.5], [2, 3, 4]]


class TestLater:
    def test_files_with_commas_and_with_points(self, tmp_path: Path) -> None:
        commas = write(tmp_path, "a;b;y\n1,5;u;0,5\n2;v;1\n", "commas.csv")
        points = write(tmp_path, "a,b,y\n1.5,u,0.5\n2,v,1\n", "points.csv")
        for first, other in ((commas, points), (points, commas)):
            features = tables.load(first).features
            found, expected = tables.inputs(other, features), tables.inputs(first, features)
            assert np.array_equal(found.x, expected.x) and found.y is not None
            assert found.y.tolist() == [0.5, 1]

    def test_a_category_stays_one(self, tmp_path: Path) -> None:
        features = column(tmp_path, ["1,5", "other"]).features
        assert tables.inputs(write(tmp_path, "a;z\n1,5;0\n2,5;0\n"), features).x.tolist() == [[1, 0], [0, 0]]

    def test_between_commas_it_is_refused(self, tmp_path: Path) -> None:
        features = column(tmp_path, ["1,5", "2"]).features
        with pytest.raises(InputError, match=r"column 'a' must hold a number, got '2,5' in row 1"):
            tables.inputs(write(tmp_path, 'a,z\n"2,5",0\n'), features)

    def test_folders(self, tmp_path: Path) -> None:
        write(tmp_path, "a;b;y\n1,5;1,5;0,5\n2;2;2\n", "p/1.csv")
        write(tmp_path, "a,b,y\n2.5,u,1\n", "q/1.csv")
        table = folder.load(tmp_path)
        assert table.x[:, 0].tolist() == [1.5, 2, 2.5]
        assert table.features.columns[1].values == ("1,5", "2", "u")  # a text for one client is one for all
        assert table.y.tolist() == [0.5, 2, 1]


class TestDoubt:
    """Three digits after every comma may be thousands: it is said how they are read."""

    def test_said(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        assert column(tmp_path, ["950", "1,234", "12,500"]).x[:, 0].tolist()[0::2] == [950, 12.5]
        assert (
            "prices.csv: 1,234 is read as 1.234, because a comma that does not separate columns is a decimal comma"
            in caplog.text
        )
        assert "if it means thousands, write 1234" in caplog.text

    @pytest.mark.parametrize(
        "content",
        [
            "a;y\n1,234;0\n1,5;1\n",
            "a;y\n0,234;0\n1,234;1\n",
            "a;y\n1234,500;0\n1,234;1\n",
            "a;b;y\n1,234;1,5;0\n2,345;2;1\n",  # another column tells
            "a;y\n1,234;0,5\n2,345;1\n",  # the label tells
            "a;b;y\n1;1,234 or so;0\n2;u;1\n",
            'a,b,y\n1,"1,234",0\n2,"2,345",1\n',
        ],
    )
    def test_not_said_where_there_is_none(self, content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        tables.load(write(tmp_path, content))
        assert not caplog.text

    @pytest.mark.parametrize("block", [1, 20_000])
    def test_a_text_tells_nothing(
        self, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("bespokefl.data.tables.table_files.BLOCK", block)
        tables.load(write(tmp_path, "a;b;y\n1,234;1,5;0\n2,345;u;1\n"))
        assert "1,234 is read as 1.234" in caplog.text

    def test_once_for_a_folder(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        for name in ("p", "q", "r"):
            write(tmp_path, "a;b;y\n1,234;" + ("u" if name == "r" else "1") + ";0\n2,345;2;1\n", f"{name}/1.csv")
        folder.load(tmp_path)
        (found,) = [one.getMessage() for one in caplog.records if "is read as" in one.getMessage()]
        assert found.endswith("write 1234 (the same in 3 files)")
