"""Splits: rules that divide a data set among clients.

split       base classes, settings and checks
label_free  iid, domains and by_column: splits that ignore the labels
label_skew  dirichlet, classes, lognormal, pfedme and fallah: different class proportions
slices      quantity and subclass: sizes from uniform cut points
changes     rotation, permuted_labels, official_test and sample, which modify other splits
composed    sums of splits, and splits by the names of papers
transform   rotations and label permutations of examples
"""

from itertools import pairwise

from bespokefl.core.errors import InputError, unknown
from bespokefl.core.spec import bind, parse_call
from bespokefl.data.splits.changes import OfficialTest, PermutedLabels, Rotation, Sample
from bespokefl.data.splits.composed import PRESETS, Composed, Preset
from bespokefl.data.splits.label_free import IID, ByColumn, Domains
from bespokefl.data.splits.label_skew import Classes, Dirichlet, Fallah, LogNormal, PFedMe
from bespokefl.data.splits.slices import Quantity, Subclass
from bespokefl.data.splits.split import Assignment, Change, Split
from bespokefl.data.splits.transform import Transform

SPLITS: dict[str, type[Split]] = {
    kind.kind: kind
    for kind in (
        *(IID, Dirichlet, Classes, LogNormal, Fallah, PFedMe, Quantity, Subclass, Domains, ByColumn),
        *(Rotation, PermutedLabels, OfficialTest, Sample),
    )
}

__all__ = [
    "IID",
    "PRESETS",
    "SPLITS",
    "Assignment",
    "ByColumn",
    "Change",
    "Classes",
    "Composed",
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
    "Transform",
    "parse",
]


def parse(text: str) -> Split:
    """Read a split from text, such as "iid", "dirichlet(alpha=0.4)", "ds-1" or "classes(2) + rotation(groups=4)"."""
    members = [_parse_one(part) for part in _summands(text)]
    return members[0] if len(members) == 1 else Composed(tuple(members))


def _parse_one(text: str) -> Split:
    name = text.strip()
    if name in PRESETS:
        return PRESETS[name]
    if "-" in name and "(" not in name:
        raise unknown("split", name, [*PRESETS, *SPLITS], see="bespoke split list")
    call = parse_call(text)
    if call[0] == "gaussian":
        raise InputError(
            f"gaussian generates data with clients and is not a split, got {name!r}; "
            'use it as the data, "gaussian(between=1.0)", and split by_column'
        )
    if call[0] not in SPLITS:
        raise unknown("split", call[0], [*SPLITS, *PRESETS], see="bespoke split list")
    kind = SPLITS[call[0]]
    return kind(**bind(call, kind))


def _summands(text: str) -> list[str]:
    """The text between plus signs that are not inside brackets or quotes."""
    cuts, depth, quote = [-1], 0, ""
    for index, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "()[]{}":
            depth += 1 if letter in "([{" else -1
        elif letter == "+" and depth == 0:
            cuts.append(index)
    return [text[start + 1 : end] for start, end in pairwise([*cuts, len(text)])]
