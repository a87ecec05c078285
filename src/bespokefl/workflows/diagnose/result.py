"""The result of a diagnosis: figures about a federation and its clients, and what they mean in words."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl.workflows.diagnose import recommendation, sentences
from bespokefl.workflows.diagnose.recommendation import CLOSE, IN_GROUP, MIN_GAIN, STAY, WITH_ALL, Recommendation
from bespokefl.workflows.diagnose.trials import GROUPED, Trials
from bespokefl.workflows.results import run_directory

FILE = "diagnosis.json"
MARKERS, KIND = (FILE,), "a diagnosis"
GROUP_MARGIN = 1.1  # factor by which the variance ratio in the group must exceed that with all clients


@dataclass(frozen=True)
class Client:
    """What one client can expect."""

    name: str
    examples: int
    variance: float  # σ_m²
    gain_with_all: float  # of variance: exact Bayes, 1 + σ_m² / (σ_0² + 1/S₋ₘ)
    gain_in_group: float  # the same with its group only
    paper_gain: float  # Self-FL's GAIN_m
    group: int
    nearest: list[str]  # clients with the largest weights in its row of W
    predicted: float | None = None  # gain in score over Local with the best federated method, from trials
    low: float | None = None  # its 95 % interval
    high: float | None = None
    in_groups: bool = False  # whether that method has a model per group

    @property
    def gain(self) -> float:
        """Factor by which averaging shrinks the variance of its model at best; not a gain in accuracy."""
        return max(self.gain_with_all, self.gain_in_group)

    @property
    def advice(self) -> str:
        """Whether to stay alone, or to federate with its group or with all clients; without trials by `gain`."""
        if self.predicted is not None and self.low is not None and self.high is not None:
            if self.low <= 0 <= self.high:
                return CLOSE
            return STAY if self.high < 0 else IN_GROUP if self.in_groups else WITH_ALL
        if self.gain < MIN_GAIN:
            return STAY
        return IN_GROUP if self.gain_in_group > GROUP_MARGIN * self.gain_with_all else WITH_ALL


@dataclass(frozen=True)
class Survey:
    """What User-Centric FL would find in its first round, from gradients at the initial weights."""

    streams: int  # with the best silhouette
    silhouettes: list[float | None]  # of 1, 2, … streams
    agreement: float | None  # adjusted Rand index with the groups found
    inside: float  # weight that W gives to a client's own group, mean over clients


@dataclass(frozen=True)
class Diagnosis:
    """The result of `bespokefl.diagnose`."""

    clients: list[Client]
    between: float  # variance σ_0² between clients
    within: float  # the same between clients of one group
    share: float  # σ_0² / (σ_0² + mean σ_m²), also if it is not significant
    surety: float | None  # standard deviations that σ_0² is above noise
    likeness: str  # "alike", "groups", "partly" (groups whose members differ) or "single" (all differ)
    streams: int  # how many models the server should keep
    explained: float | None  # share of σ_0² that the groups explain
    silhouettes: list[float | None]  # of 1, 2, … groups
    collaboration: list[list[float]]  # W from the fits: row i has the weights of the clients that client i learns from
    survey: Survey | None
    kinds: dict[str, float | None]  # figures of label, size, feature, concept and shift in [0, 1]
    present: tuple[str, ...]  # the kinds of difference that are present
    details: dict[str, float | None]  # the figures that `kinds` are based on
    true_groups: Sequence[int] | None  # groups that the split knows; they are not used
    trials: Trials | None = None  # what short trainings showed
    about: dict[str, Any] = field(default_factory=dict)  # what was diagnosed, and how

    @property
    def gains(self) -> np.ndarray:
        """Variance ratio of each client: how much noise averaging removes at best. Not a gain in accuracy."""
        return np.array([one.gain for one in self.clients])

    @property
    def groups(self) -> list[int]:
        """Group of each client."""
        return [one.group for one in self.clients]

    @property
    def recommendation(self) -> Recommendation:
        """The recommended method; docs/diagnose.md lists the rules."""
        return recommendation.recommend(self)

    def in_order(self, positions: Sequence[int] | np.ndarray) -> "Diagnosis":
        """Return the diagnosis with clients in another order; groups are numbered by their first members."""
        order = [int(at) for at in positions]
        clients = [self.clients[at] for at in order]
        numbers = {group: number for number, group in enumerate(dict.fromkeys(one.group for one in clients))}
        return replace(
            self,
            clients=[replace(one, group=numbers[one.group]) for one in clients],
            collaboration=[[self.collaboration[i][j] for j in order] for i in order],
            true_groups=None if self.true_groups is None else [self.true_groups[at] for at in order],
            trials=None if self.trials is None else self.trials.in_order(order),
        )

    def sentences(self) -> list[str]:
        """Return the diagnosis in words: how the clients differ, who should federate, and with whom."""
        return sentences.of(self)

    def with_trials(self, trials: Trials | None) -> "Diagnosis":
        """Return the diagnosis with the result of trials, clients in the same order."""
        if trials is None:
            return self
        grouped = trials.rival.method in GROUPED
        figures = zip(self.clients, trials.predicted, trials.low, trials.high, strict=True)
        clients = [replace(one, predicted=mean, low=a, high=b, in_groups=grouped) for one, mean, a, b in figures]
        return replace(self, clients=clients, trials=trials)

    def document(self) -> dict[str, Any]:
        """Return the content of diagnosis.json."""
        advised = self.recommendation
        known = asdict(self)
        known["clients"] = [asdict(one) | {"gain": one.gain, "advice": one.advice} for one in self.clients]
        return {
            "format": "bespoke-diagnosis-1",
            **known,
            "recommendation": asdict(advised) | {"flags": advised.flags},
            "sentences": self.sentences(),
        }

    def save(self, path: str | PathLike[str], overwrite: bool = False) -> None:
        """Write diagnosis.json to a new directory."""
        text = json.dumps(self.document(), indent=1, ensure_ascii=False, allow_nan=False)
        run_directory.write(
            Path(path), lambda into: run_directory.write_text(into / FILE, text + "\n"), overwrite, MARKERS, KIND
        )
