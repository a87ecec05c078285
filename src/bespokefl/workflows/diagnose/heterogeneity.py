"""Kinds of difference between clients: labels, sizes, features, or what a label means.

label     Mean total variation distance between the label distributions of two clients, beyond what drawing so few
          examples at random gives. For regression: the share of the targets' variance that lies between clients.
size      The Gini coefficient of the numbers of training examples.
feature   Examples of one class look different at different clients: the share of the inputs' variance within a class
          that lies between clients after labels are matched as well as possible.
concept   The same with labels as they are, if matching labels explains most of it (a class of one client looks like
          another class of the next), or if the inputs as a whole do not differ.
shift     Feature or concept shift, which cannot be distinguished: labels are skewed, so that most classes of a client
          have no counterpart at another client, and there are no groups whose examples could be pooled.

All figures are computed from class counts and from class means of the inputs, projected to a few coordinates: sums that
a client could send. The noise is subtracted from squared distances of means, so that equal clients have distance 0.
"""

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bespokefl.core import rng
from bespokefl.data import split_statistics
from bespokefl.data.clients import Clients
from bespokefl.metrics.client_values import Array

Indices = NDArray[np.int64]

SKETCH_WIDTH = 128  # coordinates that inputs are projected to
VOCABULARY = 512  # tokens are counted by their number modulo this
MIN_EXAMPLES = 3  # of a class, for its mean to be used
MAX_PAIRS = 2000  # pairs of clients that are compared
NUM_DRAWS = 200
THRESHOLDS = {"label": 0.1, "size": 0.25, "feature": 0.05, "concept": 0.05, "shift": 0.05}  # for a kind to be present
MATCHED = 0.6  # of a difference: if matching labels explains this share, labels mean different things
NO_INPUT_SHIFT = 0.01  # of the inputs' variance between clients: below it, the inputs as a whole do not differ
INPUT_SHIFT = 0.33  # of how much classes differ: below it, skewed labels leave the kind of shift open


@dataclass(frozen=True)
class Heterogeneity:
    """The figure of each kind in [0, 1], whether the kind is present, and the figures it is based on."""

    figures: dict[str, float | None]
    present: dict[str, bool]
    details: dict[str, Any]


def measure(clients: Clients, groups: Indices, differ: bool, seed: int) -> Heterogeneity:
    """Measure all kinds of difference.

    `groups` are clients whose examples are pooled when features and concepts are compared; `differ` tells whether the
    clients' fits differ beyond chance.
    """
    known = split_statistics.measure(clients)
    details: dict[str, Any] = {name: getattr(known, name) for name in ("size_gini", "smallest", "median", "largest")}
    figures: dict[str, float | None] = dict.fromkeys(THRESHOLDS) | {"size": known.size_gini}
    parts = [clients.train.of(i).numpy() for i in range(len(clients))]
    x = sketch(clients, seed)
    if len(clients) > 1 and clients.classes is None:
        figures["label"] = _share_between(clients.y.reshape(len(clients.y), -1).double().numpy(), parts)
        inputs = _share_between(x, parts)
        details["inputs_between"] = inputs
        figures |= {"feature": inputs, "concept": 1.0 if differ and inputs < NO_INPUT_SHIFT else 0.0}
    elif len(clients) > 1 and clients.classes is not None:
        label, observed, expected = _label_skew(clients, seed)
        details |= {"label_distance": observed, "label_distance_by_chance": expected}
        figures["label"] = label
        units = [np.concatenate([parts[i] for i in np.flatnonzero(groups == one)]) for one in np.unique(groups)]
        units = units if len(units) > 1 else parts
        skewed = label >= THRESHOLDS["label"] and len(units) == len(parts)
        shares = _shares_within_classes(x, clients.y.numpy(), units, clients.classes, seed)
        details |= shares
        figures |= _kind_of_shift(shares, skewed)
    present = {name: value is not None and value >= THRESHOLDS[name] for name, value in figures.items()}
    return Heterogeneity(figures, present, details)


def sketch(clients: Clients, seed: int) -> Array:
    """Project every example to a few numbers that approximately preserve distances."""
    if not clients.x.is_floating_point():
        tokens = clients.x.reshape(len(clients.x), -1).numpy() % VOCABULARY
        x = np.stack([np.bincount(one, minlength=VOCABULARY) for one in tokens]).astype(np.float64)
    else:
        x = clients.x.reshape(len(clients.x), -1).double().numpy()
    if x.shape[1] <= SKETCH_WIDTH:
        return x
    generator = rng.generator(seed, "diagnose", "sketch")
    found: Array = x @ (generator.standard_normal((x.shape[1], SKETCH_WIDTH)) / np.sqrt(SKETCH_WIDTH))
    return found


def _label_skew(clients: Clients, seed: int) -> tuple[float, float, float]:
    """Return the label distance beyond chance in [0, 1], the distance, and that of clients drawn at random."""
    counts = split_statistics.class_counts(clients)
    sizes = counts.sum(1)
    observed = split_statistics.label_distance(counts / sizes[:, None])
    shares = counts.sum(0) / counts.sum()
    generator = rng.generator(seed, "diagnose", "labels")
    drawn = (generator.multinomial(sizes, shares) / sizes[:, None] for _ in range(NUM_DRAWS))
    expected = float(np.mean([split_statistics.label_distance(one) for one in drawn]))
    return max((observed - expected) / max(1 - expected, 1e-12), 0.0), observed, expected


def _share_between(values: Array, parts: list[Indices]) -> float:
    """Return the share of the variance that lies between clients, corrected for noise."""
    some = [values[one] for one in parts if len(one) >= 2]
    if len(some) < 2:
        return 0.0
    inside = sum(((one - one.mean(0)) ** 2).sum() for one in some) / sum(len(one) - 1 for one in some)
    means = np.stack([one.mean(0) for one in some])
    noise = inside * np.mean([1 / len(one) for one in some])
    outside = max(float(((means - means.mean(0)) ** 2).sum() / (len(means) - 1) - noise), 0.0)
    return float(outside / max(outside + inside, 1e-300))


def _shares_within_classes(
    x: Array, y: Indices, units: list[Indices], classes: int, seed: int
) -> dict[str, float | None]:
    """Return the share of the variance within a class between units: labels as they are, matched, and inputs overall.

    None if no two units have a class in common.
    """
    counts = np.stack([np.bincount(y[one], minlength=classes) for one in units])
    sums = np.zeros((len(units), classes, x.shape[1]))
    for at, one in enumerate(units):
        np.add.at(sums[at], y[one], x[one])
    means = sums / np.maximum(counts, 1)[:, :, None]
    total = sum(float((x[one] ** 2).sum()) for one in units)
    inside = (total - float((counts[:, :, None] * means**2).sum())) / max(counts.sum() - (counts > 0).sum(), 1)
    common = sums.sum(0) / np.maximum(counts.sum(0), 1)[:, None]
    # a unit's mean input, less what its label distribution accounts for
    rest = (sums.sum(1) - counts @ common) / counts.sum(1, keepdims=True)
    spread = sum(float(((x[one] - common[y[one]]) ** 2).sum()) for one in units) / counts.sum()
    pairs = list(combinations(range(len(units)), 2))
    if len(pairs) > MAX_PAIRS:
        generator = rng.generator(seed, "diagnose", "pairs")
        pairs = [pairs[at] for at in np.sort(generator.choice(len(pairs), MAX_PAIRS, replace=False))]
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
    u: int, v: int, counts: Indices, means: Array, rest: Array, inside: float, spread: float
) -> tuple[float, float, float, float]:
    """Return a weight and three squared distances less their noise: labels as they are, matched, inputs overall."""
    from scipy.optimize import linear_sum_assignment

    shared = np.flatnonzero((counts[u] >= MIN_EXAMPLES) & (counts[v] >= MIN_EXAMPLES))
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


def _kind_of_shift(shares: dict[str, float | None], skewed: bool) -> dict[str, float | None]:
    """Decide between feature shift, concept shift, and either; `skewed` if classes have few counterparts."""
    named, matched, whole = (shares[name] for name in ("as_labelled", "as_matched", "inputs_between"))
    found: dict[str, float | None] = {"feature": 0.0, "concept": 0.0, "shift": 0.0}
    if named is None or matched is None or whole is None:
        return dict.fromkeys(found)
    if matched <= (1 - MATCHED) * named or whole < NO_INPUT_SHIFT:
        return found | {"concept": named}
    if skewed and whole < INPUT_SHIFT * named:
        return found | {"shift": named}
    return found | {"feature": matched}
