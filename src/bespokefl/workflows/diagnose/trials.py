"""Short trial trainings that measure what federating gives: each candidate method against Local, cross-validated.

The training and validation examples of every client are cut into four parts. The first part chooses each method's
learning rate, in half as many rounds. The other three judge it: each is held out once, and a model that was trained on
the rest is scored on it. All methods make the same number of local steps. Test data are never used.

The gain d_m of client m is the difference of its scores on held-out examples, a method's minus Local's. Differences
between the parts show its noise v / n_m, with one v for all clients. The prediction shrinks d_m towards the mean over
clients by τ² / (τ² + v / n_m), where τ² is the variance between clients beyond noise.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bespokefl import methods
from bespokefl.core import rng
from bespokefl.core.client_index import ClientIndex
from bespokefl.core.errors import TrainingError
from bespokefl.core.task import Task
from bespokefl.engines.client import Data
from bespokefl.engines.settings import Settings
from bespokefl.engines.simulation import Simulation
from bespokefl.metrics.client_values import Array
from bespokefl.metrics.metric import METRICS

log = logging.getLogger("bespokefl")

ROUNDS = 20
STEPS, BATCH_SIZE = 10, 10  # local steps per round, and their batches
RATES = (0.03, 0.1, 0.3, 1.0)  # 0.1 and 0.3 are tried first, then the next in the better direction
NUM_TRIED = 3
NUM_PARTS = 4  # with the usual fractions .6, .2, .2, a trial trains on as many examples as a run
LEVEL = 0.95  # of intervals
COVERED, CALIBRATED = 14, 20  # gains on test data that were within the interval of the mean, of those measured
COVERAGE = f"in the calibration it had the gain on test data in {COVERED} of {CALIBRATED} cases"
LOCAL, COMMON, PERSONAL, GROUPED = "local", "fedavg", "fedavg-ft", ("ucfl", "ifca", "cfl")

Candidates = Mapping[str, Mapping[str, Any]]  # hyper-parameters by method


@dataclass(frozen=True)
class TrialResult:
    """What the trials of one method showed. A gain is the mean over clients, relative to Local; positive is better."""

    method: str
    hyper: dict[str, Any]
    lr: float | None  # the learning rate that was chosen; None: all of them diverged
    score: float | None  # mean over clients of the held-out score
    gain: float | None
    low: float | None  # of the interval of the gain; None with fewer than two clients
    high: float | None


@dataclass(frozen=True)
class Trials:
    """The result of the trials; clients in the given order."""

    metric: str
    rounds: int
    candidates: tuple[TrialResult, ...]  # Local first
    scores: dict[str, list[float | None]]  # held-out score of each client by method; None: nothing was held out
    predicted: list[float | None]  # gain of each client with the best federated method
    low: list[float | None]
    high: list[float | None]
    steps: int = STEPS
    batch_size: int = BATCH_SIZE
    parts: int = NUM_PARTS
    rates: tuple[float, ...] = RATES
    coverage: str = COVERAGE  # of the interval of the mean gain

    @property
    def rival(self) -> TrialResult:
        """The federated method with the best mean score."""
        return _best(self.candidates)

    def in_order(self, positions: Sequence[int]) -> "Trials":
        """Return the trials with clients in another order."""
        predicted, low, high = ([values[at] for at in positions] for values in (self.predicted, self.low, self.high))
        scores = {name: [values[at] for at in positions] for name, values in self.scores.items()}
        return replace(self, scores=scores, predicted=predicted, low=low, high=high)


@dataclass(frozen=True)
class Gains:
    """Gains of the clients over Local: the mean with its interval, and each client's prediction with its interval."""

    mean: float
    low: float | None
    high: float | None
    predicted: Array
    client_low: Array
    client_high: Array


@dataclass
class _Runs:
    """Trainings of candidates on parts of the data; each is done once."""

    task: Task
    settings: Settings
    classes: int | None
    metric: str
    done: dict[tuple[Any, ...], list[Array] | None] = field(default_factory=dict)

    def scores(self, method: str, hyper: Mapping[str, Any], lr: float, parts: Sequence[Data]) -> list[Array] | None:
        """Return the clients' scores on each part; None if the training diverged.

        FedAvg is the global model of FedAvg with fine-tuning, so that one training serves both.
        """
        common = method == COMMON
        key = (PERSONAL if common else method, lr)
        if (*key, common) not in self.done:
            built = methods.build(key[0], {**hyper, "lr": lr})
            seeds = [self.settings] * len(parts)
            try:
                outcomes = Simulation(built, self.task, parts, seeds, self.classes).run_all()
            except TrainingError:
                outcomes = None
            for one in (False, True):
                self.done[(*key, one)] = None if outcomes is None else [self._read(end, one) for end in outcomes]
        return self.done[(*key, common)]

    def _read(self, outcome: Any, common: bool) -> Array:
        found = outcome.globally if common and outcome.globally is not None else outcome.personal
        values: Array = found[f"validation_{self.metric}"].double().numpy()
        return values


def number_of_runs(candidates: Candidates) -> int:
    """Return how many times `run` reports its progress."""
    return len(candidates) * (NUM_TRIED + 1)


def candidates_of(grouped: Candidates) -> dict[str, Mapping[str, Any]]:
    """Return the methods to try: Local, FedAvg, FedAvg with fine-tuning, and those for groups, if there are groups."""
    return {LOCAL: {}, COMMON: {}, PERSONAL: {}, **grouped}


def run(
    task: Task,
    data: Data,
    settings: Settings,
    classes: int | None,
    candidates: Candidates,
    metric: str,
    report: Callable[[str], None],
) -> Trials | None:
    """Train all candidates on parts of the training and validation data, and judge them on what was held out.

    None if there is nothing to judge, or no method trains.
    """
    settings = replace(settings, batch_size=BATCH_SIZE, local_steps=STEPS, record=False)
    parts = list(held_out(data, settings.seed))
    sizes = np.stack([one.validation.sizes.numpy() for one in parts[1:]])
    sign = 1.0 if METRICS[metric].higher_is_better else -1.0
    judging = _Runs(task, settings, classes, metric)
    screening = replace(judging, settings=replace(settings, rounds=-(-settings.rounds // 2)), done={})
    scores: dict[str, Array] = {}  # (parts, clients) by method
    rates: dict[str, float] = {}
    for method, hyper in candidates.items():
        tried: dict[float, float] = {}
        while len(tried) < NUM_TRIED:
            lr = _next_rate(tried)
            found = screening.scores(method, hyper, lr, parts[:1])
            unknown = found is None or np.isnan(found[0]).all()
            tried[lr] = -np.inf if found is None or unknown else sign * float(np.nanmean(found[0]))
            report(f"trial of {method}")
        for lr in sorted((one for one in tried if tried[one] > -np.inf), key=lambda one: -tried[one]):
            judged = judging.scores(method, hyper, lr, parts[1:])
            if judged is not None:
                scores[method], rates[method] = np.stack(judged), lr
                break
        report(f"trial of {method}")
    if LOCAL not in scores or len(scores) < 2:
        log.warning(
            "the trials judge nothing: they need clients with %d training and validation examples or more, and "
            "learning rates from %g to %g at which the model trains",
            *(NUM_PARTS, min(RATES), max(RATES)),
        )
        return None
    return _summary(candidates, scores, rates, sizes, metric, settings.rounds)


def _next_rate(tried: Mapping[float, float]) -> float:
    """Return the learning rate to try next, given the scores so far."""
    low, high = RATES[1:3]
    if low not in tried or high not in tried:
        return low if low not in tried else high
    return RATES[3] if tried[high] > tried[low] else RATES[0]


def held_out(data: Data, seed: int) -> Iterator[Data]:
    """Cut the clients' training and validation data into parts; each is held out once, as validation data.

    A client with fewer examples than parts trains on all of them and is not judged.
    """
    pools = []
    for i, name in enumerate(data.names):
        own = np.concatenate([data.train.of(i).numpy(), data.validation.of(i).numpy()])
        pools.append(rng.generator(seed, "diagnose", "parts", name).permutation(own))
    for part in range(NUM_PARTS):
        held = [(np.arange(len(own)) % NUM_PARTS == part) & (len(own) >= NUM_PARTS) for own in pools]
        yield replace(
            data,
            train=ClientIndex.of_lists([own[~out] for own, out in zip(pools, held, strict=True)]),
            validation=ClientIndex.of_lists([own[out] for own, out in zip(pools, held, strict=True)]),
            test=ClientIndex.of_lists([np.zeros(0)] * len(pools)),
            groups=None,
        )


def gains(ours: Array, local: Array, sizes: NDArray[np.int64]) -> Gains:
    """Compare scores (higher is better) on held-out parts with those of Local; all arrays are (parts, clients)."""
    difference = ours - local
    known = np.isfinite(difference)
    weights = np.where(known, sizes, 0).astype(np.float64)
    n = weights.sum(0)
    judged = n > 0
    d = np.full(len(n), np.nan)
    d[judged] = (weights * np.where(known, difference, 0.0)).sum(0)[judged] / n[judged]
    residual = np.where(known, difference - d, 0.0)
    v = float((weights * residual**2).sum()) / max(int(known.sum() - judged.sum()), 1)  # variance of one example
    num, mean = int(judged.sum()), float(np.nanmean(d))
    spread = float(np.nanvar(d, ddof=1)) if num > 1 else 0.0
    noise = v / np.where(judged, n, np.nan)
    between = max(spread - float(np.nanmean(noise)), 0.0)  # τ²
    share = between / np.maximum(between + noise, 1e-300)
    # τ² is itself estimated: intervals have that of one standard error more, or they would be too narrow
    wide = between + spread * np.sqrt(2 / max(num - 1, 1))
    error = np.sqrt(wide * noise / np.maximum(wide + noise, 1e-300) + (1 - share) ** 2 * spread / num)
    predicted = mean + share * (d - mean)
    from scipy.stats import t as student  # imported here because it is slow

    factor = float(student.ppf((1 + LEVEL) / 2, max(num - 1, 1)))
    half = factor * float(np.sqrt(spread / num)) if num > 1 else None
    return Gains(
        mean=mean,
        low=None if half is None else mean - half,
        high=None if half is None else mean + half,
        predicted=predicted,
        client_low=predicted - factor * error,
        client_high=predicted + factor * error,
    )


def _summary(
    candidates: Candidates,
    scores: dict[str, Array],
    rates: dict[str, float],
    sizes: NDArray[np.int64],
    metric: str,
    rounds: int,
) -> Trials:
    sign = 1.0 if METRICS[metric].higher_is_better else -1.0
    pooled = {name: _pooled(values, sizes) for name, values in scores.items()}
    found = {name: gains(sign * values, sign * scores[LOCAL], sizes) for name, values in scores.items()}
    listed = []
    for name, hyper in candidates.items():
        if name in found:
            own = found[name]
            compared = (None, None, None) if name == LOCAL else (own.mean, own.low, own.high)
            listed.append(TrialResult(name, dict(hyper), rates[name], float(np.nanmean(pooled[name])), *compared))
        else:
            listed.append(TrialResult(name, dict(hyper), None, None, None, None, None))
    best = found[_best(listed).method]
    return Trials(
        metric=metric,
        rounds=rounds,
        candidates=tuple(listed),
        scores={name: _finite(values) for name, values in pooled.items()},
        predicted=_finite(best.predicted),
        low=_finite(best.client_low),
        high=_finite(best.client_high),
    )


def _best(candidates: Sequence[TrialResult]) -> TrialResult:
    federated = [one for one in candidates if one.gain is not None]
    return max(federated, key=lambda one: one.gain if one.gain is not None else -np.inf)


def _pooled(values: Array, sizes: NDArray[np.int64]) -> Array:
    """Return the clients' means over parts, weighted by held-out examples."""
    weights = np.where(np.isfinite(values), sizes, 0)
    total = weights.sum(0)
    sums: Array = (weights * np.nan_to_num(values)).sum(0)
    return np.where(total > 0, sums / np.maximum(total, 1), np.nan)


def _finite(values: Array) -> list[float | None]:
    return [float(one) if np.isfinite(one) else None for one in values]
