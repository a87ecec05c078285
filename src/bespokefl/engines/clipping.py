"""Clipping and noise: what leaves a client is bounded, and blurred, before anybody else sees it.

All that a client uploads in a round is one release: one vector u, of every row and number in it. Rows are taken as
their difference from where they began (the message that came, mostly), positive numbers as their logarithm.

    u ← u · min(1, C / ‖u‖) + N(0, (z C)² I)

For any two data sets of the client the clipped vectors are at most 2 C apart, whatever the method does with the data.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bespokefl.core import rng
from bespokefl.core.cohort_data import CohortData
from bespokefl.core.errors import InputError, listing
from bespokefl.core.method import Message, Method, State
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task

LEAST, STEEPEST = 1e-12, 20.0  # of a positive number, and of its logarithm after noise: so that all stays finite


@dataclass(frozen=True)
class Privacy:
    """What is done to every upload."""

    clip: float | None = None  # C; None: nothing is done
    noise: float | None = None  # z, in units of C; None or 0: no noise
    secret: bool = False  # noise of the operating system, for real clients; else of the seed, which everybody knows

    def check(self, method: Method) -> None:
        """Refuse what cannot be protected, before anybody trains."""
        if self.noise and self.clip is None:
            raise InputError(f"noise needs a clip, as its size is noise times clip, got noise {self.noise:g} alone.")
        if self.clip is not None and method.choices:
            raise InputError(
                f"{method.name} uploads each client's choice ({listing(method.choices)}), which clipping and noise "
                "cannot hide: use another method, or leave clip and noise out."
            )

    def release(self, method: Method, task: Task, message: Message, upload: State, data: CohortData) -> State:
        """The uploads of a cohort as they leave, one row each."""
        if self.clip is None or not upload:
            return upload
        begun = {name: method.origin(task, message, name) for name in upload}
        parts = {name: _vector(method, name, value, begun[name]) for name, value in upload.items()}
        flat = torch.cat(list(parts.values()), dim=1)
        flat *= (self.clip / flat.norm(dim=1, keepdim=True)).clamp(max=1)
        if self.noise:
            flat += self.noise * self.clip * self._normal(flat, data)
        pieces = flat.split([part.shape[1] for part in parts.values()], dim=1)
        return {
            name: _value(method, name, piece, upload[name], begun[name])
            for name, piece in zip(parts, pieces, strict=True)
        }

    def _normal(self, like: Tensor, data: CohortData) -> Tensor:
        """Noise of each client's own, so that it matters to nobody who else is in the cohort."""
        width = like.shape[1]
        rows = [
            rng.secret_normal(width) if self.secret else data.generator("upload", k).standard_normal(width)
            for k in range(len(data))
        ]
        return torch.from_numpy(np.stack(rows)).to(like)


def _vector(method: Method, name: str, value: Rows | Tensor, begun: Rows | float | None) -> Tensor:
    """What is released of a value, (K, columns), in double precision."""
    if isinstance(value, Rows):
        flat = value.matrix().double()
        return flat - begun.matrix().double() if isinstance(begun, Rows) else flat
    if not value.is_floating_point():
        raise InputError(
            f"{method.name} uploads {name}, whole numbers, which noise cannot be added to: leave clip and noise out."
        )
    numbers = value.double().reshape(len(value), -1)
    if name in method.positive:
        numbers = (numbers.clamp(min=LEAST) / _typical(begun)).log()
    return numbers.nan_to_num(0.0)


def _value(method: Method, name: str, piece: Tensor, was: Rows | Tensor, begun: Rows | float | None) -> Rows | Tensor:
    """A piece of the released vector as the server expects it."""
    if isinstance(was, Rows):
        whole = piece + begun.matrix().double() if isinstance(begun, Rows) else piece
        return Rows.from_matrix(was.layout, whole).to(dtype=was.dtype).clone()
    if name in method.positive:
        piece = piece.clamp(-STEEPEST, STEEPEST).exp() * _typical(begun)
    # Undefined stays so: that it is follows from how often a client took part or how many examples it has.
    return piece.reshape(was.shape).to(was).masked_fill(was.isnan(), torch.nan)


def _typical(begun: Rows | float | None) -> float:
    return begun if isinstance(begun, float) else 1.0
