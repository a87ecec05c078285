"""Cells: the stored results of studies, one small JSON file each.

A cell is one method with its settings in one scenario of an experiment, with one seed. The file of a cell has all that
determines its result (`settings`, and their hash) and the result itself. Files are never edited by hand: each has a
digest of its content. A cell whose settings have changed since is computed again.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bespokefl.core.errors import InputError
from bespokefl.core.system.files import write_text

SUFFIX = ".json"
KEYS = ("experiment", "scenario", "row", "seed", "settings", "hash", "version", "seconds", "results")


@dataclass(frozen=True)
class Spec:
    """A cell to compute: its place in the study and all that determines its result."""

    experiment: str
    scenario: str
    row: str  # the label of the method with its settings
    seed: int
    settings: dict[str, Any]  # plain JSON values
    priority: int = 1

    @property
    def file(self) -> str:
        """The path of the cell in its directory."""
        return f"{_slug(self.experiment)}/{_slug(self.scenario)}/{_slug(self.row)}.{self.seed}{SUFFIX}"

    @property
    def hash(self) -> str:
        """A short hash of the settings."""
        return _digest(self.settings)[:16]

    def __str__(self) -> str:
        return f"{self.experiment}, {self.scenario}: {self.row}, seed {self.seed}"


@dataclass(frozen=True)
class Cell:
    """A computed cell."""

    experiment: str
    scenario: str
    row: str
    seed: int
    settings: dict[str, Any]
    hash: str
    version: str  # of Bespoke
    seconds: float
    results: dict[str, Any]


class CellStore:
    """The cells in a directory.

    Raises
    ------
    InputError
        When a file is damaged, was edited, or belongs elsewhere.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._read: dict[str, Cell] = {}

    def get(self, spec: Spec) -> Cell | None:
        """Return the cell, or None if it is missing or was computed with other settings."""
        cell = self.find(spec.file)
        return cell if cell is not None and cell.hash == spec.hash else None

    def find(self, file: str) -> Cell | None:
        """Return the cell in a file, whatever its settings."""
        if file not in self._read and (self.directory / file).exists():
            self._read[file] = _load(self.directory / file, file)
        return self._read.get(file)

    def of(self, experiment: str) -> Iterator[Cell]:
        """Iterate over all stored cells of an experiment."""
        for path in sorted((self.directory / _slug(experiment)).glob(f"*/*{SUFFIX}")):
            cell = self.find(path.relative_to(self.directory).as_posix())
            assert cell is not None
            yield cell

    def put(self, spec: Spec, results: dict[str, Any], seconds: float, version: str) -> Cell:
        """Write a cell and return it."""
        content = {
            "experiment": spec.experiment,
            "scenario": spec.scenario,
            "row": spec.row,
            "seed": spec.seed,
            "settings": spec.settings,
            "hash": spec.hash,
            "version": version,
            "seconds": round(seconds, 1),
            "results": results,
        }
        content = json.loads(json.dumps(content))  # as it will be read
        path = self.directory / spec.file
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, _dumps(content | {"digest": _digest(content)}))
        self._read[spec.file] = Cell(**content)
        return self._read[spec.file]


def _load(path: Path, file: str) -> Cell:
    advice = "delete it, and it is computed again"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        digest = content.pop("digest")
        cell = Cell(**content)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(f"the cell {str(path)!r} is damaged ({type(error).__name__}); {advice}.") from None
    if digest != _digest(content):
        raise InputError(f"the cell {str(path)!r} was changed after it was computed; {advice}.")
    own = Spec(cell.experiment, cell.scenario, cell.row, cell.seed, cell.settings)
    if own.file != file or own.hash != cell.hash:
        raise InputError(f"{str(path)!r} holds the cell of {own}, which belongs to {own.file!r}; move or delete it.")
    return cell


def _dumps(content: dict[str, Any]) -> str:
    """One line per key, so that files are compact and their differences readable."""
    lines = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in content.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.=_+-]+", "-", text).strip("-")
