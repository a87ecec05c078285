"""Splits: rules that divide a data set among clients.

split       base classes, settings and checks
label_free  iid, domains and by_column: splits that ignore the labels
label_skew  dirichlet, classes, lognormal, pfedme and fallah: different class proportions
slices      quantity and subclass: sizes from uniform cut points
changes     rotation, permuted_labels, official_test and sample, which modify other splits
composed    sums of splits, and splits with the names of papers
transform   rotations and label permutations of examples
"""

import re
from itertools import pairwise

from bespokefl.core.errors import InputError, unknown
from bespokefl.core.user_input import plugins
from bespokefl.core.user_input.spec import bind, parse_call
from bespokefl.data.splits.changes import OfficialTest, PermutedLabels, Rotation, Sample
from bespokefl.data.splits.composed import Composed, Preset
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

PRESETS = {
    name: Preset(name, split, clients, papers)
    for name, split, clients, papers in (
        ("ds-1", Classes(4), 10, "PersFL, from FedPer"),
        ("ds-2", Dirichlet(0.9), 10, "PersFL"),
        ("ds-3", LogNormal(2), 10, "PersFL, from pFedMe"),
        ("ds-4", Fallah(), 50, "PersFL, from Per-FedAvg"),
        ("fedprox-mnist", LogNormal(2), 1000, "FedProx; Self-FL"),
        ("pfedme-cifar10", PFedMe(3), 20, "pFedMe; Self-FL"),
        ("pfedvem", Quantity(5) + OfficialTest(), 100, "pFedVEM, label skew (with 50, 100 and 200 clients)"),
        (
            "pfedvem-superclass",
            Subclass() + OfficialTest(),
            100,
            "pFedVEM, concept drift (with 50, 100 and 200 clients)",
        ),
        ("ucfl-label-shift", Sample(10_000) + Dirichlet(0.4) + OfficialTest(), 20, "User-Centric FL, first scenario"),
        ("ucfl-rotation", Dirichlet(8.0) + Rotation(4) + OfficialTest(), 100, "User-Centric FL, second scenario"),
        ("ucfl-permuted", IID() + PermutedLabels(4) + OfficialTest(), 20, "User-Centric FL, third scenario"),
    )
}

PLUGIN = re.compile(r"([\w.]+:[\w.]+|[\w-]+)(\(.*\))?", re.DOTALL)  # module:Class(k=3), or a name

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
    """Read a split from text, such as "iid", "dirichlet(alpha=0.4)", "ds-1" or "classes(2) + rotation(groups=4)".

    Splits of other packages have the name of an entry point or "module:Class".
    """
    members = [_parse_one(part) for part in _summands(text)]
    return members[0] if len(members) == 1 else Composed(tuple(members))


def _parse_one(text: str) -> Split:
    name = text.strip()
    if name in PRESETS:
        return PRESETS[name]
    written = PLUGIN.fullmatch(name)
    if written is not None and written[1] not in SPLITS:
        kind = find(written[1])
        return kind(**bind((written[1], *parse_call(f"split{written[2] or ''}")[1:]), kind))
    call = parse_call(text)
    kind = find(call[0])
    return kind(**bind(call, kind))


def find(name: str) -> type[Split]:
    """The class of a split by its name, by that of an entry point, or by "module:Class"."""
    if name in SPLITS:
        return SPLITS[name]
    if name == "gaussian":
        raise InputError(
            "gaussian generates data with clients and is not a split; use it as the data, "
            '"gaussian(between=1.0)", and split by_column'
        )
    if name in PRESETS:
        raise InputError(f"{name} takes no arguments; write {name!r}")
    found = plugins.load(name, plugins.SPLITS, "split")
    if found is None:
        raise unknown(
            "split", name, [*SPLITS, *PRESETS, *plugins.entry_points(plugins.SPLITS)], see="bespoke split list"
        )
    if not isinstance(found, type) or not issubclass(found, Split):
        raise InputError(f"split {name!r} must be a class derived from bespokefl.splits.Split, got {found!r}")
    found.kind = name  # so that str(split) is what a user can write
    return found


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
