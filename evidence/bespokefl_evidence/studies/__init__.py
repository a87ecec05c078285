"""Experiments of papers, and our own: run one by name and compare the published claims with the results here.

Not part of the library's core: only `bespoke reproduce` imports it.

papers/            one TOML file per table of a paper (methods, settings, published results); beside it, our reading
experiment         such a file, and the computation of its cells
files              data files that no registry has
warm_start         initial weights of experiments that start from a common pre-trained model
detection          false accepts of detectors
selffl_synthetic   Self-FL's synthetic study
where_it_pays      our own study of where personalization helps
compare_check      our own check of `bespoke compare` against an exhaustive search
diagnose_calibration  what a diagnosis predicts, and what comes out
cells              the stored results, one file each
cell_results       what a cell stores of a run
runner             compute missing cells, most important first, within a budget of time
summaries          means with standard errors, and claims in print
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from rich.console import Console

from bespokefl.core.errors import unknown
from bespokefl_evidence.studies.cells import CellStore
from bespokefl_evidence.studies.compare_check import NAME as COMPARE_CHECK
from bespokefl_evidence.studies.compare_check import CompareCheck
from bespokefl_evidence.studies.diagnose_calibration import CalibrationStudy
from bespokefl_evidence.studies.experiment import Experiment
from bespokefl_evidence.studies.runner import Study, compute_missing
from bespokefl_evidence.studies.selffl_synthetic import SyntheticStudy
from bespokefl_evidence.studies.where_it_pays import PersonalizationStudy

PAPERS_FIRST = (
    "selffl-mnist",
    "selffl-ablation",
    "ucfl-cifar10",
    "pfedvem-grid",
    "pfedvem-fmnist",
    "persfl-cifar10",
)
PAPERS_THEN = (
    "persfl-mnist",
    "selffl-participation",
    "selffl-mnist-sparse",
    "ucfl-rotation",
    "ucfl-label-shift",
    "ucfl-parallel",
    "ucfl-batch-size",
    "pfedvem-ablation",
    "pfedvem-small",
)
PAPERS_LAST = (
    "pfedvem-cifar10",
    "pfedvem-cifar100",
    "selffl-cifar10",
    "selffl-femnist",
    "selffl-sent140",
    "selffl-wakeword",
    "selffl-wakeword-sampled",
    "ucfl-stackoverflow",
)


class Studies(Mapping[str, Study]):
    """All experiments by name, in order of importance; the file of one is read when it is asked for."""

    def __init__(self, makers: Mapping[str, Callable[[], Study]]) -> None:
        self._makers = {name: cache(maker) for name, maker in makers.items()}

    def __getitem__(self, name: str) -> Study:
        return self._makers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


def _papers(*names: str) -> dict[str, Callable[[], Study]]:
    return {name: partial(Experiment.read, name) for name in names}


STUDIES = Studies(
    {
        **_papers(*PAPERS_FIRST),
        "selffl-synthetic": SyntheticStudy,
        **_papers(*PAPERS_THEN),
        "digits": partial(PersonalizationStudy.read, "digits"),
        "fashion": partial(PersonalizationStudy.read, "fashion"),
        COMPARE_CHECK: CompareCheck.read,
        "diagnose-calibration": CalibrationStudy.read,
        **_papers(*PAPERS_LAST),
    }
)

OWN = (
    SyntheticStudy,
    PersonalizationStudy,
    CalibrationStudy,
)  # not tables of papers: they have smaller versions and pages of their own


def listing() -> dict[str, str]:
    """Return every experiment with one line about it."""
    return {name: study.summary for name, study in STUDIES.items()}


def find(names: Sequence[str]) -> list[Study]:
    """Return experiments by name, all of them without a name.

    Raises
    ------
    InputError
        When there is no experiment of a name.
    """
    for name in names:
        if name not in STUDIES:
            raise unknown("experiment", name, STUDIES, see="bespoke reproduce")
    return [STUDIES[name] for name in names or STUDIES]


def reproduce(name: str, *, out: Path | None = None, part: bool = False) -> Path:
    """Compute the missing cells of an experiment, or of a smaller version of our own, and print its tables."""
    (study,) = find([name])
    if part and isinstance(study, OWN):
        study = study.part()
    directory = out or Path("runs") / f"reproduce-{name}"
    store, console = CellStore(directory / "cells"), Console()
    if compute_missing([study], store, scratch=directory / "unfinished", console=console):
        if isinstance(study, OWN):
            study.show(store, console)
        console.print(f"All figures: {store.directory}")
    return directory
