"""Splits that do not depend on the labels: iid, by the source of an example, or by given client ids."""

from dataclasses import dataclass

import numpy as np

from bespokefl.core.errors import InputError, spell
from bespokefl.data.dataset import Dataset
from bespokefl.data.splits.split import Assignment, Split, check_enough, column_values, setting


@dataclass(frozen=True)
class IID(Split, kind="iid"):
    """Every client gets the same number of examples, drawn uniformly from all: clients that do not differ.

    Sizes differ by at most one.
    """

    def assign(self, dataset: Dataset, clients: int, seed: int) -> Assignment:
        check_enough(self, dataset, clients)
        owner = np.empty(len(dataset), dtype=np.int64)
        owner[self.generator(seed).permutation(len(owner))] = np.arange(len(owner)) % clients
        return Assignment.numbered(owner, clients)


@dataclass(frozen=True)
class Domains(Split, kind="domains"):
    """Each client sees one source of the data, such as photographs or sketches: feature skew.

    `column` names the source of each example. Consecutive clients share a source, sources have equally many clients to
    within one, and a source's examples are divided evenly and randomly among its clients. The source is the client's
    true group.
    """

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


@dataclass(frozen=True)
class ByColumn(Split, kind="by_column"):
    """The data name the client of each example, such as a writer or a hospital.

    Clients are in ascending order of the ids; the `clients` argument of `Dataset.split` has no effect.

    Parameters
    ----------
    column : str, optional; the column of the ids, by default the client ids of the data
    """

    column: str | None = setting(None)

    def assign(self, dataset: Dataset, clients: int, seed: int) -> Assignment:
        ids, owner = np.unique(self.test_key(dataset), return_inverse=True)
        names = tuple(map(str, ids.tolist()))
        if len(set(names)) < len(names):
            raise InputError(f"{self} needs ids that differ as text, got some that do not in {dataset.name!r}")
        return Assignment(owner.astype(np.int64), names)

    def test_key(self, dataset: Dataset) -> np.ndarray:
        """A client is tested on the official test examples with its id."""
        if self.column is not None:
            return column_values(self, dataset, self.column, "the client of each example")
        if dataset.client is None:
            raise InputError(
                f"by_column needs data that name the client of each example, got none in {dataset.name!r}; "
                f"use a table with {spell('client', 'COLUMN')}, data with an array client, or another split"
            )
        return dataset.client
