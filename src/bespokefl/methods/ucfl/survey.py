"""UCFL's survey before training: each client's gradient at the initial weights, and its noise over batches (10)."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from bespokefl.core.client_index import ClientIndex
from bespokefl.core.cohort_data import BatchSchedule, CohortData
from bespokefl.core.errors import InputError
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.methods.ucfl.similarity import Array, Matrix, as_array

PURPOSE = "survey"  # of random draws


def survey(task: Task, start: Rows, data: CohortData, num_batches: int, size: int | None) -> tuple[Rows, Tensor]:
    """Each client's g_i over all its data, and σ_i² over a random partition into batches."""
    g = task.sweep_gradient(start, data.sweep("train"))
    partitions = [_partition(data, row, num_batches, size) for row in range(len(data))]
    counts = [len(batches) for batches in partitions]
    tag = [data.tag(row, PURPOSE) for row in range(len(data))]

    def batch_gradients(k: int) -> Rows:
        own = ClientIndex.of_lists([batches[k] if k < len(batches) else np.zeros(0) for batches in partitions])
        return task.sweep_gradient(start, BatchSchedule.sweep(data.x, data.y, own, tag=tag))

    return g, torch.from_numpy(gradient_noise((batch_gradients(k) for k in range(max(counts))), g, counts))


def gradient_noise(batches: Matrix | Iterable[Matrix], mean: Matrix, counts: Matrix | None = None) -> Array:
    """σ² = (1/K) Σ_k ‖g^k − g‖² (10); NaN (undefined) for fewer than two batches.

    Parameters
    ----------
    batches : matrix or iterable of matrices
        The gradients of the batches: a (K, D) matrix for one client, or K matrices (C, D) for C clients.
    mean : array
        The gradient over all data: (D,) for one client, (C, D) for several.
    counts : array or None
        How many of the batches each client has, if not all of them.
    """
    g = as_array(mean)
    each = as_array(batches) if isinstance(batches, Rows) else batches
    squares = np.array([np.square(as_array(batch) - g).sum(-1) for batch in each]).reshape(-1, *g.shape[:-1])
    num = np.broadcast_to(len(squares) if counts is None else as_array(counts), g.shape[:-1])
    inside = np.arange(len(squares)).reshape(-1, *[1] * num.ndim) < num
    return np.where(num < 2, np.nan, (squares * inside).sum(0) / np.maximum(num, 1))[()]


def _partition(data: CohortData, row: int, num_batches: int, size: int | None) -> Array:
    """A random partition of a client's training examples, (K, n_k); the remainder is dropped."""
    own = data.train.of(row).numpy()
    size = size or max(1, len(own) // num_batches)  # n_k
    if len(own) < size:
        raise InputError(
            f"client {data.names[row]!r} has {len(own)} training examples, fewer than the {size} of a survey batch: "
            "use a smaller survey_size, or none."
        )
    num = len(own) // size  # K
    return data.generator(PURPOSE, row).permutation(own)[: num * size].reshape(num, size)
