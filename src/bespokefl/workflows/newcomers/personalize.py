"""A client that took no part gets its own model: by the method's rule, from what the server kept and its own data."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from typing import Any

import torch

from bespokefl.core.errors import InputError, listing
from bespokefl.core.method import Method
from bespokefl.data.clients import Clients
from bespokefl.data.preprocessing.transform import Preparation
from bespokefl.data.tables.features import Table
from bespokefl.workflows.newcomers import arrays
from bespokefl.workflows.newcomers import trainer as engine
from bespokefl.workflows.newcomers.result import Newcomers
from bespokefl.workflows.results import score_tables, server_artifact
from bespokefl.workflows.results.models import PRECISIONS, InMemoryModels, SavedModels, no_client
from bespokefl.workflows.results.result import Result, load_run
from bespokefl.workflows.results.server_artifact import ServerArtifact
from bespokefl.workflows.run.convert import (
    check_clients,
    engine_data,
    engine_settings,
    find_device,
    in_order,
    labels_of,
    scores_of,
    select,
)

log = logging.getLogger("bespokefl")

NAME = "newcomer"  # of a client that has no other
RATE = 0.05  # for fine-tuning, where a method has no rate of its own for the whole model
ORIGIN = ("method", "hyper", "data", "split", "split_hash", "examples", "model", "seed", "rounds_done")


def personalize(
    run: Result | str | PathLike[str],
    clients: Clients | str | PathLike[str],
    *,
    client: str | None = None,
    workers: int = 0,
    device: str | None = None,
) -> Newcomers:
    """Personal models for clients that never trained, beside plain fine-tuning of the run's common model.

    run      what `run` returned, or the folder of a finished run
    clients  the newcomers; or an .npz file with x, y and perhaps client, of which 60 % are for training
    client   only this one of them; or the name of the only one, where the file names none
    device   None: the one that the run was trained on
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
        log.warning("%s took part in the run: these figures are not a newcomer's", listing(known))
    preparation = result.preparation
    if preparation is not None:
        _check_source(chosen, preparation)
        chosen, preparation = preparation.prepare_clients(chosen)
    check_clients(chosen)
    place = device or result.config.device
    return serve(result, _fitted(chosen, result), workers=workers, device=place, preparation=preparation)


def _check_source(clients: Clients, preparation: Preparation) -> None:
    """Words are numbered by the file they came from: those of another are other words."""
    if isinstance(clients.source, Table) and clients.source.features != preparation.features:
        raise InputError("newcomers of another table must come as a file, not as Clients: its columns are read anew.")


def serve(
    result: Result,
    clients: Clients,
    *,
    workers: int = 0,
    device: str = "cpu",
    preparation: Preparation | None = None,
) -> Newcomers:
    """The same for clients that are known to fit."""
    kept = _final(result)
    place, config = find_device(device), replace(result.config, workers=workers)
    task = kept.task(place)
    data = engine_data(clients, place, PRECISIONS[config.precision])
    server = kept.state(place)
    lr, momentum = plain_rate(kept.method)
    served = engine.serve(
        kept.method,
        task,
        data,
        server,
        engine_settings(config),
        clients.classes,
        number=int(result.about["rounds_done"]) + 1,
        lr=lr,
        momentum=momentum,
    )
    notes = []
    if served.diverged:
        notes.append(f"Fine-tuning diverged and is left out for {listing(served.diverged)}.")
    untested = [name for name, size in zip(clients.names, clients.test.sizes.tolist(), strict=True) if not size]
    if untested:
        notes.append(f"Newcomers without test data are left out of the test figures: {listing(untested)}.")
    common = kept.method.global_model(server) is not None
    return Newcomers(
        about={
            "clients": len(clients),
            "names": list(clients.names),
            "personal": None,  # both are worked out from the newcomers' scores
            "finetune": None,
            "finetune_from": "global" if common else "start",
            "finetune_lr": lr,
            "finetune_momentum": momentum,
            "notes": notes,
        },
        origin={"run": str(result.path or "")} | {name: result.about[name] for name in ORIGIN},
        names=clients.names,
        sizes={part: getattr(clients, part).sizes.numpy() for part in score_tables.SIZES},
        personal=scores_of(clients, data, served.personal),
        finetune=scores_of(clients, data, served.finetune),
        weights=InMemoryModels(kept.recipe, in_order(clients, data, served.rows)),
        preparation=preparation or result.preparation,
    )


def plain_rate(method: Method) -> tuple[float, float]:
    """Rate and momentum for fine-tuning: those with which the method trains the whole model."""
    hyper = method.hyper()
    lr = next((hyper[name] for name in ("lr", "base_lr") if name in hyper), RATE)
    return float(lr), float(hyper.get("momentum", 0.0))


def _final(result: Result) -> ServerArtifact:
    if result.final is not None:
        return result.final
    assert isinstance(result.weights, SavedModels)
    loss = "mse" if result.about["examples"]["labels"] is None else "cross_entropy"
    python: dict[str, str] = result.about["python"]
    return server_artifact.read(result.weights.folder, result.config, result.weights.recipe, loss, python)


def check_finished(result: Result, what: str) -> None:
    """Refuse a run that was stopped before its end."""
    if result.interrupted:
        where = f" in {str(result.path)!r}" if result.path else ""
        about = result.about
        raise InputError(
            f"{what} need a finished run, but the one{where} was interrupted after round {about['rounds_done']} of "
            f"{about['rounds_planned']}; go on with it first: bespoke resume."
        )


def _only(clients: Clients, name: str) -> Clients:
    if name not in clients.names:
        raise no_client(name, clients.names)
    return select(clients, [clients.names.index(name)])


def _from_file(path: str | PathLike[str], result: Result, client: str | None) -> Clients:
    """The clients of a file, cut into train, validation and test with the run's seed."""
    examples: Mapping[str, Any] = result.about["examples"]
    dataset, written = arrays.examples(path, examples, result.preparation)
    if written is None:
        raise InputError(f"{str(path)!r} must have an array y, or the column of labels, to train with.")
    y = arrays.targets(written, examples["labels"], repr(str(path)))
    if len(y) != len(dataset):
        raise InputError(
            f"x and y in {str(path)!r} must have one entry per example each, got {len(dataset)} and {len(y)}."
        )
    labels = examples["labels"]
    dataset = replace(dataset, y=y, classes=None if labels is None else len(labels), label_names=tuple(labels or ()))
    if dataset.client is None:
        alone = dataset.split("iid", clients=1, seed=result.config.seed)
        return replace(alone, names=(client or NAME,))
    everybody = dataset.split("by_column", seed=result.config.seed)
    return everybody if client is None else _only(everybody, client)


def _fitted(clients: Clients, result: Result) -> Clients:
    """The newcomers with labels as the run counts them; refuses those that the run's model cannot take."""
    examples: Mapping[str, Any] = result.about["examples"]
    expected, labels = tuple(examples["shape"]), examples["labels"]
    if clients.shape != expected:
        raise InputError(
            f"newcomers must have examples of shape {expected}, as the run was trained with, got {clients.shape}."
        )
    if clients.x.is_floating_point() == bool(examples["tokens"]):
        raise InputError(
            f"newcomers must have examples of {'whole' if examples['tokens'] else 'real'} numbers, as the run was "
            "trained with, got others; see tokens= of from_arrays."
        )
    if (labels is None) != (clients.classes is None):
        kinds = ("real-valued targets", "classes")
        raise InputError(
            f"newcomers must have {kinds[labels is not None]}, as the run was trained with, got "
            f"{kinds[clients.classes is not None]}."
        )
    if labels is None or labels_of(clients) == tuple(labels):
        return clients
    used = torch.cat([getattr(clients, part).indices for part in score_tables.SIZES]).unique()
    y = torch.zeros_like(clients.y)
    y[used] = arrays.recoded(clients.y[used], labels_of(clients), labels, "the newcomers' data")
    return replace(clients, y=y, classes=len(labels), label_names=tuple(labels))
