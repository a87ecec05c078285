"""The papers' large splits give the same clients on every machine: golden hashes, on images of MNIST's number."""

import numpy as np
import pytest

from bespokefl.data.dataset import Dataset

EXAMPLES = 70_000
GOLDEN = {
    "ds-4": "808772fb7b12e448c64f8cd50cb182c6e11a68aed29401dc317bed1dbf9c4346",
    "fedprox-mnist": "20459ca6109d01a95e9f8aa92ecf575efa9e7210ecd953c4b42dc1e5627061e6",
    "pfedvem": "321558c78effdfabe98631906fc1a42382039007d9842c3899e2b857ab3d8de8",
    "pfedvem-superclass": "511384b65e26aaefb46e628918efd1d1a041e2e7fff3d56c9e4934931585ced5",
    "ucfl-label-shift": "6d525b9563995a1fdc5f484e2a89f0a9bcb73222fb57e1bdab42480a30678bcd",
    "ucfl-rotation": "17d589197206f60178ce9c31f5089c5261d0823d304fd1f37a1c2226c66a4cec",
}


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    labels = np.random.default_rng(0).integers(0, 10, EXAMPLES)
    columns = {"test": np.arange(EXAMPLES) >= 60_000, "subclass": labels * 5 + np.arange(EXAMPLES) % 5}
    return Dataset.from_arrays(np.zeros((EXAMPLES, 1, 2, 2), dtype=np.float32), labels, name="mnist", columns=columns)


@pytest.mark.parametrize("preset", GOLDEN)
def test_the_same_clients_on_every_machine(preset: str, dataset: Dataset) -> None:
    made = dataset.split(preset, seed=0)
    assert made.hash == GOLDEN[preset]
    assert dataset.split(preset, seed=1).hash != made.hash
    used = made.original_parts[0].indices
    assert len(used.unique()) == len(used)  # each training example at most once
