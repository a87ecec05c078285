"""A small data set with a name, for tests of what happens to named sets."""

from pathlib import Path

import numpy as np
import pytest

from bespokefl.data.readers import idx
from bespokefl.data.sources import cache, catalogue
from bespokefl.data.sources.catalogue import DatasetInfo
from tests.data.readers import test_idx


def arrays(folder: Path) -> dict[str, np.ndarray]:
    """Five examples for training, three for test, 2 × 3, written into the folder as IDX files."""
    test_idx.write_set(folder)
    found = idx.read_directory(folder)
    assert found is not None
    return {key: array if key != "y" else array.astype(np.uint8) for key, array in found.items()}


def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **changes: object) -> DatasetInfo:
    """The set "mini", known to the catalogue, with an empty data folder; nothing else can be asked for it."""
    monkeypatch.setenv("BESPOKE_DATA", str(tmp_path / "data"))
    contents = cache.content_hash(arrays(tmp_path / "files"))
    known: dict[str, object] = {
        "name": "mini",
        "description": "Small images.",
        "shape": (1, 2, 3),
        "label_names": ("a", "b", "c"),
        "reader": idx.read_directory,
        "counts": (5, 3),
        "hash": contents,
        "npz": True,
        "how_to_get": "draw it",
        "expected_files": "four IDX files",
        "licence": "none",
        "citation": "A. Nobody, 2020",
    }
    made = DatasetInfo(**{**known, **changes})  # type: ignore[arg-type]
    monkeypatch.setitem(catalogue.CATALOGUE, made.name, made)
    return made
