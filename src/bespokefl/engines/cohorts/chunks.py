"""How to cut a cohort into chunks: one client after the other (plain autograd), or many stacked into one computation.

Stacking pays where overhead dominates: small layers, small batches. The choice depends only on the model and the batch
size, by a rule fitted to measurements and never on a clock, so the same run is always cut in the same way.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from bespokefl.core.nn import probe
from bespokefl.core.nn.statistics import ClientBatchNorm1d
from bespokefl.core.task import Task
from bespokefl.engines.client import Data
from bespokefl.engines.settings import Settings

log = logging.getLogger("bespokefl")

HEAVY = (nn.modules.conv._ConvNd, nn.RNNBase, nn.MultiheadAttention)  # layers that stacking does not speed up
SMALL_STEP = 60e6  # multiply-adds of a row's step, forward and backward, up to which stacking is faster
FULL_STEP = 12e6  # multiply-adds of a stacked step; beyond, more rows hardly make a row cheaper
ROWS = (13, 2048)  # the fewest and the most rows of a chunk
CELLS = 32e6  # numbers in a stacked step, weights and inputs together, at most
GPU_STEP = 4e9  # the same for a stacked step on a GPU, which one client's step keeps busy only in part
SCORED = 2e8  # multiply-adds of a chunk that is scored: about 20 ms, large compared with its overhead
MOST_SCORED = 4096  # clients that are scored at once, whose models and examples are then in memory several times
BUSY = 0.9  # share of the time that two workers should be busy
REUSED = 16  # how often a heavy layer uses a weight for an example, at least
INPUTS = 64  # numbers that a heavy model keeps for each number of its inputs, for the backward pass


@dataclass(frozen=True)
class Executor:
    """How a run is computed; stored with its results."""

    chunk: int
    stacked: bool
    reason: str


def choose(task: Task, x: torch.Tensor, y: torch.Tensor, *, batch_size: int, chunk: int | None = None) -> Executor:
    """Choose stacked or plain computation, and the chunk size. `x`, `y` are a few examples to try the model on.

    On a CPU, stacking pays for small steps of models without heavy layers. On any other kind of device it pays for all
    models, because a step of one client is too small for it; the chunk is what fits into about 100 MB.
    """
    if chunk == 1:
        return Executor(1, False, "chunk 1 was asked for")
    heavy, frozen = _heavy(task), _frozen(task)
    cost = batch_size * (3.0 * task.layout.width + 2.0 * frozen)  # frozen weights get no gradient of their own
    on_gpu = x.device.type != "cpu"
    if chunk is None and heavy and not on_gpu:
        return Executor(1, False, f"the model has {heavy[0]} layers, which stacking does not speed up")
    if chunk is None and cost > SMALL_STEP and not on_gpu:
        return Executor(1, False, f"a step of {cost / 1e6:.0f} million multiply-adds is large enough by itself")
    obstacle = probe.why_not_stacked(task, x, y)
    if obstacle:
        if chunk is not None:
            log.warning(
                "chunk %d was asked for, but the model cannot be stacked: %s; one client at a time", chunk, obstacle
            )
        return Executor(1, False, f"the model cannot be stacked: {obstacle}")
    if chunk is not None:
        return Executor(chunk, True, f"chunk {chunk} was asked for")
    kept = INPUTS if on_gpu and heavy else 1
    fits = max(1, int(CELLS / (task.layout.width + batch_size * kept * x[0].numel())))
    if on_gpu:
        size = min(max(int(GPU_STEP / (cost * (REUSED if heavy else 1))), 1), ROWS[1], fits)
        done = "are stacked" if size > 1 else "are large enough by themselves"
        return Executor(size, size > 1, f"steps on a device of kind {x.device.type} {done}")
    size = min(max(int(FULL_STEP / cost), ROWS[0]), ROWS[1], fits)
    return Executor(size, True, f"small steps ({cost / 1e6:.1f} million multiply-adds) are stacked")


def prepare_task(task: Task, data: Data, settings: Settings, classes: int | None) -> Executor:
    """Try the task on a few examples, choose how to cut and compute these clients, and stack the task accordingly.

    Raises an InputError if the model does not fit the examples and `classes`, which is None for regression.
    """
    probe.check(task, data.x[:3], data.y[:3], classes)
    _warn_of_single_examples(task, data, settings)
    return choose_for(task, data, settings)


def choose_for(task: Task, data: Data, settings: Settings) -> Executor:
    """Choose how to compute these clients, and stack the task accordingly."""
    executor = Executor(1, False, "the plain PyTorch loop")
    if not settings.reference:
        typical = int(data.train.sizes.float().mean())
        size = min(settings.batch_size, typical)
        executor = choose(task, data.x[:3], data.y[:3], batch_size=size, chunk=settings.chunk)
    task.stacked = False  # the task may come from another run
    if executor.stacked:
        task.stack()
    return executor


def _warn_of_single_examples(task: Task, data: Data, settings: Settings) -> None:
    """Say what happens to batches of one example, which torch's batch norm refuses if an example has one value."""
    if not any(isinstance(layer, ClientBatchNorm1d) for layer in task.module.modules()):
        return
    single = int((data.train.sizes % settings.batch_size == 1).sum()) if settings.batch_size > 1 else len(data)
    if single:
        log.warning(
            "%s a batch of one example, from which batch norm cannot compute a variance: it uses the running "
            "statistics there, and leaves them unchanged",
            "one client has" if single == 1 else f"{single} clients have",
        )


def to_score(task: Task, data: Data, clients: Sequence[int] | None = None) -> int:
    """How many of these clients (default: all) to score at once: more if they have few examples each."""
    chosen = slice(None) if clients is None else torch.tensor(clients, dtype=torch.int64)
    total = sum(int(part.sizes[chosen].sum()) for part in (data.train, data.validation, data.test))
    examples = max(1.0, total / (len(data) if clients is None else max(1, len(clients))))
    width = task.layout.width
    cost = examples * (width + _frozen(task)) * (REUSED if _heavy(task) else 1)
    return max(8, min(MOST_SCORED, int(SCORED / cost), int(CELLS / (width + examples * data.x[0].numel()))))


def _frozen(task: Task) -> int:
    """The number of frozen weights that are multiplied: matrices, but not tables of embeddings."""
    tables = {id(one.weight) for one in task.module.modules() if isinstance(one, nn.Embedding)}
    frozen = (one for one in task.module.parameters() if not one.requires_grad and id(one) not in tables)
    return sum(one.numel() for one in frozen if one.dim() > 1)


def _heavy(task: Task) -> list[str]:
    return sorted({type(layer).__name__ for layer in task.module.modules() if isinstance(layer, HEAVY)})


def cut(clients: Sequence[int], sizes: Sequence[int], chunk: int) -> list[list[int]]:
    """Cut clients into chunks of at most `chunk` clients that take about the same time.

    Clients with the most examples come first, then by position, whatever order they are given in, so that the clients
    of a chunk finish at about the same time. There are at least two chunks, so that a second worker has work, and up to
    twice as many as needed if two workers would otherwise wait for each other: of three equal chunks, one would train
    two.
    """
    ordered = sorted(clients, key=lambda client: (-sizes[client], client))
    fewest = -(-len(ordered) // chunk)
    cuts = (_pieces(ordered, sizes, chunk, num) for num in range(max(2, fewest), max(2, 2 * fewest) + 1))
    first = next(cuts)
    if fewest <= 2 or _busy(first, sizes) >= BUSY:
        return first
    return next((parts for parts in cuts if _busy(parts, sizes) >= BUSY), first)


def _pieces(ordered: Sequence[int], sizes: Sequence[int], chunk: int, num: int) -> list[list[int]]:
    """About `num` chunks with equal shares of the examples."""
    share = sum(sizes[client] for client in ordered) / num
    parts: list[list[int]] = []
    done = 0.0
    for client in ordered:
        if not parts or len(parts[-1]) == chunk or done >= share * len(parts):
            parts.append([])
        parts[-1].append(client)
        done += sizes[client]
    return parts


def _busy(parts: Sequence[Sequence[int]], sizes: Sequence[int]) -> float:
    """The share of the time that two workers are busy, if each takes the next chunk when it is free."""
    ends = [0, 0]
    for part in parts:
        ends[ends.index(min(ends))] += sum(sizes[client] for client in part)
    return sum(ends) / (2 * max(max(ends), 1))
