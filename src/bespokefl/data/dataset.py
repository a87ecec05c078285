"""A data set: examples, their labels and, if known, the client of each example."""

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

if TYPE_CHECKING:
    from bespokefl.data.clients import Clients
    from bespokefl.data.splits import Split

Array = np.ndarray | Tensor | Sequence[Any]
Fractions = tuple[float, float, float]  # of the parts
Locate = Callable[[int], str]  # describes the origin of an example in error messages: "row 7 of 'a.csv'"

FRACTIONS: Fractions = (0.6, 0.2, 0.2)
HASHED_IDS = 1 << 16  # ids that are hashed at once: as text they take ten times their memory


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Examples with one label each; use `Dataset.from_arrays` to create one from arrays.

    Attributes
    ----------
    name : str, shown in results
    x : Tensor, the examples along the first axis, float32 or, for tokens, int64
    y : Tensor, the labels, int64 from 0 to classes - 1, or float32 regression targets
    client : numpy.ndarray, the client id of each example, int64 or text; or None
    classes : int, or None for regression
    label_names : tuple of str, the names of the classes
    columns : mapping of str to numpy.ndarray, more about each example; some splits use "test" or "subclass"
    """

    name: str
    x: Tensor
    y: Tensor
    client: np.ndarray | None = None
    classes: int | None = None
    label_names: tuple[str, ...] = ()
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    known_fingerprint: str | None = None  # computed before and stored with the cached data

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
        locate: Locate = "example {}".format,
    ) -> "Dataset":
        """Create a data set from numpy arrays, torch tensors or lists.

        Arrays that have the right type already are not copied, so do not modify them afterwards.

        Parameters
        ----------
        x : array, converted to float32; bytes (uint8 images) are divided by 255
        y : array; integers, text and booleans are classes, recoded to 0, 1, … if needed (`label_names` keeps the
            original labels), floats are regression targets
        client : array, the client id of each example, integers or text
        name : str, shown in results
        tokens : bool, whether x holds token ids, which stay integers
        classes : int; the labels must be below it and are not recoded, even if some do not occur
        columns : mapping of str to array, more about each example, such as "test" or "subclass"
        locate : callable, describes an example in error messages, given its index

        Examples
        --------
        >>> data = Dataset.from_arrays([[0.0], [1.0], [2.0]], ["no", "yes", "yes"])
        >>> data.label_names
        ('no', 'yes')
        """
        examples = _to_examples(as_array(x, "x"), tokens)
        labels, num_classes, label_names = _to_labels(as_array(y, "y"), classes)
        if len(examples) != len(labels):
            raise InputError(f"x and y must have one entry per example each, got {len(examples)} and {len(labels)}")
        for what, values in (("x", examples), ("y", labels)):
            _check_finite(what, values, locate)
        ids = None if client is None else _to_ids(as_array(client, "client"), len(examples))
        more = {key: as_array(column, key) for key, column in (columns or {}).items()}
        for key, column in more.items():
            _check_one_each(key, column, len(examples), "value")
        return cls(name, _to_tensor(examples), _to_tensor(labels), ids, num_classes, label_names, more)

    def split(
        self, split: "Split | str", *, clients: int | None = None, seed: int = 0, fractions: Fractions = FRACTIONS
    ) -> "Clients":
        """Divide the examples among clients, and each client's examples into train, validation and test.

        Parameters
        ----------
        split : Split or str, such as ``bf.splits.Dirichlet(alpha=0.4)`` or "dirichlet(alpha=0.4)"
        clients : int; by default that of the split's paper, else 20
        seed : int; the same seed gives the same clients on every machine
        fractions : three floats, of a client's examples for train, validation and test
        """
        from bespokefl.data.clients import split_dataset

        return split_dataset(self, split, clients, seed, fractions)

    def with_split(self, path: str | PathLike[str]) -> "Clients":
        """Read a split that `Clients.save_split` wrote for the same data."""
        from bespokefl.data.split_file import read

        return read(path, self)

    def take(self, indices: np.ndarray) -> "Dataset":
        """The examples with these ascending indices; a contiguous range is not copied."""
        if len(indices) == len(self):
            return self
        contiguous = len(indices) > 0 and indices[-1] - indices[0] + 1 == len(indices)
        chosen = slice(int(indices[0]), int(indices[-1]) + 1) if contiguous else torch.from_numpy(indices)
        rows = chosen if isinstance(chosen, slice) else indices
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
        """A SHA-256 hash of examples, labels and client ids, the same on every machine."""
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
            for start in range(0, len(self.client), HASHED_IDS):
                ids = map(str, self.client[start : start + HASHED_IDS].tolist())
                sha.update(("\0" * (start > 0) + "\0".join(ids)).encode())
        return sha.hexdigest()


def as_array(values: Array, what: str) -> np.ndarray:
    """Convert to a numpy array; text stored as objects (pandas) becomes text."""
    if isinstance(values, Tensor):
        if values.layout != torch.strided:
            raise InputError(f"{what} must be a dense tensor, got {values.layout}; use to_dense()")
        values = values.detach().cpu()
        # numpy has no bfloat16, and all floats are converted to float32 anyway
        return (values.float() if values.is_floating_point() else values).numpy()
    try:
        array = np.asarray(values)
    except (ValueError, TypeError):
        raise InputError(f"{what} must be an array whose rows have equal shapes, got rows that differ") from None
    if array.dtype.kind in "OT" and array.size and all(isinstance(one, str) for one in array.flat):
        array = array.astype(np.str_)
    if array.dtype.kind in "OTV":
        raise InputError(f"{what} must hold only numbers or text, got objects of mixed or other types")
    return np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array


def _to_examples(x: np.ndarray, tokens: bool) -> np.ndarray:
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
            raise InputError(f"tokens must be integers >= 0, got {x.dtype.name} from {x.min()}")
        return x.astype(np.int64, copy=False)
    return scale_bytes(x)


def scale_bytes(x: np.ndarray) -> np.ndarray:
    """Numbers as float32; bytes (images) are scaled to the range 0 to 1."""
    if x.dtype == np.uint8:
        return x.astype(np.float32) / np.float32(255)
    with np.errstate(over="ignore"):  # values that are too large become infinite, which is checked later
        return x.astype(np.float32, copy=False)


def _to_labels(y: np.ndarray, classes: int | None) -> tuple[np.ndarray, int | None, tuple[str, ...]]:
    """Labels, number of classes (None for regression) and names of the classes."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise InputError(f"y must be one label per example, got shape {y.shape}; use argmax for one-hot labels")
    if y.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return y.astype(np.float32, copy=False), None, ()
    if y.dtype.kind not in "iubU":
        raise InputError(f"y must hold integers or text (classes) or floats (regression), got {y.dtype.name}")
    found, codes = np.unique(y, return_inverse=True)
    if classes is not None:
        if y.dtype.kind not in "iu" or found[0] < 0 or found[-1] >= classes:
            raise InputError(f"with classes={classes}, y must hold numbers from 0 to {classes - 1}, got {found[-1]!r}")
        return y.astype(np.int64), classes, tuple(map(str, range(classes)))
    if len(found) == 1:
        raise InputError(f"y must have at least two classes, got only {found[0].item()!r}; there is nothing to learn")
    return codes.astype(np.int64), len(found), tuple(map(str, found.tolist()))


def _to_ids(client: np.ndarray, examples: int) -> np.ndarray:
    _check_one_each("client", client, examples, "id")
    if client.dtype.kind not in "iuU":
        raise InputError(f"client ids must be integers or text, got {client.dtype.name}; convert them to text")
    if client.dtype.kind != "U":
        return client.astype(np.int64)
    try:
        "".join(np.unique(client).tolist()).encode()
    except UnicodeEncodeError as error:
        wrong = error.object[error.start : error.end]
        raise InputError(f"client ids must be text that can be encoded as UTF-8, got one with {wrong!r}") from None
    return client


def _check_one_each(key: str, values: np.ndarray, examples: int, what: str) -> None:
    if values.shape != (examples,):
        raise InputError(f"{key} must be one {what} for each of the {examples} examples, got shape {values.shape}")


def _check_finite(what: str, values: np.ndarray, locate: Locate) -> None:
    finite = np.isfinite(values)
    if finite.all():
        return
    first = tuple(int(i) for i in np.unravel_index(finite.argmin(), finite.shape))
    inside = f" at {list(first[1:])}" if len(first) > 1 else ""
    raise InputError(
        f"{what} must be finite (in float32), got {finite.size - np.count_nonzero(finite)} values that are not, "
        f"the first in {locate(first[0])}{inside} ({values[first]}); remove or fill them"
    )


def _to_tensor(array: np.ndarray) -> Tensor:
    array = np.ascontiguousarray(array)
    return torch.from_numpy(array if array.flags.writeable else array.copy())
