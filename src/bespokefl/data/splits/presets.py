"""Splits under the names that papers gave them, with the papers' numbers of clients."""

from dataclasses import dataclass

import numpy as np

from bespokefl.data.dataset import Dataset
from bespokefl.data.splits.changes import OfficialTest, PermutedLabels, Rotation, Sample
from bespokefl.data.splits.classes import Classes
from bespokefl.data.splits.label_free import IID
from bespokefl.data.splits.label_skew import Dirichlet, Fallah, LogNormal, PFedMe
from bespokefl.data.splits.slices import Quantity, Subclass
from bespokefl.data.splits.split import Assignment, Split


@dataclass(frozen=True)
class Preset(Split, kind="preset"):
    """A split with a name, a number of clients and the papers that use it."""

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
