"""The papers' experiments by name: run one, and see the published claim beside what comes out here."""

from collections.abc import Callable
from pathlib import Path

from bespokefl.core.errors import unknown
from bespokefl.workflows.studies import papers, selffl_synthetic, where_it_pays

Main = Callable[[Path, bool], None]

STUDIES: dict[str, tuple[str, Main]] = {
    selffl_synthetic.NAME: ((selffl_synthetic.__doc__ or "").splitlines()[0], selffl_synthetic.main),
    **{one.name: (one.what, one.main) for one in where_it_pays.STUDIES},
    **{one.name: (f"{one.what} ({one.source})", one.main) for one in papers.STUDIES},
}


def listing() -> dict[str, str]:
    """Every study with one line about it."""
    return {name: what for name, (what, _) in STUDIES.items()}


def reproduce(name: str, *, out: Path | None = None, part: bool = False) -> Path:
    """Run a study, or a stated part of it, and print its tables; what is done already is not done again."""
    if name not in STUDIES:
        raise unknown("experiment", name, STUDIES, see="bespoke reproduce")
    folder = out or Path("runs") / f"reproduce-{name}"
    STUDIES[name][1](folder, part)
    return folder
