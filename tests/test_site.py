"""Build the documentation site, and run the tutorials."""

import ast
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from sphinx.util.inventory import InventoryFile

import bespokefl as bf
from bespokefl.methods import REGISTRY
from tests.report.chromium import chromium

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
NOTEBOOKS = sorted((DOCS / "tutorials").glob("*.ipynb"))
METHOD_PAGES = sorted(set((DOCS / "methods").glob("*.md")) - {DOCS / "methods" / "README.md"})
OUTLINE = ["Idea", "Algorithm", "When it helps", "Example", "Hyper-parameters", "Differences from the paper", "Results"]
TIMEOUT = 600
NEEDED = {f"bespokefl.core.callback.{name}" for name in ("RunInfo", "Evaluation", "RunEnd")}
NEEDED |= {f"bespokefl.core.method.{name}" for name in ("Round", "Uploads", "State", "Update")}
NEEDED |= {"bespokefl.workflows.tune.result.Tuning", "bespokefl.workflows.newcomers.result.Newcomers"}
NEEDED |= {"bespokefl.workflows.export.api.Exported", "bespokefl.core.cohort_data.CohortData"}
NEEDED |= {f"bespokefl.{name}.REGISTRY" for name in ("methods", "trackers")}
NEEDED |= {"bespokefl.models.MODELS", "bespokefl.models.TEXT", "bespokefl.models.Factory"}
NEEDED |= {"bespokefl.splits.SPLITS", "bespokefl.splits.PRESETS", "bespokefl.core.rng.generator"}
NEEDED |= {"bespokefl.methods.pfedvem.confidence", "bespokefl.methods.pfedvem.divergence"}
NOT_FOR_USERS = {"bespokefl.cli", "bespokefl.core", "bespokefl.data"}  # packages that pages mention


class Page(HTMLParser):
    """The ids, links and loaded files of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: unescape(value or "") for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a":
            self.links += [values["href"]] if "href" in values else []
        else:
            self.loaded += [values[name] for name in ("src", "href") if name in values]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "--fresh-env"]
    done = subprocess.run([*command, DOCS, target], capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.slow
def test_search_works_offline(site: Path) -> None:
    with chromium() as browser:
        browser.call("Page.navigate", url=f"{(site / 'search.html').as_uri()}?q=fairness")
        browser.until("document.querySelector('#search-results li') !== null")
        browser.until("/found \\d+ pages/.test(document.querySelector('#search-results').textContent)")
        found = browser.value("[...document.querySelectorAll('#search-results li a')].map(one => one.href).join(' ')")
        assert "/metrics.html" in found and "/explanation/" in found
        assert not browser.complaints()
        assert all(urlsplit(one).scheme in ("file", "data") for one in browser.requests())


@pytest.mark.slow
def test_the_site_builds_and_needs_no_other_server(site: Path) -> None:
    pages = {path.relative_to(site).as_posix(): Page(path) for path in site.rglob("*.html")}
    assert {"index.html", "search.html", "api/workflows.html", "methods/ditto.html"} <= pages.keys()
    for name, page in pages.items():
        others = [one for one in page.loaded if urlsplit(one).netloc]
        assert not others, f"{name} loads {others}"
        check_links(name, page, pages, site)
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(\W*(https?:)?//|@import", style.read_text(encoding="utf-8")), style
    commands = re.sub(r"<[^>]+>", "", (site / "command-line.html").read_text(encoding="utf-8"))
    assert all(f"bespoke {name}" in commands for name in ("run", "compare", "deploy start", "split show"))
    assert "--participation FLOAT" in commands
    assert "<math" in (site / "methods" / "ditto.html").read_text(encoding="utf-8")
    assert "ditto" in (site / "searchindex.js").read_text(encoding="utf-8")
    documented = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    names = {name for kind, entries in documented.items() if kind.startswith("py:") for name in entries}
    public = {f"bespokefl.{name}" for name in bf.__all__}
    public |= named_in_documentation() | NEEDED
    public |= {f"bespokefl.methods.{method.__name__}" for method in REGISTRY.values()}
    assert all(resolve_name(name) is not None for name in NEEDED)
    exported = [getattr(bf, name) for name in bf.__all__]
    missing = {name for name in public - names if resolve_name(name) not in exported}
    assert not missing, f"not in the API reference: {sorted(missing)}"


def named_in_documentation() -> set[str]:
    """Return all names of Bespoke's modules, classes and functions that README and the pages of docs/ contain."""
    found = set()
    for path in [ROOT / "README.md", *DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")]:
        text = path.read_text(encoding="utf-8").replace('\\"', '"').replace("\\n", "\n")
        found |= set(re.findall(r"(?<![\w.])(?:bespokefl|bf)((?:\.[A-Za-z_]\w*)+)", text))
        for module, names in re.findall(r"^\s*\W?from bespokefl([\w.]*) import ([\w, ]+)", text, re.MULTILINE):
            found |= {f"{module}.{name.strip()}" for name in names.split(",")}
    return {f"bespokefl{name}" for name in found if f"bespokefl{name}" not in NOT_FOR_USERS}


def check_links(name: str, page: Page, pages: dict[str, Page], site: Path) -> None:
    """Check that links inside the site point to pages and headings that exist."""
    for link in page.links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (site / name).parent / unquote(parts.path) if parts.path else site / name
        assert target.resolve().exists(), f"{name} links to {link}"
        found = pages.get(target.resolve().relative_to(site.resolve()).as_posix())
        if parts.fragment and found is not None:
            assert unquote(parts.fragment) in found.ids, f"{name} links to {link}"


def test_method_pages_have_one_outline() -> None:
    for page in METHOD_PAGES:
        headings = re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert [one for one in headings if one in OUTLINE] == OUTLINE, f"{page.name} has {headings}"
        assert "$$\n" in page.read_text(encoding="utf-8"), f"{page.name} has no equation"


def test_every_method_has_a_page() -> None:
    text = (DOCS / "methods" / "README.md").read_text(encoding="utf-8")
    listed = {name for names in re.findall(r"^\| \[([^\]]+)\]\(", text, re.MULTILINE) for name in names.split(", ")}
    assert listed == {*REGISTRY}
    assert re.findall(r"^(\w[\w-]*)$", text[text.index(":hidden:") :], re.MULTILINE) != []
    assert {page.stem for page in METHOD_PAGES} == {*re.findall(r"^([a-z][\w-]*)$", text, re.MULTILINE)}


def defaults_of(method: str) -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(REGISTRY[method])}


@pytest.mark.parametrize("page", METHOD_PAGES, ids=lambda page: page.stem)
def test_pages_state_the_defaults_of_their_method(page: Path) -> None:
    """Compare the column of defaults; a word may stand for None."""
    text = page.read_text(encoding="utf-8")
    table = text[text.index("## Hyper-parameters") : text.index("## Communication and privacy")]
    stated = {}
    for names, default in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|[^|`]*\| ([^|]*) \|", table, re.MULTILINE):
        stated |= dict.fromkeys(re.findall(r"`(\w+)`", names), default)
    defaults = defaults_of(page.stem)
    assert stated.keys() == defaults.keys()
    for name, value in defaults.items():
        if value is None:
            assert re.fullmatch(r"[A-Za-z ]+", stated[name]), name
        else:
            literal = isinstance(value, int | float | tuple)
            shown = ast.literal_eval(stated[name].capitalize()) if literal else stated[name]
            assert shown == value, (name, value, stated[name])


def test_the_table_of_defaults_has_numbers_of_the_methods() -> None:
    text = (DOCS / "methods" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[([^\]]+)\]\([\w-]+\.md\) \| ([^|]*) \|", text, re.MULTILINE)
    for names, stated in rows:
        numbers = {float(one) for one in re.findall(r"(?<![\w.])\d*\.?\d+(?!\w)", stated.replace("n/", ""))}
        for method in names.split(", "):
            values = {float(one) for one in defaults_of(method).values() if isinstance(one, int | float)}
            assert numbers <= values, (method, numbers - values)


def test_tutorials_are_valid_notebooks() -> None:
    """Check what version 4 of the format requires, and with nbformat, which is no requirement, all of its schema.

    The tutorials run without Jupyter: `tests/notebooks.py` executes their cells and compares what these print.
    """
    for path in NOTEBOOKS:
        content = json.loads(path.read_text(encoding="utf-8"))
        assert content["nbformat"] == 4 and isinstance(content["nbformat_minor"], int), path.name
        assert content["metadata"]["kernelspec"]["name"] == "python3", path.name
        for cell in content["cells"]:
            required = {"cell_type", "metadata", "source"} | ({"id"} if content["nbformat_minor"] >= 5 else set())
            required |= {"outputs", "execution_count"} if cell["cell_type"] == "code" else set()
            assert required == cell.keys() and cell["cell_type"] in ("markdown", "code"), (path.name, cell)
            for output in cell.get("outputs", []):
                assert {"name", "output_type", "text"} == output.keys(), (path.name, output)
        if find_spec("nbformat"):
            import_module("nbformat").validate(content)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_tutorials_print_what_they_show(path: Path) -> None:
    """Run a notebook in a session of its own, so that no process that it starts outlives the test."""
    command = [sys.executable, "-m", "tests.notebooks", "--check", str(path)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        printed, _ = process.communicate(timeout=TIMEOUT)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, printed
