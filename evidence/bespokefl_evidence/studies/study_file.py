"""Store the results of a study as it runs, so that it can be resumed; means, standard errors and claims."""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from bespokefl.core.files import write_text


class Cells(dict[str, Any]):
    """Results by key, kept in a JSON file: cells.json, or part.json for a part of a study."""

    def __init__(self, directory: Path, part: bool) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.file = directory / ("part.json" if part else "cells.json")
        super().__init__(json.loads(self.file.read_text()) if self.file.exists() else {})

    def store(self, key: str, value: Any) -> None:
        self[key] = value
        write_text(self.file, json.dumps(self))


def mean_and_error(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Return the mean and its standard error."""
    array = np.asarray(values)
    return float(array.mean()), float(array.std(ddof=1) / math.sqrt(len(array)))


def print_claims(console: Console, claims: Iterable[tuple[str, bool]], file: Path) -> None:
    for sentence, holds in claims:
        console.print(f"{'holds' if holds else 'DOES NOT HOLD'}: {sentence}")
    console.print(f"All figures: {file}")
