"""Run every command and snippet of README and docs, and check all links."""

import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import bespokefl as bf
from bespokefl.workflows.compare import demo
from tests import commands

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHORTER = {"--tune": "5s", "--seeds": "2", "--rounds": "2"}  # a minute, five seeds and twenty rounds are for people
NUMBER = re.compile(r"\d+\.?\d*")
TOLERANCE = 0.5  # points: another machine may round differently
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")) if kind == language]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name)
def test_python_snippets_run(page: Path, tmp_path: Path) -> None:
    """Run all snippets of a page in order, in one process and an empty directory."""
    script = tmp_path / "snippets.py"
    # What a comment behind a print says is compared with what is printed: print(accuracy)  # 0.95
    text = "\n".join(blocks(page, "python"))
    checked = re.sub(r"^print\((.+)\)  # (0\.\d+)$", r"assert abs(\1 - \2) < 0.01, \1", text, flags=re.MULTILINE)
    script.write_text(checked, encoding="utf-8")
    done = commands.python(script)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "sh")], ids=name)
def test_commands_run(page: Path, tmp_path: Path) -> None:
    """Run all `bespoke` commands of a page's sh blocks in order, in an empty directory."""
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if not words:
                continue
            assert words[0] == "bespoke", f"{name(page)}: sh blocks may contain only bespoke commands, found {line!r}"
            words = [SHORTER.get(before, word) for before, word in pairwise(words)]
            if words[0] == "run" and "--rounds" not in words:
                words += ["--rounds", SHORTER["--rounds"]]
            done = commands.bespoke(*words, cwd=tmp_path)
            assert done.returncode == 0, f"{line}\n{done.stderr}"


@pytest.mark.slow
def test_the_figures_of_readme_are_true(tmp_path: Path) -> None:
    """Compare the run's two figures, and the whole table of the demonstration, with what is printed now."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    command = next(
        one for one in blocks(ROOT / "README.md", "sh")[0].replace("\\\n", " ").splitlines() if "run ditto" in one
    )
    assert commands.bespoke(*shlex.split(command)[1:], cwd=tmp_path).returncode == 0
    result = bf.load_run(tmp_path / "runs" / "ditto")
    stated = re.search(
        r"personal accuracy of ([\d.]+) % \(FedAvg's global model, which Ditto also trains: ([\d.]+) %",
        " ".join(text.split()),
    )
    assert stated is not None and result.global_ is not None
    for shown, scores in zip(stated.groups(), (result.personal, result.global_), strict=True):
        assert float(shown) == pytest.approx(100 * scores["accuracy"].mean(), abs=TOLERANCE)


@pytest.mark.slow
def test_the_table_of_readme_is_what_the_demonstration_prints(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    done = commands.bespoke("demo", cwd=tmp_path)
    assert done.returncode == 0 and (tmp_path / "runs" / "demo" / "report.html").is_file(), done.stderr
    printed = {line.split()[0]: NUMBER.findall(line) for line in done.stdout.splitlines() if line.strip()}
    table = text[text.index("| method | what it does |") : text.index("*Accuracy* is")]
    rows = re.findall(r"^\| ([a-z-]+)[a-z ]* \|[^|]*\|(.*)\|$", table, re.MULTILINE)[1:]
    assert {name for name, _ in rows} == {*demo.HYPER, "majority"}
    for name, values in rows:
        shown = NUMBER.findall(values)
        assert len(shown) >= 2
        for mine, now in zip(shown, printed[name], strict=False):
            assert float(mine) == pytest.approx(float(now), abs=2.5), (name, values)
    accuracy = {name: float(NUMBER.findall(values)[0]) for name, values in rows}
    assert max(accuracy.values()) > 5 + max(accuracy["local"], accuracy["fedavg"])


def test_the_installed_command_runs(tmp_path: Path) -> None:
    """All other commands run in forks, see commands.py."""
    program = Path(sys.executable).with_name("bespoke")
    done = subprocess.run([program, "methods"], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and "ditto" in done.stdout, done.stderr


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub computes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_point_to_existing_files_and_headings() -> None:
    for page in PAGES:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text(encoding="utf-8")):
            file = page.parent / target if target else page
            assert file.exists(), f"{name(page)} links to {target}, which does not exist"
            assert not anchor or anchor in anchors(file), (
                f"{name(page)} links to {target}#{anchor}, which does not exist"
            )
