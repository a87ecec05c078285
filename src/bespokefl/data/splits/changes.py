"""Changes to other splits: rotated images, permuted labels, the official test set, a subset of the data."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.data.dataset import Dataset
from bespokefl.data.splits.split import TEST_COLUMN, Assignment, Change, class_labels, setting
from bespokefl.data.splits.transform import UNCHANGED, Transform


@dataclass(frozen=True)
class Rotation(Change, kind="rotation"):
    """Groups of clients with differently rotated images: by 0, 90, 180 or 270 degrees.

    User-Centric FL's covariate shift (Mestoukirdi et al., arXiv:2304.12930, section V-A): "users are clustered in 4
    groups, and at each group images are rotated". It can be added to any split of the labels.

    Parameters
    ----------
    groups : int, at most 4; group g has its images rotated by g · 90° counter-clockwise
    """

    groups: int = setting(least=1, meaning="one for each quarter turn, at most 4")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups > 4:
            raise InputError(f"groups must be at most 4, one for each quarter turn, got {self.groups}")

    def modify(self, dataset: Dataset, assignment: Assignment, test_key: np.ndarray, seed: int) -> Assignment:
        if len(dataset.shape) < 2 or dataset.shape[-1] != dataset.shape[-2]:
            raise InputError(
                f"{self} needs square images to rotate, got examples of shape {dataset.shape} in {dataset.name!r}"
            )
        return transform_groups(self, assignment, [Transform(turns=one) for one in range(self.groups)])


def transform_groups(split: Change, assignment: Assignment, transforms: list[Transform]) -> Assignment:
    """The assignment with one of the transforms for each group of consecutive clients, of equal sizes to within one.

    If the clients are in groups already, each of these is divided, so that the two groupings are crossed.
    """
    clients, groups = len(assignment.names), len(transforms)
    if groups > clients:
        raise InputError(f"{split} needs a client for each of the {groups} groups, got {clients}; use more clients")
    existing = np.zeros(clients, dtype=np.int64) if assignment.groups is None else np.array(assignment.groups)
    group = np.empty(clients, dtype=np.int64)
    for one in np.unique(existing):
        members = np.flatnonzero(existing == one)
        group[members] = np.arange(len(members)) * groups // len(members)
    old = (UNCHANGED,) * clients if assignment.transforms is None else assignment.transforms
    new = tuple(one.then(transforms[index]) for one, index in zip(old, group.tolist(), strict=True))
    _, crossed = np.unique(np.stack([existing, group]), axis=1, return_inverse=True)
    return replace(assignment, transforms=new, groups=tuple(crossed.ravel().tolist()))


@dataclass(frozen=True)
class PermutedLabels(Change, kind="permuted_labels"):
    """Groups of clients with different label permutations: the same example has another label in each group.

    User-Centric FL's concept shift (Mestoukirdi et al., arXiv:2304.12930, section V-A): "for each group we apply a
    different random label permutation", such that two groups agree on no label.

    Parameters
    ----------
    groups : int, at most the number of classes; consecutive clients form groups of equal size
    """

    groups: int = setting(least=1, meaning="one label permutation for each")

    def modify(self, dataset: Dataset, assignment: Assignment, test_key: np.ndarray, seed: int) -> Assignment:
        _, classes = class_labels(self, dataset)
        if self.groups > classes:
            raise InputError(
                f"{self} needs a class for each group, so that no label means the same in two of them, "
                f"got {classes} classes in {dataset.name!r}; use groups={classes} or less"
            )
        rng = self.generator(seed)
        # c -> second[first[c] + shift]: permutations with different shifts differ at every label
        first, second = rng.permutation(classes), rng.permutation(classes)
        shifts = rng.permutation(classes)[: self.groups]
        permutations = [second[(first + shift) % classes] for shift in shifts]
        return transform_groups(self, assignment, [Transform(labels=tuple(one.tolist())) for one in permutations])


@dataclass(frozen=True)
class OfficialTest(Change, kind="official_test"):
    """Clients are tested on the official test set of the data, restricted to what resembles their own examples.

    The official training examples are assigned to clients and divided into train and validation only. A client's test
    examples are the official test examples with the client's labels (pFedVEM, User-Centric FL), subclasses or ids,
    depending on the split; they get the client's rotation and label permutation. Clients share test examples.
    """

    def select(self, dataset: Dataset, chosen: np.ndarray, seed: int) -> np.ndarray:
        remaining: np.ndarray = chosen & ~self._is_test(dataset)
        return remaining

    def modify(self, dataset: Dataset, assignment: Assignment, test_key: np.ndarray, seed: int) -> Assignment:
        _, code = np.unique(test_key, return_inverse=True)
        num_codes = int(code.max()) + 1
        tests = np.flatnonzero(self._is_test(dataset))
        ends = np.bincount(code[tests], minlength=num_codes).cumsum()[:-1]
        by_code = np.split(tests[np.argsort(code[tests], kind="stable")], ends)
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


@dataclass(frozen=True)
class Sample(Change, kind="sample"):
    """Only a random subset of the data is used, as in papers that take ten thousand examples of a larger data set.

    Parameters
    ----------
    examples : int, the size of the subset
    balanced : bool, whether it has equally many examples of each class
    """

    order: ClassVar[int] = 1  # draws from what the other changes leave

    examples: int = setting(least=1, meaning="how many are used")
    balanced: bool = setting(False)

    def select(self, dataset: Dataset, chosen: np.ndarray, seed: int) -> np.ndarray:
        available = self.generator(seed).permutation(np.flatnonzero(chosen))
        kept = np.zeros(len(chosen), dtype=bool)
        if not self.balanced:
            if len(available) < self.examples:
                raise InputError(
                    f"{self} needs that many examples, got {len(available)} in {dataset.name!r}; ask for fewer"
                )
            kept[available[: self.examples]] = True
            return kept
        labels, classes = class_labels(self, dataset)
        each = self.examples // classes
        if each == 0:
            raise InputError(f"{self} needs at least one example for each of {classes} classes; ask for more")
        for label in range(classes):
            pool = available[labels[available] == label]
            if len(pool) < each:
                raise InputError(
                    f"{self} needs {each} examples of each class, got {len(pool)} of class "
                    f"{dataset.label_names[label]!r} in {dataset.name!r}; ask for fewer"
                )
            kept[pool[:each]] = True
        return kept
