"""What `bespoke diagnose` predicts, and what comes out: its advice, and the alternatives, trained on ten federations.

A cell is a federation with a seed: the diagnosis, which sees training and validation data, and then longer runs of all
methods that the diagnosis tried. Each run's learning rate is chosen by the mean validation score; all methods make the
same number of local steps. The scores on test data are stored for every client.
"""

import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from bespokefl import methods
from bespokefl.core.errors import InputError, TrainingError
from bespokefl.data.clients import Clients
from bespokefl.data.dataset import Dataset
from bespokefl.data.readers import npz
from bespokefl.data.sources.loader import load
from bespokefl.metrics.metric import METRICS
from bespokefl.workflows.diagnose.api import diagnose
from bespokefl.workflows.diagnose.result import Diagnosis
from bespokefl.workflows.run.api import run
from bespokefl_evidence.studies.cells import CellStore, Spec

NAME = "diagnose-calibration"
SUMMARY = "What bespoke diagnose predicts, and what comes out, on ten federations"
FILE = Path(__file__).with_suffix(".toml")
RATES = (0.1, 0.3, 1.0)
STEPS, BATCH_SIZE = 10, 10
MOST_WRITERS, MOST_TAKES, EVERY_WINDOW = 20, 20, 4
DIGITS = 5  # of stored figures
PRIORITY = 2
HOW_TO_GET = "it is not in a registry; docs/diagnose-calibration.md says what it holds"
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Federation:
    """Clients to diagnose."""

    name: str
    about: str
    data: str
    split: str
    clients: int | None = None
    model: str = "mlp"
    metric: str = "accuracy"
    rates: Sequence[float] = RATES  # learning rates of the runs

    def load(self, seed: int, files: Path | None) -> Clients:
        """Return the clients of a seed; other data than digits are read from a file."""
        if self.data not in READERS:
            return load(self.data).split(self.split, clients=self.clients, seed=seed)
        path = (files or Path()) / f"{self.data}.npz"
        if not path.exists():
            raise InputError(
                f"{path.name} is not in {str(path.parent)!r}: {HOW_TO_GET}; name its directory by --files."
            )
        return replace(READERS[self.data](npz.read(path)), name=self.data).split(self.split, seed=seed)


def _landmine(arrays: Arrays) -> Dataset:
    return Dataset.from_arrays(arrays["x"], arrays["y"].astype(np.int64), arrays["field"])


def _writers(arrays: Arrays) -> Dataset:
    """The writers with most digits, their images at 14 × 14 pixels."""
    digit = arrays["y"] < 10
    kept = digit & np.isin(arrays["writer"], np.argsort(-np.bincount(arrays["writer"][digit]))[:MOST_WRITERS])
    images = (255 - arrays["x"][kept]).astype(np.float32).reshape(-1, 14, 2, 14, 2).mean((2, 4)) / 255
    return Dataset.from_arrays(images[:, None], arrays["y"][kept].astype(np.int64), arrays["writer"][kept])


def _speakers(arrays: Arrays) -> Dataset:
    """The first takes of every digit, the spectrogram at 10 × 16."""
    kept = arrays["take"] < MOST_TAKES
    sound = arrays["x"][kept].astype(np.float32).reshape(-1, 10, 4, 16, 4).mean((2, 4)) / 255
    return Dataset.from_arrays(sound[:, None], arrays["y"][kept].astype(np.int64), arrays["speaker"][kept])


def _movements(arrays: Arrays) -> Dataset:
    """Every fourth window, as neighbours are nearly the same; a window at a tenth of its rate."""
    kept = slice(None, None, EVERY_WINDOW)
    x = arrays["x"][kept].astype(np.float32) * arrays["scale"]
    means = x.reshape(len(x), 10, 10, 6).mean(2).reshape(len(x), -1)
    features = np.concatenate([means, x.std(1)], axis=1)
    return Dataset.from_arrays(features, arrays["y"][kept].astype(np.int64), arrays["subject"][kept])


READERS: dict[str, Callable[[Arrays], Dataset]] = {
    "landmine_29tasks": _landmine,
    "femnist_by_writer": _writers,
    "fsdd_logmel_by_speaker": _speakers,
    "har_geotec_windows": _movements,
}


@dataclass(frozen=True)
class CalibrationStudy:
    """All federations, each with several seeds."""

    rounds: int
    seeds: int
    federations: Sequence[Federation]
    name: str = NAME
    summary: str = SUMMARY

    @classmethod
    def read(cls) -> "CalibrationStudy":
        """Read the settings of the study."""
        values = tomllib.loads(FILE.read_text(encoding="utf-8"))
        return cls(federations=[Federation(**one) for one in values.pop("federations")], **values)

    def part(self) -> "CalibrationStudy":
        """Return a smaller version: one seed, and only federations that need no files."""
        own = [one for one in self.federations if one.data not in READERS]
        return replace(self, seeds=1, federations=own)

    def specs(self, store: CellStore) -> Iterator[Spec]:
        """A cell for each federation and seed."""
        for one in self.federations:
            settings = {name: getattr(one, name) for name in ("data", "split", "clients", "model", "metric")}
            settings |= {"rounds": self.rounds, "rates": list(one.rates), "steps": STEPS, "batch_size": BATCH_SIZE}
            for seed in range(self.seeds):
                yield Spec(self.name, one.name, "diagnosis", seed, settings, PRIORITY)

    def compute(self, spec: Spec, scratch: Path, files: Path | None) -> tuple[dict[str, Any], float]:
        """Diagnose a federation, then train what was tried."""
        started = time.monotonic()
        one = next(own for own in self.federations if own.name == spec.scenario)
        clients = one.load(spec.seed, files)
        found = diagnose(clients, model=one.model, metric=one.metric, seed=spec.seed, workers=1)
        outcomes = train(found, clients, one, self.rounds, spec.seed)
        return predicted(found, clients) | {"outcomes": outcomes}, time.monotonic() - started

    def show(self, store: CellStore, console: Console) -> None:
        """Print the page of the study."""
        from bespokefl_evidence.pages.diagnose_calibration import page

        console.print(page(self, store), markup=False, soft_wrap=True)


def predicted(found: Diagnosis, clients: Clients) -> dict[str, Any]:
    """What the diagnosis said beforehand."""
    trials, advised = found.trials, found.recommendation
    assert trials is not None
    rival = trials.rival
    return {
        "verdict": advised.verdict,
        "advised": advised.method,
        "rival": rival.method,
        "gain": _short(rival.gain),
        "low": _short(rival.low),
        "high": _short(rival.high),
        "variance_ratio": _short(float(np.median(found.gains))),
        "trials": {one.method: [one.lr, _short(one.score)] for one in trials.candidates},
        "clients": {
            "predicted": [_short(own.predicted) for own in found.clients],
            "variance_ratio": [_short(own.gain) for own in found.clients],
            "train": clients.train.sizes.tolist(),
            "test": clients.test.sizes.tolist(),
        },
        "seconds": _short(found.about["seconds"]),
    }


def train(found: Diagnosis, clients: Clients, one: Federation, rounds: int, seed: int) -> dict[str, Any]:
    """Train every method that was tried, with the learning rate that is best on validation data."""
    assert found.trials is not None
    sign = 1.0 if METRICS[one.metric].higher_is_better else -1.0
    settings: dict[str, Any] = {"rounds": rounds, "local_steps": STEPS, "batch_size": BATCH_SIZE, "seed": seed}
    settings |= {"model": one.model, "eval_every": 0, "workers": 1}
    best: dict[str, Any] = {}
    for candidate in found.trials.candidates:
        if candidate.method == "fedavg":
            continue  # the global model of the next
        for lr in one.rates:
            try:
                result = run(methods.build(candidate.method, {**candidate.hyper, "lr": lr}), clients, **settings)
            except TrainingError:
                continue
            scores = {candidate.method: result.personal}
            if candidate.method == "fedavg-ft" and result.global_ is not None:
                scores["fedavg"] = result.global_
            for name, own in scores.items():
                validation = float(np.nanmean(own[f"validation_{one.metric}"]))
                if name not in best or sign * validation > sign * best[name]["validation"]:
                    test = [_short(value) for value in own[one.metric].tolist()]
                    best[name] = {"rate": lr, "validation": _short(validation), "test": test}
    return best


def _short(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else round(float(value), DIGITS)
