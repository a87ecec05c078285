"""The papers' experiments by name: run one, and see the published claim beside what comes out here."""

from pathlib import Path
from types import ModuleType

from bespokefl.core.errors import unknown
from bespokefl.experiments.reproduce import digits, selffl_synthetic

STUDIES: dict[str, ModuleType] = {study.NAME: study for study in (selffl_synthetic, digits)}


def listing() -> dict[str, str]:
    """Every study with one line about it."""
    return {name: (study.__doc__ or "").splitlines()[0] for name, study in STUDIES.items()}


def reproduce(name: str, *, out: Path | None = None, part: bool = False) -> Path:
    """Run a study, or a stated part of it, and print its tables; what is done already is not done again."""
    if name not in STUDIES:
        raise unknown("experiment", name, STUDIES, see="bespoke reproduce")
    folder = out or Path("runs") / f"reproduce-{name}"
    STUDIES[name].main(folder, part)
    return folder
