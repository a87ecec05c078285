"""Splits in which clients have different classes or different proportions of them."""

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.data.dataset import Dataset
from bespokefl.data.splits.split import Assignment, Split, check_enough, class_labels, client_names, setting

MAX_DRAWS = 100
MAX_ALPHA = 1e32  # above it, all proportions are equal in float64; numpy's sum of gammas overflows at 1e308
FIRST = 10  # examples of each class in pFedMe's split
FEW_CLIENTS = 20  # up to this many clients get twice as many there
USED_SHARE = 0.9  # of the data, by Classes
ITERATIONS = 50  # measured: more of them increase the clients' sizes by less than a percent
PUBLISHED_K = {"mnist": 196, "cifar10": 68}


@dataclass(frozen=True)
class Dirichlet(Split, kind="dirichlet"):
    """Clients have different class proportions, drawn from a Dirichlet distribution: the usual label skew.

    The examples of each class are divided among the clients in proportions p ~ Dir(α, …, α). With a small α few
    clients have most of a class, and client sizes differ as well; a large α approaches iid. Hsu et al.,
    arXiv:1909.06335, introduced the Dirichlet distribution for this, over the classes of each client; drawing over the
    clients for each class, as here, is Yurochkin et al., ICML 2019, arXiv:1905.12022.

    Parameters
    ----------
    alpha : float, the concentration α: 0.1 is skewed, 100 is nearly even
    min_examples : int, default 3; proportions are redrawn, at most a hundred times, until every client has as many
    """

    alpha: float = setting(meaning="Dirichlet concentration; 0.1 is skewed, 100 is even")
    min_examples: int = setting(3, least=1)

    def assign(self, dataset: Dataset, clients: int, seed: int) -> Assignment:
        labels, classes = class_labels(self, dataset)
        check_enough(self, dataset, clients, each=self.min_examples)
        rng = self.generator(seed)
        counts = self._counts(np.bincount(labels, minlength=classes), clients, rng)
        held = np.tile(np.arange(classes), (clients, 1))
        return Assignment.numbered(assign_counts(labels, held, counts.T, rng), clients)

    def _counts(self, totals: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        """The number of examples of each class for each client: (classes, clients)."""
        alpha = np.full(clients, min(self.alpha, MAX_ALPHA))
        for _ in range(MAX_DRAWS):
            shares = rng.dirichlet(alpha, size=len(totals))
            cuts = np.floor(np.minimum(shares.cumsum(axis=1), 1) * totals[:, None]).astype(np.int64)
            cuts[:, -1] = totals
            counts: np.ndarray = np.diff(cuts, axis=1, prepend=0)
            sizes = counts.sum(axis=0)
            if sizes.min() >= self.min_examples:
                return counts
        short = int(sizes.argmin())
        raise InputError(
            f"{self} must give every client at least {self.min_examples} examples, but in each of {MAX_DRAWS} draws "
            f"one falls short (in the last, client {client_names(clients)[short]!r} got {sizes[short]}); "
            "use fewer clients, a larger alpha or a smaller min_examples"
        )


@dataclass(frozen=True)
class Classes(Split, kind="classes"):
    """Each client sees only k of the classes, and all clients have the same number of examples.

    1. Each class is given to about clients · k / classes clients, to fewer only if it has fewer examples than that.
       Otherwise the k classes of a client are random.
    2. Each client's proportions of its classes are random. Where a class would be asked for much more than it has, the
       proportions are reduced, so that about 90 % of the data are used.
    3. The number of examples per client is as large as the classes allow with about these proportions.

    Every step is bounded, and a request that passes step 1 succeeds. If classes differ much in size, the smallest ones
    limit the number of examples per client.
    """

    k: int = setting(least=1, meaning="classes per client")

    def assign(self, dataset: Dataset, clients: int, seed: int) -> Assignment:
        labels, classes = class_labels(self, dataset, self.k)
        check_enough(self, dataset, clients, each=self.k)
        rng = self.generator(seed)
        sizes = np.bincount(labels, minlength=classes)
        holders = self._holders(sizes, clients, rng, dataset.label_names)
        held = _draw_classes(holders, clients, self.k, rng)
        free = np.where(holders > 0, sizes - holders, 0)  # each holder of a class gets at least one example of it
        counts = 1 + _largest_counts(held, free, _draw_shares(held, free, rng))
        return Assignment.numbered(assign_counts(labels, held, counts, rng), clients)

    def _holders(self, sizes: np.ndarray, clients: int, rng: np.random.Generator, names: tuple[str, ...]) -> np.ndarray:
        """The number of clients that hold each class: equal to within one, unless a class is too small."""
        limit = np.minimum(sizes, clients)
        needed = clients * self.k
        if limit.sum() < needed:
            rare = int(sizes.argmin())
            raise InputError(
                f"{self} needs {needed} (client, class) pairs for {clients} clients, but class {names[rare]!r} runs "
                f"out after {sizes[rare]} clients and all classes together allow {limit.sum()}; use fewer clients or a "
                "smaller k"
            )
        level = bisect_right(range(clients + 1), needed, key=lambda n: np.minimum(limit, n).sum()) - 1
        holders: np.ndarray = np.minimum(limit, level)
        more = rng.permutation(np.flatnonzero(limit > level))[: needed - holders.sum()]
        holders[more] += 1
        return holders


def _draw_classes(holders: np.ndarray, clients: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """k different classes for each client: (clients, k).

    Each client takes the k classes with the most holders missing, with random ties. No class ever misses more holders
    than there are clients to come, because such classes are among the k taken, so the last client finds k classes.
    """
    left = holders.astype(np.float64)
    held = np.empty((clients, k), dtype=np.int64)
    ties = rng.random((clients, len(holders)))
    for client in range(clients):
        held[client] = np.argsort(-(left + ties[client]), kind="stable")[:k]
        left[held[client]] -= 1
    return rng.permutation(held)


def _draw_shares(held: np.ndarray, free: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each client's proportions of its k classes; rows add up to 1."""
    clients, k = held.shape
    goal = USED_SHARE * free.sum() / clients
    shares = rng.dirichlet(np.ones(k), size=clients)
    for _ in range(ITERATIONS):
        wanted = goal * np.bincount(held.ravel(), shares.ravel(), minlength=len(free))
        factor = np.minimum(1, free / np.maximum(wanted, 1e-9))
        shares = shares * factor[held]
        total = shares.sum(axis=1, keepdims=True)
        shares = np.where(total > 0, shares / np.where(total > 0, total, 1), 1 / k)
    return shares


def _largest_counts(held: np.ndarray, free: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Integers near the shares with the same sum for every client, the largest that bisection finds."""
    counts = np.zeros(held.shape, dtype=np.int64)
    low, high = 0, int(free.sum()) // len(held)
    while low < high:
        total = (low + high + 1) // 2
        rounded = _round_shares(total, held, free, shares)
        if rounded is None:
            high = total - 1
        else:
            low, counts = total, rounded
    return counts


def _round_shares(total: int, held: np.ndarray, free: np.ndarray, shares: np.ndarray) -> np.ndarray | None:
    """The shares of `total`, rounded down; a client takes the rest from its classes with the most examples left.

    Returns None if the classes do not have enough examples.
    """
    counts: np.ndarray = np.floor(total * shares).astype(np.int64)
    left = free - np.bincount(held.ravel(), counts.ravel(), minlength=len(free)).astype(np.int64)
    if left.min() < 0:
        return None
    remaining: list[int] = left.tolist()
    missing = total - counts.sum(axis=1)
    for client in np.flatnonzero(missing).tolist():
        classes: list[int] = held[client].tolist()
        for _ in range(int(missing[client])):
            column = max(range(len(classes)), key=lambda one: remaining[classes[one]])
            if remaining[classes[column]] == 0:
                return None
            remaining[classes[column]] -= 1
            counts[client, column] += 1
    return counts


@dataclass(frozen=True)
class LogNormal(Split, kind="lognormal"):
    """Clients have k consecutive classes and log-normal sizes: a few clients have many examples, most have few.

    FedProx's MNIST (Li et al., MLSys 2020, arXiv:1812.06127, and its code, data/mnist/generate_niid.py), also used by
    pFedMe and PersFL's DS-3. Client u holds the classes u, u + 1, … u + k − 1 (modulo the number of classes).

    1. Each client gets `least` examples of each of its classes.
    2. The rest of a class is divided among its holders in log-normal proportions, rounded down. (They are normalized,
       so μ cancels out.)

    With `shares=False` the draws are numbers of examples instead, as in FedProx's NIST: client u has about
    LogNormal(μ, σ) + least examples, equally many of each of its classes. FedProx reuses examples once a class runs
    out; this split fails instead.

    Parameters
    ----------
    k : int, classes per client
    mu, sigma : float, mean and standard deviation of the logarithm of the sizes
    least : int, minimum number of examples: of each class, or in total with ``shares=False``
    shares : bool, whether draws are proportions of a class (FedProx's MNIST) or numbers of examples (FedProx's NIST)
    """

    k: int = setting(least=1, meaning="classes per client")
    mu: float = setting(0.0, meaning="mean of the sizes' logarithm", positive=False)
    sigma: float = setting(2.0, meaning="standard deviation of the sizes' logarithm")
    least: int = setting(5, least=1, meaning="minimum number of examples")
    shares: bool = setting(True)

    def assign(self, dataset: Dataset, clients: int, seed: int) -> Assignment:
        labels, classes = class_labels(self, dataset, self.k)
        held = consecutive_classes(clients, self.k, classes)
        rng = self.generator(seed)
        if self.shares:
            check_class_sizes(self, dataset, held, np.full(held.shape, self.least))
            sizes = np.bincount(labels, minlength=classes)
            rest = sizes - self.least * np.bincount(held.ravel(), minlength=classes)
            logs = rng.normal(self.mu, self.sigma, held.shape)
            largest = np.full(classes, -np.inf)
            np.maximum.at(largest, held.ravel(), logs.ravel())
            draws = np.exp(logs - largest[held])  # scaled per class, so that they cannot overflow
            total = np.bincount(held.ravel(), draws.ravel(), minlength=classes)
            counts = self.least + np.floor(rest[held] * (draws / total[held])).astype(np.int64)
        else:
            wanted = np.minimum(rng.lognormal(self.mu, self.sigma, clients) + self.least, len(labels))
            counts = np.repeat(np.maximum(wanted.astype(np.int64) // self.k, 2)[:, None], self.k, axis=1)
        check_class_sizes(self, dataset, held, counts)
        return Assignment.numbered(assign_counts(labels, held, counts, rng), clients)


@dataclass(frozen=True)
class PFedMe(Split, kind="pfedme"):
    """Clients have k consecutive classes, with log-normal sizes and large offsets, as in pFedMe's code.

    Dinh et al., NeurIPS 2020, arXiv:2006.08848 (data/Cifar10); Self-FL's CIFAR-10 uses 20 clients and k = 3. Client u
    holds the classes u, u + 1, … u + k − 1 (modulo the number of classes), ten examples of each. Then, for each client
    and each of its classes in order, ⌊share⌋ · U{1..10} + U{10..200} + 200 more are added (twice that for 20 clients
    or fewer), where share is the class's size times a log-normal proportion; none if the class has too few left.
    """

    k: int = setting(least=1, meaning="classes per client")

    def assign(self, dataset: Dataset, clients: int, seed: int) -> Assignment:
        labels, classes = class_labels(self, dataset, self.k)
        held = consecutive_classes(clients, self.k, classes)
        counts = np.full(held.shape, FIRST)
        check_class_sizes(self, dataset, held, counts)
        sizes = np.bincount(labels, minlength=classes)
        left = sizes - FIRST * np.bincount(held.ravel(), minlength=classes)
        rng = self.generator(seed)
        draws = rng.lognormal(0, 2, (classes, clients, self.k))
        shares = (sizes - clients)[:, None, None] * draws / draws.sum(axis=(1, 2), keepdims=True)
        factors, offsets = rng.integers(1, 11, held.shape), rng.integers(10, 201, held.shape)
        for client in range(clients):
            for column, label in enumerate(held[client].tolist()):
                share = max(int(shares[label, client, column]), 0)
                wanted = share * int(factors[client, column]) + int(offsets[client, column]) + 200
                wanted *= 2 if clients <= FEW_CLIENTS else 1
                if wanted < left[label]:
                    left[label] -= wanted
                    counts[client, column] += wanted
        return Assignment.numbered(assign_counts(labels, held, counts, rng), clients)


@dataclass(frozen=True)
class Fallah(Split, kind="fallah"):
    """Two kinds of clients: half have the first classes in equal numbers, the others two classes in unequal numbers.

    Fallah et al. (Per-FedAvg), NeurIPS 2020, arXiv:2002.07948; PersFL's DS-4.

    - The first half of the clients have k examples of each of the first five classes (in general: the first half of
      them).
    - Each other client has k/2 examples of one of these classes and 2k of one of the remaining ones.

    The papers use k = 196 for MNIST and 68 for CIFAR-10, with 50 clients. The classes of the second half are random,
    and each class is used equally often, to within one.

    Parameters
    ----------
    k : int, optional; examples per class, by default the published value for MNIST and CIFAR-10
    """

    k: int | None = setting(None, least=2, meaning="examples per class, of which some clients get half")

    def assign(self, dataset: Dataset, clients: int, seed: int) -> Assignment:
        labels, classes = class_labels(self, dataset)
        k = self._published_k(dataset) if self.k is None else self.k
        half = classes // 2
        even = clients // 2
        rng = self.generator(seed)
        held = np.zeros((clients, max(half, 2)), dtype=np.int64)
        counts = np.zeros(held.shape, dtype=np.int64)
        held[:even, :half], counts[:even, :half] = np.arange(half), k
        held[even:, 0], counts[even:, 0] = _draw_balanced(clients - even, 0, half, rng), k // 2
        held[even:, 1], counts[even:, 1] = _draw_balanced(clients - even, half, classes, rng), 2 * k
        check_class_sizes(self, dataset, held, counts)
        return Assignment.numbered(assign_counts(labels, held, counts, rng), clients)

    def _published_k(self, dataset: Dataset) -> int:
        if dataset.name not in PUBLISHED_K:
            known = ", ".join(f"{k} for {name}" for name, k in PUBLISHED_K.items())
            raise InputError(
                f"fallah knows k only for the papers' data ({known}), got {dataset.name!r}; write fallah(k=...)"
            )
        return PUBLISHED_K[dataset.name]


def _draw_balanced(clients: int, first: int, end: int, rng: np.random.Generator) -> np.ndarray:
    """One class from [first, end) for each client, all equally often, in random order."""
    order = rng.permutation(np.arange(first, end))
    chosen: np.ndarray = rng.permutation(order[np.arange(clients) % len(order)])
    return chosen


# -- given numbers of each class; `held`, (clients, k), are the classes of each client


def consecutive_classes(clients: int, k: int, classes: int) -> np.ndarray:
    """Client u holds the classes u, u + 1, … u + k − 1, modulo the number of classes: (clients, k)."""
    return (np.arange(clients)[:, None] + np.arange(k)[None, :]) % classes


def check_class_sizes(split: Split, dataset: Dataset, held: np.ndarray, counts: np.ndarray) -> None:
    """Check that every class has as many examples as the clients take of it."""
    labels, classes = class_labels(split, dataset)
    sizes = np.bincount(labels, minlength=classes)
    wanted = np.bincount(held.ravel(), counts.ravel(), minlength=classes).astype(np.int64)
    short = int((wanted - sizes).argmax())
    if wanted[short] > sizes[short]:
        raise InputError(
            f"{split} needs {wanted[short]} examples of class {dataset.label_names[short]!r} for {len(held)} clients, "
            f"got {sizes[short]} in {dataset.name!r}; use fewer clients or ask for fewer examples"
        )


def assign_counts(labels: np.ndarray, held: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The owner of each example: client u gets counts[u, i] random examples of class held[u, i]."""
    k = held.shape[1]
    owner = np.full(len(labels), -1, dtype=np.int64)
    order = np.argsort(held.ravel(), kind="stable")
    owned = np.repeat(order // k, counts.ravel()[order])  # the owners in class 0, then those in class 1, …
    ends = np.bincount(held.ravel(), counts.ravel()).astype(np.int64).cumsum()
    for label, (start, end) in enumerate(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)):
        pool = rng.permutation(np.flatnonzero(labels == label))
        owner[pool[: end - start]] = owned[start:end]
    return owner
