"""Data sets and how they are divided among clients.

dataset           the class `Dataset`
clients           the class `Clients`
presplit          pools data that are divided among clients already
split_file        splits as JSON files
split_statistics  how different clients are
export            writes clients in the layouts of other frameworks
splits            the kinds of splits, one module each
sources           data by name: catalogue, downloads, cache, generators
readers           file formats of image and text data sets
tables            CSV, Parquet and other tables
preprocessing     scaling, imputation and vocabularies, fitted on training data
"""

import importlib
import warnings
from typing import Any

from bespokefl.data import splits
from bespokefl.data.clients import Clients
from bespokefl.data.dataset import Dataset
from bespokefl.data.sources.loader import load, names

__all__ = ["Clients", "Dataset", "load", "names", "splits"]

_RENAMED = {"folder": "tables.client_directories", "hugging": "sources.hugging_face"}  # old names, which warn


def __getattr__(name: str) -> Any:
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    new = f"{__name__}.{_RENAMED[name]}"
    warnings.warn(f"{__name__}.{name} is now {new}", FutureWarning, stacklevel=2)
    return importlib.import_module(new)
