"""Build the documentation site, and run the tutorials."""

import os
import re
import signal
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from sphinx.util.inventory import InventoryFile

import bespokefl as bf
from bespokefl.methods import REGISTRY

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
NOTEBOOKS = sorted((DOCS / "tutorials").glob("*.ipynb"))
METHOD_PAGES = sorted(set((DOCS / "methods").glob("*.md")) - {DOCS / "methods" / "README.md"})
OUTLINE = ["Idea", "Algorithm", "When it helps", "Example", "Hyper-parameters", "Differences from the paper", "Results"]
TIMEOUT = 600


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


@pytest.mark.slow
def test_the_site_builds_and_needs_no_other_server(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "--fresh-env"]
    done = subprocess.run([*command, DOCS, tmp_path], capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    pages = {path.relative_to(tmp_path).as_posix(): Page(path) for path in tmp_path.rglob("*.html")}
    assert {"index.html", "search.html", "api/workflows.html", "methods/ditto.html"} <= pages.keys()
    for name, page in pages.items():
        others = [one for one in page.loaded if urlsplit(one).netloc]
        assert not others, f"{name} loads {others}"
        check_links(name, page, pages, tmp_path)
    for style in tmp_path.rglob("*.css"):
        assert not re.search(r"url\(\W*(https?:)?//|@import", style.read_text(encoding="utf-8")), style
    assert "<math" in (tmp_path / "methods" / "ditto.html").read_text(encoding="utf-8")
    assert "ditto" in (tmp_path / "searchindex.js").read_text(encoding="utf-8")
    documented = InventoryFile.loads((tmp_path / "objects.inv").read_bytes(), uri="").data
    names = {name for kind, entries in documented.items() if kind.startswith("py:") for name in entries}
    public = {f"bespokefl.{name}" for name in bf.__all__}
    public |= {f"bespokefl.methods.{method.__name__}" for method in REGISTRY.values()}
    assert public <= names, f"not in the API reference: {sorted(public - names)}"


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
