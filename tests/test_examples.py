"""The scripts in `examples/`, reduced and on generated data."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from bespokefl.core import rng

FOLDER = Path(__file__).parent.parent / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"examples_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def write_texts(path: Path) -> Path:
    """Forty people with 3 texts and six with 12; the class is whether a text has the word good."""
    generator = rng.generator(0, "texts")
    user = np.repeat(np.arange(46), [3] * 40 + [12] * 6)
    y = generator.integers(0, 2, len(user))
    words = [[*generator.choice(["a", "b", "c", "d"], 5), "good" if label else "bad"] for label in y]
    text = "\n".join(" ".join(generator.permutation(own)) for own in words)
    np.savez(path, text_utf8=np.frombuffer(text.encode(), dtype=np.uint8), y=y, user=user)
    return path


def test_adapters(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    example = load("adapters")
    monkeypatch.setattr(example, "apart", example.train)  # in this process, which is quicker
    given = [str(write_texts(tmp_path / "texts.npz")), "--seeds", "2", "--rounds", "1", "--rates", "0.05", "0.1"]
    example.main([*given, "--methods", "ditto", "fedsa-lora"])
    first, unchanged, _, _, *lines = capsys.readouterr().out.splitlines()
    assert first == "pre-trained on 120 texts of others; 6 clients with 72 texts"
    assert float(unchanged.rpartition(" ")[2]) <= 100
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [one[:2] for one in cells] == [["adapters", "ditto"], ["adapters", "fedsa-lora"], ["all weights", "ditto"]]
    adapters = 2 * 2 * 8 * (64 + 128)  # two layers, each with two linear ones of rank 8
    sent = [4 * (adapters + 2 * 64 + 2) / 1000, 4 * adapters / 2 / 1000]  # with the head; A alone
    assert [float(one[6]) for one in cells[:2]] == [round(one, 1) for one in sent]


def test_every_example_is_tested() -> None:
    assert [path.name for path in sorted(FOLDER.glob("*.py"))] == ["adapters.py"]
