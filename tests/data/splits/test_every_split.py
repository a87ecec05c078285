"""What all splits promise, alone and added up: an end, no training example twice, and the same for the same seed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bespokefl.core.errors import InputError
from bespokefl.data.splits import PRESETS, SPLITS, parse
from tests.data.splits.examples import balanced, own, pictures, used

# Of balanced(10, 40), ten clients (presets: as many as they have, where the data reach), seed 0.
# If one changes, every published split of that kind changes.
GOLDEN = {
    "iid": "16a8a99e42eac1e049f2fe65c2639c5fd85b24040e4de43c5693de3986c5d83b",
    "dirichlet(alpha=0.5)": "7c60ff9957a2bb0e070f05b74842cc99d32b5a99b7d5e7529d35e1cb39611b54",
    "classes(k=3)": "3f29452b7d284c7684ac20e8f07a277f52a373a21815e5033dc4faf35b3d8357",
    "lognormal(k=2)": "5e94de6a2f1707fc5b5864d4fa36fadaf344a2f3956738766d29ea81bb4a369c",
    "fallah(k=6)": "b1f28504690c4b9a15c34970a0f88da79f33e93ce034cfca5c67861f5c83daa3",
    "pfedme(k=2)": "83f47e1814a950c5d18fbe1f525be861400213f95071da20f42c44ba5d746c0c",
    "quantity(k=5)": "8fc8e80e3798eaa830e9f7c1cdf8c878857873961301baad0c0b4d7b5b9aa01d",
    "subclass": "0b352b6bcdd91b5106b0c5c1c5d40f4f31b3da4e5aadbaf3c4876ad9d56e4ca1",
    "domains": "82c2c86cfffc80855452103d97a6f5a243ab1e8ead8c99200045efd2046f925f",
    "by_column": "cde7857906b5742629215e79c61cc64b157ee97409cc66a5a1fb6a6fe7b40e8e",
    "rotation(groups=4)": "a9ad57af05065f1c132e2451c88c9c4e5ba1b0e8fc03097ace8f36bb1bd984ff",
    "permuted_labels(groups=4)": "ced31384587eefcd46ffac35cc93b818efaeb9ac67f748e6c38b5f755a40dcbe",
    "official_test": "210bcd1a20e852c4b4960c2ac0b53e259cdd0f89363502aac3a76ba555d0e2e3",
    "sample(examples=100)": "dab611cbc319b835a0955263eb4255c5285fdc7b02e3b449e55a2bb67c44e82c",
    "ds-1": "a157036ac5e24aa676f2ba05855bb6178773ed746973fd0b6a6fef0dcc27d96c",
    "ds-2": "59cf40bf0d79318b20052112bb35a2e10ca1e14f7db42c901087cac9b447e4d2",
    "ds-3": "5e94de6a2f1707fc5b5864d4fa36fadaf344a2f3956738766d29ea81bb4a369c",
    "pfedme-cifar10": "64926e9145e23a0a9ee99ed4a8da8634a2bd69a581417b823b40d1e1ff553b64",
    "ucfl-permuted": "2bf006868b83811706d7f09b5546b19c57688ad45ce8adc218914e45a917103c",
    "dirichlet(alpha=8.0) + rotation(groups=4)": "03c45dc8644235d9636d010c6fa2a9750a7bdd2999da550e856157b286f84bf5",
}

counted = st.integers(1, 6)
owners = st.one_of(
    st.just("iid"),
    st.floats(0.05, 100).map("dirichlet(alpha={}, min_examples=1)".format),
    counted.map("classes(k={})".format),
    st.builds("lognormal(k={}, sigma={}, least={})".format, counted, st.floats(0.1, 500), st.integers(1, 3)),
    st.builds("lognormal(k={}, mu=1, sigma=1, least=1, shares=False)".format, counted),
    st.integers(2, 6).map("fallah(k={})".format),
    st.just("pfedme(k=1)"),
    st.sampled_from(["quantity", "quantity(equal=True)"]),
    st.builds("quantity(k={}, equal={})".format, counted, st.booleans()),
    st.sampled_from(["subclass", "subclass(equal=True)"]),
    st.just("domains"),
    st.sampled_from(["by_column", 'by_column(column="domain")']),
)
changes = st.lists(
    st.sampled_from(["rotation(groups=2)", "permuted_labels(groups=2)", "official_test", "sample(examples=30)"]),
    unique=True,
)


@st.composite
def labels(draw: st.DrawFn) -> np.ndarray:
    """Labels of two to six classes, of very different sizes, in mixed order."""
    pools = draw(st.lists(st.integers(1, 60), min_size=2, max_size=6))
    return np.random.default_rng(draw(st.integers(0, 99))).permutation(np.repeat(np.arange(len(pools)), pools))


@given(labels(), owners, changes, st.integers(1, 12), st.integers(0, 1000))
@settings(max_examples=400, deadline=None)
def test_promises_of_all(classes: np.ndarray, owner: str, more: list[str], num: int, seed: int) -> None:
    dataset, text = pictures(classes), " + ".join([owner, *more])
    try:
        clients = dataset.split(text, clients=num, seed=seed)
    except InputError as error:
        assert "\n" not in str(error)
        return
    trained = used(clients, "train", "validation")
    assert len(trained) == len(np.unique(trained))
    assert int(clients.sizes.min()) >= 1
    if "by_column" not in owner:
        assert len(clients) == num
    tested, official = used(clients, "test"), dataset.columns["test"]
    if "official_test" in more:
        assert official[tested].all()
        assert not official[trained].any()
    else:
        assert len(np.intersect1d(trained, tested)) == 0
        assert len(tested) == len(np.unique(tested))
    if "sample(examples=30)" in more:
        handed_out = len(trained) if "official_test" in more else len(trained) + len(tested)
        assert handed_out <= 30
    assert (clients.groups is not None) == (owner == "domains" or any("groups" in one for one in more))
    again = dataset.split(text, clients=num, seed=seed)
    assert again.hash == clients.hash
    assert again.x.equal(clients.x)
    assert again.y.equal(clients.y)
    assert str(parse(str(parse(text)))) == str(parse(text)) == clients.split_name


@given(labels(), owners, changes, st.integers(1, 12), st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_clients_see_their_examples_transformed(
    classes: np.ndarray, owner: str, more: list[str], num: int, seed: int
) -> None:
    """What stands in x and y is the original, turned and relabelled as the client's transform says."""
    dataset = pictures(classes)
    try:
        clients = dataset.split(" + ".join([owner, *more]), clients=num, seed=seed)
    except InputError:
        return
    for client in range(len(clients)):
        transform = None if clients.transforms is None else clients.transforms[client]
        for part in ("train", "validation", "test"):
            seen, were = getattr(clients, part).of(client), own(clients, client, part)
            x, y = dataset.x[were].numpy(), dataset.y[were].numpy()
            if transform is not None:
                x = np.rot90(x, transform.turns, axes=(2, 3))
                y = y if transform.labels is None else np.array(transform.labels)[y]
            assert np.array_equal(clients.x[seen].numpy(), x)
            assert np.array_equal(clients.y[seen].numpy(), y)


def golden_texts() -> list[str]:
    made = {
        "dirichlet": "dirichlet(alpha=0.5)",
        "classes": "classes(k=3)",
        "lognormal": "lognormal(k=2)",
        "fallah": "fallah(k=6)",
        "pfedme": "pfedme(k=2)",
        "quantity": "quantity(k=5)",
        "sample": "sample(examples=100)",
        "rotation": "rotation(groups=4)",
        "permuted_labels": "permuted_labels(groups=4)",
    }
    kinds = [made.get(kind, kind) for kind in SPLITS]
    too_large = {"ds-4", "fedprox-mnist", "ucfl-label-shift", "pfedvem-superclass", "pfedvem", "ucfl-rotation"}
    return [*kinds, *(name for name in PRESETS if name not in too_large), "dirichlet(alpha=8.0) + rotation(groups=4)"]


@pytest.mark.parametrize("text", golden_texts())
def test_golden_hash(text: str) -> None:
    assert balanced(10, 40).split(text, clients=10).hash == GOLDEN[text]


@pytest.mark.parametrize("text", [one for one in golden_texts() if one not in ("by_column",)])
def test_another_seed_is_another_split(text: str) -> None:
    dataset = balanced(10, 40)
    assert len({dataset.split(text, clients=10, seed=seed).hash for seed in range(3)}) == 3
