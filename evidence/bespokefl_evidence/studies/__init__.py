"""Experiments of papers, and our own: run one by name and compare the published claims with the results here.

Not part of the library's core: only `bespoke reproduce` imports it.

papers/            one TOML file per table of a paper (methods, settings, published results); beside it, our reading
experiment         such a table, and the computation of its cells
cells              the results: one small JSON file per cell
runner             compute missing cells, most important first, within a budget of time
scores             figures of a cell, such as the accuracy of the worst client
outcomes           the cells of an experiment by scenario and row
pages              docs/results.md from cells
claims             docs/claims.md: judge the papers' claims (claims.toml) by cells
claim_tests        how one comparison of a claim is tested
intervals          bootstrap over seeds and clients
figures            the papers' figures from cells; drawing: how matplotlib draws them
selffl_synthetic   Self-FL's synthetic study
where_it_pays      our own study of where personalization helps
"""

import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

from bespokefl.core.errors import unknown
from bespokefl_evidence.studies import experiment, selffl_synthetic, where_it_pays
from bespokefl_evidence.studies.experiment import Experiment

Main = Callable[[Path, bool], None]

STUDIES: dict[str, tuple[str, Main]] = {  # by name: one line about it, and the function that runs it
    selffl_synthetic.NAME: (selffl_synthetic.SUMMARY, selffl_synthetic.main),
    **{study.name: (study.summary, study.main) for study in where_it_pays.STUDIES},
}


def listing() -> dict[str, str]:
    """Return every study with one line about it."""
    titles = {
        name: tomllib.loads((experiment.PAPERS / f"{name}.toml").read_text(encoding="utf-8"))["title"]
        for name in experiment.names()
    }
    return titles | {name: summary for name, (summary, _) in STUDIES.items()}


def find(names: Sequence[str]) -> list[Experiment]:
    """Return experiments by name, all of them without a name.

    Raises
    ------
    InputError
        When there is no experiment of a name.
    """
    for name in names:
        if name not in listing():
            raise unknown("experiment", name, listing(), see="bespoke reproduce")
    return [Experiment.read(name) for name in names or experiment.names()]


def reproduce(name: str, *, out: Path | None = None, part: bool = False) -> Path:
    """Run a study, or a smaller part of it, and print its tables. Stored results are not computed again."""
    if name not in STUDIES:
        raise unknown("experiment", name, STUDIES, see="bespoke reproduce")
    directory = out or Path("runs") / f"reproduce-{name}"
    STUDIES[name][1](directory, part)
    return directory
