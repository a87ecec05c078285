"""`bespoke split`: makes, draws and exports, and says what is wrong in one sentence."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import typer

from bespokefl.cli.commands import split
from bespokefl.core.errors import InputError
from bespokefl.data import load
from bespokefl.data.split_statistics import measure
from bespokefl.data.splits import PRESETS, SPLITS


def run(line: str) -> None:
    command = typer.main.get_command(split.app)
    command.main(shlex.split(line), prog_name="bespoke split", standalone_mode=False)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("make", ["make ", ""])
def test_make_with_and_without_its_name(make: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(f'{make}"dirichlet(alpha=0.4)" --data digits --clients 6 --seed 3 --out split.json')
    expected = load("digits").split("dirichlet(alpha=0.4)", clients=6, seed=3)
    assert load("digits").with_split("split.json").hash == expected.hash
    said = capsys.readouterr().out
    assert "Written to split.json" in said
    assert f"{measure(expected).label_distance:.3f}" in said
    assert f"{measure(expected).size_gini:.3f}" in said
    assert f"{measure(expected).effective_classes:.2f}" in said


def test_fractions_and_a_preset_s_number_of_clients() -> None:
    run("ds-1 --fractions 0.8,0,0.2 --out split.json")
    content = json.loads(Path("split.json").read_text())
    assert len(content["names"]) == 10
    assert all(one == [] for one in content["validation"])


def test_without_out_it_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    run("ds-1 --clients 3")
    said = capsys.readouterr().out
    assert "client train 0 1 2 3 4 5 6 7 8 9" in said
    assert list(Path().iterdir()) == []


def test_show_draws_every_client_or_some(capsys: pytest.CaptureFixture[str]) -> None:
    counts = {}
    for option in ("", "--all"):
        run(f"show iid --clients 100 {option}")
        lines = capsys.readouterr().out.splitlines()
        start = next(at for at, line in enumerate(lines) if line.startswith("client"))
        counts[option] = sum(line[:2].isdigit() for line in lines[start:]) - ("40 of 100" in lines[-1])
    assert counts == {"": 40, "--all": 100}


def test_show_leaves_gaps_where_there_is_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    run("show classes(k=1) --clients 2")
    lines = [line for line in capsys.readouterr().out.splitlines() if line[:2] in ("0 ", "1 ")]
    assert [sum(one in split.LEVELS for one in line) for line in lines] == [1, 1]


def test_show_a_file_its_groups_and_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    run('"rotation(groups=4)" --clients 8 --out split.json')
    run("show split.json")
    assert "client group train" in capsys.readouterr().out
    run("show split.json --out page.html")
    page = Path("page.html").read_text()
    clients = load("digits").with_split("split.json")
    assert page.count("<circle") == int(np.count_nonzero(np.bincount(_cells(clients), minlength=80)))
    assert "label distance" in page
    assert "http" not in page


def _cells(clients: object) -> np.ndarray:
    client = np.repeat(np.arange(8), clients.train.sizes.numpy())  # type: ignore[attr-defined]
    return client * 10 + clients.y[clients.train.indices].numpy()  # type: ignore[attr-defined]


def test_names_are_text_in_a_page() -> None:
    np.savez("a.npz", x=np.zeros((9, 1)), y=np.arange(9) % 2, client=np.array(["<b>&"] * 9))
    run("show by_column --data a.npz --out page.html")
    page = Path("page.html").read_text()
    assert "&lt;b&gt;&amp;" in page
    assert "<b>" not in page


def test_export() -> None:
    run("iid --clients 3 --out split.json")
    run("export split.json --to pflib --out Digits")
    run("export split.json --to flower --out digits")
    assert len(list(Path("Digits/train").iterdir())) == 3
    assert Path("digits/train.jsonl").exists()


def test_regression_and_drawn_data(capsys: pytest.CaptureFixture[str]) -> None:
    run('show by_column --data "gaussian(between=1.0, sizes=(10, 200))"')
    said = capsys.readouterr().out
    assert "size Gini" in said
    assert "label distance" not in said


def test_list_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    run("list")
    said = capsys.readouterr().out
    assert all(name in said for name in (*SPLITS, *PRESETS))


def test_alone_it_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    run("")
    assert "Usage: bespoke split" in capsys.readouterr().out


def test_data_that_the_file_s_name_does_not_find() -> None:
    np.savez("a.npz", x=np.zeros((9, 1)), y=np.arange(9) % 2)
    run("iid --data a.npz --clients 2 --out split.json")
    with pytest.raises(InputError, match="made for data called 'a', which cannot be loaded by that name; add --data"):
        run("show split.json")
    run("show split.json --data a.npz")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("zzz --out a.json", "unknown split 'zzz'"),
        ("show nothing.json", "cannot read the split 'nothing.json'"),
        ("show iid --out page.png", "is an HTML page, so --out must end in .html, got 'page.png'"),
        ("export iid --to leaf --out a", "unknown layout 'leaf'"),
        ("iid --clients 0 --out a.json", "clients must be at least 1, got 0"),
        ("iid --data nowhere.npz --out a.json", "nowhere.npz"),
        ("iid --fractions 1,1,1 --out a.json", "fractions must be three numbers"),
    ],
)
def test_mistakes(line: str, sentence: str) -> None:
    with pytest.raises(InputError) as error:
        run(line)
    assert sentence in str(error.value)
    assert list(Path().iterdir()) == []
