"""How a data set becomes clients: one file per kind of split."""

from bespokefl.core.errors import unknown
from bespokefl.core.spec import bind, parse_call
from bespokefl.data.splits.by_column import ByColumn
from bespokefl.data.splits.classes import Classes
from bespokefl.data.splits.dirichlet import Dirichlet
from bespokefl.data.splits.iid import IID
from bespokefl.data.splits.split import Assignment, Split

KINDS: dict[str, type[Split]] = {kind.kind: kind for kind in (IID, Dirichlet, Classes, ByColumn)}

__all__ = ["IID", "KINDS", "Assignment", "ByColumn", "Classes", "Dirichlet", "Split", "parse"]


def parse(text: str) -> Split:
    """The split that is written as "iid", "dirichlet(alpha=0.4)" or "classes(2)"."""
    call = parse_call(text)
    if call[0] not in KINDS:
        raise unknown("split", call[0], KINDS)
    kind = KINDS[call[0]]
    return kind(**bind(call, kind))
