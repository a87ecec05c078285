"""Splits: rules that divide a data set among clients, one module for each.

split            base classes, settings and checks
allocation       assigns numbers or slices of each class to clients
iid              same number of examples, drawn from all
dirichlet        class proportions from a Dirichlet distribution
classes          k random classes, equal totals
lognormal        k consecutive classes, log-normal sizes
pfedme           k consecutive classes, pFedMe's sizes
fallah           two kinds of clients, from Per-FedAvg
quantity         sizes from uniform cut points
subclass         one subclass of every class
domains          one source of the data
by_column        clients named in the data
rotation         change: groups with rotated images
permuted_labels  change: groups with permuted labels
official_test    change: test on the official test set
sample           change: use a subset of the data
composed         sums of splits
presets          splits by the names of papers
transform        rotations and label permutations of examples
"""

from itertools import pairwise

from bespokefl.core.errors import InputError, unknown
from bespokefl.core.spec import bind, parse_call
from bespokefl.data.splits.by_column import ByColumn
from bespokefl.data.splits.classes import Classes
from bespokefl.data.splits.composed import Composed
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
    """Read a split from text.

    Parameters
    ----------
    text : str
        For example "iid", "dirichlet(alpha=0.4)", "ds-1" or "classes(2) + rotation(groups=4)".

    Returns
    -------
    Split

    Raises
    ------
    InputError
        If the name or an argument is unknown or invalid.
    """
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
