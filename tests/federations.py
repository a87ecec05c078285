"""Small federations for tests: clients of different sizes, some smaller than a batch."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bespokefl.core.client_index import ClientIndex
from bespokefl.core.cohort_data import CohortData, Loop
from bespokefl.core.method import Method
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.engines.client import Data
from bespokefl.engines.outcome import Outcome
from bespokefl.engines.settings import Settings
from bespokefl.engines.simulation import Simulation

SIZES = (3, 17, 8, 12, 5, 9)  # training examples: 1 to 5 batches of 4, most with a smaller last batch
NAMES = ("ada", "ben", "cleo", "dan", "eve", "fay")
GROUPS = (7, 2, 7, 7, 2, 2)  # true groups, for methods that use them; the values are arbitrary labels
WIDTH, CLASSES, BATCH = 8, 3, 4


def federation(
    sizes: Sequence[int] = SIZES,
    *,
    seed: int = 0,
    targets: str = "classes",
    dtype: torch.dtype = torch.float32,
    width: int = WIDTH,
) -> Data:
    """Create clients that see shifted classes (or a linear map of their own). The last has no validation data."""
    rng = np.random.default_rng(seed)
    centres = 1.5 * rng.standard_normal((CLASSES, width))
    xs, ys, parts = [], [], {"train": [], "validation": [], "test": []}
    at = 0
    for k, size in enumerate(sizes):
        counts = {"train": size, "validation": 0 if k == len(sizes) - 1 else 4, "test": 5}
        n = sum(counts.values())
        if targets == "classes":
            y = rng.choice(CLASSES, size=n, p=rng.dirichlet(np.ones(CLASSES)))
            x = centres[y] + 0.3 * rng.standard_normal(width) + rng.standard_normal((n, width))
        else:
            x = rng.standard_normal((n, width))
            y = x @ rng.standard_normal(width) + 0.1 * rng.standard_normal(n)
        own = at + rng.permutation(n)
        for part, count in counts.items():
            parts[part].append(own[:count])
            own = own[count:]
        xs.append(x)
        ys.append(y)
        at += n
    labels = np.concatenate(ys)
    return Data(
        x=torch.from_numpy(np.concatenate(xs)).to(dtype),
        y=torch.from_numpy(labels) if targets == "classes" else torch.from_numpy(labels).to(dtype),
        names=tuple(NAMES[k] if k < len(NAMES) else f"z{k:03d}" for k in range(len(sizes))),
        **{part: ClientIndex.of_lists(lists) for part, lists in parts.items()},
        groups=tuple(GROUPS[k % len(GROUPS)] for k in range(len(sizes))),
    )


def planted(groups: Sequence[int], *, size: int = 20, seed: int = 0, dtype: torch.dtype = torch.float64) -> Data:
    """Create clients with the same inputs but permuted labels: group g labels class c as (c + g) mod 3."""
    rng = np.random.default_rng(seed)
    centres = 1.5 * rng.standard_normal((CLASSES, WIDTH))
    kinds = np.arange(3 * size) % CLASSES
    x = np.stack([centres[kinds] + rng.standard_normal((len(kinds), WIDTH)) for _ in groups])
    y = np.stack([(kinds + group) % CLASSES for group in groups])
    lists = np.arange(x.shape[0] * x.shape[1]).reshape(len(groups), 3, size)
    return Data(
        x=torch.from_numpy(x.reshape(-1, WIDTH)).to(dtype),
        y=torch.from_numpy(y.reshape(-1)),
        names=tuple(f"p{k:02d}" for k in range(len(groups))),
        **{part: ClientIndex.of_lists(lists[:, at]) for at, part in enumerate(("train", "validation", "test"))},
        groups=tuple(groups),
    )


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 6), nn.ReLU(), nn.Linear(6, CLASSES))


def line() -> nn.Module:
    """Return a linear map to one number; with the loss "mse" every client's problem is a quadratic."""
    return nn.Linear(WIDTH, 1, bias=False)


def work_of(
    data: Data,
    cohort: Sequence[int] | None = None,
    *,
    batch_size: int = BATCH,
    epochs: int = 1,
    round: int = 1,
    seed: int = 0,
    loop: Loop | None = None,
    **options: Any,
) -> CohortData:
    cohort = range(len(data)) if cohort is None else cohort
    return CohortData(
        x=data.x,
        y=data.y,
        train=data.train.take(cohort),
        validation=data.validation.take(cohort),
        names=tuple(data.names[i] for i in cohort),
        seed=seed,
        round=round,
        batch_size=batch_size,
        epochs=epochs,
        loop=loop,
        **options,
    )


def simulation(
    method: Method,
    data: Data,
    *,
    factory: Callable[[], nn.Module] = mlp,
    loss: str = "cross_entropy",
    start: Callable[[Rows], Rows] | None = None,
    local_blocks: str = "",
    **settings: Any,
) -> Simulation:
    """Create a simulation, by default in this process and with batches of 4."""
    task = Task(factory, loss, dtype=data.x.dtype, local_blocks=local_blocks)
    if start is not None:
        task.start = start(task.start)
    chosen = {"rounds": 2, "workers": 1, "batch_size": BATCH} | settings
    return Simulation(method, task, data, Settings(**chosen), CLASSES if loss == "cross_entropy" else None)


def run(method: Method, data: Data, **options: Any) -> tuple[Simulation, Outcome]:
    made = simulation(method, data, **options)
    return made, made.run()


def random_rows(task: Task, count: int, seed: int = 0, scale: float = 0.3) -> Rows:
    """Return independent random rows."""
    matrix = scale * np.random.default_rng(seed).standard_normal((count, task.layout.width))
    return Rows.from_matrix(task.layout, torch.from_numpy(matrix).to(task.start.dtype))


def apart(found: Rows, expected: Rows) -> float:
    """Return the largest distance between rows, relative to the expected row's norm."""
    found, expected = found.to(dtype=torch.float64), expected.to(dtype=torch.float64)
    size = max(len(found), len(expected))
    distance = (found.expand(size) - expected.expand(size)).matrix().norm(dim=1)  # with running statistics
    return float((distance / expected.matrix().norm(dim=1).clamp(min=1e-12)).max())


def same_bits(found: Any, expected: Any) -> bool:
    """Return whether two rows, tensors or plain values are equal to the last bit (NaN equals NaN)."""
    if isinstance(expected, Rows):
        pairs = zip(found.blocks, expected.blocks, strict=True)
        return found.layout == expected.layout and all(same_bits(a, b) for a, b in pairs)
    if isinstance(expected, Tensor):
        return found.dtype == expected.dtype and torch.equal(found.nan_to_num(7.5), expected.nan_to_num(7.5))
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same_bits(found[name], expected[name]) for name in expected)
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(same_bits(a, b) for a, b in zip(found, expected, strict=True))
    return bool(found == expected) or (found != found and expected != expected)
