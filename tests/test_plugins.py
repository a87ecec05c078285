"""Methods, models and splits of other packages: everywhere that a name works, "module:Name" and entry points do."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import bespokefl as bf
from bespokefl import methods, models
from bespokefl.core.errors import InputError
from bespokefl.core.user_input import plugins
from bespokefl.data import splits
from tests import commands

METHOD = """
from dataclasses import dataclass
from bespokefl.methods import Ditto

@dataclass(frozen=True, kw_only=True)
class Pulled(Ditto):
    '''Ditto with another default.'''
    prox_weight: float = 0.5

@dataclass(frozen=True, kw_only=True)
class Unfinished(Ditto):
    needed: int

not_a_method = dict
"""
SPLIT = """
from dataclasses import dataclass
import numpy as np
from bespokefl.data.splits import Assignment, Split

@dataclass(frozen=True)
class Turns(Split):
    block: int = 1
    def assign(self, dataset, clients, seed):
        return Assignment.numbered(np.arange(len(dataset)) // self.block % clients, clients)
"""
MODEL = """
from torch import nn

def tiny(shape, classes, width=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], width), nn.Linear(width, classes))
"""
SMALL = (
    "--data",
    "digits",
    "--split",
    "plug_split:Turns(block=2)",
    "--clients",
    4,
    "--model",
    "logistic",
    "--workers",
    1,
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name, text in {"plug_method": METHOD, "plug_split": SPLIT, "plug_model": MODEL}.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


@pytest.fixture
def importable(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))
    for name in ("plug_method", "plug_split", "plug_model"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(methods, "_FOUND", {})
    return place


@pytest.fixture
def entry_points(importable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        plugins.METHODS: {"pulled": "plug_method:Pulled", "broken": "plug_method:missing"},
        plugins.MODELS: {"tiny": "plug_model:tiny"},
        plugins.SPLITS: {"turns": "plug_split:Turns"},
    }
    found = {
        group: {name: metadata.EntryPoint(name, value, group) for name, value in named.items()}
        for group, named in values.items()
    }
    monkeypatch.setattr(plugins, "entry_points", lambda group: found[group])


class TestCommands:
    @pytest.mark.slow
    def test_run_and_repeat(self, place: Path) -> None:
        done = commands.bespoke("run", "plug_method:Pulled", *SMALL, "--rounds", 1, "--newcomers", 0.25, cwd=place)
        assert done.returncode == 0, done.stderr
        config = (place / "runs" / "Pulled" / "config.toml").read_text()
        assert 'method = "plug_method:Pulled"' in config and 'split = "plug_split:Turns(block=2)"' in config
        again = commands.bespoke("run", "--config", "runs/Pulled/config.toml", "--out", "again", "-q", cwd=place)
        assert again.returncode == 0, again.stderr
        results = [json.loads((place / one / "result.json").read_text()) for one in ("runs/Pulled", "again")]
        assert results[0]["personal"] == results[1]["personal"]

    @pytest.mark.slow
    def test_compare_and_tune(self, place: Path) -> None:
        words = (*SMALL, "--rounds", 1, "--seeds", 2)
        options = ("--no-tune", "--set", "Pulled.prox_weight=0.1", "--out", "c", "-q")
        done = commands.bespoke("compare", "plug_method:Pulled", "ditto", *words, *options, cwd=place)
        assert done.returncode == 0, done.stderr
        assert {"Pulled", "ditto", "local", "fedavg"} <= {one["name"] for one in compared(place / "c")}
        done = commands.bespoke("tune", "plug_method:Pulled", *words, "--grid", "prox_weight=0.1,1", "-q", cwd=place)
        assert done.returncode == 0 and done.stdout.startswith("--set prox_weight="), done.stderr

    @pytest.mark.parametrize(
        ("name", "sentence"),
        [
            ("plug_method:Pulld", "did you mean 'Pulled'?"),
            ("nowhere:Pulled", "cannot import 'nowhere' for method 'nowhere:Pulled'"),
            ("plug_method:not_a_method", "must be a class derived from bespokefl.Method, got dict."),
            ("plug_method:Unfinished", "its hyper-parameters need defaults"),
        ],
    )
    def test_what_is_not_a_method(self, name: str, sentence: str, place: Path) -> None:
        done = commands.bespoke("run", name, cwd=place)
        assert done.returncode == 2 and sentence in done.stderr, done.stderr

    @pytest.mark.slow
    def test_new_method(self, tmp_path: Path) -> None:
        done = commands.bespoke("new", "method", "my-idea", cwd=tmp_path)
        assert done.returncode == 0 and "bespoke run my_idea:MyIdea" in done.stdout, done.stderr
        run = commands.bespoke(
            "run", "my_idea:MyIdea", "--rounds", 1, "--clients", 4, "--model", "logistic", cwd=tmp_path
        )
        assert run.returncode == 0, run.stderr
        passes(tmp_path)
        again = commands.bespoke("new", "method", "my_idea", cwd=tmp_path)
        assert again.returncode == 2 and "'my_idea.py' already exists" in again.stderr
        wrong = commands.bespoke("new", "method", "2nd", cwd=tmp_path)
        assert wrong.returncode == 2 and "got '2nd'" in wrong.stderr

    @pytest.mark.slow
    def test_new_project(self, tmp_path: Path) -> None:
        done = commands.bespoke("new", "project", "wards", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        place = tmp_path / "wards"
        run = commands.bespoke("run", "--config", "run.toml", "--rounds", 1, "-q", cwd=place)
        assert run.returncode == 0, run.stderr
        passes(place)


def compared(path: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads((path / "compare.json").read_text())["methods"]
    return found


def passes(place: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    alone = os.environ | {"OMP_NUM_THREADS": "1"}  # the other core has other tests to run
    done = subprocess.run(command, cwd=place, env=alone, capture_output=True, text=True)
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout


@pytest.mark.usefixtures("entry_points")
class TestEntryPoints:
    def test_methods(self) -> None:
        found = methods.build("pulled", {"lr": 0.2})
        assert (type(found).__name__, methods.name_of(found), methods.title_of(found)) == ("Pulled", "pulled", "Pulled")
        with pytest.raises(InputError, match="unknown method 'puled'; did you mean 'pulled'"):
            methods.find("puled")
        with pytest.raises(InputError, match=r"the method 'broken', an entry point of bespokefl\.methods, cannot be"):
            methods.find("broken")

    def test_models(self) -> None:
        assert models.names()["tiny"] == "from plug_model:tiny"
        made = models.build("tiny(width=5)", (1, 8, 8), 10)()
        assert next(made.parameters()).shape == (5, 64)
        with pytest.raises(InputError, match="unknown key of tiny 'widht'; did you mean 'width'"):
            models.check("tiny(widht=5)")

    @pytest.mark.parametrize("text", ["turns(block=3)", "plug_split:Turns(block=3)"])
    def test_splits(self, text: str) -> None:
        found = splits.parse(text)
        assert str(found) == text and splits.parse(str(found)) == found
        assert len(bf.load("digits").split(f"{text} + rotation(groups=2)", clients=4)) == 4

    def test_python(self) -> None:
        result = bf.run("pulled", bf.load("digits").split("turns", clients=3), model="tiny", rounds=1, workers=1)
        assert result.config.method == "pulled"


@pytest.mark.slow
def test_resume_notices_other_code(place: Path) -> None:
    """A checkpoint of a method whose file has changed since is rejected."""
    words = ("run", "plug_method:Pulled", *SMALL, "--rounds", 3, "--checkpoint-every", 1, "--out", "r", "-q")
    stopped = METHOD.replace(
        "    prox_weight: float = 0.5\n",
        "    prox_weight: float = 0.5\n"
        "    def aggregate(self, server, uploads, round):\n"
        "        if round.number == 3:\n"
        "            import os; os._exit(9)\n"
        "        return super().aggregate(server, uploads, round)\n",
    )
    (place / "plug_method.py").write_text(stopped)
    assert commands.bespoke(*words, cwd=place).returncode == 9
    (place / "plug_method.py").write_text(METHOD)
    done = commands.bespoke("resume", "r", cwd=place)
    assert done.returncode == 2 and "the method's code" in done.stderr, done.stderr
