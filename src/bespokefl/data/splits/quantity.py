"""Clients have very different numbers of examples: the data are cut at uniformly drawn points.

pFedVEM's quantity disparity (Zhu et al., CVPR 2023, section 4.1, and its code): "we randomly split the training set
into partitions of different sizes by uniformly sampling slicing indices". Cut points differ, so no client is empty.

With k, a client also sees only k of the classes: a shuffled list of all classes is divided among classes / k clients,
another one among the next clients, and so on. Every class is cut at the same points into one slice per list, and all
clients of a list get the same slice of their classes, so they have equally many examples of each. Classes of
different sizes are cut in the same proportions.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.data.dataset import Dataset
from bespokefl.data.splits.allocation import assign_slices, cut_points
from bespokefl.data.splits.split import Assignment, Split, check_enough, class_labels, setting


@dataclass(frozen=True)
class Quantity(Split):
    """Client sizes from uniformly drawn cut points.

    Parameters
    ----------
    k : int, optional
        Classes per client; it must divide the number of classes. By default all.
    equal : bool
        Whether all clients have the same size instead.
    """

    kind: ClassVar[str] = "quantity"

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
