"""In which way clients differ: in their labels, their sizes, their features, or in what a label means to them.

label     How far the clients' shares of the classes are apart (the mean total variation of two of them), beyond what
          drawing so few examples at random would give. For real-valued targets: the clients' part of their variance.
size      The Gini coefficient of the numbers of training examples.
feature   Examples of one class look different at different clients: the clients' part of the variance of the inputs
          within a class, once labels are matched as well as they can be.
concept   The same as labels are, where matching them explains most of it (a class of one client looks like another
          class of the next), or where the inputs as a whole do not differ at all.
shift     One of both, which cannot be told apart: labels are skewed, so that most classes of a client have no
          counterpart at another, and no groups are there whose examples could be put together.

Everything is from the means of inputs by class, sketched to a few coordinates, and from counts: sums that a client
could send. Squared distances of means are freed of their noise, so that clients without a difference have 0.
"""

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bespokefl.core import rng as chance
from bespokefl.data import split_statistics
from bespokefl.data.clients import Clients

Array = NDArray[np.float64]

WIDTH = 128  # coordinates of a sketch
VOCABULARY = 512  # tokens are counted by their number modulo this
FEW = 3  # examples of a class that a mean needs
PAIRS = 2000  # that are looked at, if there are more
DRAWS = 200
LEAST = {"label": 0.1, "size": 0.25, "feature": 0.05, "concept": 0.05, "shift": 0.05}  # from which on a word is said
MATCHED = 0.6  # of a difference: if relabelling explains as much, labels mean different things
SEEN = 0.01  # of the inputs' variance: less between clients is nothing
WHOLE = 0.33  # of how much classes differ: where labels are skewed, less between the inputs as a whole leaves it open


@dataclass(frozen=True)
class Kinds:
    """Each kind's figure, in 0..1, whether it is there, and the figures it rests on."""

    figures: dict[str, float | None]
    present: dict[str, bool]
    details: dict[str, Any]


def measure(clients: Clients, groups: NDArray[np.int64], differ: bool, seed: int) -> Kinds:
    """groups    clients that count as one, where features and concepts are compared
    differ    whether the clients' fits differ beyond chance
    """
    known = split_statistics.measure(clients)
    details: dict[str, Any] = {
        "size_gini": known.size_gini,
        "smallest": known.smallest,
        "median": known.median,
        "largest": known.largest,
    }
    figures: dict[str, float | None] = {
        "label": None,
        "size": known.size_gini,
        "feature": None,
        "concept": None,
        "shift": None,
    }
    parts = [clients.train.of(i).numpy() for i in range(len(clients))]
    x = sketch(clients, seed)
    if len(clients) > 1 and clients.classes is None:
        figures["label"] = _part_between(clients.y.reshape(len(clients.y), -1).double().numpy(), parts)
        whole = _part_between(x, parts)
        details["inputs_between"] = whole
        figures |= {"feature": whole, "concept": 1.0 if differ and whole < SEEN else 0.0}
    elif len(clients) > 1 and clients.classes is not None:
        label, observed, expected = _labels(clients, seed)
        details |= {"label_distance": observed, "label_distance_by_chance": expected}
        figures["label"] = label
        units = [np.concatenate([parts[i] for i in np.flatnonzero(groups == one)]) for one in np.unique(groups)]
        units = units if len(units) > 1 else parts
        alone = label >= LEAST["label"] and len(units) == len(parts)
        apart = _classes_apart(x, clients.y.numpy(), units, clients.classes, seed)
        details |= apart
        figures |= _told_apart(apart, alone)
    present = {name: value is not None and value >= LEAST[name] for name, value in figures.items()}
    return Kinds(figures, present, details)


def sketch(clients: Clients, seed: int) -> Array:
    """Every example as a few numbers, whose distances are about those of the examples."""
    if not clients.x.is_floating_point():
        tokens = clients.x.reshape(len(clients.x), -1).numpy() % VOCABULARY
        x = np.stack([np.bincount(one, minlength=VOCABULARY) for one in tokens]).astype(np.float64)
    else:
        x = clients.x.reshape(len(clients.x), -1).double().numpy()
    if x.shape[1] <= WIDTH:
        return x
    rng = chance.generator(seed, "diagnose", "sketch")
    found: Array = x @ (rng.standard_normal((x.shape[1], WIDTH)) / np.sqrt(WIDTH))
    return found


def _labels(clients: Clients, seed: int) -> tuple[float, float, float]:
    """The distance beyond chance, in 0..1, the distance, and that of clients who draw from all classes alike."""
    counts = split_statistics.class_counts(clients)
    sizes = counts.sum(1)
    observed = split_statistics.label_distance(counts / sizes[:, None])
    shares = counts.sum(0) / counts.sum()
    rng = chance.generator(seed, "diagnose", "labels")
    drawn = [split_statistics.label_distance(rng.multinomial(sizes, shares) / sizes[:, None]) for _ in range(DRAWS)]
    expected = float(np.mean(drawn))
    return max((observed - expected) / max(1 - expected, 1e-12), 0.0), observed, expected


def _part_between(values: Array, parts: list[NDArray[np.int64]]) -> float:
    """The part of the variance that lies between clients, freed of noise."""
    sizes = np.array([len(one) for one in parts])
    some = [values[one] for one, size in zip(parts, sizes, strict=True) if size >= 2]
    if len(some) < 2:
        return 0.0
    inside = sum(((one - one.mean(0)) ** 2).sum() for one in some) / sum(len(one) - 1 for one in some)
    means = np.stack([one.mean(0) for one in some])
    noise = inside * np.mean([1 / len(one) for one in some])
    outside = max(float(((means - means.mean(0)) ** 2).sum() / (len(means) - 1) - noise), 0.0)
    return float(outside / max(outside + inside, 1e-300))


def _classes_apart(
    x: Array, y: NDArray[np.int64], units: list[NDArray[np.int64]], classes: int, seed: int
) -> dict[str, float | None]:
    """The units' part of the variance within a class, as labels are and as they match best; and of inputs as a whole.

    None where no two units have a class in common.
    """
    counts = np.stack([np.bincount(y[one], minlength=classes) for one in units])
    sums = np.zeros((len(units), classes, x.shape[1]))
    for at, one in enumerate(units):
        np.add.at(sums[at], y[one], x[one])
    means = sums / np.maximum(counts, 1)[:, :, None]
    total = sum(float((x[one] ** 2).sum()) for one in units)
    inside = (total - float((counts[:, :, None] * means**2).sum())) / max(counts.sum() - (counts > 0).sum(), 1)
    common = sums.sum(0) / np.maximum(counts.sum(0), 1)[:, None]
    # what is left of a unit's mean input when its share of each class is accounted for
    rest = (sums.sum(1) - counts @ common) / counts.sum(1, keepdims=True)
    spread = sum(float(((x[one] - common[y[one]]) ** 2).sum()) for one in units) / counts.sum()
    pairs = list(combinations(range(len(units)), 2))
    if len(pairs) > PAIRS:
        rng = chance.generator(seed, "diagnose", "pairs")
        pairs = [pairs[at] for at in np.sort(rng.choice(len(pairs), PAIRS, replace=False))]
    found = np.array([_pair(u, v, counts, means, rest, inside, spread) for u, v in pairs])
    there = found[:, 0] > 0 if len(found) else np.zeros(0, dtype=bool)
    if not there.any():
        return {"as_labelled": None, "as_matched": None, "inputs_between": None}
    weights = found[there, 0]
    named, matched, whole = (max(float(np.average(found[there, at], weights=weights)) / 2, 0.0) for at in (1, 2, 3))
    return {
        "as_labelled": named / max(named + inside, 1e-300),
        "as_matched": min(matched, named) / max(min(matched, named) + inside, 1e-300),
        "inputs_between": whole / max(whole + spread, 1e-300),
    }


def _pair(
    u: int, v: int, counts: NDArray[np.int64], means: Array, rest: Array, inside: float, spread: float
) -> tuple[float, float, float, float]:
    """A weight, and squared distances without their noise: as labelled, as matched, of the inputs as a whole."""
    from scipy.optimize import linear_sum_assignment

    shared = np.flatnonzero((counts[u] >= FEW) & (counts[v] >= FEW))
    if not len(shared):
        return 0.0, 0.0, 0.0, 0.0
    a, b = means[u, shared], means[v, shared]
    noise = inside * (1 / counts[u, shared][:, None] + 1 / counts[v, shared][None])
    cost = (a**2).sum(1)[:, None] + (b**2).sum(1)[None] - 2 * a @ b.T - noise
    rows, columns = linear_sum_assignment(cost)
    sizes = counts[[u, v]].sum(1)
    weight = float((1 / (1 / counts[u, shared] + 1 / counts[v, shared])).sum())
    whole = float(((rest[u] - rest[v]) ** 2).sum() - spread * (1 / sizes).sum())
    return weight, float(np.diag(cost).mean()), float(cost[rows, columns].mean()), whole


def _told_apart(apart: dict[str, float | None], skewed: bool) -> dict[str, float | None]:
    """Feature shift, concept shift, or one of both; `skewed` if classes have few counterparts."""
    named, matched, whole = (apart[name] for name in ("as_labelled", "as_matched", "inputs_between"))
    found: dict[str, float | None] = {"feature": 0.0, "concept": 0.0, "shift": 0.0}
    if named is None or matched is None or whole is None:
        return dict.fromkeys(found)
    if matched <= (1 - MATCHED) * named or whole < SEEN:
        return found | {"concept": named}
    if skewed and whole < WHOLE * named:
        return found | {"shift": named}
    return found | {"feature": matched}
