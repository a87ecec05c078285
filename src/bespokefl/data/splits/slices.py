"""Splits that cut classes into slices at uniformly drawn points: quantity skew and subclasses."""

from dataclasses import dataclass

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.data.dataset import Dataset
from bespokefl.data.splits.split import Assignment, Split, check_enough, class_labels, column_values, setting


@dataclass(frozen=True)
class Quantity(Split, kind="quantity"):
    """Clients have very different numbers of examples: the data are cut at uniformly drawn points.

    pFedVEM's quantity disparity (Zhu et al., CVPR 2023, section 4.1, and its code): "we randomly split the training
    set into partitions of different sizes by uniformly sampling slicing indices". Cut points differ, so no client is
    empty.

    With k, a client also sees only k of the classes: a shuffled list of all classes is divided among classes / k
    clients, another one among the next clients, and so on. Every class is cut at the same points into one slice per
    list, and all clients of a list get the same slice of their classes, so they have equally many examples of each.
    Classes of different sizes are cut in the same proportions.

    Parameters
    ----------
    k : int, optional; classes per client, by default all; it must divide the number of classes
    equal : bool, whether all clients have the same size instead
    """

    k: int | None = setting(None, least=1, meaning="classes per client")
    equal: bool = setting(False)

    def assign(self, dataset: Dataset, clients: int, seed: int) -> Assignment:
        rng = self.generator(seed)
        if self.k is None:
            check_enough(self, dataset, clients)
            cuts = cut_points(len(dataset), clients, self.equal, rng)
            owner = np.empty(len(dataset), dtype=np.int64)
            owner[rng.permutation(len(owner))] = np.repeat(np.arange(clients), np.diff(cuts))
            return Assignment.numbered(owner, clients)
        labels, classes = class_labels(self, dataset)
        if classes % self.k:
            divisors = ", ".join(str(one) for one in range(1, classes + 1) if classes % one == 0)
            raise InputError(
                f"k must divide the number of classes, {classes} in {dataset.name!r}, got {self.k}; "
                f"use one of {divisors}"
            )
        per_list = classes // self.k
        lists = -(-clients // per_list)
        orders = np.stack([rng.permutation(classes) for _ in range(lists)])
        held = orders.reshape(lists * per_list, self.k)[:clients]
        slices = np.repeat(np.arange(clients)[:, None] // per_list, self.k, axis=1)
        owner = assign_slices(self, dataset, labels, held, slices, self.equal, rng, dataset.label_names)
        return Assignment.numbered(owner, clients)


@dataclass(frozen=True)
class Subclass(Split, kind="subclass"):
    """Each client sees one subclass of every class: the same label looks different at different clients.

    pFedVEM's concept drift (Zhu et al., CVPR 2023, section 4.1, and its code), on CIFAR-100: the task is to predict
    the superclass; all fish of one client are sharks, all fish of another are trout. A shuffled list of the s
    subclasses of a superclass serves s clients, another list the next s clients; sizes come from uniform cut points,
    as in `quantity`.

    Parameters
    ----------
    column : str, default "subclass"; names the subclass of each example
    equal : bool, whether all clients of a subclass have the same size
    """

    column: str = setting("subclass")
    equal: bool = setting(False)

    def assign(self, dataset: Dataset, clients: int, seed: int) -> Assignment:
        labels, classes = class_labels(self, dataset)
        found, codes = np.unique(self.test_key(dataset), return_inverse=True)
        names = tuple(map(str, found.tolist()))
        superclass = np.zeros(len(found), dtype=np.int64)
        superclass[codes] = labels
        wrong = np.flatnonzero(superclass[codes] != labels)
        if len(wrong):
            raise InputError(
                f"{self} needs subclasses of one class each, but {names[codes[wrong[0]]]!r} is in two classes of "
                f"{dataset.name!r}; label the examples by their superclass"
            )
        rng = self.generator(seed)
        held = np.empty((clients, classes), dtype=np.int64)
        slices = np.empty_like(held)
        for label in range(classes):
            subclasses = np.flatnonzero(superclass == label)
            if len(subclasses) == 0:
                raise InputError(f"{self} needs examples of every class, got none of {dataset.label_names[label]!r}")
            lists = -(-clients // len(subclasses))
            held[:, label] = np.concatenate([rng.permutation(subclasses) for _ in range(lists)])[:clients]
            slices[:, label] = np.arange(clients) // len(subclasses)
        owner = assign_slices(self, dataset, codes, held, slices, self.equal, rng, names)
        return Assignment.numbered(owner, clients)

    def test_key(self, dataset: Dataset) -> np.ndarray:
        """A client is tested on its subclasses."""
        return column_values(self, dataset, self.column, "the subclass of each example")


def cut_points(examples: int, slices: int, equal: bool, rng: np.random.Generator) -> np.ndarray:
    """0, the cuts in ascending order, and `examples`; no slice is empty if there are enough examples."""
    if equal:
        return np.arange(slices + 1) * examples // slices
    inner = np.sort(rng.choice(examples - 1, slices - 1, replace=False)) + 1 if slices > 1 else np.zeros(0)
    return np.concatenate([[0], inner, [examples]]).astype(np.int64)


def assign_slices(
    split: Split,
    dataset: Dataset,
    codes: np.ndarray,
    held: np.ndarray,
    slices: np.ndarray,
    equal: bool,
    rng: np.random.Generator,
    names: tuple[str, ...],
) -> np.ndarray:
    """The owner of each example: client u gets slice slices[u, i] of class held[u, i].

    `codes` are the classes (or subclasses) of the examples, `names` what they are called. Classes with the same
    number of slices are cut at the same points, drawn for the smallest class and scaled to the others.
    """
    sizes = np.bincount(codes, minlength=len(names))
    needed = np.zeros(len(names), dtype=np.int64)
    np.maximum.at(needed, held.ravel(), slices.ravel() + 1)
    short = int((needed - sizes).argmax())
    if needed[short] > sizes[short]:
        raise InputError(
            f"{split} needs an example of {names[short]!r} for each of {needed[short]} clients, got {sizes[short]} in "
            f"{dataset.name!r}; use fewer clients"
        )
    owner = np.full(len(codes), -1, dtype=np.int64)
    drawn: dict[int, tuple[np.ndarray, int]] = {}
    for num in np.unique(needed[needed > 0]).tolist():
        smallest = int(sizes[needed == num].min())
        drawn[num] = cut_points(smallest, num, equal, rng), smallest
    for code in np.flatnonzero(needed).tolist():
        cuts, smallest = drawn[int(needed[code])]
        ends = cuts * sizes[code] // smallest
        pool = rng.permutation(np.flatnonzero(codes == code))
        client, column = np.nonzero(held == code)
        for one, number in zip(client.tolist(), slices[client, column].tolist(), strict=True):
            owner[pool[ends[number] : ends[number + 1]]] = one
    return owner
