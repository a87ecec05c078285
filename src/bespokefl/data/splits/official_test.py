"""Everybody is tested on the data's official test set, as far as it resembles the client's own examples.

The official training examples are handed out, and cut into training and validation alone. A client's test examples
are those of the official test set with the client's labels (pFedVEM, User-Centric FL), subclasses or ids, whatever
the split goes by; they are turned and relabelled as the client's own are. Clients share them.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.data.splits.split import TEST, Assignment, Change

if TYPE_CHECKING:
    from bespokefl.data.dataset import Dataset


@dataclass(frozen=True)
class OfficialTest(Change):
    """Needs data that mark their official test examples."""

    kind: ClassVar[str] = "official_test"

    def before(self, dataset: "Dataset", chosen: np.ndarray, seed: int) -> np.ndarray:
        remaining: np.ndarray = chosen & ~self._marked(dataset)
        return remaining

    def after(self, dataset: "Dataset", assignment: Assignment, likeness: np.ndarray, seed: int) -> Assignment:
        _, code = np.unique(likeness, return_inverse=True)
        kinds = int(code.max()) + 1
        marked = np.flatnonzero(self._marked(dataset))
        by_kind = np.split(
            marked[np.argsort(code[marked], kind="stable")],
            np.bincount(code[marked], minlength=kinds).cumsum()[:-1],
        )
        owned = assignment.owner >= 0
        pairs = np.unique(assignment.owner[owned] * kinds + code[owned])
        seen = np.split(pairs % kinds, np.searchsorted(pairs // kinds, np.arange(1, len(assignment.names))))
        nothing = np.zeros(0, dtype=np.int64)
        tests = tuple(np.sort(np.concatenate([nothing, *(by_kind[one] for one in kind)])) for kind in seen)
        return replace(assignment, tests=tests)

    def _marked(self, dataset: "Dataset") -> np.ndarray:
        marks = dataset.columns.get(TEST)
        if marks is None or marks.dtype != np.bool_:
            raise InputError(
                f"{self} needs data that mark their official test examples (True in a column {TEST!r}), "
                f"got no such column in {dataset.name!r}; leave {self} out, and each client's own examples are cut"
            )
        if not marks.any() or marks.all():
            many = "all" if marks.any() else "none"
            raise InputError(
                f"{self} needs official training and test examples, but {many} in {dataset.name!r} are test"
            )
        return marks
