"""Each client sees one source of the data, such as photographs or sketches: feature skew.

A column names the source of each example. Consecutive clients share a source, sources have equally many clients to
within one, and a source's examples are divided evenly and randomly among its clients. The source is the client's true
group.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.data.dataset import Dataset
from bespokefl.data.splits.split import Assignment, Split, column_values, setting


@dataclass(frozen=True)
class Domains(Split):
    """One source for each client.

    Parameters
    ----------
    column : str, default "domain"
        The column that names the source of each example.
    """

    kind: ClassVar[str] = "domains"

    column: str = setting("domain")

    def assign(self, dataset: Dataset, clients: int, seed: int) -> Assignment:
        found, domain = np.unique(self._domains(dataset), return_inverse=True)
        if len(found) > clients:
            raise InputError(
                f"{self} needs a client for each of the {len(found)} sources in {dataset.name!r}, got {clients}; "
                "use more clients"
            )
        group = np.arange(clients) * len(found) // clients
        rng = self.generator(seed)
        owner = np.empty(len(domain), dtype=np.int64)
        for one in range(len(found)):
            members, pool = np.flatnonzero(group == one), np.flatnonzero(domain == one)
            if len(pool) < len(members):
                raise InputError(
                    f"{self} needs an example of {str(found[one])!r} for each of its {len(members)} clients, "
                    f"got {len(pool)}; use fewer clients"
                )
            owner[rng.permutation(pool)] = members[np.arange(len(pool)) % len(members)]
        return Assignment.numbered(owner, clients, tuple(group.tolist()))

    def test_key(self, dataset: Dataset) -> np.ndarray:
        """A client is tested on its source and, there, on its labels."""
        _, domain = np.unique(self._domains(dataset), return_inverse=True)
        key: np.ndarray = domain * (dataset.classes or 1) + super().test_key(dataset)
        return key

    def _domains(self, dataset: Dataset) -> np.ndarray:
        return column_values(self, dataset, self.column, "the source of each example")
