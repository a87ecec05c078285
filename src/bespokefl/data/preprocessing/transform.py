"""Applies preprocessing that was fitted on training data to other examples.

A run stores its `Preparation`, for examples that are predicted later.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bespokefl.core.errors import InputError, listing, spell
from bespokefl.data.clients import Clients
from bespokefl.data.dataset import Array, as_array, scale_bytes
from bespokefl.data.preprocessing.feature_sums import FeatureSums, blocks, channels_last, from_channels_last
from bespokefl.data.tables import text
from bespokefl.data.tables.features import WORD_KINDS, Features


@dataclass(frozen=True, eq=False)
class Preparation:
    """Fitted preprocessing; `apply` prepares other examples."""

    features: Features
    scale: str = "none"  # "pooled", "own" or "none": the statistics that scale numbers
    missing: str = "refuse"  # or "mean" or "drop"
    pooled: FeatureSums | None = None  # None: nothing is scaled or filled
    names: tuple[str, ...] = ()  # of the clients in `own`
    own: FeatureSums | None = None  # (clients, features), if the scale is "own"
    tokens: int | None = None  # for text, the number of word ids

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a prepared example."""
        return self.features.shape

    @property
    def changes(self) -> bool:
        """Whether examples have to be converted at all."""
        return self.pooled is not None or self.features.kind in ("table", "text")

    def prepare_clients(self, clients: Clients) -> tuple[Clients, "Preparation"]:
        """Prepare new clients; the result has their own statistics, too, if the scale is "own"."""
        raw = clients.x.numpy()
        if self.scale != "own":
            return replace(clients, x=self.apply(raw)), self
        made, x = self, raw.copy()
        for index, name in enumerate(clients.names):
            parts = [part.of(index).numpy() for part in clients.parts]
            made = made.with_client(name, raw[parts[0]])
            examples = np.concatenate(parts)
            x[examples] = made.apply(raw[examples], client=name).numpy()
        return replace(clients, x=torch.from_numpy(x)), made

    def apply(self, x: Array | Sequence[str], client: str | None = None) -> Tensor:
        """Prepare examples for a model: arrays, texts, or what `tables.inputs` returns.

        `client` is required if every client has its own scale; add a new one by `with_client`.
        """
        if self.features.kind in WORD_KINDS:
            return torch.from_numpy(self._encode_words(x))
        raw = as_array(x, "x")
        if raw.dtype.kind not in "fiub":
            raise InputError(f"x must hold numbers, got {raw.dtype.name}")
        if raw.shape[1:] != self.shape:
            raise InputError(f"x must have examples of shape {self.shape}, as in training, got {raw.shape[1:]}")
        raw = scale_bytes(raw).astype(np.float32)
        if self.pooled is None:
            reject_missing(raw, self.features)
            return torch.from_numpy(raw)
        own = None if self.scale != "own" else self._own_sums(client)
        return torch.from_numpy(self.fill_and_scale(raw, own, np.zeros(len(raw), dtype=np.int64)))

    def fill_and_scale(self, x: np.ndarray, own: FeatureSums | None, owner: np.ndarray) -> np.ndarray:
        """Fill missing values and scale; `own` has one row of statistics for each number in `owner`."""
        if self.missing != "mean":
            reject_missing(x, self.features)
        constants = self._constants(own)
        result = np.empty_like(x)
        for block in blocks(len(x), x):
            values = channels_last(x[block], self.features)
            rows = owner[block] if own is not None else np.zeros(len(values), dtype=np.int64)
            fill, offset, factor = (one[rows][:, None] for one in constants)
            values = (np.where(np.isnan(values), fill, values) - offset) * factor
            result[block] = from_channels_last(values, self.features)
        return result

    def constants(self, client: str | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Return fill, offset and factor of each feature: a prepared value is (value - offset) * factor.

        `fill` replaces missing values if they may be missing. None: numbers are used unchanged.
        """
        if self.pooled is None:
            return None
        fill, offset, factor = self._constants(None if self.scale != "own" else self._own_sums(client))
        return fill[0], offset[0], factor[0]

    def _constants(self, own: FeatureSums | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The same for each row of `own`, or one row for all clients."""
        assert self.pooled is not None
        mean, std = self.pooled.mean[None], self.pooled.std[None]
        if own is not None:
            std = np.where(np.isnan(own.mean), std, own.std)
            mean = np.where(np.isnan(own.mean), mean, own.mean)
        is_scaled = self.features.are("number") & (self.scale != "none")
        is_unseen = self.features.are("category") & (self.pooled.total == 0)
        factor = np.divide(1.0, std, out=np.zeros_like(std), where=std > 0)
        return mean, np.where(is_scaled, mean, 0.0), np.where(is_scaled, factor, np.where(is_unseen, 0.0, 1.0))

    def with_client(self, name: str, x: Array) -> "Preparation":
        """Add the statistics of a new client's training examples, if the scale is "own"."""
        if self.scale != "own":
            return self
        raw = as_array(x, "x").astype(np.float32)
        check_own_scale([name], np.array([len(raw)]))
        sums, kept = FeatureSums.of(raw, self.features), self.own
        assert kept is not None
        pairs = ((kept.count, sums.count), (kept.total, sums.total), (kept.squares, sums.squares))
        own = FeatureSums(*(np.concatenate([old, new[None]]) for old, new in pairs))
        return replace(self, names=(*self.names, name), own=own)

    def to_json(self) -> str:
        """The content of preparation.json; `from_json` restores it exactly."""
        return json.dumps(asdict(self), default=np.ndarray.tolist, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Preparation":
        """Read what `to_json` wrote."""
        try:
            content = json.loads(text)
            pooled, own = content["pooled"], content["own"]
            features = Features.from_dict(content["features"])
            return cls(
                features=features,
                scale=content["scale"],
                missing=content["missing"],
                pooled=None if pooled is None else FeatureSums.from_dict(pooled),
                names=tuple(content["names"]),
                own=None if own is None else FeatureSums.from_dict(own, -1, features.channels),
                tokens=content["tokens"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"the preparation of the data is damaged: {error!r}") from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Preparation) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.to_json())

    def _own_sums(self, client: str | None) -> FeatureSums:
        if client is None:
            raise InputError("these data were scaled by each client's own statistics; name the client")
        if client not in self.names:
            raise InputError(
                f"there are no statistics of client {client!r}, only of {listing(self.names)}; add them with "
                "with_client, from its training examples"
            )
        assert self.own is not None
        index = self.names.index(client)
        return self.own[index : index + 1]

    def _encode_words(self, x: Any) -> np.ndarray:
        if not isinstance(x, Tensor):
            array = x if isinstance(x, np.ndarray) else np.array(list(x))
            if array.dtype.kind in "OUT" and array.ndim == 1:
                documents = [str(one) for one in array]
                return text.encode(documents, self.features.columns[0].values, self.shape[0])
        ids = as_array(x, "x")
        if ids.ndim != 2 or ids.dtype.kind not in "iu" or (ids.size and ids.min() < 0):
            raise InputError(f"x must be texts, or word ids >= 0 of shape (documents, length), got shape {ids.shape}")
        assert self.tokens is not None
        known = np.where(ids < self.tokens, ids, text.UNKNOWN).astype(np.int64)
        return text.pad_or_cut(known, self.shape[0])


def check_own_scale(names: Sequence[str], sizes: np.ndarray) -> None:
    """Check that every client has enough examples for statistics of its own."""
    few = [names[index] for index in np.flatnonzero(sizes < 2).tolist()]
    if few:
        raise InputError(
            f"the scale own needs at least 2 training examples of every client, got fewer for {listing(few)}; "
            "use the pooled scale"
        )


def reject_missing(x: np.ndarray, features: Features) -> None:
    """Check that no value is missing."""
    missing = np.isnan(x).reshape(len(x), -1)
    if missing.any():
        row, column = (int(one[0]) for one in np.nonzero(missing))
        name = features.names[column] if features.kind == "table" else f"position {column}"
        raise InputError(
            f"{name!r} lacks {int(missing[:, column].sum())} values, the first in example {row}; fill them, or train "
            f"with {spell('missing', 'mean')}"
        )
