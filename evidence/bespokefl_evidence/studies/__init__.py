"""Experiments of papers, and our own: run one by name and compare the published claims with the results here.

Not part of the library's core: only `bespoke reproduce` imports it.

papers/            one TOML file per table of a paper: methods, settings, published results
paper_table        reproduce such a table
selffl_synthetic   Self-FL's synthetic study
where_it_pays      our own study of where personalization helps
cells              store results of a study, so that it can be resumed; means and claims
"""

from collections.abc import Callable
from pathlib import Path

from bespokefl.core.errors import unknown
from bespokefl_evidence.studies import selffl_synthetic, where_it_pays

Main = Callable[[Path, bool], None]

STUDIES: dict[str, tuple[str, Main]] = {  # by name: one line about it, and the function that runs it
    selffl_synthetic.NAME: (selffl_synthetic.SUMMARY, selffl_synthetic.main),
    **{study.name: (study.summary, study.main) for study in where_it_pays.STUDIES},
}


def listing() -> dict[str, str]:
    """Return every study with one line about it."""
    return {name: summary for name, (summary, _) in STUDIES.items()}


def reproduce(name: str, *, out: Path | None = None, part: bool = False) -> Path:
    """Run a study, or a smaller part of it, and print its tables. Stored results are not computed again."""
    if name not in STUDIES:
        raise unknown("experiment", name, STUDIES, see="bespoke reproduce")
    directory = out or Path("runs") / f"reproduce-{name}"
    STUDIES[name][1](directory, part)
    return directory
