"""Reproduce a table of a paper: published and own results, and their difference, method by method.

A table has columns (splits) and rows (methods with their settings); papers/NAME.toml holds them with the published
results. A cell is one row in one column with one seed, and is stored on disk when it is done. A part of a table has the
first seed only and a fifth of the rounds.
"""

import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress as Bar
from rich.table import Table

from bespokefl import data as datasets
from bespokefl import methods
from bespokefl.core.files import write_text
from bespokefl.data.clients import Clients
from bespokefl.data.dataset import Dataset
from bespokefl.engines.outcome import Report
from bespokefl.workflows.run.api import run

PART_ROUNDS = 5  # a part has the rounds divided by this
Score = tuple[float | None, float | None]  # personal, global: mean accuracy in percent


@dataclass(frozen=True)
class Column:
    """Clients that the table has results for."""

    name: str
    split: str
    clients: int | None = None  # None: the default of the split
    fractions: Sequence[float] = (0.6, 0.2, 0.2)  # of train, validation and test


@dataclass(frozen=True)
class Row:
    """A method with its settings, and the published results by column."""

    label: str
    method: str
    rounds: int | Mapping[str, int]
    published: Mapping[str, float] = field(default_factory=dict)  # personal accuracy in percent
    published_global: Mapping[str, float] = field(default_factory=dict)
    set: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)  # settings that differ from those of the table


Results = Mapping[tuple[str, str], list[dict[str, Any]]]  # by column and row: one result per seed


@dataclass(frozen=True)
class PaperTable:
    """An experiment of a paper."""

    name: str
    title: str
    source: str  # where in the paper
    data: str
    model: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    seeds: int
    options: Mapping[str, Any]  # settings of every run
    differs: Sequence[str]  # known differences from the paper

    @classmethod
    def read(cls, name: str) -> "PaperTable":
        values = tomllib.loads((Path(__file__).with_name("papers") / f"{name}.toml").read_text(encoding="utf-8"))
        columns, rows = values.pop("columns"), values.pop("rows")
        return cls(columns=[Column(**one) for one in columns], rows=[Row(**one) for one in rows], **values)

    @property
    def summary(self) -> str:
        return f"{self.title} ({self.source})"

    def main(self, directory: Path, part: bool) -> None:
        """Run what is not stored yet, print the table and write it as a page."""
        directory.mkdir(parents=True, exist_ok=True)
        dataset, console = datasets.load(self.data), Console()
        found: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for column in self.columns:
            for seed in range(1 if part else self.seeds):
                clients: Clients | None = None
                for row in self.rows:
                    setup = self._setup(column, row, seed, part)
                    name = f"{'part' if part else 'whole'}-{column.name}-{row.label}-{seed}"
                    file = directory / f"{name.replace(' ', '_').replace('/', '_')}.json"
                    result: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
                    if result.get("of") != setup:
                        clients = clients or _split(dataset, column, seed)
                        title = f"{column.name}: {row.label}, seed {seed}"
                        with _bar(title) as progress:
                            result = _train(row, setup, clients, progress)
                        write_text(file, json.dumps(result, indent=1) + "\n")
                        console.print(f"{title}: {_shown((result['personal'], result['global']))}", markup=False)
                    found.setdefault((column.name, row.label), []).append(result)
        console.print(self.table(found))
        write_text(directory / "page.md", self.page(found, part))
        console.print(f"Written to {directory / 'page.md'}.", markup=False)

    def _setup(self, column: Column, row: Row, seed: int, part: bool) -> dict[str, Any]:
        """Return what determines a result; a stored result of another setup is computed again."""
        rounds = row.rounds if isinstance(row.rounds, int) else row.rounds[column.name]
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

    def lines(self, results: Results) -> list[list[str]]:
        """Return the method and, for each column: published, ours, difference."""
        found = []
        for row in self.rows:
            line = [row.label]
            for column in self.columns:
                own = results[column.name, row.label]
                ours = (_mean(own, "personal"), _mean(own, "global"))
                published = (row.published.get(column.name), row.published_global.get(column.name))
                difference = (_difference(ours[0], published[0]), _difference(ours[1], published[1]))
                line += [_shown(published), _shown(ours), _shown(difference, signed=True)]
            found.append(line)
        return found

    def table(self, results: Results) -> Table:
        table = Table(title=f"{self.summary}; mean accuracy in percent", title_justify="left")
        table.add_column("method")
        for column in self.columns:
            for what in ("paper", "ours", "difference"):
                table.add_column(f"{column.name} {what}", justify="right")
        for line in self.lines(results):
            table.add_row(*line)
        return table

    def page(self, results: Results, part: bool) -> str:
        """Return the table as markdown, with the differences from the paper."""
        heads = [f"{column.name} {what}" for column in self.columns for what in ("paper", "ours", "difference")]
        rows = ["| method | " + " | ".join(heads) + " |", "|---" + "|---:" * len(heads) + "|"]
        rows += ["| " + " | ".join(line) + " |" for line in self.lines(results)]
        cells = [cell for own in results.values() for cell in own]
        rounds = sorted({cell["rounds"] for cell in cells})
        scope = (
            f"a part: seed 0, a fifth of the rounds ({rounds[0]} to {rounds[-1]})" if part else f"{self.seeds} seeds"
        )
        options = ", ".join(f"{key} {value}" for key, value in self.options.items())
        about = (
            f"{self.summary}. `bespoke reproduce {self.name}{' --part' if part else ''}`: {scope}; model {self.model}, "
            f"{options}. Personal accuracy in percent, and that of the global model after a slash if there is one; "
            f"{sum(cell['seconds'] for cell in cells) / 60:.0f} minutes of training."
        )
        return "\n".join([f"## {self.name}", "", about, "", *rows, "", *(f"- {one}" for one in self.differs), ""])


def _train(row: Row, setup: dict[str, Any], clients: Clients, progress: Report | None) -> dict[str, Any]:
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


def _split(dataset: Dataset, column: Column, seed: int) -> Clients:
    train, validation, test = column.fractions
    return dataset.split(column.split, clients=column.clients, seed=seed, fractions=(train, validation, test))


@contextmanager
def _bar(title: str) -> Iterator[Report | None]:
    """Show the rounds of a run; None if there is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    # No refreshing thread: the engine forks, and a fork copies locks but not the threads that hold them.
    with Bar(console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task(title, total=None)
        yield lambda now: bar.update(task, completed=now.done, total=now.total, refresh=True)


def _percent(values: np.ndarray) -> float:
    return float(100 * np.nanmean(values))


def _mean(cells: list[dict[str, Any]], what: str) -> float | None:
    values = [cell[what] for cell in cells if cell[what] is not None]
    return float(np.mean(values)) if values else None


def _difference(ours: float | None, published: float | None) -> float | None:
    return None if ours is None or published is None else ours - published


def _shown(score: Score, *, signed: bool = False) -> str:
    texts = ["–" if value is None else f"{value:{'+' if signed else ''}.1f}" for value in score]
    return texts[0] if score[1] is None else "/".join(texts)
