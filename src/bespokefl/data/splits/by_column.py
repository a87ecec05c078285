"""The data name the client of each example, such as a writer or a hospital."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.data.dataset import Dataset
from bespokefl.data.splits.split import Assignment, Split, column_values, setting


@dataclass(frozen=True)
class ByColumn(Split):
    """One client per id in the data, in ascending order of the ids.

    The `clients` argument of `Dataset.split` has no effect.

    Parameters
    ----------
    column : str, optional
        The column that holds the ids; by default the client ids of the data.
    """

    kind: ClassVar[str] = "by_column"

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
                "pass client=ids, or use another split"
            )
        return dataset.client
