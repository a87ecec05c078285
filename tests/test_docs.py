"""Run every command and snippet of README and docs, and check all links."""

import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests import commands

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
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
    script.write_text("\n".join(blocks(page, "python")), encoding="utf-8")
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
            words = ["5s" if before == "--tune" else word for before, word in pairwise(words)]  # a minute is for people
            done = commands.bespoke(*words, cwd=tmp_path)
            assert done.returncode == 0, f"{line}\n{done.stderr}"


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
