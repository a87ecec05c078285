"""The examples of each client: lists of different lengths, stored in two flat tensors."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

PARTS = ("train", "validation", "test")  # of each client's data


@dataclass(frozen=True)
class ClientIndex:
    """One part (train, validation or test) of all clients' data, as indices into the federation's x and y."""

    indices: Tensor  # the clients' example indices, concatenated; int64
    offsets: Tensor  # int64, one more than clients: client i owns `indices[offsets[i]:offsets[i + 1]]`

    @classmethod
    def of_lists(cls, lists: Iterable[np.ndarray]) -> "ClientIndex":
        """Build an index from one array of example indices per client."""
        arrays = [np.asarray(one, dtype=np.int64) for one in lists]
        sizes = np.array([len(one) for one in arrays], dtype=np.int64)
        flat = np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int64)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return cls(torch.from_numpy(flat), torch.from_numpy(offsets))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Tensor:
        """The number of examples of each client."""
        return self.offsets.diff()

    def of(self, client: int) -> Tensor:
        """The example indices of one client."""
        return self.indices[self._edges[client] : self._edges[client + 1]]

    @cached_property
    def _edges(self) -> list[int]:
        """The offsets as Python integers: reading them one by one from a tensor takes longer than slicing."""
        return self.offsets.tolist()

    def take(self, clients: Iterable[int]) -> "ClientIndex":
        """The index of some clients, in the given order; a client may be repeated."""
        chosen, edges = np.fromiter(clients, np.int64), self.offsets.numpy()
        sizes = edges[chosen + 1] - edges[chosen]
        offsets = np.concatenate([np.zeros(1, np.int64), sizes.cumsum()])
        shift = np.repeat(edges[chosen] - offsets[:-1], sizes)  # from new positions to old ones
        indices = self.indices.numpy()[np.arange(len(shift)) + shift]
        return ClientIndex(torch.from_numpy(indices), torch.from_numpy(offsets))
