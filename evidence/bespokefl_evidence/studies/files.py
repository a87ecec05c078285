"""Data files that no registry has: how experiments name them, and how each becomes a data set.

An experiment names such data like a call, ``femnist_by_writer(labels="abcdefghij")``: the arguments are those of the
function of that name below, and the file is femnist_by_writer.npz in the directory that the user names by --files.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch.nn.functional import avg_pool2d

from bespokefl.core.client_index import ClientIndex
from bespokefl.core.errors import InputError, unknown
from bespokefl.core.user_input.spec import bind, parse_call
from bespokefl.data.clients import Clients, build_clients
from bespokefl.data.dataset import Dataset
from bespokefl.data.readers import npz
from bespokefl.data.tables import from_columns

Arrays = Mapping[str, np.ndarray]
DOMAIN = "domain"  # the column of the split "domains"
TEST = "test"
SUBCLASS = "subclass"
EXECUTION = "execution"


def is_file(name: str) -> bool:
    """Whether experiments get these data from a file."""
    return name.partition("(")[0] in READERS


def load_file(name: str, directory: Path | None, how_to_get: str) -> Dataset:
    """Read the file of these data from a directory.

    Raises
    ------
    InputError
        If the file is missing, or is not what its name says.
    """
    call = parse_call(name)
    reader = READERS[call[0]]
    arguments = bind(call, reader, given=("arrays",))
    path = (directory or Path()) / f"{call[0]}.npz"
    if not path.exists():
        raise InputError(
            f"{path.name} is not in {str(path.parent)!r}: {how_to_get.rstrip('.')}; name its directory by --files."
        )
    try:
        return replace(reader(npz.read(path), **arguments), name=name)
    except (KeyError, IndexError, UnicodeDecodeError) as error:
        raise InputError(f"{str(path)!r} does not have the arrays of {call[0]} ({error!r}); get it again.") from None


def femnist_by_writer(
    arrays: Arrays, labels: str = "", least: int = 1, writers: int | None = None, shrink: int = 1
) -> Dataset:
    """Handwriting by writer.

    `labels` are the characters to keep (all if empty), `least` the images of a writer, `writers` how many of these are
    kept (None: all), and `shrink` is the factor by which images are average-pooled.
    """
    classes = "".join(arrays["classes"].tolist())
    foreign = sorted(set(labels) - set(classes))
    if foreign:
        raise unknown("label", foreign[0], tuple(classes))
    kept = np.isin(arrays["y"], [classes.index(one) for one in labels or classes])
    kept &= _frequent(arrays["writer"], kept, least)
    kept &= np.isin(arrays["writer"], np.unique(arrays["writer"][kept])[:writers])
    letters = arrays["classes"][arrays["y"][kept]]
    images = 255 - arrays["x"][kept][:, np.newaxis]  # ink is 255, as in MNIST
    found = Dataset.from_arrays(images, letters, arrays["writer"][kept], columns={TEST: arrays["is_test"][kept]})
    return found if shrink == 1 else replace(found, x=avg_pool2d(found.x, shrink), known_fingerprint=None)


def har_geotec_windows(arrays: Arrays, device: int) -> Dataset:
    """Movements by person, as mean, deviation, minimum and maximum of the channels of a window."""
    kept = arrays["device"] == device
    x = arrays["x"][kept].astype(np.float32) * arrays["scale"]
    features = np.concatenate([x.mean(1), x.std(1), x.min(1), x.max(1)], axis=1)
    labels = arrays["labels"][arrays["y"][kept]]
    return Dataset.from_arrays(
        features, labels, arrays["subject"][kept], columns={EXECUTION: arrays["execution"][kept]}
    )


def landmine_29tasks(arrays: Arrays) -> Dataset:
    """Mines and clutter by field."""
    return Dataset.from_arrays(arrays["x"], arrays["y"].astype(np.int64), arrays["field"])


def by_execution(dataset: Dataset) -> Clients:
    """One client per person; the last fifth of a person's executions is test data, the fifth before it validation."""
    assert dataset.client is not None
    parts: tuple[list[np.ndarray], ...] = ([], [], [])
    people = np.unique(dataset.client)
    for person in people:
        own = np.flatnonzero(dataset.client == person)
        executions = dataset.columns[EXECUTION][own]
        known = np.unique(executions)
        fifth = max(1, len(known) // 5)
        part_of = np.digitize(executions, known[[-2 * fifth, -fifth]])
        for at, part in enumerate(parts):
            part.append(own[part_of == at])
    train, validation, test = (ClientIndex.of_lists(part) for part in parts)
    return build_clients(dataset, tuple(map(str, people)), (train, validation, test), "by execution", seed=0)


def cifar100_subset25k(arrays: Arrays) -> Dataset:
    """A quarter of CIFAR-100's training images and half of its test images; the labels are the superclasses."""
    joined = {
        key: np.concatenate([arrays[f"{key}_train"], arrays[f"{key}_test"]]) for key in ("x", "y_coarse", "y_fine")
    }
    is_test = np.arange(len(joined["x"])) >= len(arrays["x_train"])
    columns = {TEST: is_test, SUBCLASS: arrays["fine_names"][joined["y_fine"]]}
    return Dataset.from_arrays(joined["x"], arrays["coarse_names"][joined["y_coarse"]], columns=columns)


def fsdd_logmel_by_speaker(
    arrays: Arrays, keyword: int = 0, test_takes: int = 30, shares: tuple[float, ...] = (1.0,)
) -> Dataset:
    """Spoken digits as detection of one of them, by speaker.

    The first takes of each speaker and digit are test data; a speaker keeps a share of the others, by turns of
    `shares`, so that clients can have different sizes.
    """
    speaker, take = arrays["speaker"].astype(np.int64), arrays["take"].astype(np.int64)
    is_test = take < test_takes
    part = np.array(shares)[speaker % len(shares)]
    kept = is_test | (take < test_takes + part * (take.max() + 1 - test_takes))
    low, high = arrays["lo_hi"]
    series = (low + (high - low) * arrays["x"][kept].astype(np.float32) / 255).swapaxes(1, 2)  # (time, frequency)
    names = arrays["speakers"][speaker[kept]]
    detected = (arrays["y"][kept] == keyword).astype(np.int64)
    return Dataset.from_arrays(series, detected, names, classes=2, columns={TEST: is_test[kept], DOMAIN: names})


def sent140_by_user(arrays: Arrays, least: int = 10) -> Dataset:
    """Tweets by person, as positive or negative; only of people with at least so many."""
    kept = _frequent(arrays["user"], np.ones(len(arrays["user"]), dtype=bool), least)
    columns = {"text": _documents(arrays)[kept], "y": arrays["y"][kept], "client": arrays["user"][kept]}
    return from_columns(columns, label="y", client="client", text="text")


def stackoverflow_titles20(arrays: Arrays, tags: tuple[str, ...] = ()) -> Dataset:
    """Titles of questions, and the tag of each; only those with some tags, if they are given."""
    names = arrays["tags"][arrays["y"]]
    for tag in tags:
        if tag not in arrays["tags"]:
            raise unknown("tag", tag, arrays["tags"].tolist())
    kept = np.isin(names, tags) if tags else np.ones(len(names), dtype=bool)
    return from_columns({"text": _documents(arrays)[kept], "y": names[kept]}, label="y", text="text")


def _frequent(owner: np.ndarray, kept: np.ndarray, least: int) -> np.ndarray:
    """Which examples belong to an owner with at least so many of those that are kept."""
    found, position = np.unique(owner, return_inverse=True)
    enough: np.ndarray = np.bincount(position[kept], minlength=len(found)) >= least
    return enough[position]


def _documents(arrays: Arrays) -> np.ndarray:
    lines = arrays["text_utf8"].tobytes().decode("utf-8").split("\n")
    return np.array(lines[: len(arrays["y"])])  # a last line may end by a line feed


READERS: dict[str, Callable[..., Dataset]] = {
    one.__name__: one
    for one in (
        femnist_by_writer,
        har_geotec_windows,
        landmine_29tasks,
        cifar100_subset25k,
        fsdd_logmel_by_speaker,
        sent140_by_user,
        stackoverflow_titles20,
    )
}
