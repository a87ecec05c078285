"""Write docs/compare-check.md from cells: `bespoke compare` beside an exhaustive search."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bespokefl.core.errors import listing
from bespokefl.metrics.metric import METRICS
from bespokefl.metrics.significance import MARGIN, Standing, standing
from bespokefl.metrics.spread import standard_error
from bespokefl.metrics.verdict import best_performing
from bespokefl.workflows.compare.candidates import GRIDS
from bespokefl.workflows.tune.duration import in_words, read_time
from bespokefl_evidence.pages.scores import NO_VALUE
from bespokefl_evidence.studies.cells import Cell, CellStore
from bespokefl_evidence.studies.compare_check import MORE, SAME, CompareCheck, Scenario, points
from bespokefl_evidence.studies.runner import status

PAGE = "compare-check.md"
INTRODUCTION = """# Does `bespoke compare` agree with an exhaustive search?

`bespoke reproduce --table` writes this page from stored cells; `bespoke reproduce compare-check --files DIR` computes
those that are missing. DIR has the data as NPZ files: *har_geotec_windows* is the data set of the GitHub repository
GeoTecINIT/sp-sw-har-dataset, *landmine_29tasks* that of daizhongxiang/Federated_Bayesian_Optimization,
*femnist_by_writer* LEAF's FEMNIST.

*Compare* is [`bespoke compare`](compare.md) with its default budget and grids, {minutes} minutes for tuning (the
default is 10) and five seeds. *Search* trains every point of the grids below, with each number of local epochs, for
all rounds with three seeds, chooses by mean validation score, and trains the choice with the five seeds of the
comparison. *Same work* are the local epochs of the comparison or half of them, *more work* three times as many, too.
Scores are on test data, mean over clients and seeds ± standard error over seeds, in per cent; no choice uses test
data. "–" is not computed yet.

Compare chooses most points after fewer rounds, keeps the number of local epochs, except for Local and FedAvg, which try
half of them, and widens its grids at their edges. The search does not widen them.
"""
DIFFERENT = (
    "Not all values of compare's grids are among those of the search: for pfedvem the search varies `head_lr`, "
    "compare `mean_head_lr`, and for ucfl the search has `lr` 1 instead of 0.001."
)

Scores = dict[str, np.ndarray]


def page(study: CompareCheck, store: CellStore) -> str:
    """The whole page."""
    found = status([study], store)
    done, total, spent = (sum(getattr(one, key) for one in found) for key in ("done", "total", "spent"))
    missing = "all are computed" if done == total else f"{total - done} are missing"
    cells = f"{done} of {total} cells, {missing}; {spent / 60:.0f} minutes of processor time.\n"
    return "\n".join(
        [
            _introduction(study),
            cells,
            *(_section(study, one, store) for one in study.scenarios),
            _all_methods(study, store),
        ]
    )


def _introduction(study: CompareCheck) -> str:
    """Say what was compared, and what the search contains beside the grids of a comparison."""
    lines = ["| method | search: points | search: values | compare: points |", "|---|---:|---|---:|"]
    for name in study.methods:
        grid = {key: values for key, values in study.grids[name].items() if len(values) > 1}
        values = "; ".join(f"`{key}` {', '.join(map(str, own))}" for key, own in grid.items())
        lines.append(f"| {name} | {len(points(grid))} | {values} | {len(points(GRIDS[name]))} |")
    lines += ["", DIFFERENT, ""]
    return INTRODUCTION.format(minutes=study.tune.removesuffix("m")) + "\n" + "\n".join(lines)


def _section(study: CompareCheck, scenario: Scenario, store: CellStore) -> str:
    own = scenario.settings
    compared = store.get(study.compare_spec(scenario))
    lines = [f"## {scenario.title}", "", scenario.about]
    lines += [
        f"Model `{own['model']}`, {own['rounds']} rounds, {scenario.epochs} local epochs, batches of "
        f"{own['batch_size']}; methods are compared by {_metric(scenario)}.",
        "",
    ]
    ours, theirs = {} if compared is None else _scores(compared), _searched(study, scenario, store, SAME)
    if not ours and not theirs:
        return "\n".join([*lines, "Not computed yet.", ""])
    lines += [
        "| method | compare chose | compare | search, same work, chose | search, same work | difference "
        "| search, more work |",
        "|---|---|---:|---|---:|---:|---:|",
    ]
    more = _searched(study, scenario, store, MORE)
    for name in study.methods:
        chosen = study.choice(scenario, name, SAME, store)
        difference = (
            f"{100 * (np.nanmean(ours[name]) - np.nanmean(theirs[name])):+.1f}"
            if {name} <= {*ours} & {*theirs}
            else NO_VALUE
        )
        ran = {} if compared is None else compared.results["methods"][name]["chosen"]
        cells = [
            _values(ran),
            _score(ours, name),
            _values(chosen),
            _score(theirs, name),
            difference,
            _score(more, name),
        ]
        lines.append(f"| {' | '.join([name, *cells])} |")
    lines += ["", *_verdicts(study, compared, ours, theirs, scenario)]
    if scenario.name == study.earlier["scenario"]:
        lines += _earlier(study, scenario, store)
    return "\n".join([*lines, ""])


def _all_methods(study: CompareCheck, store: CellStore) -> str:
    lines = ["## All methods with their default grids", ""]
    lines += [
        "`bespoke compare` of all methods that fit the data, with two seeds: does every default grid have a point that "
        "trains well? *Points* counts those beyond the edges of the grid; *edge* names a value that still lies on it."
    ]
    for one in study.all_methods:
        cell, own = store.get(study.all_spec(one)), one.settings
        lines += ["", f"### {one.title}", ""]
        lines += [
            f"{one.clients} clients, model `{own['model']}`, {own['rounds']} rounds, {own['local_epochs']} local "
            f"epochs, batches of {own['batch_size']}; {METRICS[one.metric].title}; at most "
            f"{in_words(read_time(one.tune or study.tune))} for tuning"
            + (f"; without {listing(one.without)}, which are newer." if one.without else "."),
            "",
        ]
        if cell is None:
            lines.append("Not computed yet." + (f" A smaller comparison: {one.smaller}" if one.smaller else ""))
            continue
        lines += ["| method | chosen | points | edge | score |", "|---|---|---:|---|---:|"]
        scores = _scores(cell)
        for name, found in cell.results["methods"].items():
            edge = ", ".join(f"`{key}`" for key in found["edge"]) or "no"
            lines.append(
                f"| {name} | {_values(found['chosen'])} | {found['points']} | {edge} | {_score(scores, name)} |"
            )
    return "\n".join([*lines, ""])


def _verdicts(
    study: CompareCheck, compared: Cell | None, ours: Scores, theirs: Scores, scenario: Scenario
) -> list[str]:
    if compared is None:
        return ["The comparison is not computed yet."]
    lines = [f"- **Compare says:** {compared.results['verdict']}"]
    if set(theirs) < set(study.methods):
        return [*lines, "- The search is not complete yet."]
    lines.append(f"- **The search says:** {best_performing(theirs, percent=METRICS[scenario.metric].percent).sentence}")
    return [*lines, f"- **Agreement:** {agreement(ours, theirs)}"]


def agreement(ours: Scores, theirs: Scores) -> str:
    """Say where the verdicts of a comparison and of a search are the same, and the largest difference in points."""
    mine, full = standing(ours), standing(theirs)
    wrong = [name for name in ours if _is_behind(mine, name) != _is_behind(full, name)]
    best = (
        f"both have the best mean with {mine.best}"
        if mine.best == full.best
        else f"the best means are those of {mine.best} and of {full.best}"
    )
    gaps = {name: float(np.nanmean(ours[name]) - np.nanmean(theirs[name])) for name in ours}
    most = max(gaps, key=lambda name: abs(gaps[name]))
    lost = float(np.nanmean(theirs[full.best]) - np.nanmean(theirs[mine.best]))
    sets = (
        f"they disagree on whether {listing(wrong)} can be told from the best"
        if wrong
        else "the same methods are significantly behind the best"
        if any(_is_behind(full, name) for name in ours)
        else "no method is significantly behind the best in either"
    )
    follow = f"who follows the comparison loses {100 * lost:.1f} points by the search's scores"
    within = " (within the margin of 1 point)" if lost <= MARGIN else ""
    return f"{best}; {sets}; {follow}{within}; the largest difference is {100 * gaps[most]:+.1f} points, of {most}."


def _is_behind(found: Standing, name: str) -> bool:
    return name != found.best and name not in found.ties


def _earlier(study: CompareCheck, scenario: Scenario, store: CellStore) -> list[str]:
    cell = store.get(study.earlier_spec(scenario))
    lines = ["", "### Without a budget", ""]
    lines.append(
        "The same data as a comparison without equal work: `--budget none`, one local epoch (Self-FL sets its own "
        "number of steps), grids of three to eight points that are not widened, three seeds."
    )
    if cell is None:
        return [*lines, "", "Not computed yet."]
    found = cell.results["methods"]
    least = min(one["gradients"] for one in found.values())
    lines += ["", "| method | chosen | at the edge of its grid | accuracy | gradients |", "|---|---|---|---:|---:|"]
    scores = _scores(cell)
    for name, one in found.items():
        edge = ", ".join(f"`{key}`" for key in one["edge"]) or "no"
        cells = [_values(one["chosen"]), edge, _score(scores, name), f"{one['gradients'] / least:.1f} ×"]
        lines.append(f"| {' | '.join([name, *cells])} |")
    return [*lines, "", f"- **It says:** {cell.results['verdict']}"]


def _searched(study: CompareCheck, scenario: Scenario, store: CellStore, work: str) -> Scores:
    cells = {name: study.best(scenario, name, work, store) for name in study.methods}
    return {name: np.array(cell.results["scores"], dtype=float) for name, cell in cells.items() if cell is not None}


def _scores(cell: Cell) -> Scores:
    return {name: np.array(one["scores"], dtype=float) for name, one in cell.results["methods"].items()}


def mean_scores(cell: Cell) -> dict[str, list[float]]:
    """The mean score over clients of every method and seed."""
    return {name: [float(one) for one in np.nanmean(values, axis=1)] for name, values in _scores(cell).items()}


def _score(scores: Scores, name: str) -> str:
    if name not in scores:
        return NO_VALUE
    means = np.nanmean(scores[name], axis=1)
    error = standard_error(means)
    return f"{100 * means.mean():.1f}" + ("" if error is None else f" ± {100 * error:.1f}")


def _values(chosen: Mapping[str, Any] | None) -> str:
    hidden = ("limit_steps",)
    return ", ".join(f"`{key}` {value}" for key, value in (chosen or {}).items() if key not in hidden) or NO_VALUE


def _metric(scenario: Scenario) -> str:
    return "AUC" if scenario.metric == "auc" else scenario.metric
