"""Clients of very different sizes: the data are cut at points drawn uniformly.

pFedVEM's quantity disparity (Zhu et al., CVPR 2023, section 4.1, and its code): "we randomly split the training set
into partitions of different sizes by uniformly sampling slicing indices". No two cuts fall together, so everybody
gets something.

With k, clients also see only k of the classes: a shuffled list of all classes is divided among classes / k clients,
the next such list among the next clients, and so on. Every class is cut at the same points, one slice for each list,
and all clients of a list get the same slice of their classes: they have equally many examples of each. Classes of
different sizes are cut in the same proportions.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bespokefl.core import rng as chance
from bespokefl.core.errors import InputError
from bespokefl.data.splits.split import Assignment, Split, check_enough, class_labels, numbered, truth, whole

if TYPE_CHECKING:
    from bespokefl.data.dataset import Dataset


@dataclass(frozen=True)
class Quantity(Split):
    """Sizes from uniform cut points, or all the same with `equal`; k of the classes, or all."""

    kind: ClassVar[str] = "quantity"

    k: int | None = None
    equal: bool = False

    def __post_init__(self) -> None:
        if self.k is not None:
            object.__setattr__(self, "k", whole("k", self.k, 1, "classes per client"))
        truth("equal", self.equal)

    def assign(self, dataset: "Dataset", clients: int, seed: int) -> Assignment:
        rng = chance.generator(seed, "split", self.kind)
        if self.k is None:
            check_enough(self, dataset, clients)
            cuts = cut_points(len(dataset), clients, self.equal, rng)
            owner = np.empty(len(dataset), dtype=np.int64)
            owner[rng.permutation(len(owner))] = np.repeat(np.arange(clients), np.diff(cuts))
            return Assignment(owner, numbered(clients))
        labels, classes = class_labels(self, dataset)
        if classes % self.k:
            raise InputError(
                f"k must divide the number of classes, {classes} in {dataset.name!r}, so that lists of them can be "
                f"shared out, got {self.k}; use one of {_divisors(classes)}"
            )
        per_list = classes // self.k
        lists = -(-clients // per_list)
        orders = np.stack([rng.permutation(classes) for _ in range(lists)])
        held = orders.reshape(lists * per_list, self.k)[:clients]
        slices = np.repeat(np.arange(clients)[:, None] // per_list, self.k, axis=1)
        owner = deal_slices(self, dataset, labels, held, slices, self.equal, rng, dataset.label_names)
        return Assignment(owner, numbered(clients))


def cut_points(examples: int, slices: int, equal: bool, rng: np.random.Generator) -> np.ndarray:
    """0, the cuts in ascending order, and the end; no slice is empty if there are as many examples."""
    if equal:
        return np.arange(slices + 1) * examples // slices
    inner = np.sort(rng.choice(examples - 1, slices - 1, replace=False)) + 1 if slices > 1 else np.zeros(0)
    return np.concatenate([[0], inner, [examples]]).astype(np.int64)


def deal_slices(
    split: Split,
    dataset: "Dataset",
    kinds: np.ndarray,
    held: np.ndarray,
    slices: np.ndarray,
    equal: bool,
    rng: np.random.Generator,
    names: tuple[str, ...],
) -> np.ndarray:
    """Each example's owner: of its kinds (`held`) every client gets the slice with its number; both clients × k.

    Kinds in as many slices are cut at the same points, drawn for the smallest and scaled to the others.
    """
    pools = np.bincount(kinds, minlength=len(names))
    needed = np.zeros(len(names), dtype=np.int64)
    np.maximum.at(needed, held.ravel(), slices.ravel() + 1)
    short = int((needed - pools).argmax())
    if needed[short] > pools[short]:
        raise InputError(
            f"{split} needs an example of {names[short]!r} for each of {needed[short]} clients, got {pools[short]} in "
            f"{dataset.name!r}; use fewer clients"
        )
    owner = np.full(len(kinds), -1, dtype=np.int64)
    drawn: dict[int, tuple[np.ndarray, int]] = {}
    for num in np.unique(needed[needed > 0]).tolist():
        smallest = int(pools[needed == num].min())
        drawn[num] = cut_points(smallest, num, equal, rng), smallest
    for kind in np.flatnonzero(needed).tolist():
        cuts, smallest = drawn[int(needed[kind])]
        ends = cuts * pools[kind] // smallest
        pool = rng.permutation(np.flatnonzero(kinds == kind))
        client, place = np.nonzero(held == kind)
        for one, number in zip(client.tolist(), slices[client, place].tolist(), strict=True):
            owner[pool[ends[number] : ends[number + 1]]] = one
    return owner


def _divisors(number: int) -> str:
    return ", ".join(str(one) for one in range(1, number + 1) if number % one == 0)
