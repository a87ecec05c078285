"""docs/diagnose-calibration.md: what diagnoses predicted, and what came out, from the cells of the study."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from bespokefl.core.errors import count
from bespokefl.workflows.diagnose.recommendation import CLOSE
from bespokefl.workflows.diagnose.trials import COMMON, GROUPED, LOCAL, PERSONAL
from bespokefl_evidence.pages.scores import NO_VALUE
from bespokefl_evidence.studies.cells import Cell, CellStore
from bespokefl_evidence.studies.diagnose_calibration import CalibrationStudy, Federation

FILE = "diagnose-calibration.md"
POINT = 0.01
BINS = (  # title, from, below
    ("at least +10 points", 0.1, np.inf),
    ("+1 to +10", POINT, 0.1),
    ("−1 to +1", -POINT, POINT),
    ("below −1", -np.inf, -POINT),
)
METHODS = (LOCAL, COMMON, PERSONAL, *GROUPED)
INTRODUCTION = """# How well diagnoses predict

`bespoke reproduce --table` writes this page from stored cells; `bespoke reproduce diagnose-calibration --files DIR`
computes them (about a minute of one core each). Planted federations are of the built-in digits. The real ones need
`landmine_29tasks.npz` (x, y, field), `femnist_by_writer.npz`, `fsdd_logmel_by_speaker.npz` and
`har_geotec_windows.npz` (x, scale, y, subject) in DIR.

For each federation and seed, [`bespoke diagnose`](diagnose.md) with its defaults predicts from training and validation
data. Then all methods that it tried run for {rounds} rounds of {steps} local steps, with the learning rate of
{rates} that is best on validation data, and are scored on test data. (*fields* and *movements*, whose inputs are not in
[0, 1], also have 0.01 and 0.03, *movements* not 1: a first computation without them chose the smallest.) Gains are
relative to Local, mean over clients, in points of accuracy (*fields*: of 100 × AUC). No rule of these predictions was
changed after the results. *contradicting* was added after the first results of the others, none of which had Local win
beyond noise.
"""


@dataclass(frozen=True)
class Case:
    """A computed cell: a diagnosis, and what came out."""

    federation: Federation
    seed: int
    said: dict[str, Any]

    @classmethod
    def of(cls, federation: Federation, cell: Cell) -> "Case":
        return cls(federation, cell.seed, cell.results)

    def test(self, method: str) -> np.ndarray:
        """The clients' test scores."""
        return np.array(self.said["outcomes"][method]["test"], dtype=np.float64)

    def gain(self, method: str) -> np.ndarray:
        """The clients' gains over Local on test data."""
        difference: np.ndarray = self.test(method) - self.test(LOCAL)
        return difference

    def mean(self, method: str) -> float:
        return float(np.nanmean(self.test(method)))

    @property
    def best(self) -> str:
        """The method with the best mean test score."""
        outcomes: dict[str, Any] = self.said["outcomes"]
        return max(outcomes, key=self.mean)

    @property
    def regret(self) -> float:
        """How far the advised method is below the best."""
        return self.mean(self.best) - self.mean(self.said["advised"])

    @property
    def realised(self) -> float:
        """The mean gain of the best federated method of the trials."""
        return float(np.nanmean(self.gain(self.said["rival"])))

    @property
    def covered(self) -> bool:
        """Whether the predicted interval has the gain that came out."""
        return bool(self.said["low"] <= self.realised <= self.said["high"])

    def pairs(self) -> list[tuple[float, float]]:
        """Predicted and realised gain of every client that has both."""
        gains = zip(self.said["clients"]["predicted"], self.gain(self.said["rival"]), strict=True)
        return [(ours, gain) for ours, gain in gains if ours is not None and np.isfinite(gain)]

    def correlation(self, figure: str) -> float | None:
        """Spearman's correlation over clients of a predicted figure and the gain that came out."""
        ours = np.array(self.said["clients"][figure], dtype=np.float64)
        gain = self.gain(self.said["rival"])
        there = np.isfinite(ours) & np.isfinite(gain)
        if there.sum() < 3 or np.ptp(ours[there]) < 1e-9 or np.ptp(gain[there]) < 1e-9:
            return None
        return float(spearmanr(ours[there], gain[there]).statistic)


def cases(study: CalibrationStudy, store: CellStore) -> list[Case]:
    """All cells that are computed."""
    by_name = {one.name: one for one in study.federations}
    found = [(spec, store.get(spec)) for spec in study.specs(store)]
    return [Case.of(by_name[spec.scenario], cell) for spec, cell in found if cell is not None]


def page(study: CalibrationStudy, store: CellStore) -> str:
    """The page of the study."""
    found, total = cases(study, store), len(study.federations) * study.seeds
    (spec, *_) = study.specs(store)
    known = spec.settings
    rates = ", ".join(f"{one:g}" for one in known["rates"])
    lines = [INTRODUCTION.format(rounds=known["rounds"], steps=known["steps"], rates=rates)]
    lines += [f"{len(found)} of {count(total, 'cell')} are computed.", ""]
    if not found:
        return "\n".join(lines)
    lines += ["## In short", "", *_summary(found), ""]
    lines += ["## Predicted and realised gains", "", *_gains(found), ""]
    lines += ["## Advice and alternatives", "", *_advice(found), ""]
    lines += ["## Clients", "", *_clients(found)]
    return "\n".join(lines) + "\n"


def _summary(found: Sequence[Case]) -> list[str]:
    errors = np.array([one.said["gain"] - one.realised for one in found])
    within = sum(one.regret <= POINT for one in found)
    covered = sum(one.covered for one in found)
    clear = [one for one in found if one.said["verdict"] != CLOSE]
    right = sum((one.realised > 0) == (one.said["gain"] > 0) for one in clear)
    lost = [one for one in found if one.said["advised"] != LOCAL and one.mean(one.said["advised"]) < one.mean(LOCAL)]
    worst = max(found, key=lambda one: one.regret)
    num = len(found)
    return [
        f"- The advised method is within one point of the best of those tried in {within} of {num} cases; the largest "
        f"loss is {_points(worst.regret)} points (*{worst.federation.name}*, seed {worst.seed}).",
        f"- The predicted mean gain is off by {_points(float(np.abs(errors).mean()))} points on average (signed: "
        f"{_signed(float(errors.mean()))}); its 95 % interval has the gain on test data in {covered} of {num} cases. "
        "The interval does not count the noise of the test data.",
        f"- Where the verdict was not *too close to call*, the sign of the gain was right in {right} of {len(clear)} "
        "cases.",
        f"- A federated method was advised and fell below Local on test data in {len(lost)} of {num} cases"
        + (f": {', '.join(f'*{one.federation.name}* (seed {one.seed})' for one in lost)}." if lost else "."),
    ]


def _gains(found: Sequence[Case]) -> list[str]:
    lines = ["| federation | seed | contrast | predicted | 95 % interval | realised | variance ratio |"]
    lines.append("|---|---:|---|---:|---:|---:|---:|")
    for one in found:
        said = one.said
        interval = f"{_signed(said['low'])} to {_signed(said['high'])}"
        lines.append(
            f"| *{one.federation.name}*: {one.federation.about} | {one.seed} | {said['rival']} − local | "
            f"{_signed(said['gain'])} | {interval}{'' if one.covered else ' (missed)'} | {_signed(one.realised)} | "
            f"{said['variance_ratio']:.1f} × |"
        )
    return [
        *lines,
        "",
        "The contrast is the federated method that did best in the trials. The variance ratio (median over clients) is "
        "what earlier versions called the expected gain: it says nothing about the gain in accuracy.",
    ]


def _advice(found: Sequence[Case]) -> list[str]:
    order = [name for name in METHODS if any(name in one.said["outcomes"] for one in found)]
    lines = [f"| federation | seed | verdict | advised | below the best | {' | '.join(order)} |"]
    lines.append(f"|---|---:|---|---|---:|{'---:|' * len(order)}")
    for one in found:
        scores = []
        for name in order:
            there = name in one.said["outcomes"]
            text = f"{100 * one.mean(name):.1f}" if there else NO_VALUE
            scores.append(f"**{text}**" if there and name == one.said["advised"] else text)
        lines.append(
            f"| *{one.federation.name}* | {one.seed} | {one.said['verdict']} | {one.said['advised']} | "
            f"{_points(one.regret)} | {' | '.join(scores)} |"
        )
    return [*lines, "", "Mean test score of the clients, in %; bold is what was advised."]


def _clients(found: Sequence[Case]) -> list[str]:
    lines = ["| predicted for a client | clients | realised, mean | better off | equal | worse off |"]
    lines.append("|---|---:|---:|---:|---:|---:|")
    pairs = np.array([pair for one in found for pair in one.pairs()], dtype=np.float64).reshape(-1, 2)
    for title, low, high in BINS:
        gains = pairs[(pairs[:, 0] >= low) & (pairs[:, 0] < high), 1]
        shares = [_share(int(own.sum()), len(gains)) for own in (gains > 0, gains == 0, gains < 0)]
        mean = _signed(float(gains.mean())) if len(gains) else NO_VALUE
        lines.append(f"| {title} | {len(gains)} | {mean} | {' | '.join(shares)} |")
    ranks = {name: [one.correlation(name) for one in found] for name in ("predicted", "variance_ratio")}
    means = {name: [own for own in values if own is not None] for name, values in ranks.items()}
    lines += [
        "",
        "Better off: a higher test score with the federated method of the contrast than with Local. A client's test "
        "data are few, so that many of these are chance.",
        "",
        "Spearman's correlation over clients of predicted and realised gain:",
        "",
        "| federation | seed | predicted gain | variance ratio |",
        "|---|---:|---:|---:|",
    ]
    for at, one in enumerate(found):
        values = [NO_VALUE if own is None else f"{own:.2f}" for own in (ranks[name][at] for name in ranks)]
        lines.append(f"| *{one.federation.name}* | {one.seed} | {' | '.join(values)} |")
    shown = [f"{np.mean(own):.2f}" if own else NO_VALUE for own in means.values()]
    lines.append(f"| mean | | {' | '.join(shown)} |")
    lines += ["", '"–": the prediction is the same for all clients, because they do not differ beyond noise.']
    return lines


def _share(num: int, total: int) -> str:
    return NO_VALUE if not total else f"{100 * num / total:.0f} %"


def _points(value: float) -> str:
    return f"{100 * value:.1f}"


def _signed(value: float) -> str:
    return f"{100 * value:+.1f}".replace("-", "−")
