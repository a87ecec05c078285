"""Run the tutorials' notebooks without Jupyter.

`python -m tests.notebooks docs/tutorials/*.ipynb` runs them and stores what they print; with `--check` it compares
this with what is stored.
"""

import contextlib
import io
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

NUMBER = re.compile(r"-?\d+\.?\d*")
TOLERANCE = 0.03  # relative: other machines round differently


def run(content: dict[str, Any]) -> list[str]:
    """Run all code cells in one namespace, in the current directory; return what each prints."""
    printed, space = [], {"__name__": "__main__"}
    for number, cell in enumerate(content["cells"]):
        if cell["cell_type"] == "code":
            screen = io.StringIO()
            with contextlib.redirect_stdout(screen):
                exec(compile("".join(cell["source"]), f"cell {number}", "exec"), space)
            printed.append(screen.getvalue())
    return printed


def is_close(printed: str, stored: str, tolerance: float = TOLERANCE) -> bool:
    """Whether two outputs are the same text with about the same numbers."""
    if NUMBER.sub("", printed) != NUMBER.sub("", stored):
        return False
    pairs = zip(map(float, NUMBER.findall(printed)), map(float, NUMBER.findall(stored)), strict=True)
    return all(abs(a - b) <= tolerance * max(1.0, abs(b)) for a, b in pairs)


def main(paths: list[str], check: bool) -> None:
    for path in [Path(one).resolve() for one in paths]:
        content = json.loads(path.read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
            printed = run(content)
        cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
        for cell, text in zip(cells, printed, strict=True):
            stored = "".join("".join(one["text"]) for one in cell["outputs"])
            if check and not is_close(text, stored):
                sys.exit(f"{path.name} printed\n{text}and its stored output is\n{stored}")
            lines = text.splitlines(keepends=True)
            cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}] if text else []
        if not check:
            path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    arguments = [one for one in sys.argv[1:] if one != "--check"]
    main(arguments, check="--check" in sys.argv)
