"""A diagnosis: figures about a federation and its clients, and what they mean in words."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl.core.errors import count
from bespokefl.workflows.diagnose.similarity import ALIKE, GROUPS, PARTLY_GROUPED, SINGLE
from bespokefl.workflows.results import run_directory

FILE = "diagnosis.json"
SIGNS, WHAT = (FILE,), "a diagnosis"
ALONE = 1.2  # a gain below it is not worth the trouble: the client stays alone
CLEARLY = 1.1  # how many times larger the gain in a group must be to prefer it
SHARP = 0.9  # of a row of W: if the survey gives as much to a client's own group, User-Centric FL keeps groups apart

STAY, IN_GROUP, WITH_ALL = "stay alone", "with its group", "with everybody"
SHIFTS = {"feature", "concept", "shift"}


@dataclass(frozen=True)
class Client:
    """What one client can expect."""

    name: str
    examples: int
    variance: float  # σ_m²
    gain_with_all: float  # exact Bayes, 1 + σ_m² / (σ_0² + 1/S₋ₘ)
    gain_in_group: float  # the same with its group alone
    paper_gain: float  # Self-FL's GAIN_m
    group: int
    nearest: list[str]  # those with the largest weights in its row of W

    @property
    def gain(self) -> float:
        """How many times smaller the variance of its model can become, with the better of both circles."""
        return max(self.gain_with_all, self.gain_in_group)

    @property
    def advice(self) -> str:
        if self.gain < ALONE:
            return STAY
        return IN_GROUP if self.gain_in_group > CLEARLY * self.gain_with_all else WITH_ALL


@dataclass(frozen=True)
class Survey:
    """What User-Centric FL would see in its first round, from gradients at the start."""

    streams: int  # the best silhouette
    silhouettes: list[float | None]  # of 1, 2, … streams
    agreement: float | None  # with the groups found, 1 for perfectly
    inside: float  # the weight that W gives to a client's own group, mean over clients


@dataclass(frozen=True)
class Recommendation:
    """What to do, why, and what else could be tried."""

    method: str
    hyper: dict[str, Any]
    reasons: tuple[str, ...]
    alternatives: tuple[str, ...]

    @property
    def flags(self) -> str:
        """The method as a command has it."""
        return " ".join([self.method, *(f"--set {name}={value}" for name, value in self.hyper.items())])


@dataclass(frozen=True)
class Diagnosis:
    """Everything that was found out."""

    clients: list[Client]
    between: float  # σ_0²
    within: float  # the same within groups
    share: float  # σ_0² / (σ_0² + mean σ_m²), before chance is accounted for
    surety: float | None  # standard deviations above chance
    likeness: str  # alike, groups, partly or single
    streams: int  # how many models the server should keep
    explained: float | None  # the groups' part of σ_0²
    silhouettes: list[float | None]  # of 1, 2, … groups
    collaboration: list[list[float]]  # W from the fits: row i says from whom client i learns
    survey: Survey | None
    kinds: dict[str, float | None]  # label, size, feature, concept, shift: figures in 0..1
    present: tuple[str, ...]  # which of them are there
    details: dict[str, float | None]
    true_groups: Sequence[int] | None  # what the split knows; nothing above is made of it
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def gains(self) -> np.ndarray:
        """Each client's expected gain."""
        return np.array([one.gain for one in self.clients])

    @property
    def groups(self) -> list[int]:
        return [one.group for one in self.clients]

    @property
    def recommendation(self) -> Recommendation:
        return recommend(self)

    def in_order(self, positions: Sequence[int] | np.ndarray) -> "Diagnosis":
        """The same with clients in another order; groups are numbered as they first come."""
        order = [int(at) for at in positions]
        clients = [self.clients[at] for at in order]
        numbers: dict[int, int] = {}
        for one in clients:
            numbers.setdefault(one.group, len(numbers))
        return replace(
            self,
            clients=[replace(one, group=numbers[one.group]) for one in clients],
            collaboration=[[self.collaboration[i][j] for j in order] for i in order],
            true_groups=None if self.true_groups is None else [self.true_groups[at] for at in order],
        )

    def sentences(self) -> list[str]:
        """The diagnosis in words: how the clients differ, who should federate, with whom."""
        return [_differences(self), *_kinds(self), _circles(self), *_survey(self)]

    def document(self) -> dict[str, Any]:
        """For diagnosis.json and the page."""
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
        """Write diagnosis.json into a new folder."""
        text = json.dumps(self.document(), indent=1, ensure_ascii=False, allow_nan=False)
        run_directory.write(
            Path(path), lambda into: run_directory.write_text(into / FILE, text + "\n"), overwrite, SIGNS, WHAT
        )


# -- words


def recommend(found: Diagnosis) -> Recommendation:
    """A method, by rules that the documentation lists."""
    shifted = bool(SHIFTS & set(found.present))
    if found.likeness == ALIKE:
        reasons = ["The clients differ by no more than chance: one model serves all, and learns from all."]
        if "size" in found.present:
            reasons.append("Sizes differ much, so those with few examples gain most; weights follow the examples.")
        return Recommendation("fedavg", {}, tuple(reasons), ("fedavg-ft", "persfl"))
    if float(np.median(found.gains)) < ALONE:
        reasons = [
            f"Half of the clients gain less than {ALONE:g} times: what is common is small against what they know "
            "themselves.",
            "If a federation is wanted all the same, let every client tune the common model for itself.",
        ]
        return Recommendation("local", {}, tuple(reasons), ("persfl", "fedavg-ft"))
    if found.likeness in (GROUPS, PARTLY_GROUPED) and shifted:
        return _by_group(found)
    if "label" in found.present and not shifted:
        reasons = [
            "Clients see the classes in different shares, but a class looks the same everywhere: what tells classes "
            "apart can be learnt together, and each client then tunes the common model to its own classes."
        ]
    else:
        reasons = ["Every client differs in its own way: a common model to lean on, and a model of its own for each."]
    return Recommendation("persfl", {}, tuple(reasons), ("fedavg-ft", "ditto"))


def _by_group(found: Diagnosis) -> Recommendation:
    num = found.streams
    reasons = [
        f"The clients fall into {num} groups"
        + ("" if found.explained is None else f", which are {_percent(found.explained)} of what is between them")
        + ": one model for each group, none for all."
    ]
    survey = found.survey
    if survey is not None and survey.inside >= SHARP:
        reasons.append(
            f"User-Centric FL's survey gives {_percent(survey.inside)} of the weight to a client's own group: it finds "
            "them."
        )
        return Recommendation("ucfl", {"streams": num}, tuple(reasons), ("ifca", "cfl"))
    if survey is not None:
        reasons.append(
            f"User-Centric FL's survey would leave only {_percent(survey.inside)} of the weight in a client's own "
            "group: its gradients are too noisy here."
        )
    if "concept" in found.present:
        reasons.append("Where labels mean different things updates point apart, and clustered FL splits by that.")
        return Recommendation("cfl", {}, tuple(reasons), ("ifca", "persfl", "local"))
    reasons.append("Each client can tell by its loss which of several models fits its data: IFCA lets it choose.")
    return Recommendation("ifca", {"clusters": num}, tuple(reasons), ("cfl", "persfl"))


def _differences(found: Diagnosis) -> str:
    surety = "" if found.surety is None else f", {found.surety:.1f} standard deviations above chance"
    if found.likeness == ALIKE:
        return (
            f"The clients cannot be told apart: {_percent(found.share)} of the variance of their models is between "
            f"them, which is no more than chance{surety.replace(' above chance', ' from 0') if surety else ''}."
        )
    words = {
        GROUPS: f"They form {found.streams} groups, which explain {_percent(found.explained)} of that.",
        PARTLY_GROUPED: f"They form {found.streams} groups, which explain {_percent(found.explained)} of that; members "
        "of a group differ, too.",
        SINGLE: "There are no clear groups: each client differs in its own way.",
    }
    return (
        f"{_percent(found.share)} of the variance of their models is between clients{surety}. {words[found.likeness]}"
    )


def _kinds(found: Diagnosis) -> list[str]:
    known, listed = found.details, []
    if "label" in found.present and known.get("label_distance") is not None:
        listed.append(
            f"Label skew: two clients' shares of the classes are {known['label_distance']:.2f} apart on average, "
            f"by chance it would be {known['label_distance_by_chance']:.2f}."
        )
    elif "label" in found.present:
        listed.append(f"Label skew: {_percent(found.kinds['label'])} of the targets' variance is between clients.")
    if "size" in found.present:
        listed.append(
            f"Size disparity: from {known['smallest']:.0f} to {known['largest']:.0f} training examples, Gini "
            f"{known['size_gini']:.2f}."
        )
    if "feature" in found.present and known.get("as_labelled") is not None:
        listed.append(
            f"Feature shift: {_percent(found.kinds['feature'])} of the variance within a class is between clients, "
            "even if labels are matched as well as can be: the same things look different."
        )
    elif "feature" in found.present:
        listed.append(f"Feature shift: {_percent(found.kinds['feature'])} of the inputs' variance is between clients.")
    if "concept" in found.present and known.get("as_labelled") is not None:
        listed.append(
            f"Concept shift: {_percent(known['as_labelled'])} of the variance within a class is between clients, and "
            f"{_percent(known['as_matched'])} once labels are matched: the same things have different labels."
        )
    elif "concept" in found.present:
        listed.append("Concept shift: the inputs are alike, but what is learnt from them is not.")
    if "shift" in found.present:
        listed.append(
            f"Feature or concept shift: {_percent(found.kinds['shift'])} of the variance within a class is between "
            "clients, but labels are too skewed to tell whether things look different or have different labels."
        )
    return listed or ["No label skew, no size disparity, no feature shift, no concept shift worth a word."]


def _circles(found: Diagnosis) -> str:
    advice = [one.advice for one in found.clients]
    counts = {word: advice.count(word) for word in (WITH_ALL, IN_GROUP, STAY)}
    words = {WITH_ALL: "gain from federating with everybody", IN_GROUP: "gain most within their group"}
    words[STAY] = "have next to nothing to gain and may stay alone"
    parts = [f"{counts[word]} {words[word]}" for word in counts if counts[word]]
    low, middle, high = np.quantile(found.gains, [0.1, 0.5, 0.9])
    return (
        f"Of {len(advice)} clients {', '.join(parts)}. Expected gain: median {middle:.2f} times less variance, from "
        f"{low:.2f} (10th percentile) to {high:.2f} (90th)."
    )


def _survey(found: Diagnosis) -> list[str]:
    survey = found.survey
    if survey is None:
        return []
    best = max((one for one in survey.silhouettes if one is not None), default=0.0)
    return [
        f"User-Centric FL's rule alone, on gradients at the start, would take {count(survey.streams, 'stream')} "
        f"(silhouette {best:.2f}); suggested here: {found.streams}."
    ]


def _percent(share: float | None) -> str:
    return f"{100 * (share or 0.0):.0f} %"
