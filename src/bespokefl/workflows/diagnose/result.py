"""The result of a diagnosis: figures about a federation and its clients, and what they mean in words."""

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
MARKERS, KIND = (FILE,), "a diagnosis"
MIN_GAIN = 1.2  # below it, federating is not worth the effort
GROUP_MARGIN = 1.1  # factor by which the gain in the group must exceed the gain with all clients
MIN_WEIGHT_INSIDE = 0.9  # weight of W inside a client's group, for User-Centric FL to keep groups apart

STAY, IN_GROUP, WITH_ALL = "stay alone", "with its group", "with everybody"
SHIFTS = {"feature", "concept", "shift"}


@dataclass(frozen=True)
class Client:
    """What one client can expect."""

    name: str
    examples: int
    variance: float  # σ_m²
    gain_with_all: float  # exact Bayes, 1 + σ_m² / (σ_0² + 1/S₋ₘ)
    gain_in_group: float  # the same with its group only
    paper_gain: float  # Self-FL's GAIN_m
    group: int
    nearest: list[str]  # clients with the largest weights in its row of W

    @property
    def gain(self) -> float:
        """Factor by which the variance of its model can shrink, with all clients or with its group."""
        return max(self.gain_with_all, self.gain_in_group)

    @property
    def advice(self) -> str:
        """Whether to stay alone, or to federate with its group or with all clients."""
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
class Recommendation:
    """The recommended method, the reasons, and alternatives."""

    method: str
    hyper: dict[str, Any]
    reasons: tuple[str, ...]
    alternatives: tuple[str, ...]

    @property
    def flags(self) -> str:
        """The method as arguments of `bespoke run`."""
        return " ".join([self.method, *(f"--set {name}={value}" for name, value in self.hyper.items())])


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
    about: dict[str, Any] = field(default_factory=dict)  # what was diagnosed, and how

    @property
    def gains(self) -> np.ndarray:
        """Expected gain of each client."""
        return np.array([one.gain for one in self.clients])

    @property
    def groups(self) -> list[int]:
        """Group of each client."""
        return [one.group for one in self.clients]

    @property
    def recommendation(self) -> Recommendation:
        """The recommended method; docs/diagnose.md lists the rules."""
        return recommend(self)

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
        )

    def sentences(self) -> list[str]:
        """Return the diagnosis in words: how the clients differ, who should federate, and with whom."""
        return [_differences(self), *_kinds(self), _advice(self), *_survey(self)]

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


def recommend(found: Diagnosis) -> Recommendation:
    """Return a method by the rules that docs/diagnose.md lists."""
    shifted = bool(SHIFTS & set(found.present))
    if found.likeness == ALIKE:
        reasons = ["The clients differ no more than by chance: one model learns from all and serves all."]
        if "size" in found.present:
            reasons.append("Sizes differ a lot: clients with few examples gain most. Weights follow the examples.")
        return Recommendation("fedavg", {}, tuple(reasons), ("fedavg-ft", "persfl"))
    if float(np.median(found.gains)) < MIN_GAIN:
        reasons = [
            f"Half of the clients have a gain below {MIN_GAIN:g}: they have little in common compared with what their "
            "own data show.",
            "To federate nevertheless, let every client fine-tune the global model.",
        ]
        return Recommendation("local", {}, tuple(reasons), ("persfl", "fedavg-ft"))
    if found.likeness in (GROUPS, PARTLY_GROUPED) and shifted:
        return _by_group(found)
    if "label" in found.present and not shifted:
        reason = (
            "Label distributions differ, but a class looks the same at all clients: they can learn features together, "
            "and each then tunes the global model to its own classes."
        )
    else:
        reason = "Each client differs in its own way: it needs a personal model that learns from a global one."
    return Recommendation("persfl", {}, (reason,), ("fedavg-ft", "ditto"))


def _by_group(found: Diagnosis) -> Recommendation:
    num, survey = found.streams, found.survey
    explained = "" if found.explained is None else f", which explain {_percent(found.explained)} of their differences"
    reasons = [f"The clients form {num} groups{explained}: train one model per group instead of one for all."]
    if survey is not None and survey.inside >= MIN_WEIGHT_INSIDE:
        reasons.append(
            f"User-Centric FL's survey gives {_percent(survey.inside)} of the weight to a client's own group: it finds "
            "the groups."
        )
        return Recommendation("ucfl", {"streams": num}, tuple(reasons), ("ifca", "cfl"))
    if survey is not None:
        reasons.append(
            f"User-Centric FL's survey leaves only {_percent(survey.inside)} of the weight in a client's own group: "
            "its gradients are too noisy here."
        )
    if "concept" in found.present:
        reasons.append("Where labels mean different things, updates diverge, and clustered FL splits by that.")
        return Recommendation("cfl", {}, tuple(reasons), ("ifca", "persfl", "local"))
    reasons.append("The loss of each client shows which of several models fits its data: IFCA lets it choose.")
    return Recommendation("ifca", {"clusters": num}, tuple(reasons), ("cfl", "persfl"))


def _differences(found: Diagnosis) -> str:
    share, surety = _percent(found.share), found.surety
    if found.likeness == ALIKE:
        deviations = "" if surety is None else f", {surety:.1f} standard deviations from 0"
        return (
            f"The clients cannot be told apart: {share} of the variance of their models is between them, which is no "
            f"more than chance{deviations}."
        )
    deviations = "" if surety is None else f", {surety:.1f} standard deviations above chance"
    groups = f"They form {found.streams} groups, which explain {_percent(found.explained)} of that"
    structure = {
        GROUPS: f"{groups}.",
        PARTLY_GROUPED: f"{groups}; members of a group differ, too.",
        SINGLE: "There are no clear groups: each client differs in its own way.",
    }[found.likeness]
    return f"{share} of the variance of their models is between clients{deviations}. {structure}"


def _kinds(found: Diagnosis) -> list[str]:
    known, by_class = found.details, found.details.get("as_labelled") is not None
    share = {name: _percent(value) for name, value in found.kinds.items()}
    sentences = {
        "label": f"Label skew: {share['label']} of the targets' variance is between clients.",
        "size": f"Size disparity: from {known['smallest']:.0f} to {known['largest']:.0f} training examples, Gini "
        f"{known['size_gini']:.2f}.",
        "feature": f"Feature shift: {share['feature']} of the inputs' variance is between clients.",
        "concept": "Concept shift: the inputs are alike, but what is learnt from them is not.",
        "shift": f"Feature or concept shift: {share['shift']} of the variance within a class is between clients, but "
        "labels are too skewed to tell whether inputs look different or have different labels.",
    }
    if known.get("label_distance") is not None:
        sentences["label"] = (
            f"Label skew: the label distributions of two clients differ by {known['label_distance']:.2f} on average; "
            f"by chance it would be {known['label_distance_by_chance']:.2f}."
        )
    if by_class:
        sentences["feature"] = (
            f"Feature shift: {share['feature']} of the variance within a class is between clients, even if labels are "
            "matched as well as possible: the same classes look different."
        )
        sentences["concept"] = (
            f"Concept shift: {_percent(known['as_labelled'])} of the variance within a class is between clients, and "
            f"{_percent(known['as_matched'])} once labels are matched: similar inputs have different labels."
        )
    listed = [sentence for name, sentence in sentences.items() if name in found.present]
    return listed or ["There is no notable label skew, size disparity, feature shift or concept shift."]


def _advice(found: Diagnosis) -> str:
    advice = [one.advice for one in found.clients]
    meaning = {
        WITH_ALL: "gain from federating with all clients",
        IN_GROUP: "gain most within their group",
        STAY: "have almost nothing to gain and may stay alone",
    }
    parts = [f"{advice.count(one)} {words}" for one, words in meaning.items() if one in advice]
    low, middle, high = np.quantile(found.gains, [0.1, 0.5, 0.9])
    return (
        f"Of {len(advice)} clients {', '.join(parts)}. Expected gain (factor by which the variance shrinks): median "
        f"{middle:.2f}, from {low:.2f} (10th percentile) to {high:.2f} (90th)."
    )


def _survey(found: Diagnosis) -> list[str]:
    survey = found.survey
    if survey is None:
        return []
    best = max((one for one in survey.silhouettes if one is not None), default=0.0)
    return [
        f"User-Centric FL's own rule, on gradients at the initial weights, would take "
        f"{count(survey.streams, 'stream')} (silhouette {best:.2f}); suggested here: {found.streams}."
    ]


def _percent(share: float | None) -> str:
    return f"{100 * (share or 0.0):.0f} %"
