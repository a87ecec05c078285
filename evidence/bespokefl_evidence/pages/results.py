"""Write docs/results.md, docs/claims.md and the pages of our own studies from cells.

The interpretation of an experiment is written by hand, in papers/NAME.md, and copied into the page.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl.core.errors import count
from bespokefl.core.system.files import write_text
from bespokefl_evidence.pages import claims, figures, method_results, own_studies
from bespokefl_evidence.pages.drawing import Drawing
from bespokefl_evidence.pages.outcomes import Outcome, outcomes
from bespokefl_evidence.pages.scores import METRICS, NO_VALUE, clients, score
from bespokefl_evidence.studies import experiment
from bespokefl_evidence.studies.cells import CellStore
from bespokefl_evidence.studies.experiment import Experiment, Row, Scenario
from bespokefl_evidence.studies.runner import Study, status
from bespokefl_evidence.studies.selffl_synthetic import SyntheticStudy

INTRODUCTION = """# Reproduced tables

`bespoke reproduce --table` writes this page from the stored cells: see [how to run and resume](reproduce.md).
[Claims](claims.md) judges what the papers state.

All accuracies are on test data, in per cent, after the last round; no choice uses test data. *Ours* is the mean over
seeds ± its standard error; *seeds* counts those that are computed. "–" is a result that the paper does not print or
that is not computed yet; *diverged* is a training whose model became non-finite.
"""


def write(studies: Sequence[Study], store: CellStore, directory: Path) -> list[Path]:
    """Write all pages and the figures; returns the files.

    Raises
    ------
    InputError
        When matplotlib is missing, or a cell is damaged. Nothing is written then.
    """
    experiments = [one for one in studies if isinstance(one, Experiment)]
    drawings = {one.name: list(figures.drawings(one, store)) for one in experiments}
    content = {figures.DIRECTORY / one.file: one.svg() for found in drawings.values() for one in found}
    content[Path("results.md")] = results_page(experiments, store, drawings)
    judged = [one for one in studies if isinstance(one, Experiment | SyntheticStudy)]
    content[Path("claims.md")] = claims.page(claims.read(), judged, store, directory)
    content |= own_studies.pages(studies, store)
    content |= method_results.pages(studies, store, directory)
    for old in (directory / figures.DIRECTORY).glob("*.svg"):
        if figures.DIRECTORY / old.name not in content and old.name.startswith(tuple(f"{name}-" for name in drawings)):
            old.unlink()
    for name, text in content.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        write_text(directory / name, text)
    return [directory / name for name in content]


def results_page(
    experiments: Sequence[Experiment], store: CellStore, drawings: dict[str, list[Drawing]] | None = None
) -> str:
    """The page of all experiments."""
    found = drawings or {one.name: list(figures.drawings(one, store)) for one in experiments}
    computed = {one.name: progress(one, store) for one in experiments}
    begun = [one for one in experiments if computed[one.name][0]]
    lines = [INTRODUCTION, "| experiment | cells | computing time |", "|---|---:|---:|"]
    for one in begun:
        done, total, spent = computed[one.name]
        lines.append(f"| [{one.name}](#{one.name}) | {done} of {total} | {duration(spent)} |")
    parts = ["\n".join(lines) + "\n"] if begun else [INTRODUCTION]
    parts += [section(one, store, found[one.name]) for one in begun]
    if len(begun) < len(experiments):
        parts.append(_not_computed([(one, computed[one.name][1]) for one in experiments if one not in begun]))
    return "\n".join(parts)


def _not_computed(experiments: Sequence[tuple[Experiment, int]]) -> str:
    lines = [
        "## Not computed yet",
        "",
        "No cell of these experiments is stored; `bespoke reproduce NAME` computes them.",
    ]
    lines += ["", "| experiment | what | paper | cells |", "|---|---|---|---:|"]
    lines += [f"| {one.name} | {one.title} | {one.source} | {total} |" for one, total in experiments]
    return "\n".join(lines) + "\n"


def progress(one: Experiment, store: CellStore) -> tuple[int, int, float]:
    """Cells computed, cells in all, and the seconds they took."""
    found = status([one], store)
    return sum(part.done for part in found), sum(part.total for part in found), sum(part.spent for part in found)


def section(one: Experiment, store: CellStore, figures: Sequence[Drawing]) -> str:
    """An experiment: settings, tables, hyper-parameters, differences from the paper, interpretation and figures."""
    everything = list(outcomes(one, store))
    done, total, spent = progress(one, store)
    missing = f"{total - done} are missing" if done < total else "all are computed"
    lines = [
        f"## {one.name}",
        "",
        f"{one.title} ({one.source}). {_settings(one)}",
        f"{done} of {count(total, 'cell')}, {missing}; {duration(spent)} of computing time.",
        "",
    ]
    for scenario in one.scenarios:
        own = [found for found in everything if found.scenario is scenario]
        lines += [f"**{scenario.name}** ({_scenario(scenario)})", "", *_table(one, scenario, own), ""]
        lines += [*_false_accepts(own), ""] if one.detection else []
    lines += _chosen(one, everything)
    lines += [*(f"- {sentence}" for sentence in one.differs), ""] if one.differs else []
    note = experiment.PAPERS / f"{one.name}.md"
    if note.exists():
        lines += [note.read_text(encoding="utf-8").strip(), ""]
    for figure in figures:
        lines += [f"![{figure.title}](figures/{figure.file})", "", f"*{figure.title}.*", ""]
    return "\n".join(lines)


def _settings(one: Experiment) -> str:
    options = "".join(f", {key} {value}" for key, value in one.options.items())
    tuning = ""
    if one.tuning is not None:
        where = f" on {one.tuning.scenario}" if one.tuning.scenario else ""
        tuning = f" Hyper-parameters are chosen after {count(one.tuning.rounds, 'round')}{where} with another seed."
    return f"{one.data}, model {one.model}, {count(one.rounds, 'round')}{options}.{tuning}"


def _scenario(scenario: Scenario) -> str:
    clients = "" if scenario.clients is None else f", {scenario.clients} clients"
    changed = "".join(f", {key} {value}" for key, value in scenario.options.items())
    return f"`{scenario.data or ''}{' ' if scenario.data else ''}{scenario.split}`{clients}{changed}"


# -- the table of a scenario


def _table(one: Experiment, scenario: Scenario, own: Sequence[Outcome]) -> list[str]:
    """Published, ours and difference for each metric that the paper has."""
    columns = [("weighted" if one.weighted else "personal", "published", "weighted by size" if one.weighted else "")]
    columns += [("personal", "", "plain mean")] if one.weighted else []
    if any(scenario.name in found.row.published_global for found in own):
        whole = any(score(cell, "whole_test") is not None for found in own for cell in found.trained)
        columns.append(("whole_test" if whole else "global", "published_global", "global"))
    columns += [
        (name, "published_worst" if name.startswith("worst") else "", METRICS[name].title if name in METRICS else name)
        for name in one.also
    ]
    shown = [(metric, key, title, _any_published(own, scenario, key)) for metric, key, title in columns]
    heads = ["method"]
    for _, _, title, published in shown:
        heads += [f"{title} paper".strip(), f"{title} ours".strip(), "difference"] if published else [title or "ours"]
    lines = [_line([*heads, "seeds"]), _line(["---", *["---:"] * len(heads)])]
    for found in own:
        values: list[str] = []
        for metric, key, _, published in shown:
            values += _values(
                found, metric, getattr(found.row, key).get(scenario.name) if published else None, published
            )
        lines.append(_line([found.row.label, *values, f"{len(found.cells)} of {found.total}"]))
    return lines


def _any_published(own: Sequence[Outcome], scenario: Scenario, key: str) -> bool:
    return bool(key) and any(scenario.name in getattr(found.row, key) for found in own)


def _values(found: Outcome, metric: str, paper: float | None, published: bool) -> list[str]:
    """Published, ours and difference; only ours if the paper has nothing to compare with."""
    ours = found.mean(metric)
    num_failed = len(found.cells) - len(found.trained)
    if ours is None:
        text = "diverged" if num_failed else NO_VALUE
    else:
        error = "" if ours[1] is None else f" ± {100 * ours[1]:.1f}"
        text = f"{100 * ours[0]:.1f}{error}" + (f" ({num_failed} diverged)" if num_failed else "")
    if not published:
        return [text]
    difference = NO_VALUE if ours is None or paper is None else f"{100 * ours[0] - paper:+.1f}"
    return [NO_VALUE if paper is None else f"{paper:.1f}", text, difference]


def _false_accepts(own: Sequence[Outcome]) -> list[str]:
    """Relative false accepts at equal false rejects of each client, mean over seeds; the paper's are of its devices."""
    heads = [f"{kind} {who}" for kind in ("global", "personal") for who in ("paper", "ours")]
    lines = [_line(["false accepts", *heads]), _line(["---"] * 5)]
    for found in own:
        values = [found.row.label]
        for kind, name in (("global", "false_accepts"), ("personal", "personal_false_accepts")):
            known = [one[0] for cell in found.trained if (one := clients(cell, name)) is not None]
            ours = np.mean(known, 0) if known else []
            for numbers in (found.row.published_false_accepts.get(kind, ()), ours):
                values.append(" ".join(NO_VALUE if np.isnan(one) else f"{one:.2f}" for one in numbers) or NO_VALUE)
        lines.append(_line(values))
    return lines


def _line(values: Sequence[str]) -> str:
    return f"| {' | '.join(values)} |"


# -- hyper-parameters


def _chosen(one: Experiment, everything: Sequence[Outcome]) -> list[str]:
    """The grid of each row with the validation score of each point, in a section that is closed at first."""
    rows = list(_grids(one, everything))
    if not rows:
        return []
    return [
        "<details><summary>Hyper-parameters, chosen on validation data</summary>",
        "",
        "| method | tuned in | chosen | validation score in % of each point |",
        "|---|---|---|---|",
        *(_line(row) for row in rows),
        "",
        "</details>",
        "",
    ]


def _grids(one: Experiment, everything: Sequence[Outcome]) -> Iterator[list[str]]:
    seen = set()
    for found in everything:
        if not found.tuning or one.tuning is None:
            continue
        where = one.tuning.scenario or found.scenario.name
        if (where, found.row.label) in seen:
            continue
        seen.add((where, found.row.label))
        points = []
        for values, cell in found.tuning:
            value = None if cell is None else cell.results.get("validation", {}).get(one.tuning.score)
            text = NO_VALUE if cell is None else "diverged" if value is None else f"{100 * value:.1f}"
            points.append(f"{_point(values)}: {text}")
        chosen = NO_VALUE if found.chosen is None else _point(found.chosen) + _edge(found.row, found.chosen)
        yield [found.row.label, where, chosen, "; ".join(points)]


def _point(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())


def _edge(row: Row, chosen: dict[str, Any]) -> str:
    """Say which values are the smallest or the largest of the grid: a better one may be outside."""
    edges = []
    for key, value in chosen.items():
        values = row.grid[key]
        if len(values) > 1 and all(isinstance(one, int | float) for one in values):
            edges += [key] if value in (min(values), max(values)) else []
    return f" (edge of the grid: {', '.join(edges)})" if edges else ""


def duration(seconds: float | None) -> str:
    """A time in the unit that fits."""
    if seconds is None:
        return "unknown"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
