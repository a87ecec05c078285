"""Values that shells complete: names of methods, models, splits and data.

The imports are inside the functions, because every command line defines its options, and few complete a value.
"""

from collections.abc import Callable, Iterable


def methods(incomplete: str) -> list[str]:
    """The names of methods."""
    from bespokefl.core.user_input import plugins
    from bespokefl.methods import REGISTRY

    return _beginning([*REGISTRY, *plugins.entry_points(plugins.METHODS)], incomplete)


def models(incomplete: str) -> list[str]:
    """The names of models."""
    from bespokefl.models import names

    return _beginning(names(), incomplete)


def splits(incomplete: str) -> list[str]:
    """The names of splits and of those of papers; after " + ", those that change the split before it."""
    from bespokefl.core.user_input import plugins
    from bespokefl.data.splits import PRESETS, SPLITS, Change

    before, plus, last = incomplete.rpartition("+")
    if plus:
        changes = [name for name, kind in SPLITS.items() if issubclass(kind, Change)]
        return [f"{before}+ {name}" for name in _beginning(changes, last.strip())]
    kinds = [name for name, kind in SPLITS.items() if not issubclass(kind, Change)]
    return _beginning([*kinds, *PRESETS, *plugins.entry_points(plugins.SPLITS)], incomplete)


def data(incomplete: str) -> list[str]:
    """The names of data sets."""
    from bespokefl.data.sources.catalogue import CATALOGUE

    return _beginning(CATALOGUE, incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted({name for name in names if name.startswith(incomplete)})


BY_SETTING: dict[str, Callable[[str], list[str]]] = {"method": methods, "model": models, "split": splits, "data": data}
