"""Which examples belong to which client: lists of different lengths, in two flat tensors."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class ClientIndex:
    """One part (train, validation or test) of every client, as indices into the federation's x and y."""

    indices: Tensor  # int64, the clients' lists end to end
    offsets: Tensor  # int64, len(clients) + 1: client i owns indices[offsets[i]:offsets[i + 1]]

    @classmethod
    def of_lists(cls, lists: Iterable[np.ndarray]) -> "ClientIndex":
        arrays = [np.asarray(one, dtype=np.int64) for one in lists]
        sizes = np.array([len(one) for one in arrays], dtype=np.int64)
        flat = np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int64)
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return cls(torch.from_numpy(flat), torch.from_numpy(offsets))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Tensor:
        """How many examples each client has."""
        return self.offsets.diff()

    def of(self, client: int) -> Tensor:
        """One client's example indices."""
        return self.indices[self._edges[client] : self._edges[client + 1]]

    @cached_property
    def _edges(self) -> list[int]:
        """The offsets as plain numbers: reading them one by one out of a tensor takes longer than the slice."""
        return self.offsets.tolist()

    def take(self, clients: Iterable[int]) -> "ClientIndex":
        """The same for some clients, in the order given; a client may come more than once."""
        chosen, edges = np.fromiter(clients, np.int64), self.offsets.numpy()
        sizes = edges[chosen + 1] - edges[chosen]
        offsets = np.concatenate([np.zeros(1, np.int64), sizes.cumsum()])
        shift = np.repeat(edges[chosen] - offsets[:-1], sizes)  # from the new place to the old one
        return ClientIndex(
            torch.from_numpy(self.indices.numpy()[np.arange(len(shift)) + shift]), torch.from_numpy(offsets)
        )
