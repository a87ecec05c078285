"""Experiments of papers, and our own: run one by name and compare the published claims with the results here.

Not part of the library's core: only `bespoke reproduce` imports it.

selffl_synthetic     Self-FL's synthetic study
selffl_mnist         Self-FL on MNIST
persfl_mnist         PersFL's comparison on MNIST
ucfl_cifar10         User-Centric FL under permuted labels
pfedvem_fmnist       pFedVEM's comparison on Fashion-MNIST
where_it_pays        our own study of where personalization helps
paper_table          run a table of a paper: methods in rows, splits in columns
cells                store results of a study, so that it can be resumed; means and claims
"""

from collections.abc import Callable
from pathlib import Path

from bespokefl.core.errors import unknown
from bespokefl.workflows.studies import (
    persfl_mnist,
    pfedvem_fmnist,
    selffl_mnist,
    selffl_synthetic,
    ucfl_cifar10,
    where_it_pays,
)

Main = Callable[[Path, bool], None]
TABLES = (persfl_mnist.STUDY, ucfl_cifar10.STUDY, pfedvem_fmnist.STUDY, selffl_mnist.STUDY)

STUDIES: dict[str, tuple[str, Main]] = {  # by name: one line about it, and the function that runs it
    selffl_synthetic.NAME: (selffl_synthetic.SUMMARY, selffl_synthetic.main),
    **{study.name: (study.summary, study.main) for study in (*where_it_pays.STUDIES, *TABLES)},
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
