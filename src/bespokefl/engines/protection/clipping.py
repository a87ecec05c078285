"""Clipping and noise: an upload is bounded and perturbed before it leaves the client.

Everything that a client uploads in a round is one release: one vector u of all rows and numbers. Rows enter as their
difference from a reference that both sides know (mostly the message), numbers that cannot be negative as logarithms.

    u ← u · min(1, C / ‖u‖) + N(0, (z C)² I)

For any two data sets of a client the clipped vectors are at most 2 C apart, whatever the method computes from the data.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bespokefl.core import rng
from bespokefl.core.cohort_data import CohortData
from bespokefl.core.errors import InputError, listing, spell
from bespokefl.core.method import Message, Method, State
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.core.uploads import Choice, Declaration, Declarations, Reference, Scalar, Weights

LEAST_POSITIVE = 1e-12  # numbers on a logarithmic scale are at least this
LARGEST_LOGARITHM = 20.0  # after noise, so that numbers stay finite


@dataclass(frozen=True)
class Privacy:
    """How uploads are protected."""

    clip: float | None = None  # C; None leaves uploads unchanged
    noise: float | None = None  # z, in units of C; None or 0 for no noise
    secret: bool = False  # whether noise comes from the operating system, as for deployed clients, not from the seed

    def check(self, method: Method, start: Rows | None = None) -> None:
        """Raise an InputError if the settings are incomplete or cannot protect the method's uploads of such a model."""
        if self.noise and self.clip is None:
            raise InputError(f"noise needs a clip, as its size is noise times clip, got noise {self.noise:g} alone.")
        if self.clip is None:
            return
        declared = method.upload(Message())
        if self.noise and start is not None:
            statistics = start.layout.statistics if declared is None else uploaded_statistics(declared, start)
            if statistics:
                raise InputError(
                    f"{method.name} uploads running statistics ({listing(statistics)}), which noise would make "
                    "useless, as a variance may become negative: use GroupNorm, keep them at the clients with "
                    f"{spell('local_blocks')} norm, or leave noise out."
                )
        choices = [name for name, one in (declared or {}).items() if isinstance(one, Choice)]
        if choices:
            raise InputError(
                f"{method.name} uploads each client's choice ({listing(choices)}), which clipping and noise "
                "cannot hide: use another method, or leave clip and noise out."
            )

    def release(self, method: Method, task: Task, message: Message, upload: State, data: CohortData) -> State:
        """Return the protected uploads of a cohort."""
        if self.clip is None or not upload:
            return upload
        declared = method.upload(message) or {}
        kinds = {name: (declared.get(name), reference_of(declared.get(name), name, task, message)) for name in upload}
        vectors = {name: _vector(method, name, value, *kinds[name]) for name, value in upload.items()}
        flat = torch.cat([vector.to(task.start.device) for vector in vectors.values()], dim=1)
        flat *= (self.clip / flat.norm(dim=1, keepdim=True)).clamp(max=1)
        if self.noise:
            flat += self.noise * self.clip * self._normal(flat, data)
        pieces = flat.split([vector.shape[1] for vector in vectors.values()], dim=1)
        return {name: _value(piece, upload[name], *kinds[name]) for name, piece in zip(vectors, pieces, strict=True)}

    def _normal(self, like: Tensor, data: CohortData) -> Tensor:
        """Noise per client, which does not depend on the other clients of the cohort."""
        width = like.shape[1]
        rows = [
            rng.secret_normal(width) if self.secret else data.generator("upload", k).standard_normal(width)
            for k in range(len(data))
        ]
        return torch.from_numpy(np.stack(rows)).to(like)


def uploaded_statistics(declared: Declarations, start: Rows) -> tuple[str, ...]:
    """The running statistics among the uploaded columns of a model with these initial weights."""
    found = [one.columns(start).layout.statistics for one in declared.values() if isinstance(one, Weights)]
    return tuple(dict.fromkeys(name for own in found for name in own))


def reference_of(declared: Declaration | None, name: str, task: Task, message: Message) -> Rows | None:
    """The rows from which clipping measures an upload of this name; None for zero."""
    reference = declared.reference if isinstance(declared, Weights) else Reference.SAME_NAME
    if isinstance(reference, Rows):
        return reference
    if reference is Reference.INITIAL_WEIGHTS:
        return declared.columns(task.start) if isinstance(declared, Weights) else task.start
    if reference is Reference.ZERO or (reference is Reference.SAME_NAME and name not in message):
        return None
    found = message[reference if isinstance(reference, str) else name]
    return found if isinstance(found, Rows) else None


def _vector(
    method: Method, name: str, value: Rows | Tensor, declared: Declaration | None, reference: Rows | None
) -> Tensor:
    """The columns of a value in the released vector, (K, columns), in double precision."""
    if isinstance(value, Rows):
        flat = value.matrix().double()
        return flat if reference is None else flat - reference.matrix().double()
    if not value.is_floating_point():
        raise InputError(
            f"{method.name} uploads {name}, integers, to which noise cannot be added: leave clip and noise out."
        )
    numbers = value.double().reshape(len(value), -1)
    if isinstance(declared, Scalar) and declared.is_logarithmic:
        numbers = (numbers.clamp(min=LEAST_POSITIVE) / declared.typical).log()
    return numbers.nan_to_num(0.0)


def _value(
    columns: Tensor, before: Rows | Tensor, declared: Declaration | None, reference: Rows | None
) -> Rows | Tensor:
    """The value that the server expects, from its columns of the released vector."""
    if isinstance(before, Rows):
        whole = columns if reference is None else columns + reference.matrix().double()
        return Rows.from_matrix(before.layout, whole).to(dtype=before.dtype).clone()
    if isinstance(declared, Scalar) and declared.is_logarithmic:
        columns = columns.clamp(-LARGEST_LOGARITHM, LARGEST_LOGARITHM).exp() * declared.typical
    elif isinstance(declared, Scalar):
        columns = columns.clamp(declared.minimum, declared.maximum)
    # An undefined value stays undefined: it reveals only how often a client took part, or its number of examples.
    return columns.reshape(before.shape).to(before).masked_fill(before.isnan(), torch.nan)
