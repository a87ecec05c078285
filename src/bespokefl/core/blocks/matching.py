"""Columns by what they belong to: head, norm, biases, adapters, a layer, or a pattern."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from bespokefl.core.errors import InputError, listing
from bespokefl.core.rows import Layout


def matching(layout: Layout, blocks: str) -> tuple[str, ...]:
    """The columns that a setting names.

    `blocks` are names separated by commas: head, base, norm (normalization layers with their running statistics),
    biases, adapters, a layer, a parameter, or a pattern such as "*.bias".
    """
    found: set[str] = set()
    for written in filter(None, (one.strip() for one in blocks.split(","))):
        found.update(_matching(layout, written))
    if blocks and len(found) == len(layout.names):
        raise InputError(f"local_blocks {blocks!r} are all columns of the model: nothing would be shared; use local.")
    return tuple(name for name in layout.names if name in found)


def _matching(layout: Layout, block: str) -> Iterable[str]:
    last = {name: name.rpartition(".")[2] for name in layout.names}
    kinds = {
        "norm": ("normalization layers", layout.norm),
        "biases": ("biases", [name for name, own in last.items() if own == "bias"]),
        "adapters": ("adapters", [name for name, own in last.items() if own in ("lora_A", "lora_B")]),
    }
    if block in kinds:
        title, found = kinds[block]
        if not found:
            raise InputError(
                f"local_blocks names {block}, but the model has no {title}; it has {listing(layout.names)}."
            )
        return found
    if any(sign in block for sign in "*?["):
        matched = [name for name in layout.names if fnmatchcase(name, block)]
        if not matched:
            raise InputError(
                f"no column of the model matches {block!r} (local_blocks); it has {listing(layout.names)}."
            )
        return matched
    return layout.block(block)
