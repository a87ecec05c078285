"""Code of one's own has a mark that changes with what it does, and with nothing else."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bespokefl.experiments.own_code import marks
from bespokefl.methods import Ditto


def made(text: str) -> Callable[..., Any]:
    space: dict[str, Any] = {"__name__": "mine", "Ditto": Ditto, "nn": nn}
    exec(text, space)
    return next(value for key, value in reversed(space.items()) if key not in ("__builtins__",))


PLAIN = "def f(x, by=2):\n    return x * by + (1 if x in {'a', 'b'} else 0)\n"


def test_what_is_not_one_s_own_has_none() -> None:
    assert marks(method=Ditto(), loss=None, model=nn.Linear(2, 2), also=torch.nn.functional.mse_loss) == {}


def test_a_mark_is_of_what_a_function_does() -> None:
    base = marks(loss=made(PLAIN))
    assert base["loss"].startswith("code ")
    assert marks(loss=made("# a remark\n\n" + PLAIN.replace("return", "# another\n    return"))) == base
    for other in (PLAIN.replace("* by", "+ by"), PLAIN.replace("by=2", "by=3"), PLAIN.replace("1 if", "2 if")):
        assert marks(loss=made(other)) != base


def test_methods_and_models_have_those_of_their_classes() -> None:
    method = "class Mine(Ditto):\n    def phases(self, rounds):\n        return super().phases(rounds)[:1]\n"
    model = (
        "class Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.head = nn.Linear(2, 2)\n"
        "    def forward(self, x):\n        return self.head(x)\n"
    )
    kinds = marks(method=made(method)(), model=made(model)())
    assert set(kinds) == {"method", "model"}
    assert marks(method=made(method)(), model=made(model)()) == kinds
    assert marks(method=made(method.replace("[:1]", "[:2]"))())["method"] != kinds["method"]
    assert marks(model=nn.Sequential(made(model.replace("head(x)", "head(-x)"))()))["model"] != kinds["model"]


def test_it_is_the_same_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PLAIN)
    script = "from mine import f; from bespokefl.experiments.own_code import marks; print(marks(loss=f))"
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
