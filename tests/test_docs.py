"""Every command and snippet in README and docs is run, so that they stay true."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

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
    """All snippets of a page, one after the other, in one interpreter and an empty folder."""
    script = tmp_path / "snippets.py"
    script.write_text("\n".join(blocks(page, "python")), encoding="utf-8")
    done = subprocess.run([sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "sh")], ids=name)
def test_commands_run(page: Path, tmp_path: Path) -> None:
    """All `bespoke` commands of a page's sh blocks, one after the other, in an empty folder."""
    bespoke = Path(sys.executable).with_name("bespoke")
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if not words:
                continue
            assert words[0] == "bespoke", f"{name(page)}: only bespoke commands belong into sh blocks, found {line!r}"
            done = subprocess.run([bespoke, *words[1:]], cwd=tmp_path, capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, f"{line}\n{done.stderr}"


def test_pages_link_to_what_exists() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{name(page)} links to {target}, which is not there"
