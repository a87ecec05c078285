"""The pages of our own studies.

Those of results-selffl-synthetic.md and where-it-pays.md are texts beside this file, with tables from cells.

A text has {{names}} in lines of their own, in place of which the tables and lists of statements are put. What
stands between {{if CASE RATES: TITLE}} and {{end}} is printed when the cells of all methods exist at these rates.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bespokefl_evidence.pages import compare_check, diagnose_calibration
from bespokefl_evidence.pages.scores import NO_VALUE
from bespokefl_evidence.studies import selffl_synthetic, where_it_pays
from bespokefl_evidence.studies.cells import CellStore
from bespokefl_evidence.studies.compare_check import CompareCheck
from bespokefl_evidence.studies.diagnose_calibration import CalibrationStudy
from bespokefl_evidence.studies.runner import Study, status
from bespokefl_evidence.studies.selffl_synthetic import SyntheticStudy
from bespokefl_evidence.studies.summaries import mean_and_error
from bespokefl_evidence.studies.where_it_pays import PersonalizationStudy

TEXTS = Path(__file__).parent
TITLES = {
    "local": "Local",
    "fedavg": "FedAvg",
    "selffl": "Self-FL",
    "persfl": "PersFL",
    "ucfl": "UCFL",
    "pfedvem": "pFedVEM",
}
CONDITIONAL = re.compile(r"^\{\{if (\w+) ([\d. ]+): ([^}\n]+)\}\}\n(.*?)^\{\{end\}\}\n", re.MULTILINE | re.DOTALL)
INCOMPLETE = "Statements are checked when all cells are computed."


def pages(studies: Sequence[Study], store: CellStore) -> dict[Path, str]:
    """The pages of those studies that have one, by file."""
    found = {}
    synthetic = [one for one in studies if isinstance(one, SyntheticStudy)]
    own = [one for one in studies if isinstance(one, PersonalizationStudy)]
    if synthetic:
        found[Path("results-selffl-synthetic.md")] = synthetic_page(synthetic[0], store)
    if own:
        found[Path("where-it-pays.md")] = where_page(own, store)
    for one in studies:
        if isinstance(one, CompareCheck):
            found[Path(compare_check.PAGE)] = compare_check.page(one, store)
        elif isinstance(one, CalibrationStudy):
            found[Path(diagnose_calibration.FILE)] = diagnose_calibration.page(one, store)
    return found


def synthetic_page(study: SyntheticStudy, store: CellStore) -> str:
    """The page of Self-FL's synthetic study."""
    cells = study.results(store)
    parts = {"progress": _progress(study, store), "chosen": _chosen(study, store)}
    for case in selffl_synthetic.CASES:
        for kind in ("personal", "global"):
            parts[f"{case.name} {kind}"] = _errors(cells, case.name, kind)
    parts["statements"] = _statements(selffl_synthetic.claims(cells)) if _is_complete(study, store) else INCOMPLETE
    return _filled("results-selffl-synthetic.md", parts, cells)


def where_page(studies: Sequence[PersonalizationStudy], store: CellStore) -> str:
    """The page of our own studies of where personalization pays."""
    parts = {}
    for study in studies:
        cells = study.results(store)
        parts[f"{study.name} progress"] = _progress(study, store)
        parts[f"{study.name} table"] = _accuracies(study, store)
        parts[f"{study.name} statements"] = (
            _statements(where_it_pays.claims(cells)) if _is_complete(study, store) else INCOMPLETE
        )
    return _filled("where-it-pays.md", parts)


def _filled(name: str, parts: Mapping[str, str], cells: Mapping[str, Any] | None = None) -> str:
    text = (TEXTS / name).read_text(encoding="utf-8")
    text = CONDITIONAL.sub(lambda found: _if_computed(found[1], found[2], found[3], found[4], cells or {}), text)
    return re.sub(r"^\{\{(.+)\}\}$", lambda found: parts[found[1]], text, flags=re.MULTILINE)


def _if_computed(case: str, rates: str, title: str, text: str, cells: Mapping[str, Any]) -> str:
    """Return what a text says of a case at some rates, if all methods are computed there."""
    names = (*selffl_synthetic.OURS, *selffl_synthetic.THEIRS, "Local")
    keys = [f"{case}/{name}/{float(rate)}" for name in names for rate in rates.split()]
    return text if all(key in cells for key in keys) else f"- *{title}*: not computed yet.\n"


def _progress(study: Study, store: CellStore) -> str:
    (found,) = status([study], store)
    spent = f"{found.spent / 60:.0f} min of computing time"
    return f"`bespoke reproduce {study.name}`: {found.done} of {found.total} cells, {spent}."


def _is_complete(study: Study, store: CellStore) -> bool:
    return all(one.done == one.total for one in status([study], store))


def _statements(claims: Iterable[tuple[str, bool]]) -> str:
    lines = ["| statement | holds |", "|---|---|"]
    return "\n".join([*lines, *(f"| {sentence} | {'yes' if holds else '**no**'} |" for sentence, holds in claims)])


def _errors(cells: Mapping[str, Any], case: str, kind: str) -> str:
    rates = selffl_synthetic.RATES
    lines = ["| | " + " | ".join(f"C = {rate:g}" for rate in rates) + " |", "|---|" + "---:|" * len(rates)]
    names = (*selffl_synthetic.OURS, *selffl_synthetic.THEIRS, "Local", *selffl_synthetic.ORACLES)
    for name in names:
        values = [cells.get(f"{case}/{name}/{rate}", {}).get(kind) for rate in rates]
        if kind == "global" and name in ("Local", "FL-optimum (3)"):
            continue  # these have no global model
        label = f"*{name}*" if name in selffl_synthetic.ORACLES else name
        lines.append(f"| {label} | {' | '.join(_mean(one, 1000) for one in values)} |")
    return "\n".join(lines)


def _chosen(study: SyntheticStudy, store: CellStore) -> str:
    lines = ["| chosen on 20 other repeats, at C = .5 | homogeneous | heterogeneous |", "|---|---:|---:|"]
    for name, symbol in (("Ditto", "λ"), ("pFedMe", "λ"), ("Per-FedAvg", "α")):
        values = []
        for case in selffl_synthetic.CASES:
            done = all(store.get(one) is not None for one in study.tuning_specs(case, name).values())
            values.append(f"{study.choice(case, name, store):g}" if done else NO_VALUE)
        grid = ", ".join(f"{value:g}" for value in selffl_synthetic.NOT_GIVEN[name])
        lines.append(f"| {symbol} of {name}, from {grid} | {' | '.join(values)} |")
    return "\n".join(lines)


def _accuracies(study: PersonalizationStudy, store: CellStore) -> str:
    cells = study.results(store)
    missing: dict[tuple[str, str], bool] = {}
    for spec in study.specs(store):
        missing[spec.scenario, spec.settings["method"]] = (
            missing.get((spec.scenario, spec.settings["method"]), False) or store.get(spec) is None
        )
    lines = [f"| | {' | '.join(TITLES.values())} |", "|---|" + "---:|" * len(TITLES)]
    for scenario in where_it_pays.SCENARIOS:
        keys = [
            None if missing.get((scenario.name, name), True) else where_it_pays.chosen(cells, scenario.name, name)
            for name in TITLES
        ]
        values = [_mean(None if key is None else cells[key]["test"], 100) for key in keys]
        lines.append(f"| *{scenario.name}* | {' | '.join(values)} |")
    return "\n".join(lines)


def _mean(values: Sequence[float] | None, scale: float) -> str:
    if not values:
        return NO_VALUE
    mean, sem = mean_and_error(values)
    return f"{scale * mean:.1f} ({scale * sem:.1f})"
