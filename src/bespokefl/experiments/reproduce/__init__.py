"""The papers' experiments by name: run one, and see the published claim beside what comes out here."""

from collections.abc import Callable
from pathlib import Path

from bespokefl.core.errors import unknown
from bespokefl.experiments.reproduce import digits, selffl_synthetic

STUDIES: dict[str, Callable[[Path, bool], None]] = {
    selffl_synthetic.NAME: selffl_synthetic.main,
    digits.NAME: digits.main,
}


def reproduce(name: str, *, out: Path | None = None, quick: bool = False) -> Path:
    """Run a study (`quick`: a stated, smaller part of it) and print its tables; what is done already is not redone."""
    if name not in STUDIES:
        raise unknown("experiment", name, STUDIES, see="bespoke reproduce --help")
    folder = out or Path("runs") / f"reproduce-{name}"
    STUDIES[name](folder, quick)
    return folder
