"""The client is named in the data (a writer, a person, a hospital): the real case."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.data.splits import split as base
from bespokefl.data.splits.split import Assignment, Split

if TYPE_CHECKING:
    from bespokefl.data.dataset import Dataset


@dataclass(frozen=True)
class ByColumn(Split):
    """One client per id in the data, in the ids' order; a number of clients asked for is not used."""

    kind: ClassVar[str] = "by_column"

    column: str | None = None  # None: the data's own clients

    def __post_init__(self) -> None:
        if self.column is not None and not isinstance(self.column, str):
            raise InputError(f"column must be the name of a column, got {self.column!r}")

    def assign(self, dataset: "Dataset", clients: int, seed: int) -> Assignment:
        ids, owner = np.unique(self.likeness(dataset), return_inverse=True)
        names = tuple(map(str, ids.tolist()))
        if len(set(names)) < len(names):
            raise InputError(f"{self} needs ids that differ as text, got some that do not in {dataset.name!r}")
        return Assignment(owner.astype(np.int64), names)

    def likeness(self, dataset: "Dataset") -> np.ndarray:
        """A test example is a client's own if it has its id."""
        if self.column is not None:
            return base.column(self, dataset, self.column, "the client of each example")
        if dataset.client is None:
            raise InputError(
                f"by_column needs data that name the client of each example, got none in {dataset.name!r}; "
                "give client=ids, or use another split"
            )
        return dataset.client
