"""The client is named in the data (a writer, a person, a hospital): the real case."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.data.splits.split import Assignment, Split

if TYPE_CHECKING:
    from bespokefl.data.dataset import Dataset


@dataclass(frozen=True)
class ByColumn(Split):
    """One client per id in the data, in the ids' order; a number of clients asked for is not used."""

    kind: ClassVar[str] = "by_column"

    def assign(self, dataset: "Dataset", clients: int, seed: int) -> Assignment:
        if dataset.client is None:
            raise InputError(
                f"by_column needs data that name the client of each example, got none in {dataset.name!r}; "
                "give client=ids, or use another split"
            )
        ids, owner = np.unique(dataset.client, return_inverse=True)
        return Assignment(owner.astype(np.int64), tuple(map(str, ids.tolist())))
