"""Write the table of results into each method's page, docs/methods/NAME.md, from cells.

The table stands between two comments of the page; the rest of the page is written by hand.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bespokefl.core.errors import count
from bespokefl.metrics.metric import METRICS
from bespokefl.metrics.spread import standard_error
from bespokefl_evidence.pages import compare_check
from bespokefl_evidence.pages.outcomes import outcomes
from bespokefl_evidence.pages.scores import score
from bespokefl_evidence.studies import where_it_pays
from bespokefl_evidence.studies.cells import CellStore
from bespokefl_evidence.studies.compare_check import CompareCheck
from bespokefl_evidence.studies.experiment import Experiment
from bespokefl_evidence.studies.runner import Study
from bespokefl_evidence.studies.where_it_pays import PersonalizationStudy

DIRECTORY = Path("methods")
BEGIN, END = "<!-- results: written by bespoke reproduce --table -->", "<!-- end of results -->"
MORE = {"persfl": ("persfl", "persfl-gd"), "ucfl": ("ucfl", "ucfl-parallel")}  # pages of two methods
BASELINES = ("local", "fedavg")
NOTHING = "–"
ANCHORS = {"digits": "", "fashion": "#fashion-mnist-with-fifty-clients"}  # of where-it-pays.md
INTRODUCTION = """\
Test accuracy of the personal models in per cent (AUC where it says so), from stored cells: mean over clients and seeds
± standard error over seeds. Settings were chosen on validation data. *Best* is the best of all methods that were run
there."""


@dataclass(frozen=True)
class Federation:
    """The scores of methods in one federation: one number for each seed."""

    title: str
    link: str
    scores: Mapping[str, Sequence[float]]  # by method


def pages(studies: Sequence[Study], store: CellStore, directory: Path) -> dict[Path, str]:
    """The pages of methods in `directory` that have a place for results, with the current ones."""
    found, changed = list(federations(studies, store)), {}
    for path in sorted((directory / DIRECTORY).glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if BEGIN in text:
            head, _, rest = text.partition(BEGIN)
            _, end, tail = rest.partition(END)
            own = table(MORE.get(path.stem, (path.stem,)), found)
            changed[DIRECTORY / path.name] = f"{head}{BEGIN}\n\n{own}\n\n{end or END}{tail}"
    return changed


def table(methods: Sequence[str], found: Sequence[Federation]) -> str:
    """The results of some methods beside the baselines."""
    columns = [*methods, *(name for name in BASELINES if name not in methods)]
    rows = []
    for one in found:
        if {*methods} & {*one.scores}:
            best = max(one.scores, key=lambda name: float(np.mean(one.scores[name])))
            values = [_text(one.scores[name]) if name in one.scores else NOTHING for name in columns]
            rows.append([f"[{one.title}](../{one.link})", *values, f"{best} {100 * np.mean(one.scores[best]):.1f}"])
    if not rows:
        return "No cell of this method is stored yet."
    heads = ["federation", *columns, "best"]
    lines = [heads, ["---", *["---:"] * len(columns), "---"], *rows]
    return "\n".join([INTRODUCTION, "", *(f"| {' | '.join(line)} |" for line in lines)])


def _text(values: Sequence[float]) -> str:
    error = standard_error(np.array(values))
    return f"{100 * np.mean(values):.1f}" + ("" if error is None else f" ± {100 * error:.1f}")


def federations(studies: Sequence[Study], store: CellStore) -> Iterator[Federation]:
    """The scores of every federation with stored cells, by study."""
    for study in studies:
        if isinstance(study, CompareCheck):
            yield from _compared(study, store)
        elif isinstance(study, PersonalizationStudy):
            yield from _studied(study, store)
        elif isinstance(study, Experiment):
            yield from _reproduced(study, store)


def _compared(study: CompareCheck, store: CellStore) -> Iterator[Federation]:
    for one in study.all_methods:
        cell = store.get(study.all_spec(one))
        if cell is not None:
            title = f"{one.title}, {count(study.all_methods_seeds, 'seed')}{_metric(one.metric)}"
            yield Federation(
                title, f"{compare_check.PAGE}#all-methods-with-their-default-grids", compare_check.mean_scores(cell)
            )
    for scenario in study.scenarios:
        cell = store.get(study.compare_spec(scenario))
        if cell is not None:
            title = f"{scenario.title}, {count(study.seeds, 'seed')}{_metric(scenario.metric)}"
            anchor = scenario.title.lower().replace(" ", "-")
            yield Federation(title, f"{compare_check.PAGE}#{anchor}", compare_check.mean_scores(cell))


def _metric(name: str) -> str:
    return "" if name == "accuracy" else f" ({METRICS[name].title})"


def _studied(study: PersonalizationStudy, store: CellStore) -> Iterator[Federation]:
    cells = study.results(store)
    missing = {(one.scenario, one.settings["method"]) for one in study.specs(store) if store.get(one) is None}
    for scenario in where_it_pays.SCENARIOS:
        scores = {
            name: cells[where_it_pays.chosen(cells, scenario.name, name)]["test"]
            for name in scenario.methods
            if (scenario.name, name) not in missing
        }
        title = f"{study.data}, *{scenario.name}*, {count(study.seeds, 'seed')}"
        yield Federation(title, f"where-it-pays.md{ANCHORS[study.name]}", scores)


def _reproduced(study: Experiment, store: CellStore) -> Iterator[Federation]:
    """The first row of every method that has cells."""
    metric = "weighted" if study.weighted else "personal"
    scores: dict[str, dict[str, list[float]]] = {}
    for one in outcomes(study, store):
        values = [value for cell in one.trained if (value := score(cell, metric)) is not None]
        if values:
            scores.setdefault(one.scenario.name, {}).setdefault(one.row.method, values)
    for name, found in scores.items():
        seeds = sorted({len(values) for values in found.values()})
        title = f"{study.name}, {name}, {'–'.join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))} seeds"
        title += ", weighted by size" if study.weighted else ""
        yield Federation(title, f"results.md#{study.name}", found)
