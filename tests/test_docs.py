"""Run every command and snippet of README and docs, and check all links."""

import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from bespokefl_evidence.studies import experiment

import bespokefl as bf
from bespokefl.workflows.compare import demo
from tests import commands

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "ARCHITECTURE")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
SHORTER = {"--tune": "5s", "--seeds": "2", "--rounds": "2"}  # a minute, five seeds and twenty rounds are for people
NUMBER = re.compile(r"\d+\.?\d*")
TOLERANCE = 0.5  # points: another machine may round differently
BLOCK = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r"^( *)print\((.+)\)  +# (.+)$", re.MULTILINE)  # print(value)  # what it prints
DEPLOYED = "needs several machines; tests/workflows/deploy/test_processes.py runs these commands with processes"
CONTAINERS = "needs a container runtime; tests/test_publishing.py checks Dockerfile and compose.yaml"

# Blocks that do not run, by page and beginning.
EXEMPT = {
    ("README.md", "pip install"): "tests/test_publishing.py installs wheel and sdist",
    ("README.md", "make demo"): "make test runs this test; another one runs bespoke demo",
    ("CONTRIBUTING.md", "make check"): "make test runs this test",
    ("ARCHITECTURE.md", "src/bespokefl/"): "a list of packages",
    ("docs/get-started.md", "pip install"): "tests/test_publishing.py installs wheel and sdist",
    ("docs/data.md", "bespoke data fetch"): "needs files that users download; tests/data/sources fetches small ones",
    ("docs/tuning.md", "To use it:"): "printed by the command above it",
    ("docs/plugins.md", "[project.entry-points"): "tests/test_plugins.py installs a package with entry points",
    ("docs/reproduce.md", 'title = "Two methods'): "test_the_example_of_an_experiment_is_valid reads it",
    ("docs/deployment.md", "pip install"): "the tests' environment has the extra",
    ("docs/deployment.md", "bespoke deploy server"): DEPLOYED,
    ("docs/deployment.md", "bespoke deploy node"): DEPLOYED,
    ("docs/deployment.md", "bespoke deploy start"): DEPLOYED,
    ("docs/deployment.md", "bespoke deploy predict"): f"{DEPLOYED}; test_tables.py there exports",
    ("docs/deployment.md", "export TORCH_INDEX"): CONTAINERS,
    ("docs/deployment.md", "bespoke deploy overhead"): "measures for minutes on an idle machine",
    ("docs/splits.md", "from datasets import"): "needs Flower Datasets, which is no requirement",
    ("docs/methods/cfl.md", "--set relative"): "options of a command for more than 20 rounds",
}


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return the language and text of every code block of a page; directives of Sphinx are none."""
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [(language, text) for language, text in found if not language.startswith("{")]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def exemption(page: Path, text: str) -> tuple[str, str] | None:
    return next((key for key in EXEMPT if key[0] == name(page) and text.startswith(key[1])), None)


def runnable(page: Path) -> list[tuple[str, str]]:
    return [(language, text) for language, text in blocks(page) if not exemption(page, text)]


def test_every_block_runs_or_says_why_not() -> None:
    """All blocks run, except those of EXEMPT; none hides behind a missing language or an indentation."""
    exempt = set()
    for page in PAGES:
        for language, text in blocks(page):
            found = exemption(page, text)
            exempt |= {found} if found else set()
            assert language, f"{name(page)}: a block without a language: {text}"
            assert found or language in ("python", "sh"), f"{name(page)}: a block that does not run: {text}"
        outside = BLOCK.sub("", page.read_text(encoding="utf-8"))
        for before, paragraph in pairwise(re.split(r"\n{2,}", outside)):
            is_indented = paragraph.startswith("    ") and not re.match(r" *([-*]|\d+\.) ", before)
            assert not is_indented, f"{name(page)}: a block without a fence: {paragraph}"
    assert exempt == {*EXEMPT}, f"no such blocks: {sorted({*EXEMPT} - exempt)}"


def commands_of(page: Path, block: str) -> list[list[str]]:
    """Return the arguments of each `bespoke` command of a block, with fewer rounds and seeds."""
    found = []
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        assert words[0] == "bespoke", f"{name(page)}: sh blocks may contain only bespoke commands, found {line!r}"
        words = [SHORTER.get(before, word) for before, word in pairwise(words)]
        if words[0] == "run" and "--rounds" not in words:
            words += ["--rounds", SHORTER["--rounds"]]
        found.append(words)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page)], ids=name)
def test_snippets_and_commands_run(page: Path, tmp_path: Path) -> None:
    """Run all blocks of a page in order in an empty directory; snippets share a process.

    What stands in a comment behind a print is compared with what is printed.
    """
    parts = []
    for language, text in runnable(page):
        if language == "sh":
            parts += [f"run_bespoke(*{words!r})" for words in commands_of(page, text)]
        else:
            parts.append(PRINTED.sub(lambda line: f"{line[1]}printed({line[3]!r}, {line[2]})", text))
    script = tmp_path / "snippets.py"
    script.write_text("\n".join(parts), encoding="utf-8")
    done = commands.python(script)
    assert done.returncode == 0, done.stderr


def test_the_example_of_an_experiment_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = (text for language, text in blocks(ROOT / "docs" / "reproduce.md") if language == "toml")
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(experiment, "PAPERS", tmp_path)
    found = experiment.Experiment.read("mine")
    assert [row.label for _, row in found.pairs()] == ["Local", "FedAvg"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "command", "figures"),
    [
        ("README.md", "ditto", r"personal accuracy of ([\d.]+) % \(FedAvg's global model, .*?: ([\d.]+) %"),
        ("docs/get-started.md", "fedavg-ft", r"own test data: ([\d.]+) %; .* on the same data: ([\d.]+) %"),
    ],
)
def test_the_figures_of_a_first_run_are_true(page: str, command: str, figures: str, tmp_path: Path) -> None:
    """Compare the personal and global accuracy that a page states with those of its command."""
    lines = [line for _, block in blocks(ROOT / page) for line in block.replace("\\\n", " ").splitlines()]
    words = shlex.split(next(line for line in lines if line.startswith(f"bespoke run {command}")))
    assert commands.bespoke(*words[1:], cwd=tmp_path).returncode == 0
    result = bf.load_run(tmp_path / words[words.index("--out") + 1])
    stated = re.search(figures, " ".join(page_text(page).split()))
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
    (quoted,) = re.findall(r"(?m)^> A model that .*(?:\n> .*)*", text)
    (sentence,) = (line for line in done.stdout.splitlines() if line.startswith("A model that each client"))
    quoted = quoted.replace("\n>", "").removeprefix("> ")
    assert NUMBER.sub("", quoted) == NUMBER.sub("", sentence)
    for mine, now in zip(NUMBER.findall(quoted), NUMBER.findall(sentence), strict=True):
        assert float(mine) == pytest.approx(float(now), abs=5), sentence
    accuracy = {name: float(NUMBER.findall(values)[0]) for name, values in rows}
    assert max(accuracy.values()) > 5 + max(accuracy["local"], accuracy["fedavg"])


def test_the_speed_of_readme_is_that_of_the_page_of_measurements() -> None:
    stated = re.search(
        r"(\d+) times as\s+fast as a plain PyTorch loop on one core, (\d+) times on two", page_text("README.md")
    )
    measured = re.search(
        r"^\| logistic .*?\| [\d.]+ s \| ([\d.]+) \| ([\d.]+) \|", page_text("docs/performance.md"), re.MULTILINE
    )
    assert stated is not None and measured is not None
    assert [int(one) for one in stated.groups()] == [round(float(one)) for one in measured.groups()]


def page_text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


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
