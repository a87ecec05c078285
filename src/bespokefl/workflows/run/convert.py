"""Converts clients and settings to what an engine takes, and an engine's outcome back to the order of the clients."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from bespokefl.core.errors import InputError, listing, spell
from bespokefl.core.method import Method, State
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.data.clients import Clients
from bespokefl.data.preprocessing.transform import Preparation
from bespokefl.data.tables.features import Table
from bespokefl.engines.client import Data
from bespokefl.engines.faults import Faults
from bespokefl.engines.outcome import Outcome
from bespokefl.engines.settings import Settings
from bespokefl.engines.storage.mapped_files import vacant
from bespokefl.metrics.metric import check_metric
from bespokefl.workflows.results.models import InMemoryModels
from bespokefl.workflows.results.result import Result
from bespokefl.workflows.results.score_tables import SIZES, Scores
from bespokefl.workflows.results.server_artifact import ServerArtifact
from bespokefl.workflows.run.settings import RunSettings
from bespokefl.workflows.run.task_builder import TaskSpec

COPIED_AT_ONCE = 1 << 24  # numbers
OTHER_DATA = ("train_", "validation_")  # prefixes of scores on other data than test data


def check_clients(clients: Clients) -> None:
    """Raise an error for a client without training examples, and for values that are not finite.

    Those of a table may be missing until they are prepared.
    """
    idle = [clients.names[i] for i in (clients.train.sizes == 0).nonzero().flatten().tolist()]
    if idle:
        raise InputError(f"every client needs training examples, got none for {listing(idle)}; leave them out.")
    may_lack = isinstance(clients.source, Table) and clients.preparation is None
    for what, values in (("y", clients.y),) if may_lack else (("x", clients.x), ("y", clients.y)):
        if values.is_floating_point() and not _finite(values):
            raise InputError(f"{what} must be finite, but it holds NaN or infinity; remove or fill such values.")


def _finite(values: Tensor) -> bool:
    """Whether all values are finite, part by part: a sum is only if all its terms are, and float64 cannot overflow."""
    parts = values.split(max(1, COPIED_AT_ONCE // max(1, values[:1].numel())))
    return all(bool(torch.isfinite(part.sum(dtype=torch.float64))) for part in parts)


def select(clients: Clients, positions: Sequence[int]) -> Clients:
    """Return the clients at these positions."""
    return replace(
        clients,
        names=tuple(clients.names[i] for i in positions),
        train=clients.train.take(positions),
        validation=clients.validation.take(positions),
        test=clients.test.take(positions),
        groups=None if clients.groups is None else tuple(clients.groups[i] for i in positions),
    )


def engine_data(clients: Clients, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Data:
    """Return the data of an engine, in which clients are sorted by name."""
    order = sorted(range(len(clients)), key=lambda i: clients.names[i])
    if order != list(range(len(order))):
        clients = select(clients, order)
    x, y = (
        values.to(device=device, dtype=dtype if values.is_floating_point() else None)
        for values in (clients.x, clients.y)
    )
    return Data(x, y, clients.names, clients.train, clients.validation, clients.test, clients.groups)


def engine_settings(settings: RunSettings, *, warm: bool = False) -> Settings:
    """Return the settings of an engine; `warm` says whether initial weights were given, instead of random ones."""
    shared = {one.name for one in fields(RunSettings)} & {one.name for one in fields(Settings)} - {"faults", "follow"}
    return Settings(
        **{name: getattr(settings, name) for name in shared},
        faults=Faults.of(settings.faults),
        follow=None if settings.follow is None else check_metric(settings.follow),
        reference=settings.engine == "reference",
        warm=warm,
    )


def check_keep_rounds(settings: RunSettings, method: Method, server: State) -> None:
    """Raise an error if the global model of every round is to be kept, but there is none."""
    if settings.keep_rounds and method.global_model(server) is None:
        raise InputError(
            f"{settings.method} has no global model to keep of every round; leave {spell('keep_rounds')} out."
        )


def find_device(name: str, precision: str = RunSettings.precision) -> torch.device:
    """Return the device of this name, after a trial computation on it; an InputError if it lacks the precision."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).add_(1)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise InputError(f"cannot compute on the device {name!r}: {reason}; use --device cpu.") from None
    if precision == "bfloat16" and not _has_bfloat16(device):
        raise InputError(f"the device {name!r} cannot compute in bfloat16; use --precision float32.")
    return device


def _has_bfloat16(device: torch.device) -> bool:
    """Whether a device has bfloat16: every CPU has, a GPU only if it is no emulation."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    try:
        with torch.autocast(device.type, torch.bfloat16):
            return (torch.ones(2, 2, device=device) @ torch.ones(2, 2, device=device)).dtype == torch.bfloat16
    except (RuntimeError, TypeError):
        return False


def labels_of(clients: Clients) -> tuple[str, ...]:
    """Return the names of the classes, in the order of their codes."""
    return clients.label_names or tuple(map(str, range(clients.classes or 0)))


def make_result(
    settings: RunSettings,
    method: Method,
    outcome: Outcome,
    clients: Clients | Data,
    data: Data,
    *,
    about: dict[str, Any],
    models: InMemoryModels,
    spec: TaskSpec,
    task: Task,
    preparation: Preparation,
    **files: Any,
) -> Result:
    """Put the outcome of an engine, which has the order of `data`, into the order of `clients`.

    `about` is the content of result.json without scores; `files` are further arguments of `Result`.
    """
    back = _positions(clients.names, data.names)
    listed: list[int] = back.tolist() if outcome.by_client or outcome.client_scores else []  # there may be a million

    def ordered(value: Any) -> Any:  # lists and matrices with an entry per client
        return [ordered(value[at]) for at in listed] if isinstance(value, list) else value

    history = [
        {name: ordered(value) if name in outcome.by_client else value for name, value in row.items()}
        for row in outcome.history
    ]
    kept = outcome.server, task.start, outcome.kept_rows
    return Result(
        config=settings,
        about=about,
        names=clients.names,
        sizes={part: getattr(data, part).sizes[back].numpy() for part in SIZES},
        personal=scores_of(clients, data, outcome.personal),
        global_=None if outcome.globally is None else scores_of(clients, data, outcome.globally),
        constant=None if outcome.constant is None else scores_of(clients, data, outcome.constant),
        rounds=history,
        client_scores=[{name: ordered(value) for name, value in line.items()} for line in outcome.client_scores],
        client_rounds=sorted(outcome.client_notes, key=lambda row: (row["round"], row["client"])),
        weights=models,
        final=ServerArtifact(method, models.recipe, spec.objective, spec.head, spec.local_blocks, *kept),
        preparation=preparation if preparation.changes else None,
        **files,
    )


def in_order(clients: Clients | Data, data: Data, rows: Rows) -> Rows:
    """Reorder an engine's rows to the order of the clients: in place and by columns, as the rows may be large."""
    if data.names == clients.names:
        return rows
    back = _positions(clients.names, data.names).to(rows.device)
    for block in rows.blocks:
        if block.stride(0) and block.numel():  # else all clients share one row
            flat = block.view(len(block), -1)
            step = max(1, COPIED_AT_ONCE // len(flat))
            for at in range(0, flat.shape[1], step):
                flat[:, at : at + step] = flat[back, at : at + step]
    return rows


def scores_of(clients: Clients | Data, data: Data, scores: Mapping[str, Tensor]) -> Scores:
    """Return an engine's scores in the order of the clients; those of test data have no prefix and come first."""
    back = _positions(clients.names, data.names)
    found: Scores = {}
    for name, values in scores.items():
        taken = vacant(len(back), values.dtype)
        found[name.removeprefix("test_")] = torch.index_select(values, 0, back, out=taken).numpy()
    return dict(sorted(found.items(), key=lambda item: (item[0].startswith(OTHER_DATA), item[0])))


@lru_cache(maxsize=1)
def _positions(names: tuple[str, ...], among: tuple[str, ...]) -> Tensor:
    """Return the position of each name among others."""
    position = {name: at for at, name in enumerate(among)}
    return torch.tensor([position[name] for name in names])
