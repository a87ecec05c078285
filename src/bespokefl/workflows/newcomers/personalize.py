"""Train a personal model for a client that did not take part, by the method's rule, from a finished run."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bespokefl.core.blocks.local import keep_local
from bespokefl.core.errors import InputError, listing
from bespokefl.core.method import Method
from bespokefl.data.clients import Clients
from bespokefl.data.dataset import Dataset, as_array
from bespokefl.data.preprocessing.transform import Preparation
from bespokefl.data.readers import npz
from bespokefl.data.tables import table as columns
from bespokefl.data.tables.features import Table
from bespokefl.workflows.newcomers.result import Newcomers
from bespokefl.workflows.newcomers.trainer import train_newcomers
from bespokefl.workflows.results import score_tables, server_artifact
from bespokefl.workflows.results.models import PRECISIONS, InMemoryModels, SavedModels, no_client
from bespokefl.workflows.results.result import Result, load_run
from bespokefl.workflows.run import convert

log = logging.getLogger("bespokefl")

DEFAULT_NAME = "newcomer"  # of a client whose file has no name for it
DEFAULT_LR = 0.05  # for fine-tuning, if the method has no learning rate for the whole model
ORIGIN = ("method", "hyper", "data", "split", "split_hash", "examples", "model", "seed", "rounds_done")


def personalize(
    run: Result | str | PathLike[str],
    clients: Clients | str | PathLike[str],
    *,
    client: str | None = None,
    workers: int = 0,
    device: str | None = None,
) -> Newcomers:
    """Train personal models for clients that did not take part in a run, and compare them with plain fine-tuning.

    Parameters
    ----------
    run : Result or path
        A result, or the directory of a finished run.
    clients : Clients or path
        The newcomers, or an .npz file with x, y and optionally client; 60 % of a file's examples are for training.
    client : str, optional
        Only this one of the newcomers; or the name of the only one, if the file has no names.
    workers : int
        Number of processes, 0 for all cores. It does not change the result.
    device : str, optional
        Such as "cpu" or "cuda". Default: the device of the run.

    Raises
    ------
    InputError
        If the run is unfinished, or if the examples or labels do not fit it.

    Examples
    --------
    >>> found = bf.personalize("runs/ditto", "new.npz", client="ward-7")
    >>> model = found.model("ward-7")
    """
    result = run if isinstance(run, Result) else load_run(run)
    check_finished(result, "newcomers")
    if isinstance(clients, Clients):
        chosen = clients if client is None else _only(clients, client)
    elif isinstance(clients, str | PathLike):
        chosen = _from_file(clients, result, client)
    else:
        raise InputError(f"clients must be Clients or an .npz file, got {type(clients).__name__}.")
    known = [name for name in chosen.names if name in result.names]
    if known:
        log.warning("%s took part in the run, so these are not the scores of a newcomer", listing(known))
    preparation = result.preparation
    if preparation is not None:
        # The codes of words and categories belong to the file that they were read from.
        if isinstance(chosen.source, Table) and chosen.source.features != preparation.features:
            raise InputError(
                "newcomers of another table must be given as a file, not as Clients, so that its columns are read as "
                "those of the run."
            )
        chosen, preparation = preparation.prepare_clients(chosen)
    convert.check_clients(chosen)
    chosen = _with_labels_of(result, chosen)
    return serve(result, chosen, workers=workers, device=device or result.config.device, preparation=preparation)


def serve(
    result: Result, clients: Clients, *, workers: int = 0, device: str = "cpu", preparation: Preparation | None = None
) -> Newcomers:
    """Train personal models for clients that are known to fit the run."""
    artifact = result.final
    if artifact is None:
        assert isinstance(result.weights, SavedModels)
        artifact = server_artifact.read(result.weights, result.config, result.about)
    config = replace(result.config, workers=workers)
    where = convert.find_device(device, config.precision)
    task, server = artifact.task(where), artifact.state(where)
    data = convert.engine_data(clients, where, PRECISIONS[config.precision])
    lr, momentum = finetuning_rate(artifact.method)
    method = keep_local(artifact.method, task.layout)
    found = train_newcomers(
        method,
        task,
        data,
        server,
        convert.engine_settings(config),
        clients.classes,
        number=int(result.about["rounds_done"]) + 1,
        lr=lr,
        momentum=momentum,
    )
    notes = []
    if found.diverged:
        notes.append(f"Fine-tuning diverged and is left out for {listing(found.diverged)}.")
    untested = [name for name, size in zip(clients.names, clients.test.sizes.tolist(), strict=True) if not size]
    if untested:
        notes.append(f"Newcomers without test data are left out of the test figures: {listing(untested)}.")
    return Newcomers(
        about={
            "clients": len(clients),
            "names": list(clients.names),
            "personal": None,  # both are computed from the scores
            "finetune": None,
            "finetune_from": "start" if method.global_model(server) is None else "global",
            "finetune_lr": lr,
            "finetune_momentum": momentum,
            "notes": notes,
        },
        origin={"run": str(result.path or "")} | {name: result.about[name] for name in ORIGIN},
        names=clients.names,
        sizes={part: getattr(clients, part).sizes.numpy() for part in score_tables.SIZES},
        personal=convert.scores_of(clients, data, found.personal),
        finetune=convert.scores_of(clients, data, found.finetune),
        weights=InMemoryModels(artifact.recipe, convert.in_order(clients, data, found.rows)),
        preparation=preparation or result.preparation,
    )


def finetuning_rate(method: Method) -> tuple[float, float]:
    """Return learning rate and momentum for fine-tuning: those with which the method trains the whole model."""
    hyper = method.hyper()
    lr = next((hyper[name] for name in ("lr", "base_lr") if name in hyper), DEFAULT_LR)
    return float(lr), float(hyper.get("momentum", 0.0))


def check_finished(result: Result, what: str) -> None:
    """Reject a run that was interrupted."""
    if result.interrupted:
        where = f" in {str(result.path)!r}" if result.path else ""
        about = result.about
        raise InputError(
            f"{what} need a finished run, but the one{where} was interrupted after round {about['rounds_done']} of "
            f"{about['rounds_planned']}; resume it first: bespoke resume."
        )


def _only(clients: Clients, name: str) -> Clients:
    if name not in clients.names:
        raise no_client(name, clients.names)
    return convert.select(clients, [clients.names.index(name)])


def _from_file(path: str | PathLike[str], result: Result, client: str | None) -> Clients:
    """Return the clients of a file, split into train, validation and test data with the run's seed."""
    examples: Mapping[str, Any] = result.about["examples"]
    dataset, y = read_examples(path, examples, result.preparation)
    if y is None:
        raise InputError(f"{str(path)!r} must have an array y, or the column of labels, to train with.")
    labels = examples["labels"]
    codes = _targets(y, labels, repr(str(path)))
    if len(codes) != len(dataset):
        raise InputError(
            f"x and y in {str(path)!r} must have one entry per example each, got {len(dataset)} and {len(codes)}."
        )
    classes = None if labels is None else len(labels)
    dataset = replace(dataset, y=codes, classes=classes, label_names=tuple(labels or ()))
    if dataset.client is None:
        single = dataset.split("iid", clients=1, seed=result.config.seed)
        return replace(single, names=(client or DEFAULT_NAME,))
    found = dataset.split("by_column", seed=result.config.seed)
    return found if client is None else _only(found, client)


def _with_labels_of(result: Result, clients: Clients) -> Clients:
    """Return the newcomers with labels as the run encodes them; reject examples that the model cannot take."""
    examples: Mapping[str, Any] = result.about["examples"]
    expected, labels = tuple(examples["shape"]), examples["labels"]
    if clients.shape != expected:
        raise InputError(
            f"newcomers must have examples of shape {expected}, as the run was trained with, got {clients.shape}."
        )
    if clients.x.is_floating_point() == bool(examples["tokens"]):
        raise InputError(
            f"newcomers must have examples of {'integers' if examples['tokens'] else 'real numbers'}, as the run was "
            "trained with, got others; see tokens= of from_arrays."
        )
    if (labels is None) != (clients.classes is None):
        kinds = ("real-valued targets", "classes")
        raise InputError(
            f"newcomers must have {kinds[labels is not None]}, as the run was trained with, got "
            f"{kinds[clients.classes is not None]}."
        )
    if labels is None or convert.labels_of(clients) == tuple(labels):
        return clients
    used = torch.cat([getattr(clients, part).indices for part in score_tables.SIZES]).unique()
    y, own = torch.zeros_like(clients.y), convert.labels_of(clients)
    known = torch.unique(clients.y[used]).tolist()
    codes = torch.zeros(len(own), dtype=torch.int64)
    codes[known] = torch.from_numpy(_codes([own[code] for code in known], labels, "the newcomers' data"))
    y[used] = codes[clients.y[used]]
    return replace(clients, y=y, classes=len(labels), label_names=tuple(labels))


def read_examples(
    path: str | PathLike[str], about: Mapping[str, Any], preparation: Preparation | None
) -> tuple[Dataset, np.ndarray | None]:
    """Return the raw examples of a file, read as those of the run, and its labels if it has any.

    `about` describes the examples of the run: "shape", "tokens" and "labels".
    """
    if preparation is not None and preparation.features.kind in ("table", "text"):
        found = columns.inputs(path, preparation.features)
        x = torch.from_numpy(found.x)
        return Dataset(Path(path).stem, x, torch.zeros(len(x)), found.client), found.y
    arrays = npz.read(Path(path), ("x", "y", "client"))
    if "x" not in arrays:
        raise InputError(f"{str(path)!r} must have an array x; save it with np.savez(path, x=...).")
    inputs = as_array(arrays["x"], "x")
    expected = tuple(about["shape"])
    if inputs.ndim and len(inputs) and inputs.shape[1:] != expected:
        raise InputError(
            f"x in {str(path)!r} must have examples of shape {expected}, as the run was trained with, "
            f"got {inputs.shape[1:]}."
        )
    no_labels = np.zeros(len(inputs) if inputs.ndim else 0, dtype=np.float32)
    tokens = bool(about["tokens"])
    return Dataset.from_arrays(inputs, no_labels, arrays.get("client"), Path(path).stem, tokens=tokens), arrays.get("y")


def _targets(y: np.ndarray, labels: Sequence[str] | None, where: str) -> torch.Tensor:
    """Return labels as the run encodes them, 0, 1, …; or real values for regression."""
    y = as_array(y, "y")
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise InputError(f"y in {where} must be one label per example, got shape {y.shape}.")
    if labels is None:
        if y.dtype.kind not in "fiub" or not np.isfinite(y).all():
            raise InputError(f"y in {where} must be finite numbers, as the run was trained with, got others.")
        return torch.from_numpy(y.astype(np.float32))
    if y.dtype.kind == "f":
        raise InputError(
            f"y in {where} must be classes, as the run was trained with ({listing(labels)}), got real numbers; "
            "convert them to integers or text."
        )
    found, codes = np.unique(y, return_inverse=True)
    return torch.from_numpy(_codes([str(name) for name in found.tolist()], labels, where)[codes])


def _codes(names: Sequence[str], labels: Sequence[str], where: str) -> np.ndarray:
    position = {name: at for at, name in enumerate(labels)}
    unseen = [name for name in names if name not in position]
    if unseen:
        raise InputError(
            f"the labels in {where} must be among those of the run, {listing(labels, 10)}, got {listing(unseen)}."
        )
    return np.array([position[name] for name in names], dtype=np.int64)
