"""A paper's table, run again: published, ours and the difference, method by method.

A study has columns (splits) and rows (methods with their settings); a cell is one row in one column with one seed, and
is kept on disk when it is done. `part`: the first seed only, and a fifth of the rounds; all else as in the whole.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bespokefl import data as datasets
from bespokefl import methods
from bespokefl.cli import terminal
from bespokefl.data.clients import Clients
from bespokefl.workflows.results import run_directory
from bespokefl.workflows.run.api import run

PART_ROUNDS = 5  # a part has one in so many of the rounds
Score = tuple[float | None, float | None]  # personal, global: mean accuracy in percent


@dataclass(frozen=True)
class Column:
    """Clients that a table has results for."""

    name: str
    split: str
    clients: int | None = None  # None: the split's own number
    fractions: tuple[float, float, float] = (0.6, 0.2, 0.2)


@dataclass(frozen=True)
class Row:
    """A method with its settings, and what the paper says it reaches: by column."""

    label: str
    method: str
    rounds: int | Mapping[str, int]
    published: Mapping[str, Score | float] = field(default_factory=dict)
    set: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)  # of the run, where they differ from the study's

    def rounds_in(self, column: str) -> int:
        return self.rounds if isinstance(self.rounds, int) else self.rounds[column]


@dataclass(frozen=True)
class Study:
    """An experiment of a paper."""

    name: str
    what: str
    source: str  # where in the paper
    data: str
    model: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    seeds: int
    options: Mapping[str, Any]  # of every run
    differs: Sequence[str]  # from the paper, as far as it is known

    def main(self, place: Path, part: bool) -> None:
        """Run what is not done yet, print the table and write it as a page."""
        place.mkdir(parents=True, exist_ok=True)
        dataset = datasets.load(self.data)
        console = Console()
        seeds = range(1 if part else self.seeds)
        for column in self.columns:
            for seed in seeds:
                clients: Clients | None = None
                for row in self.rows:
                    cell = self._cell(place, column, row, seed, part)
                    if cell.exists() and json.loads(cell.read_text()).get("of") == self._setup(column, row, seed, part):
                        continue
                    if clients is None:
                        clients = dataset.split(
                            column.split, clients=column.clients, seed=seed, fractions=column.fractions
                        )
                    told = f"{column.name}: {row.label}, seed {seed}"
                    with terminal.progress_bar(Console(stderr=True), told) as progress:
                        found = self._train(clients, column, row, seed, part, progress)
                    run_directory.write_text(cell, json.dumps(found, indent=1) + "\n")
                    console.print(f"{told}: {_shown((found['personal'], found['global']))}", markup=False)
        cells = self._read(place, part, len(seeds))
        console.print(self.table(cells))
        page = place / "page.md"
        run_directory.write_text(page, self.page(cells, part))
        console.print(f"Written to {page}.", markup=False)

    def _cell(self, place: Path, column: Column, row: Row, seed: int, part: bool) -> Path:
        kind = "part" if part else "whole"
        name = f"{kind}-{column.name}-{row.label}-{seed}".replace(" ", "_").replace("/", "_")
        return place / f"{name}.json"

    def _setup(self, column: Column, row: Row, seed: int, part: bool) -> dict[str, Any]:
        """What a cell is the result of: one of another setup is done again."""
        rounds = row.rounds_in(column.name)
        return {
            "split": [column.split, column.clients, list(column.fractions)],
            "method": [row.method, dict(row.set)],
            "run": {
                "model": self.model,
                "rounds": math.ceil(rounds / PART_ROUNDS) if part else rounds,
                "seed": seed,
                **self.options,
                **row.options,
            },
        }

    def _train(
        self, clients: Clients, column: Column, row: Row, seed: int, part: bool, progress: Any
    ) -> dict[str, Any]:
        setup = self._setup(column, row, seed, part)
        result = run(methods.build(row.method, dict(row.set)), clients, eval_every=0, progress=progress, **setup["run"])
        if result.interrupted:
            raise KeyboardInterrupt
        return {
            "personal": _percent(result.personal["accuracy"]),
            "global": None if result.global_ is None else _percent(result.global_["accuracy"]),
            "std": float(100 * np.nanstd(result.personal["accuracy"], ddof=1)),
            "rounds": result.about["rounds"],
            "hyper": result.hyper,
            "split_hash": result.about["split_hash"],
            "seconds": result.timing["seconds"],
            "of": setup,
        }

    def _read(self, place: Path, part: bool, seeds: int) -> dict[tuple[str, str], list[dict[str, Any]]]:
        return {
            (column.name, row.label): [
                json.loads(self._cell(place, column, row, seed, part).read_text()) for seed in range(seeds)
            ]
            for column in self.columns
            for row in self.rows
        }

    # -- looking at it

    def lines(self, cells: Mapping[tuple[str, str], list[dict[str, Any]]]) -> list[list[str]]:
        """Method, and for each column: published, ours, difference."""
        found = []
        for row in self.rows:
            line = [row.label]
            for column in self.columns:
                own = cells[column.name, row.label]
                ours: Score = (_mean(own, "personal"), _mean(own, "global"))
                paper = row.published.get(column.name)
                wanted: Score = paper if isinstance(paper, tuple) else (paper, None)
                pairs = zip(ours, wanted, strict=True)
                apart = tuple(None if a is None or b is None else a - b for a, b in pairs)
                line += [_shown(wanted), _shown(ours), _shown((apart[0], apart[1]), signed=True)]
            found.append(line)
        return found

    def table(self, cells: Mapping[tuple[str, str], list[dict[str, Any]]]) -> Table:
        table = Table(title=f"{self.what} ({self.source}); mean accuracy in percent", title_justify="left")
        table.add_column("method")
        for column in self.columns:
            for what in ("paper", "ours", "apart"):
                table.add_column(f"{column.name} {what}", justify="right")
        for line in self.lines(cells):
            table.add_row(*line)
        return table

    def page(self, cells: Mapping[tuple[str, str], list[dict[str, Any]]], part: bool) -> str:
        """The table as markdown, with what differs."""
        heads = [f"{column.name} {what}" for column in self.columns for what in ("paper", "ours", "difference")]
        rows = ["| method | " + " | ".join(heads) + " |", "|---" + "|---:" * len(heads) + "|"]
        rows += ["| " + " | ".join(line) + " |" for line in self.lines(cells)]
        rounds = sorted({cell["rounds"] for own in cells.values() for cell in own})
        scope = (
            f"a part: seed 0, a fifth of the rounds ({rounds[0]} to {rounds[-1]})" if part else f"{self.seeds} seeds"
        )
        command = f"bespoke reproduce {self.name}{' --part' if part else ''}"
        seconds = sum(cell["seconds"] for own in cells.values() for cell in own)
        options = ", ".join(f"{key} {value}" for key, value in self.options.items())
        return "\n".join(
            [
                f"## {self.name}",
                "",
                f"{self.what} ({self.source}). `{command}`: {scope}; model {self.model}, {options}. Personal accuracy "
                f"in percent, and the common model's after a slash where there is one; {seconds / 60:.0f} minutes of "
                "training.",
                "",
                *rows,
                "",
                *(f"- {one}" for one in self.differs),
                "",
            ]
        )


def _percent(values: np.ndarray) -> float:
    return float(100 * np.nanmean(values))


def _mean(cells: list[dict[str, Any]], what: str) -> float | None:
    values = [cell[what] for cell in cells if cell[what] is not None]
    return float(np.mean(values)) if values else None


def _shown(score: Score, *, signed: bool = False) -> str:
    texts = ["–" if value is None else f"{value:{'+' if signed else ''}.1f}" for value in score]
    return texts[0] if score[1] is None else "/".join(texts)
