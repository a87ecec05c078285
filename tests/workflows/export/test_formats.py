"""Every built-in model in every format: files that other programs read predict what the model predicts."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import bespokefl as bf
from bespokefl.core.errors import InputError
from bespokefl.data.clients import Clients
from bespokefl.models import MODELS
from bespokefl.workflows.export.api import export
from bespokefl.workflows.results.result import Result

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

ALL = ("torchscript", "onnx", "safetensors")
QUICK: dict[str, Any] = {"rounds": 1, "workers": 1, "local_steps": 1, "eval_every": 0}
SHAPES = {  # of one example, for each model
    "logistic": (5,),
    "mlp(hidden=(6,))": (2, 3),
    "lenet": (8, 8),
    "cifar-cnn": (3, 16, 16),
    "pfedvem-cnn": (1, 16, 16),
    "deep-cnn": (3, 4, 4),
    "resnet8": (3, 8, 8),
    "resnet20": (1, 8, 8),
    "cnn1d(width=4)": (9, 2),
    "lstm(embedding=4, hidden=5, layers=2)": (7,),
    "bag(embedding=4, hidden=5)": (7,),
}
TOKENS = 11


def federation(shape: tuple[int, ...], *, tokens: bool = False, regression: bool = False) -> Clients:
    rng = np.random.default_rng(0)
    x = rng.integers(0, TOKENS, (40, *shape)) if tokens else rng.normal(3, 2, (40, *shape)).astype(np.float32)
    y = rng.normal(size=40).astype(np.float32) if regression else np.array(["no", "yes", "perhaps"])[np.arange(40) % 3]
    return Clients.from_arrays(x, y, np.arange(40) % 2, tokens=tokens)


def inputs(result: Result, number: int = 9) -> Tensor:
    shape, tokens = tuple(result.about["examples"]["shape"]), result.about["examples"]["tokens"]
    rng = np.random.default_rng(1)
    return torch.from_numpy(rng.integers(0, TOKENS, (number, *shape)) if tokens else rng.normal(size=(number, *shape)))


def by_torch(path: Path, x: Tensor) -> np.ndarray:
    with torch.no_grad():
        return torch.jit.load(str(path / "model.pt"))(x).numpy()


def by_onnxruntime(path: Path, x: Tensor) -> np.ndarray:
    return np.asarray(onnxruntime.InferenceSession(path / "model.onnx").run(None, {"x": x.numpy()})[0])


def test_every_built_in_model_is_exported() -> None:
    assert {name.partition("(")[0] for name in SHAPES} == MODELS.keys()


@pytest.mark.parametrize("model", SHAPES)
def test_exported_models_predict_the_same_for_any_number_of_examples(model: str, tmp_path: Path) -> None:
    result = bf.run("fedavg", federation(SHAPES[model], tokens=model[:3] in ("lst", "bag")), model=model, **QUICK)
    found = export(result, "1", to=ALL, out=tmp_path / "e")
    for x in (inputs(result), inputs(result, 1)):
        x = x.float() if x.is_floating_point() else x
        with torch.no_grad():
            expected = result.model("1")(x).softmax(1).numpy()
        assert expected.std(0).max() > 1e-6 or len(x) == 1  # else a constant would pass
        np.testing.assert_allclose(by_torch(found.path, x), expected, atol=1e-6)
        np.testing.assert_allclose(by_onnxruntime(found.path, x), expected, atol=1e-6)
    files = found.card["files"]
    assert list(files) == list(ALL)
    for one in files.values():
        assert one["bytes"] == (found.path / one["file"]).stat().st_size
        assert 0 <= one["check"]["largest_difference"] < 1e-6
        assert one["check"]["examples"] == "random inputs"  # data from Python cannot be loaded again


def test_five_lines_load_safetensors(tmp_path: Path) -> None:
    result = bf.run("ditto", federation((4,)), model="mlp(hidden=(6,))", **QUICK)
    path = export(result, "0", to="safetensors", out=tmp_path / "e").path
    page = (Path(__file__).parents[3] / "docs" / "export.md").read_text(encoding="utf-8")
    lines = page.partition("<!-- load safetensors -->\n```python\n")[2].partition("```")[0]
    assert 0 < len([line for line in lines.splitlines() if line and "import" not in line]) <= 5
    known: dict[str, Any] = {"bf": bf}
    exec(lines.replace("runs/ditto/export/07", str(path)), known)
    x = inputs(result).float()
    with torch.no_grad():
        assert torch.equal(known["model"](x), result.model("0")(x))


@pytest.mark.slow  # another process imports torch
def test_torchscript_needs_no_bespoke(tmp_path: Path) -> None:
    result = bf.run("fedavg", federation((9, 2)), model="cnn1d(width=4)", **QUICK)
    path = export(result, "1", to="torchscript", out=tmp_path / "e").path
    x = inputs(result, 3).float()
    script = (
        "import json, sys; sys.modules['bespokefl'] = None\n"
        "import torch; x = torch.tensor(json.loads(sys.argv[2]))\n"
        "print(json.dumps(torch.jit.load(sys.argv[1])(x).tolist()))"
    )
    words = [sys.executable, "-W", "ignore", "-c", script, str(path / "model.pt"), json.dumps(x.tolist())]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    with torch.no_grad():
        expected = result.model("1")(x).softmax(1)
    np.testing.assert_allclose(np.array(json.loads(printed)), expected.numpy(), atol=1e-6)


def test_regression_gives_one_value_per_example(tmp_path: Path) -> None:
    result = bf.run("fedavg", federation((4,), regression=True), model="logistic", precision="float64", **QUICK)
    found = export(result, to=ALL, out=tmp_path / "e")  # the global model
    x = inputs(result)
    model = result.global_model()
    assert model is not None
    with torch.no_grad():
        expected = model(x).reshape(-1).numpy()
    assert found.card["output"] == {"name": "value", "shape": ["batch"], "classes": None}
    for predict in (by_torch, by_onnxruntime):
        np.testing.assert_allclose(predict(found.path, x.float()), expected, atol=1e-5)


def test_ids_that_the_model_does_not_know_are_unknown_words(tmp_path: Path) -> None:
    result = bf.run("fedavg", federation((7,), tokens=True), model="bag(embedding=4, hidden=5)", **QUICK)
    path = export(result, "0", to=ALL, out=tmp_path / "e").path
    x = inputs(result)
    unknown = torch.where(x == 5, 1, x)
    strange = torch.where(x == 5, 1000, x)
    for predict in (by_torch, by_onnxruntime):
        assert np.array_equal(predict(path, strange), predict(path, unknown))


def test_a_missing_value_gives_nan(tmp_path: Path) -> None:
    result = bf.run("fedavg", federation((4,)), model="mlp(hidden=(6,))", **QUICK)
    path = export(result, "0", to=ALL, out=tmp_path / "e").path
    x = inputs(result).float()
    x[2, 1] = torch.nan
    for predict in (by_torch, by_onnxruntime):
        assert np.isnan(predict(path, x)).any(1).tolist() == [False, False, True, *[False] * 6]


class FixedSize(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(x.reshape(len(x), 4))
        return output


@pytest.mark.parametrize("name", ["torchscript", "onnx"])
def test_a_model_whose_trace_has_a_fixed_size_is_rejected(name: str, tmp_path: Path) -> None:
    result = bf.run("fedavg", federation((4,)), model=FixedSize, **QUICK)
    with pytest.raises(InputError, match=rf"cannot be exported to {name}: .* use safetensors, or only tensor op"):
        export(result, "0", to=name, out=tmp_path / "e")
    assert list(tmp_path.iterdir()) == []
    assert export(result, "0", to="safetensors", out=tmp_path / "e").card["model"]["parameters"] == 15


def test_a_file_that_predicts_otherwise_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bespokefl.workflows.export import graph

    result = bf.run("fedavg", federation((4,)), model="logistic", **QUICK)
    whole = graph.Numbers.forward
    monkeypatch.setattr(graph.Numbers, "forward", lambda self, x: whole(self, x) + 0.1)
    with pytest.raises(InputError, match=r"cannot be exported to onnx: the exported model's predictions differ by 0\."):
        export(result, "0", to="onnx", out=tmp_path / "e")
    assert list(tmp_path.iterdir()) == []
