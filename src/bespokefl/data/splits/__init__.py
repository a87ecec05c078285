"""How a data set becomes clients: one file per kind of split."""

from itertools import pairwise

from bespokefl.core.errors import InputError, unknown
from bespokefl.core.spec import bind, parse_call
from bespokefl.data.splits.by_column import ByColumn
from bespokefl.data.splits.classes import Classes
from bespokefl.data.splits.dirichlet import Dirichlet
from bespokefl.data.splits.domains import Domains
from bespokefl.data.splits.fallah import Fallah
from bespokefl.data.splits.iid import IID
from bespokefl.data.splits.lognormal import LogNormal
from bespokefl.data.splits.official_test import OfficialTest
from bespokefl.data.splits.permuted_labels import PermutedLabels
from bespokefl.data.splits.pfedme import PFedMe
from bespokefl.data.splits.presets import PRESETS, Preset
from bespokefl.data.splits.quantity import Quantity
from bespokefl.data.splits.rotation import Rotation
from bespokefl.data.splits.sample import Sample
from bespokefl.data.splits.split import Assignment, Change, Split
from bespokefl.data.splits.subclass import Subclass
from bespokefl.data.splits.together import Together
from bespokefl.data.splits.transform import Transform

KINDS: dict[str, type[Split]] = {
    kind.kind: kind
    for kind in (
        *(IID, Dirichlet, Classes, LogNormal, Fallah, PFedMe, Quantity, Subclass, Domains, ByColumn),
        *(Rotation, PermutedLabels, OfficialTest, Sample),
    )
}

__all__ = [
    "IID",
    "KINDS",
    "PRESETS",
    "Assignment",
    "ByColumn",
    "Change",
    "Classes",
    "Dirichlet",
    "Domains",
    "Fallah",
    "LogNormal",
    "OfficialTest",
    "PFedMe",
    "PermutedLabels",
    "Preset",
    "Quantity",
    "Rotation",
    "Sample",
    "Split",
    "Subclass",
    "Together",
    "Transform",
    "parse",
]


def parse(text: str) -> Split:
    """The split that is written as "iid", "dirichlet(alpha=0.4)", "ds-1" or "classes(2) + rotation(groups=4)"."""
    members = [_one(part) for part in _parts(text)]
    return members[0] if len(members) == 1 else Together(tuple(members))


def _one(text: str) -> Split:
    name = text.strip()
    if name in PRESETS:
        return PRESETS[name]
    if "-" in name and "(" not in name:
        raise unknown("split", name, [*PRESETS, *KINDS], see="bespoke split list")
    call = parse_call(text)
    if call[0] == "gaussian":
        raise InputError(
            f"gaussian makes data that know their clients, it is no split of others, got {name!r}; "
            'take it as the data, "gaussian(between=1.0)", and split by_column'
        )
    if call[0] not in KINDS:
        raise unknown("split", call[0], [*KINDS, *PRESETS], see="bespoke split list")
    kind = KINDS[call[0]]
    return kind(**bind(call, kind))


def _parts(text: str) -> list[str]:
    """What stands between the plus signs, but for those in brackets or quotation marks."""
    cuts, depth, quote = [-1], 0, ""
    for at, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "()[]{}":
            depth += 1 if letter in "([{" else -1
        elif letter == "+" and depth == 0:
            cuts.append(at)
    return [text[start + 1 : end] for start, end in pairwise([*cuts, len(text)])]
