"""Code of one's own has a mark that changes with what it does, and with nothing else."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bespokefl.methods import Ditto
from bespokefl.workflows.run.code_fingerprint import mark

MINE = """
class Mine(Ditto):
    def phases(self, rounds, most=2, *, least=1):
        return [one for one in super().phases(rounds)[:most] if one.name in {'train', 'finish', 'tune'}]

    @property
    def third(self):
        return 3

    @staticmethod
    def other(x):
        return x + 1
"""


def made(text: str) -> Any:
    space: dict[str, Any] = {"__name__": "mine", "Ditto": Ditto}
    exec(text, space)
    return space["Mine"]()


def test_what_is_not_one_s_own_has_none() -> None:
    assert mark(Ditto()) == "" and mark(3) == ""


def test_a_mark_is_of_what_a_class_does() -> None:
    base = mark(made(MINE))
    assert base.startswith("code ")
    assert mark(made("# a remark\n" + MINE.replace("    @", "    # another\n    @"))) == base
    for old, new in (
        ("most=2", "most=3"),
        ("least=1", "least=0"),
        ("return 3", "return 4"),
        ("[:most]", "[most:]"),
        ("'tune'", "'tuned'"),
        ("x + 1", "x + 2"),
    ):
        assert mark(made(MINE.replace(old, new))) != base


def test_classes_above_count() -> None:
    class Base(type(made(MINE))):  # type: ignore[misc]
        pass

    assert mark(Base()) == mark(made(MINE))


def test_it_is_the_same_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from bespokefl.methods import Ditto\n" + MINE)
    script = "from mine import Mine; from bespokefl.workflows.run.code_fingerprint import mark; print(mark(Mine()))"
    found = {
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=tmp_path,
            env=os.environ | {"PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in range(3)
    }
    assert len(found) == 1
