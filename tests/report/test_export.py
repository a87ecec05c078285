"""Test reports as LaTeX, Markdown and CSV, and figures as files."""

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bespokefl import report
from bespokefl.cli import main
from bespokefl.core.errors import InputError
from bespokefl.report.export import drawing
from bespokefl.report.export.latex import escape
from tests.report.comparisons import document, save

HOSTILE = r"50% & $x_1$ #{\input} ~^ <b>|a|`"


def made(**changes: Any) -> dict[str, Any]:
    """A comparison with a constant predictor and the clients' curves, whose description is known."""
    found = document() | {"description": "We compared seven methods."} | changes
    scores = [0.5] * 11 + [1.0]
    zeros = dict.fromkeys(("std", "worst", "worst_decile", "weighted_mean", "largest_decile", "smallest_decile"), 0.5)
    figures = {"mean": float(np.mean(scores)), "sem": None, "interval": None, **zeros}
    found["constant"] = {
        "name": "majority class",
        "figures": {"accuracy": figures},
        "personal": {"accuracy": scores},
    }
    for method in found["methods"]:
        values = [[0.1] * 12, [0.4] * 12, [0.8] * 12]
        method["client_curves"] = {"score": "accuracy", "round": [0, 5, 10], "values": values}
    return found


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = save(tmp_path_factory.mktemp("comparison"), made())
    report.export(source, source / "out", formats=("latex", "markdown", "csv"))
    return source / "out"


def test_latex_has_balanced_environments_and_rows_of_equal_length(files: Path) -> None:
    text = (files / "report.tex").read_text(encoding="utf-8")
    begun, ended = (re.findall(rf"\\{word}{{(\w+)}}", text) for word in ("begin", "end"))
    assert sorted(begun) == sorted(ended) and begun.count("table") == 3
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
    for columns, body in re.findall(r"\\begin{tabular}{(l[r]+)}(.*?)\\end{tabular}", text, re.DOTALL):
        lines = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert len(lines) == 9  # heading, seven methods, constant
        assert all(len(re.findall(r"(?<!\\)&", line)) == len(columns) - 1 for line in lines)
    for rule in ("toprule", "midrule", "bottomrule"):
        assert text.count(f"\\{rule}") == 3
    assert r"\paragraph{Methods.} We compared seven methods." in text
    assert r"\textbf{cfl *} & \textbf{84.0 $\pm$ 0.3}" in text
    assert (files / "references.bib").read_text(encoding="utf-8").count("@article") == 7


def test_latex_escapes_everything_it_interprets() -> None:
    assert escape(HOSTILE) == (
        r"50\% \& \$x\_1\$ \#\{\textbackslash{}input\} \textasciitilde{}\textasciicircum{} $<$b$>$$|$a$|$`"
    )
    assert escape("−1 ± 2 – λ²") == r"$-$1 $\pm$ 2 -- $\lambda$\textsuperscript{2}"


def test_markdown_is_a_github_table(files: Path, tmp_path: Path) -> None:
    text = (files / "report.md").read_text(encoding="utf-8")
    tables = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    assert len(tables) == 3
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1
    assert "| **cfl \\*** | **84.0 ± 0.3** |" in tables[0]
    assert "| majority class | 54.2 |" in tables[0]
    assert "We compared seven methods." in text
    found = made()
    found["methods"][2]["name"] = HOSTILE
    report.export(save(tmp_path, found), tmp_path / "x.md", formats=["markdown"])
    assert r"\|a\|\`" in (tmp_path / "x.md").read_text(encoding="utf-8")


def test_csv_has_the_numbers_of_tables_and_figures(files: Path) -> None:
    found = made()
    by_name = {one["name"]: one for one in found["methods"]}
    methods = rows(files / "table-methods.csv")
    assert [one["method"] for one in methods][-1] == "majority class" and len(methods) == 8
    for row in methods[:-1]:
        figures = by_name[row["method"]]["figures"]
        assert float(row["mean"]) == figures["accuracy"]["mean"]
        assert int(row["rank"]) == figures["rank"]
    clients = rows(files / "table-clients.csv")
    assert len(clients) == 7 * 2 * 12 + 12
    row = next(one for one in clients if (one["method"], one["seed"], one["client"]) == ("ucfl", "1", "client 3"))
    assert float(row["accuracy"]) == by_name["ucfl"]["runs"][1]["personal"]["accuracy"][3]
    assert float(row["gain"]) == by_name["ucfl"]["runs"][1]["gain"][3]
    against = rows(files / "figure-against-local.csv")
    row = next(one for one in against if (one["method"], one["client"]) == ("ucfl", "client 3"))
    expected = np.mean([run["personal"]["accuracy"][3] for run in by_name["local"]["runs"]])
    assert float(row["with_local"]) == pytest.approx(expected, rel=1e-4)
    convergence = rows(files / "figure-convergence.csv")
    assert len(convergence) == 7 * 12 * 3
    assert {one["round"]: one["accuracy"] for one in convergence} == {"0": "0.1", "5": "0.4", "10": "0.8"}
    assert {path.name for path in files.glob("figure-*.csv")} >= {
        *("figure-curves.csv", "figure-density.csv", "figure-fairness.csv", "figure-histogram.csv", "figure-size.csv"),
        *("figure-ucfl-map.csv", "figure-persfl-grid.csv", "figure-selffl-steps.csv", "figure-cfl-clusters.csv"),
    }
    assert (files / "methods.txt").read_text(encoding="utf-8") == "We compared seven methods.\n"
    assert "note" not in methods[0]


def test_the_constant_predictor_has_gains(files: Path) -> None:
    local, fedavg = (
        np.array([run["personal"]["accuracy"] for run in one["runs"]])
        for name in ("local", "fedavg")
        for one in made()["methods"]
        if one["name"] == name
    )
    expected = (np.array([0.5] * 11 + [1.0]) - np.maximum(local, fedavg)).mean(0)
    gains = [float(one["gain"]) for one in rows(files / "figure-density.csv") if one["method"] == "majority class"]
    np.testing.assert_allclose(gains, expected, rtol=1e-4)
    row = rows(files / "table-methods.csv")[-1]
    assert float(row["better_off_percent"]) == pytest.approx(100 / 12)


def test_unfinished_and_untuned_comparisons_say_so_in_every_format(tmp_path: Path) -> None:
    source = save(tmp_path, made(finished=False, untuned=True))
    report.export(source, tmp_path / "out", formats=("latex", "markdown", "csv", "html"))
    for name in ("report.tex", "report.md", "report.html"):
        text = (tmp_path / "out" / name).read_text(encoding="utf-8")
        assert "Unfinished" in text and "ntuned" in text, name
    for path in (tmp_path / "out").glob("*.csv"):
        assert {one["note"] for one in rows(path)} == {"unfinished, untuned"}, path.name


@pytest.mark.slow
def test_figures_are_vector_files_with_their_labels(tmp_path: Path) -> None:
    """All kinds of figures are drawn."""
    source = save(tmp_path, made(untuned=True))
    written = report.export(source, tmp_path / "out", formats=(), pictures=["svg"])
    pictures = [one for one in written if one.suffix == ".svg"]
    assert len(pictures) == 18  # eight of every comparison, ten of single methods
    assert {one.with_suffix(".csv") for one in pictures} <= set(written)
    curves = (tmp_path / "out" / "figure-curves.svg").read_text(encoding="utf-8")
    for label in ("round", "accuracy, %", "pfedvem", "majority class", "Untuned"):
        assert f"<!-- {label} -->" in curves, label
    assert "#0072b2" in curves and "<image" not in curves
    scatter = (tmp_path / "out" / "figure-against-local.svg").read_text(encoding="utf-8")
    assert "<!-- majority class -->" in scatter and "<!-- better off: " in scatter


def test_pdf_and_png_and_the_same_bytes_again(tmp_path: Path) -> None:
    found = report.page.contents(made() | {"kind": "comparison"}, {})
    figure = found.sections[0].figures[0]
    first, second = (drawing.draw(figure, found.numbers, ["pdf", "png", "svg"]) for _ in range(2))
    assert first["pdf"].startswith(b"%PDF") and first["png"].startswith(b"\x89PNG")
    assert first == second


def test_latex_and_markdown_refer_to_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "draw", lambda figure, numbers, formats, state: dict.fromkeys(formats, b"x"))
    source = save(tmp_path, made())
    report.export(source, tmp_path / "out", formats=("latex", "markdown"), pictures=["png", "pdf"])
    text = (tmp_path / "out" / "report.tex").read_text(encoding="utf-8")
    names = re.findall(r"\\includegraphics\[.*?\]{(.*?)}", text)
    assert len(names) == 18 and all(one.endswith(".pdf") and (tmp_path / "out" / one).is_file() for one in names)
    assert "![Against local](figure-against-local.png)" in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")


def test_names_of_files(tmp_path: Path) -> None:
    source = save(tmp_path, made())
    assert report.export(source, formats=["latex"]) == [source / "report.tex"]
    assert report.export(source, tmp_path / "t.tex", formats=["latex"]) == [tmp_path / "t.tex"]
    (tmp_path / "there").mkdir()
    assert report.export(source, tmp_path / "there", formats=["markdown"]) == [tmp_path / "there" / "report.md"]
    assert {one.parent for one in report.export(source, formats=["csv"])} == {source / "report"}


def test_nothing_finished_yet(tmp_path: Path) -> None:
    found = made(finished=False, verdicts={})
    for method in found["methods"]:
        method["runs"], method["figures"] = [], None
    report.export(save(tmp_path, found), tmp_path / "out", formats=("latex", "markdown", "csv"))
    assert "No run is finished yet." in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")


def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = save(tmp_path, made())
    with pytest.raises(InputError, match="unknown --format 'word'"):
        report.export(source, formats=["word"])
    with pytest.raises(InputError, match="unknown --figures 'gif'"):
        report.export(source, pictures=["gif"])
    monkeypatch.setattr(drawing, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"need matplotlib, which is not installed; pip install"):
        report.export(source, pictures=["svg"])
    (tmp_path / "diagnosis.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="a diagnosis has an HTML page only"):
        report.export(tmp_path, formats=["csv"])


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = save(tmp_path, made())
    with pytest.raises(SystemExit) as ended:
        main(["report", str(source), "--format", "latex,csv", "--out", str(tmp_path / "paper")])
    assert ended.value.code in (0, None)
    assert f"Written to {tmp_path / 'paper'}: " in capsys.readouterr().out
    assert (tmp_path / "paper" / "report.tex").is_file() and (tmp_path / "paper" / "table-methods.csv").is_file()
