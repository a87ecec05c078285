"""Judge the papers' claims (claims.toml) by the stored cells, and write docs/claims.md."""

import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bespokefl.core.errors import count
from bespokefl_evidence.pages.claim_tests import (
    FAILS,
    HOLDS,
    IN_PART,
    UNTESTED,
    Comparison,
    Evidence,
    Finding,
    comparisons,
    judge,
)
from bespokefl_evidence.studies.cells import CellStore
from bespokefl_evidence.studies.experiment import Experiment
from bespokefl_evidence.studies.selffl_synthetic import SyntheticStudy

Studies = Sequence[Experiment | SyntheticStudy]
FILE = Path(__file__).with_suffix(".toml")
INTRODUCTION = """# The papers' claims

`bespoke reproduce --table` writes this page from the stored cells; [results](results.md) has the tables.

The rule and the tolerances were fixed when only cells of tuning were stored; exploratory runs with one seed were known.
A claim consists of comparisons. The effect of a comparison is the mean over seeds of the difference in percentage
points, on the same seeds and clients. Its 95 % interval is a bootstrap over seeds and, within a seed, over clients;
with one seed it covers clients only. Intervals are not corrected for the number of comparisons. The interval of a worst
client or worst tenth is rough, because a bootstrap repeats clients.

- A comparison **holds** if effect and interval are where the claim says, **holds in part** if only the effect is, or if
  there is no interval, and **does not hold** otherwise. *At least* and *within* allow the points that are printed.
- A claim **holds** if all its comparisons hold, and **does not hold** if none of the tested ones holds, not even in
  part. Otherwise it **holds in part**, also if some comparisons are not tested. It is **not tested** if none is.

"Every client is better off" counts clients (all: holds; 90 % or more: in part). Silhouettes are compared seed by seed.
Fairness is decided by most of PersFL's four measures of the gains over FedAvg. Times follow UCFL's model, until 95 % of
the smaller of the two final accuracies is reached. Correlations are Spearman's, over clients. In Self-FL's synthetic
study the repeats take the place of seeds and clients.
"""


@dataclass(frozen=True)
class Claim:
    """A statement of a paper, and the comparisons that decide it."""

    id: str
    paper: str
    text: str
    comparisons: list[Comparison]


@dataclass(frozen=True)
class Judgement:
    """A claim with its verdict."""

    claim: Claim
    findings: list[Finding]

    @property
    def tested(self) -> list[Finding]:
        return [one for one in self.findings if one.verdict != UNTESTED]

    @property
    def verdict(self) -> str:
        """The verdict of the claim, by the rule at the top of the page."""
        found = {one.verdict for one in self.tested}
        if not found:
            return UNTESTED
        if found == {FAILS}:
            return FAILS
        return HOLDS if found == {HOLDS} and len(self.tested) == len(self.findings) else IN_PART

    @property
    def shown(self) -> str:
        """The verdict, with a remark if a tested comparison has one seed only."""
        return self.verdict + (" (one seed)" if any(one.seeds == 1 for one in self.tested) else "")

    @property
    def tolerances(self) -> str:
        """The slack that the comparisons allow, in a sentence; "" without any."""
        found = [(one.experiment, one.kind, one.points) for one in self.claim.comparisons if one.points]
        parts = [f"{points:g}{'' if kind == 'ratio' else ' points'} in {name}" for name, kind, points in found]
        return f"Tolerance: {', '.join(dict.fromkeys(parts))}. " if parts else ""


def read() -> list[Claim]:
    """All claims."""
    entries = tomllib.loads(FILE.read_text(encoding="utf-8"))["claims"]
    return [
        Claim(one["id"], one["paper"], one["text"], [made for test in one["tests"] for made in comparisons(test)])
        for one in entries
    ]


def judge_all(claims: Sequence[Claim], experiments: Studies, store: CellStore) -> list[Judgement]:
    """Judge all claims."""
    evidence = Evidence(experiments, store)
    return [Judgement(claim, [judge(one, evidence) for one in claim.comparisons]) for claim in claims]


def page(claims: Sequence[Claim], experiments: Studies, store: CellStore, directory: Path) -> str:
    """The page of all claims; links are relative to `directory`, in which it will be."""
    judged = judge_all(claims, experiments, store)
    tested = [one for one in judged if one.tested]
    lines = [INTRODUCTION, "| claim | verdict | comparisons tested |", "|---|---|---:|"]
    for one in tested:
        lines.append(
            f"| [{one.claim.id}](#{one.claim.id.lower()}) {one.claim.text} | {one.shown} "
            f"| {len(one.tested)} of {len(one.findings)} |"
        )
    for paper in dict.fromkeys(one.claim.paper for one in tested):
        lines += ["", f"## {paper}"]
        for one in tested:
            if one.claim.paper == paper:
                lines += ["", *_section(one, store, directory)]
    untested = [one.claim for one in judged if not one.tested]
    if untested:
        lines += ["", "## Not tested yet", "", "No comparison of these claims has all its cells.", ""]
        lines += ["| claim | paper | experiments |", "|---|---|---|"]
        for claim in untested:
            names = dict.fromkeys(test.experiment for test in claim.comparisons)
            lines.append(f"| {claim.id} {claim.text} | {claim.paper} | {', '.join(names)} |")
    return "\n".join(lines) + "\n"


def _section(one: Judgement, store: CellStore, directory: Path) -> list[str]:
    lines = [f"### {one.claim.id}", "", f"{one.claim.text} **{one.shown.capitalize()}.**"]
    if one.tested:
        lines += ["", "| comparison | effect | 95 % interval | seeds | verdict |", "|---|---:|---:|---:|---|"]
        for found in one.tested:
            values = [found.what, found.effect, found.interval, str(found.seeds), found.verdict]
            lines.append(f"| {' | '.join(values)} |")
    missing = len(one.findings) - len(one.tested)
    names = list(dict.fromkeys(test.experiment for test in one.claim.comparisons))
    links = [_link(name, store, directory) for name in names]
    rest = f"Not tested: {count(missing, 'comparison')}. " if missing else ""
    return [*lines, "", f"{one.tolerances}{rest}Cells: {', '.join(links)}."]


def _link(name: str, store: CellStore, directory: Path) -> str:
    path = store.directory / name
    return f"[{name}]({Path(os.path.relpath(path, directory)).as_posix()})" if path.is_dir() else f"{name} (none yet)"
