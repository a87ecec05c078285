"""A data set: examples, their labels and, where known, the client each one belongs to."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bespokefl.core.errors import InputError
from bespokefl.data.splits import Split

if TYPE_CHECKING:
    from bespokefl.data.clients import Clients

Array = np.ndarray | Tensor | Sequence[Any]
Fractions = tuple[float, float, float]  # of the parts

FRACTIONS: Fractions = (0.6, 0.2, 0.2)
PARTS = ("train", "validation", "test")
SOME = 1 << 16  # ids that are hashed at once: as text they take ten times their memory


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Examples first, one label each. Built by `from_arrays`, which checks what it is given."""

    name: str
    x: Tensor  # float32, or int64 for tokens
    y: Tensor  # int64, 0 to classes - 1, or float32 for regression
    client: np.ndarray | None = None  # int64 or text, one id per example
    classes: int | None = None  # None: regression
    label_names: tuple[str, ...] = ()
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)  # more about each example: "subclass", "test", …
    known_fingerprint: str | None = None  # where it was worked out before, with the data's cache

    @classmethod
    def from_arrays(
        cls,
        x: Array,
        y: Array,
        client: Array | None = None,
        name: str = "arrays",
        *,
        tokens: bool = False,
        classes: int | None = None,
        columns: Mapping[str, Array] | None = None,
        place: Callable[[int], str] = "example {}".format,
    ) -> "Dataset":
        """Take numpy arrays, torch tensors or lists.

        x: floats become float32; bytes (uint8 pictures) are divided by 255; other whole numbers become float32, but
        stay whole with `tokens=True`. y: whole numbers, text or booleans are classes, and are recoded to 0, 1, … where
        they are not that already (`label_names` keeps what they were); floats are regression targets. `classes`: the
        labels are numbers below this and stay as they are, even where some do not occur (for a model that was trained
        on all). Arrays that already have the right type are not copied: leave them unchanged. `place` words where an
        example is.
        """
        examples = _examples(as_array(x, "x"), tokens)
        labels, num_classes, label_names = _labels(as_array(y, "y"), classes)
        if len(examples) != len(labels):
            raise InputError(f"x and y must have one entry per example each, got {len(examples)} and {len(labels)}")
        for what, values in (("x", examples), ("y", labels)):
            _check_finite(what, values, place)
        ids = None if client is None else _ids(as_array(client, "client"), len(examples))
        more = {key: _column(key, as_array(column, key), len(examples)) for key, column in (columns or {}).items()}
        return cls(name, _tensor(examples), _tensor(labels), ids, num_classes, label_names, more)

    def split(
        self, split: Split | str, *, clients: int | None = None, seed: int = 0, fractions: Fractions = FRACTIONS
    ) -> "Clients":
        """Clients with a train, validation and test part each; `split` may be text: "dirichlet(alpha=0.4)".

        clients     None: as many as the split's paper has, else twenty
        fractions   of a client's examples that are for training, validation and test
        """
        from bespokefl.data.clients import deal

        return deal(self, split, clients, seed, fractions)

    def with_split(self, path: str | PathLike[str]) -> "Clients":
        """The clients of a split that was saved earlier for these very data."""
        from bespokefl.data.split_file import read

        return read(path, self)

    def take(self, places: np.ndarray) -> "Dataset":
        """Some of the examples, ascending; neighbours are not copied."""
        if len(places) == len(self):
            return self
        together = len(places) > 0 and places[-1] - places[0] + 1 == len(places)
        chosen = slice(int(places[0]), int(places[-1]) + 1) if together else torch.from_numpy(places)
        rows = places if not isinstance(chosen, slice) else chosen
        return replace(
            self,
            x=self.x[chosen],
            y=self.y[chosen],
            client=None if self.client is None else self.client[rows],
            columns={key: column[rows] for key, column in self.columns.items()},
            known_fingerprint=None,
        )

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        kind = "regression" if self.classes is None else f"{self.classes} classes"
        return f"Dataset({self.name}: {len(self)} examples of shape {self.shape}, {kind})"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.x.shape[1:])

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the examples, labels and client ids; the same on every machine."""
        if self.known_fingerprint is not None:
            return self.known_fingerprint
        sha = hashlib.sha256()
        for what, tensor in (("x", self.x), ("y", self.y)):
            array = tensor.contiguous().numpy()
            array = array.astype(array.dtype.newbyteorder("<"), copy=False)
            sha.update(f"{what} {array.dtype.name} {array.shape}\n".encode())
            sha.update(array.data if array.size else b"")
        if self.client is not None:
            sha.update(f"client {'text' if self.client.dtype.kind == 'U' else 'number'}\n".encode())
            for start in range(0, len(self.client), SOME):
                some = map(str, self.client[start : start + SOME].tolist())
                sha.update(("\0" * (start > 0) + "\0".join(some)).encode())
        return sha.hexdigest()


def as_array(values: Array, what: str) -> np.ndarray:
    """Anything like an array as numpy; text that came as objects (pandas) as text."""
    if isinstance(values, Tensor):
        if values.layout != torch.strided:
            raise InputError(f"{what} must be a dense tensor, got {values.layout}; use to_dense()")
        values = values.detach().cpu()
        # numpy has no bfloat16, and all floats become float32 anyway
        return (values.float() if values.is_floating_point() else values).numpy()
    try:
        array = np.asarray(values)
    except (ValueError, TypeError):
        raise InputError(f"{what} must be an array whose rows have equal shapes, got rows that differ") from None
    if array.dtype.kind in "OT" and array.size and all(isinstance(one, str) for one in array.flat):
        array = array.astype(np.str_)
    if array.dtype.kind in "OTV":
        raise InputError(f"{what} must hold numbers or text only, got objects of mixed or other kinds")
    return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array


def _examples(x: np.ndarray, tokens: bool) -> np.ndarray:
    if x.dtype.kind not in "fiub":
        raise InputError(f"x must hold numbers, got {x.dtype.name}")
    if x.ndim == 0 or len(x) == 0:
        raise InputError("x must hold at least one example, got none")
    if x.ndim == 1 or x.size == 0:
        raise InputError(
            f"x must have at least one feature per example, got shape {x.shape}; use x.reshape(-1, 1) for one feature"
        )
    if tokens:
        if x.dtype.kind not in "iu" or x.min() < 0:
            raise InputError(f"tokens must be whole numbers >= 0, got {x.dtype.name} from {x.min()}")
        return x.astype(np.int64, copy=False)
    if x.dtype == np.uint8:
        return x.astype(np.float32) / np.float32(255)
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is reported as that
        return x.astype(np.float32, copy=False)


def _labels(y: np.ndarray, classes: int | None) -> tuple[np.ndarray, int | None, tuple[str, ...]]:
    """Labels, number of classes (None for regression) and the classes' names."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise InputError(f"y must be one label per example, got shape {y.shape}; use argmax for one-hot labels")
    if y.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return y.astype(np.float32, copy=False), None, ()
    if y.dtype.kind not in "iubU":
        raise InputError(f"y must hold whole numbers or text (classes) or floats (regression), got {y.dtype.name}")
    found, codes = np.unique(y, return_inverse=True)
    if classes is not None:
        if y.dtype.kind not in "iu" or found[0] < 0 or found[-1] >= classes:
            raise InputError(f"with classes={classes}, y must hold numbers from 0 to {classes - 1}, got {found[-1]!r}")
        return y.astype(np.int64), classes, tuple(map(str, range(classes)))
    if len(found) == 1:
        raise InputError(f"y must have at least two classes, got only {found[0].item()!r}; there is nothing to learn")
    return codes.astype(np.int64), len(found), tuple(map(str, found.tolist()))


def _ids(client: np.ndarray, examples: int) -> np.ndarray:
    if client.shape != (examples,):
        raise InputError(f"client must be one id for each of the {examples} examples, got shape {client.shape}")
    if client.dtype.kind not in "iuU":
        raise InputError(f"client ids must be whole numbers or text, got {client.dtype.name}; convert them to text")
    if client.dtype.kind != "U":
        return client.astype(np.int64)
    try:
        "".join(np.unique(client).tolist()).encode()
    except UnicodeEncodeError as error:
        wrong = error.object[error.start : error.end]
        raise InputError(f"client ids must be text that can be written as UTF-8, got one with {wrong!r}") from None
    return client


def _column(key: str, values: np.ndarray, examples: int) -> np.ndarray:
    if values.shape != (examples,):
        raise InputError(f"{key} must be one value for each of the {examples} examples, got shape {values.shape}")
    return values


def _check_finite(what: str, values: np.ndarray, place: Callable[[int], str]) -> None:
    if values.dtype.kind != "f":
        return
    finite = np.isfinite(values)
    if finite.all():
        return
    first = tuple(int(i) for i in np.unravel_index(finite.argmin(), finite.shape))
    inside = f" at {list(first[1:])}" if len(first) > 1 else ""
    raise InputError(
        f"{what} must be finite (in float32), got {finite.size - np.count_nonzero(finite)} values that are not, "
        f"the first in {place(first[0])}{inside} ({values[first]}); remove or fill them"
    )


def _tensor(array: np.ndarray) -> Tensor:
    array = np.ascontiguousarray(array)
    return torch.from_numpy(array if array.flags.writeable else array.copy())
