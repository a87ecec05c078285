"""The formats of exported models: how each is written, and read again to be checked."""

import io
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bespokefl import models
from bespokefl.core.errors import InputError
from bespokefl.workflows.export.graph import ExportedModel
from bespokefl.workflows.export.inputs import NAME, Inputs
from bespokefl.workflows.results.models import PRECISIONS, Recipe, read_state, write_state

CONFIG = "config.json"  # beside safetensors: how to build the model
OPSET = 17  # of ONNX; runtimes since 2022 read it

Predict = Callable[[np.ndarray], np.ndarray]  # inputs to outputs


class Source(NamedTuple):
    """What is exported."""

    model: nn.Module
    recipe: Recipe
    inputs: Inputs
    output: str  # the name of the output
    classifies: bool

    @property
    def graph(self) -> ExportedModel:
        """The module that is exported, with preprocessing and probabilities."""
        return ExportedModel(self.model, self.inputs, classifies=self.classifies)


class Format(NamedTuple):
    """A format: the name of its file, and functions that write it (given a few inputs) and read it again."""

    file: str
    write: Callable[[Source, Path, Tensor], None]
    read: Callable[[Source, Path], Predict | None]  # None: the package that reads it is not installed
    checked_by: str
    needs: str = ""  # the package that writes it


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings that tracing and ONNX files are older than torch.compile: they are what was asked for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _trace(source: Source, x: Tensor) -> Any:
    with _quiet(), torch.no_grad():
        return torch.jit.trace(source.graph, (x,), check_trace=False)


def _write_torchscript(source: Source, path: Path, x: Tensor) -> None:
    traced, buffer = _trace(source, x), io.BytesIO()
    with _quiet():
        torch.jit.save(traced, buffer)  # not to the file, so that a full disk is an OSError
    path.write_bytes(buffer.getvalue())


def _read_torchscript(source: Source, path: Path) -> Predict:
    with _quiet():
        loaded = torch.jit.load(str(path))
    return _called(loaded)


def _write_onnx(source: Source, path: Path, x: Tensor) -> None:
    traced = _trace(source, x)
    with _quiet():
        torch.onnx.export(
            traced,
            (x,),
            str(path),
            dynamo=False,  # the other exporter takes ten to thirty times as long
            opset_version=OPSET,
            input_names=[NAME],
            output_names=[source.output],
            dynamic_axes={NAME: {0: "batch"}, source.output: {0: "batch"}},
        )


def _read_onnx(source: Source, path: Path) -> Predict | None:
    import onnx

    onnx.checker.check_model(str(path))
    if find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def predict(x: np.ndarray) -> np.ndarray:
        return np.asarray(session.run([source.output], {NAME: x})[0])

    return predict


def _write_safetensors(source: Source, path: Path, x: Tensor) -> None:
    about = asdict(source.recipe.blueprint)
    config = {name: about[name] for name in ("model", "shape", "outputs", "tokens", "precision", "head")}
    write_state(source.model.state_dict(), path)
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (path.parent / CONFIG).write_text(text, encoding="utf-8")


def _read_safetensors(source: Source, path: Path) -> Predict:
    config = json.loads((path.parent / CONFIG).read_text(encoding="utf-8"))
    build = models.build(source.recipe.model, tuple(config["shape"]), config["outputs"], config["tokens"])
    model = build().to(PRECISIONS[config["precision"]])
    model.load_state_dict(read_state(path))
    return _called(source._replace(model=model).graph)


def _called(module: Callable[[Tensor], Tensor]) -> Predict:
    def predict(x: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return module(torch.from_numpy(x)).numpy()

    return predict


FORMATS = {
    "torchscript": Format("model.pt", _write_torchscript, _read_torchscript, "torch.jit.load"),
    "onnx": Format("model.onnx", _write_onnx, _read_onnx, "onnxruntime", needs="onnx"),
    "safetensors": Format("model.safetensors", _write_safetensors, _read_safetensors, "safetensors"),
}


def check_installed(name: str) -> None:
    """Raise an InputError if the package that writes a format is missing."""
    needs = FORMATS[name].needs
    if needs and find_spec(needs) is None:
        raise InputError(f'{name} needs the package {needs}, which is not installed; pip install "bespokefl[{needs}]".')
