"""Export models of a run as TorchScript, ONNX or safetensors files."""

import hashlib
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch

from bespokefl.core.errors import InputError, said, unknown
from bespokefl.models import Model
from bespokefl.workflows.export import model_card
from bespokefl.workflows.export.checking import Examples, ExampleSource, difference
from bespokefl.workflows.export.formats import FORMATS, Source, check_installed
from bespokefl.workflows.export.inputs import Inputs
from bespokefl.workflows.newcomers.personalize import check_finished
from bespokefl.workflows.newcomers.predict import Predictions, answer, load_models
from bespokefl.workflows.newcomers.result import Newcomers
from bespokefl.workflows.results import run_directory
from bespokefl.workflows.results.result import Result
from bespokefl.workflows.results.score_tables import dumps

PREPROCESSING = "preprocessing.json"
SIGNS, WHAT = (model_card.JSON, PREPROCESSING), "an export"
FOLDER, GLOBAL = "export", "global"


@dataclass(frozen=True)
class Exported:
    """An exported model: its directory, and the content of model_card.json."""

    path: Path
    card: dict[str, Any]


def export(
    run: Result | Newcomers | str | PathLike[str],
    client: str | None = None,
    *,
    to: str | Sequence[str] = "torchscript",
    out: str | PathLike[str] | None = None,
    overwrite: bool = False,
    model: Model | None = None,
) -> Exported:
    """Export the model of a client, with its preprocessing and a model card.

    The files are read again, and their predictions are compared with those of the model: on the client's test data if
    the run's data can be loaded, else on random inputs.

    Parameters
    ----------
    run : Result, Newcomers or path
        A finished run, or newcomers' models.
    client : str, optional
        The name of the client; the global model if not given.
    to : str or list of str, default="torchscript"
        The formats: "torchscript", "onnx" (needs the extra `onnx`) or "safetensors".
    out : path, optional
        The directory to write; if not given, a directory of this client under `export` in the directory of the run.
    overwrite : bool, default=False
        Whether to replace an earlier export in this directory.
    model : callable or torch.nn.Module, optional
        The model, if it was a Python object, which the directory of a run does not hold.

    Returns
    -------
    Exported
        The directory and the model card.

    Raises
    ------
    InputError
        If there is no such client or model, if the model cannot be exported to this format, or if the predictions of a
        file differ from those of the model.

    Examples
    --------
    >>> bf.export("runs/ditto", client="07", to="onnx").path  # doctest: +SKIP
    """
    return Exporter(run, to, model).write(None if client is None else str(client), out, overwrite)


class Exporter:
    """Exports several models of a run; its data are loaded once."""

    def __init__(
        self, run: Result | Newcomers | str | PathLike[str], to: str | Sequence[str], model: Model | None = None
    ) -> None:
        self.formats = tuple(dict.fromkeys([to] if isinstance(to, str) else to))
        if not self.formats:
            raise InputError(f"to must name a format, got none; known: {', '.join(FORMATS)}.")
        for name in self.formats:
            if name not in FORMATS:
                raise unknown("format", str(name), FORMATS)
            check_installed(name)
        self.run = run if isinstance(run, Result | Newcomers) else load_models(run, model)
        if isinstance(self.run, Result):
            check_finished(self.run, "exports")
        self._examples = ExampleSource(self.run)

    @property
    def names(self) -> tuple[str, ...]:
        """The clients that have a model, also those held out of training."""
        held_out = self.run.newcomers if isinstance(self.run, Result) else None
        return self.run.names + (() if held_out is None else held_out.names)

    def directory(self, client: str | None, parent: str | PathLike[str] | None = None) -> Path:
        """Return the directory of a client's export: under `parent`, or under `export` in the directory of the run."""
        if parent is None and self.run.path is None:
            raise InputError("a run that is not saved has no directory to export to; give out=, or save the run first.")
        above = Path(parent) if parent is not None else Path(str(self.run.path)) / FOLDER
        return above / (GLOBAL if client is None else _file_name(client))

    def check(self, clients: Iterable[str | None], parent: str | PathLike[str] | None, overwrite: bool) -> None:
        """Raise an error if one of these exports could not be written. Writes nothing."""
        for number, client in enumerate(clients):
            if number == 0:
                self._source(client)
            run_directory.check(self.directory(client, parent), overwrite, SIGNS, WHAT)

    def write(self, client: str | None, out: str | PathLike[str] | None = None, overwrite: bool = False) -> Exported:
        """Export one model to a directory."""
        target = self.directory(client) if out is None else Path(out)
        run_directory.check(target, overwrite, SIGNS, WHAT)
        source = self._source(client)
        examples = self._examples.examples(client, source.inputs, self._preparation)
        expected = answer(source.model, examples.prepared, self._labels)
        output = _describe(source.output, expected)
        cards = []

        def fill(into: Path) -> None:
            files = {name: _write_file(name, source, examples, expected, into) for name in self.formats}
            preprocessing = {"format": model_card.FORMAT, **source.inputs.to_dict(), "output": output}
            (into / PREPROCESSING).write_text(dumps(preprocessing, indent=2) + "\n", encoding="utf-8")
            card = model_card.make_card(
                self.run,
                client,
                source.model,
                source.recipe,
                input=source.inputs.describe(),
                output=output,
                files=files,
            )
            (into / model_card.JSON).write_text(dumps(card, indent=2) + "\n", encoding="utf-8")
            (into / model_card.MARKDOWN).write_text(model_card.to_markdown(card), encoding="utf-8")
            cards.append(card)

        return Exported(run_directory.write(target, fill, overwrite, SIGNS, WHAT), cards[-1])

    @property
    def _labels(self) -> tuple[str, ...] | None:
        about = self.run.about if isinstance(self.run, Result) else self.run.origin
        labels = about["examples"]["labels"]
        return None if labels is None else tuple(labels)

    @property
    def _preparation(self) -> Any:
        return self.run.preparation

    def _source(self, client: str | None) -> Source:
        """The model of a client, or the global model, and what its export needs."""
        run = self.run
        common = run.global_model() if client is None and isinstance(run, Result) else None
        model = common if client is None else self._model_of(client)
        if model is None:
            whose = run.method if isinstance(run, Result) else "a directory of newcomers' models"
            raise InputError(f"{whose} has no global model to export; name a client.")
        recipe = run.weights.recipe
        blueprint = recipe.blueprint
        inputs = Inputs.of(self._preparation, client, blueprint.shape, blueprint.tokens)
        classifies = self._labels is not None
        return Source(model, recipe, inputs, "probabilities" if classifies else "value", classifies)

    def _model_of(self, client: str) -> torch.nn.Module:
        node = self.run.node_of(client) if isinstance(self.run, Result) else None
        if node is not None:
            there = ["bespoke", "deploy", "export", node, "--client", client, "--to", ",".join(self.formats)]
            raise InputError(
                f"the personal model of client {client} is not in the run but at its node, {node}; on that machine: "
                f"{shlex.join(there)}; here only the global model can be exported: --global, or in Python no client."
            )
        return self.run.model(client)


def _describe(name: str, predictions: Predictions) -> dict[str, Any]:
    """Name, shape and classes of the output."""
    if not predictions.classes:
        return {"name": name, "shape": ["batch"], "classes": None}
    return {"name": name, "shape": ["batch", len(predictions.classes)], "classes": list(predictions.classes)}


def _write_file(name: str, source: Source, examples: Examples, expected: Predictions, into: Path) -> dict[str, Any]:
    """Write the file of one format, check it, and return what the model card says about it."""
    chosen, x = FORMATS[name], examples.inputs
    wanted = expected.values if expected.probabilities is None else expected.probabilities
    assert wanted is not None
    file = into / chosen.file
    try:
        chosen.write(source, file, torch.from_numpy(np.resize(x, (2, *x.shape[1:]))))
        predict = chosen.read(source, file)
        largest = None if predict is None else difference(predict, x, wanted)
    except OSError:
        raise
    except Exception as error:  # any error of the exporter, about any layer of a user's model
        what = str(error) if isinstance(error, InputError) else said(error)
        raise InputError(f"the model cannot be exported to {name}: {what.rstrip('.')}; {_advice(name)}.") from error
    is_beside = name == "safetensors" or source.inputs.features.kind == "text"
    return {
        "file": file.name,
        "bytes": file.stat().st_size,
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "preprocessing": "beside" if is_beside else "inside",
        "check": {
            "by": None if largest is None else chosen.checked_by,
            "examples": examples.origin,
            "number": len(x),
            "largest_difference": largest,
        },
    }


def _advice(name: str) -> str:
    if name == "safetensors":
        return "please report this"
    return "use safetensors, or only tensor operations in the model (x.shape[0], not len(x))"


def _file_name(client: str) -> str:
    """The name of a client's directory; characters that do not belong into one are written as %XX."""
    name = re.sub(r"[^\w.-]|^\.", lambda found: quote(found[0], safe="") if found[0] != "." else "%2E", client)
    return name.replace("g", "%67", 1) if name == GLOBAL else name
