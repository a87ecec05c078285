"""The same task from different sources: each client sees one of them (photographs here, sketches there).

Feature skew: the data are several sets put together, and a column names the set of each example. Clients are shared
out to the sources, neighbours together, in equal numbers to within one; a source's examples are dealt to its clients
like cards. The source is the client's true group.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bespokefl.core import rng as chance
from bespokefl.core.errors import InputError
from bespokefl.data.splits import split as base
from bespokefl.data.splits.split import Assignment, Split, numbered

if TYPE_CHECKING:
    from bespokefl.data.dataset import Dataset


@dataclass(frozen=True)
class Domains(Split):
    """One source for each client."""

    kind: ClassVar[str] = "domains"

    column: str = "domain"

    def __post_init__(self) -> None:
        if not isinstance(self.column, str):
            raise InputError(f"column must be the name of a column, got {self.column!r}")

    def assign(self, dataset: "Dataset", clients: int, seed: int) -> Assignment:
        found, domain = np.unique(self._domains(dataset), return_inverse=True)
        if len(found) > clients:
            raise InputError(
                f"{self} needs a client for each of the {len(found)} sources in {dataset.name!r}, got {clients}; "
                "use more clients"
            )
        group = np.arange(clients) * len(found) // clients
        rng = chance.generator(seed, "split", self.kind)
        owner = np.empty(len(domain), dtype=np.int64)
        for one in range(len(found)):
            members, pool = np.flatnonzero(group == one), np.flatnonzero(domain == one)
            if len(pool) < len(members):
                raise InputError(
                    f"{self} needs an example of {str(found[one])!r} for each of its {len(members)} clients, "
                    f"got {len(pool)}; use fewer clients"
                )
            owner[rng.permutation(pool)] = members[np.arange(len(pool)) % len(members)]
        return Assignment(owner, numbered(clients), tuple(group.tolist()))

    def likeness(self, dataset: "Dataset") -> np.ndarray:
        """A client is tested on its source and, there, on its labels."""
        _, domain = np.unique(self._domains(dataset), return_inverse=True)
        alike: np.ndarray = domain * (dataset.classes or 1) + super().likeness(dataset)
        return alike

    def _domains(self, dataset: "Dataset") -> np.ndarray:
        return base.column(self, dataset, self.column, "the source of each example")
