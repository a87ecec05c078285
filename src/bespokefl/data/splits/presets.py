"""Splits under the names that papers gave them, with the papers' numbers of clients."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from bespokefl.data.dataset import Dataset
from bespokefl.data.splits.classes import Classes
from bespokefl.data.splits.dirichlet import Dirichlet
from bespokefl.data.splits.fallah import Fallah
from bespokefl.data.splits.iid import IID
from bespokefl.data.splits.lognormal import LogNormal
from bespokefl.data.splits.official_test import OfficialTest
from bespokefl.data.splits.permuted_labels import PermutedLabels
from bespokefl.data.splits.pfedme import PFedMe
from bespokefl.data.splits.quantity import Quantity
from bespokefl.data.splits.rotation import Rotation
from bespokefl.data.splits.sample import Sample
from bespokefl.data.splits.split import Assignment, Split
from bespokefl.data.splits.subclass import Subclass


@dataclass(frozen=True)
class Preset(Split):
    """A split with a name, a number of clients and the papers that use it."""

    kind: ClassVar[str] = "preset"

    name: str
    split: Split
    clients: int
    origin: str

    def assign(self, dataset: Dataset, clients: int, seed: int) -> Assignment:
        return self.split.assign(dataset, clients, seed)

    def test_key(self, dataset: Dataset) -> np.ndarray:
        return self.split.test_key(dataset)

    @property
    def num_clients(self) -> int:
        return self.clients

    @property
    def expanded(self) -> tuple[Split, ...]:
        return self.split.expanded

    def __str__(self) -> str:
        return self.name


PRESETS = {
    one.name: one
    for one in (
        Preset("ds-1", Classes(4), 10, "PersFL, from FedPer"),
        Preset("ds-2", Dirichlet(0.9), 10, "PersFL"),
        Preset("ds-3", LogNormal(2), 10, "PersFL, from pFedMe"),
        Preset("ds-4", Fallah(), 50, "PersFL, from Per-FedAvg"),
        Preset("fedprox-mnist", LogNormal(2), 1000, "FedProx; Self-FL"),
        Preset("pfedme-cifar10", PFedMe(3), 20, "pFedMe; Self-FL"),
        Preset("pfedvem", Quantity(5) + OfficialTest(), 100, "pFedVEM, label skew (with 50, 100 and 200 clients)"),
        Preset(
            "pfedvem-superclass",
            Subclass() + OfficialTest(),
            100,
            "pFedVEM, concept drift (with 50, 100 and 200 clients)",
        ),
        Preset(
            "ucfl-label-shift", Sample(10_000) + Dirichlet(0.4) + OfficialTest(), 20, "User-Centric FL, first scenario"
        ),
        Preset("ucfl-rotation", Dirichlet(8.0) + Rotation(4) + OfficialTest(), 100, "User-Centric FL, second scenario"),
        Preset("ucfl-permuted", IID() + PermutedLabels(4) + OfficialTest(), 20, "User-Centric FL, third scenario"),
    )
}
