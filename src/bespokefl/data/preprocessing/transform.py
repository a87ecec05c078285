"""Examples made to fit a model by what was learnt from training data: scaled, gaps filled, words numbered.

It is kept with a run, for examples that come later.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bespokefl.core.errors import InputError, listing
from bespokefl.data.clients import Clients
from bespokefl.data.dataset import Array, as_array
from bespokefl.data.preprocessing.feature_sums import Sums, as_example, blocks, by_feature
from bespokefl.data.tables import text
from bespokefl.data.tables.features import WORDS, Features


@dataclass(frozen=True, eq=False)
class Preparation:
    """What was learnt, and how to make other examples fit: `apply`. Text becomes JSON and back without a loss."""

    features: Features
    scale: str = "none"
    missing: str = "refuse"
    pooled: Sums | None = None  # None: nothing is scaled or filled
    names: tuple[str, ...] = ()  # of the clients whose own statistics are kept
    own: Sums | None = None  # (clients, features), where the scale is own
    tokens: int | None = None  # how many numbers words can have, for text

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a prepared example."""
        return self.features.shape

    @property
    def changes(self) -> bool:
        """Whether examples have to be made to fit at all."""
        return self.pooled is not None or self.features.kind in ("table", "text")

    def fit(self, clients: Clients) -> tuple[Clients, "Preparation"]:
        """Clients that came later, with raw examples, made to fit; and this with what their own scale is."""
        if self.scale != "own":
            return replace(clients, x=self.apply(clients.x.numpy())), self
        made, x = self, clients.x.numpy().copy()
        for at, name in enumerate(clients.names):
            parts = [part.of(at).numpy() for part in (clients.train, clients.validation, clients.test)]
            made = made.with_client(name, clients.x.numpy()[parts[0]])
            mine = np.concatenate(parts)
            x[mine] = made.apply(clients.x.numpy()[mine], client=name).numpy()
        return replace(clients, x=torch.from_numpy(x)), made

    def apply(self, x: Array | Sequence[str], client: str | None = None) -> Tensor:
        """Examples as the models take them, from raw ones as `tables.inputs` gives them, from arrays or from texts.

        client: whose they are; needed where every client has its own scale (see `with_client` for a new one).
        """
        if self.features.kind in WORDS:
            return torch.from_numpy(self._words(x))
        raw = as_array(x, "x")
        if raw.dtype.kind not in "fiub":
            raise InputError(f"x must hold numbers, got {raw.dtype.name}")
        if raw.shape[1:] != self.shape:
            raise InputError(f"x must have examples of shape {self.shape}, as in training, got {raw.shape[1:]}")
        raw = raw.astype(np.float32) / np.float32(255) if raw.dtype == np.uint8 else raw.astype(np.float32)
        if self.pooled is None:
            refuse_gaps(raw, self.features)
            return torch.from_numpy(raw)
        own = None if self.scale != "own" else self._own(client)
        return torch.from_numpy(self.fill_and_scale(raw, own, np.zeros(len(raw), dtype=np.int64)))

    def fill_and_scale(self, x: np.ndarray, own: Sums | None, owner: np.ndarray) -> np.ndarray:
        """Filled and scaled; `own` has one row of statistics for each number in `owner`."""
        assert self.pooled is not None
        features, pooled = self.features, self.pooled
        quantities, unseen = features.quantities, features.categories & (pooled.total == 0)
        mean, spread = pooled.mean[None], pooled.spread[None]
        if own is not None:
            spread = np.where(np.isnan(own.mean), spread, own.spread)
            mean = np.where(np.isnan(own.mean), mean, own.mean)
        if self.missing != "mean":
            refuse_gaps(x, features)
        factor = np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 0)
        result = np.empty_like(x)
        for block in blocks(len(x), x):
            values = by_feature(x[block], features)
            whose = owner[block] if own is not None else np.zeros(len(values), dtype=np.int64)
            center = mean[whose][:, None]
            values = np.where(np.isnan(values), center, values)
            if self.scale != "none":
                values = np.where(quantities, (values - center) * factor[whose][:, None], values)
            values[..., unseen] = 0
            result[block] = as_example(values, features)
        return result

    def with_client(self, name: str, x: Array) -> "Preparation":
        """The same with a client that came later, by its own training examples; those of the others stay."""
        if self.scale != "own":
            return self
        raw = as_array(x, "x").astype(np.float32)
        check_enough([name], np.array([len(raw)]))
        sums, kept = Sums.of(raw, self.features), self.own
        assert kept is not None
        stacked = [
            np.concatenate([getattr(kept, one), getattr(sums, one)[None]]) for one in ("count", "total", "squares")
        ]
        return replace(self, names=(*self.names, name), own=Sums(*stacked))

    def to_json(self) -> str:
        """As it is kept with a run."""
        known = {
            "features": self.features.to_dict(),
            "scale": self.scale,
            "missing": self.missing,
            "pooled": None if self.pooled is None else self.pooled.to_dict(),
            "names": list(self.names),
            "own": None if self.own is None else self.own.to_dict(),
            "tokens": self.tokens,
        }
        return json.dumps(known, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, written: str) -> "Preparation":
        """What `to_json` wrote."""
        try:
            known = json.loads(written)
            pooled, own = known["pooled"], known["own"]
            features = Features.from_dict(known["features"])
            return cls(
                features=features,
                scale=known["scale"],
                missing=known["missing"],
                pooled=None if pooled is None else Sums.from_dict(pooled),
                names=tuple(known["names"]),
                own=None if own is None else Sums.from_dict(own).rows(features.channels),
                tokens=known["tokens"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"the preparation of the data is damaged: {error!r}") from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Preparation) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.to_json())

    # -- inside

    def _own(self, client: str | None) -> Sums:
        if client is None:
            raise InputError("these data were scaled by each client's own statistics; name the client")
        if client not in self.names:
            raise InputError(
                f"there are no statistics of client {client!r}, only of {listing(self.names)}; add them with "
                "with_client, from its training examples"
            )
        assert self.own is not None
        at = self.names.index(client)
        return self.own[at : at + 1]

    def _words(self, x: Any) -> np.ndarray:
        if not isinstance(x, Tensor):
            plain = x if isinstance(x, np.ndarray) else np.array(list(x))
            if plain.dtype.kind in "OUT" and plain.ndim == 1:
                found = [str(one) for one in plain]
                return text.encode(found, self.features.columns[0].values, self.shape[0])
        ids = as_array(x, "x")
        if ids.ndim != 2 or ids.dtype.kind not in "iu" or (ids.size and ids.min() < 0):
            raise InputError(f"x must be texts, or numbers of words >= 0 (documents, length), got shape {ids.shape}")
        assert self.tokens is not None
        known = np.where(ids < self.tokens, ids, text.UNKNOWN).astype(np.int64)
        return text.cut(known, self.shape[0])


def check_enough(names: Sequence[str], sizes: np.ndarray) -> None:
    few = [names[at] for at in np.flatnonzero(sizes < 2).tolist()]
    if few:
        raise InputError(
            f"a scale of its own needs at least 2 training examples of every client, got fewer for {listing(few)}; "
            "use the pooled scale"
        )


def refuse_gaps(x: np.ndarray, features: Features) -> None:
    gaps = np.isnan(x).reshape(len(x), -1)
    if gaps.any():
        row, place = (int(one[0]) for one in np.nonzero(gaps))
        name = features.names[place] if features.kind == "table" else f"place {place}"
        raise InputError(
            f"{name!r} lacks {int(gaps[:, place].sum())} values, the first in example {row}; fill them, or prepare the "
            "data with missing mean"
        )
