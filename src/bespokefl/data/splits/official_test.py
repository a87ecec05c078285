"""Clients are tested on the official test set of the data, restricted to what resembles their own examples.

The official training examples are assigned to clients and divided into train and validation only. A client's test
examples are the official test examples with the client's labels (pFedVEM, User-Centric FL), subclasses or ids,
depending on the split; they get the client's rotation and label permutation. Clients share test examples.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.data.dataset import Dataset
from bespokefl.data.splits.split import TEST_COLUMN, Assignment, Change


@dataclass(frozen=True)
class OfficialTest(Change):
    """Test on the official test set; needs data with a boolean column "test"."""

    kind: ClassVar[str] = "official_test"

    def select(self, dataset: Dataset, chosen: np.ndarray, seed: int) -> np.ndarray:
        remaining: np.ndarray = chosen & ~self._is_test(dataset)
        return remaining

    def modify(self, dataset: Dataset, assignment: Assignment, test_key: np.ndarray, seed: int) -> Assignment:
        _, code = np.unique(test_key, return_inverse=True)
        num_codes = int(code.max()) + 1
        tests = np.flatnonzero(self._is_test(dataset))
        by_code = np.split(
            tests[np.argsort(code[tests], kind="stable")],
            np.bincount(code[tests], minlength=num_codes).cumsum()[:-1],
        )
        owned = assignment.owner >= 0
        pairs = np.unique(assignment.owner[owned] * num_codes + code[owned])
        codes_of = np.split(pairs % num_codes, np.searchsorted(pairs // num_codes, np.arange(1, len(assignment.names))))
        empty = np.zeros(0, dtype=np.int64)
        own_tests = tuple(np.sort(np.concatenate([empty, *(by_code[one] for one in codes)])) for codes in codes_of)
        return replace(assignment, tests=own_tests)

    def _is_test(self, dataset: Dataset) -> np.ndarray:
        marks = dataset.columns.get(TEST_COLUMN)
        if marks is None or marks.dtype != np.bool_:
            raise InputError(
                f"{self} needs data that mark their official test examples (True in a column {TEST_COLUMN!r}), "
                f"got no such column in {dataset.name!r}; leave {self} out to test on each client's own examples"
            )
        if not marks.any() or marks.all():
            raise InputError(
                f"{self} needs official training and test examples, but {'all' if marks.any() else 'none'} in "
                f"{dataset.name!r} are test examples"
            )
        return marks
