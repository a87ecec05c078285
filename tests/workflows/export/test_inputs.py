"""Preprocessing of exported models: inside TorchScript and ONNX files, and described beside them."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

import bespokefl as bf
from bespokefl.core.errors import InputError
from bespokefl.workflows.export.api import export
from bespokefl.workflows.newcomers.predict import predict
from bespokefl.workflows.run.api import run_config
from bespokefl.workflows.run.settings import RunSettings

PAGE = Path(__file__).parents[3] / "docs" / "export.md"
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

ALL = ("torchscript", "onnx", "safetensors")


def table(path: Path, *, gaps: bool = True, shift: float = 0.0) -> Path:
    """Patients: numbers far from 0, booleans, categories (one value is in the test data only), gaps."""
    rng = np.random.default_rng(0)
    lines = ["year,smoker,town,ill,client"]
    for row in range(120):
        year, smoker = 1900 + rng.random() * 90, rng.random() < 0.4
        town = "Turin" if row == 7 else str(rng.choice(["Rome", "Oslo", "Bern"]))
        ill = "yes" if 1950 - year + 30 * smoker + 10 * rng.normal() > 0 else "no"
        cells = [f"{year - shift:.3f}", str(smoker).lower(), town]
        if gaps and row % 6 == 0:
            cells[row // 6 % 3] = ""
        lines.append(",".join([*cells, ill, "north" if row % 3 else "south"]))
    path.write_text("\n".join(lines) + "\n")
    return path


def trained(data: Path, out: Path, **settings: Any) -> Path:
    values = {"method": "ditto", "data": str(data), "rounds": 2, "workers": 1, "out": str(out), "eval_every": 0}
    run_config(RunSettings.of(values | settings))
    return out


def documented() -> dict[str, Any]:
    """The functions of the documentation."""
    known: dict[str, Any] = {}
    code = PAGE.read_text(encoding="utf-8").partition("<!-- preprocess -->\n```python\n")[2].partition("\n```")[0]
    exec(code, known)
    return known


@pytest.mark.parametrize("scale", ["pooled", "own", "none"])
def test_a_table_is_preprocessed_as_in_training(scale: str, tmp_path: Path) -> None:
    # Numbers that are not scaled have to be small, for outputs that differ.
    data = table(tmp_path / "patients.csv", shift=1945 if scale == "none" else 0)
    rates = {"lr": 1e-3, "personal_lr": 1e-3}
    model = "mlp(hidden=(5,))"
    run = trained(data, tmp_path / "run", label="ill", model=model, missing="mean", scale=scale, set=rates)
    found = export(run, "north", to=ALL)
    assert found.path == run / "export" / "north"
    about = json.loads((found.path / "preprocessing.json").read_text())
    assert [one["name"] for one in about["columns"]] == ["year", "smoker", "town"]
    assert about["input"] == {"name": "x", "dtype": "float32", "shape": ["batch", 3]}
    with data.open(newline="") as file:
        rows = [{name: value or None for name, value in row.items()} for row in csv.DictReader(file)]
    functions = documented()
    x = functions["inputs"](rows, about)
    expected = predict(run, "north", data).probabilities
    assert expected is not None and expected.std(0).min() > 1e-3
    by_onnx = onnxruntime.InferenceSession(found.path / "model.onnx").run(None, {"x": x})[0]
    np.testing.assert_allclose(by_onnx, expected, atol=1e-6)
    with torch.no_grad():
        np.testing.assert_allclose(
            torch.jit.load(str(found.path / "model.pt"))(torch.from_numpy(x)), expected, atol=1e-6
        )
        prepared = torch.from_numpy(functions["preprocess"](x, about))
        beside = bf.load_run(run).model("north")(prepared).softmax(1)
    np.testing.assert_allclose(beside, expected, atol=1e-6)
    for one in found.card["files"].values():
        assert one["check"]["examples"] == "test data" and one["check"]["largest_difference"] < 1e-6
        assert one["check"]["number"] == found.card["data"]["examples"]["test"]


def test_unknown_categories_and_missing_values(tmp_path: Path) -> None:
    data = table(tmp_path / "patients.csv", gaps=False)
    run = trained(data, tmp_path / "run", label="ill", model="logistic")
    found = export(run, "north", to=ALL)
    about = json.loads((found.path / "preprocessing.json").read_text())
    assert about["missing"] == "refuse" and about["features"][0]["fill"] is None
    rows = [
        {"year": "1930.5", "smoker": "true", "town": "Atlantis"},
        {"year": "1930.5", "smoker": "false", "town": None},
        {"year": None, "smoker": "true", "town": "Rome"},
    ]
    x = documented()["inputs"](rows, about)
    assert x[0, 2] == -1 and np.isnan(x[1, 2]) and np.isnan(x[2, 0])
    (tmp_path / "new.csv").write_text("year,smoker,town\n1930.5,true,Atlantis\n")
    expected = predict(run, "north", tmp_path / "new.csv").probabilities
    for path, call in (
        ("model.onnx", lambda path: onnxruntime.InferenceSession(path).run(None, {"x": x})[0]),
        ("model.pt", lambda path: torch.jit.load(str(path))(torch.from_numpy(x)).detach().numpy()),
    ):
        probabilities = call(found.path / path)
        np.testing.assert_allclose(probabilities[:1], expected, atol=1e-6)
        assert np.isnan(probabilities[1:]).all()


def test_the_global_model_has_no_scale_if_every_client_has_its_own(tmp_path: Path) -> None:
    data = table(tmp_path / "patients.csv", gaps=False)
    run = trained(data, tmp_path / "run", label="ill", model="logistic", scale="own")
    with pytest.raises(InputError, match=r"each client scales examples by its own statistics; export the clients'"):
        export(run, to="onnx")


@pytest.mark.parametrize("shape", [(2, 5, 4), (6, 3), (4,)])
def test_arrays_are_scaled_by_channel(shape: tuple[int, ...], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(50, 3, (60, *shape)).astype(np.float32)
    np.savez(tmp_path / "a.npz", x=x, y=(x.reshape(60, -1)[:, 0] > 50).astype(int), client=np.arange(60) % 2)
    run = trained(tmp_path / "a.npz", tmp_path / "run", model="logistic", scale="pooled")
    found = export(run, "1", to=ALL)
    about = json.loads((found.path / "preprocessing.json").read_text())
    assert len(about["features"]) == (shape[0] if len(shape) == 3 else shape[-1])
    expected = predict(run, "1", tmp_path / "a.npz").probabilities
    assert expected is not None and expected.std(0).min() > 1e-3
    session = onnxruntime.InferenceSession(found.path / "model.onnx")
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, atol=1e-6)
    assert found.card["files"]["torchscript"]["check"]["examples"] == "test data"


@pytest.mark.parametrize("model", ["bag(embedding=4, hidden=4)", "lstm(embedding=4, hidden=4)"])
def test_text_is_encoded_as_documented(model: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = ["note,y,client"]
    for row in range(60):
        words = rng.choice(["Good", "bad", "fine", "poor", f"rare{row}"], rng.integers(1, 6))
        lines.append(f"{' '.join(words)},{row % 2},{row % 2}")
    data = tmp_path / "notes.csv"
    data.write_text("\n".join(lines) + "\n")
    run = trained(data, tmp_path / "run", model=model, text="note", vocabulary=5)
    found = export(run, "1", to=ALL)
    about = json.loads((found.path / "preprocessing.json").read_text())["words"]
    x = np.full((60, about["length"]), about["padding"], dtype=np.int64)
    for row, line in zip(x, lines[1:], strict=True):
        words = line.partition(",")[0].lower().split()[: about["length"]]
        known = {word: at for at, word in enumerate(about["vocabulary"], about["first"])}
        row[: len(words)] = [known.get(word, about["unknown"]) for word in words]
    expected = predict(run, "1", data).probabilities
    assert expected is not None and expected.std(0).min() > 1e-3
    session = onnxruntime.InferenceSession(found.path / "model.onnx")
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, atol=1e-6)
    with torch.no_grad():
        np.testing.assert_allclose(
            torch.jit.load(str(found.path / "model.pt"))(torch.from_numpy(x)), expected, atol=1e-6
        )
    assert found.card["files"]["onnx"]["check"]["examples"] == "test data"
    assert found.card["files"]["onnx"]["preprocessing"] == "beside"
