"""Claims: the rule of verdicts, intervals over seeds and clients, and the names in claims.toml."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bespokefl_evidence import studies
from bespokefl_evidence.pages import claim_tests, claims, intervals, scores
from bespokefl_evidence.pages.claim_tests import FAILS, HOLDS, IN_PART, UNTESTED, Comparison, Evidence, judge
from bespokefl_evidence.studies.cells import CellStore, Spec
from bespokefl_evidence.studies.experiment import Experiment, Row, Scenario
from bespokefl_evidence.studies.selffl_synthetic import SyntheticStudy

from bespokefl.core.errors import InputError
from bespokefl.metrics import spread
from tests.evidence.studies import toy

M = 40  # clients


def evidence(tmp_path: Path, rows: dict[str, Any], scenarios: tuple[str, ...] = ("s",), seeds: int = 3) -> Evidence:
    """Cells whose results are `rows[label](seed, scenario)`."""
    one = toy.experiment(
        rows=[Row(label, "local") for label in rows],
        scenarios=[Scenario(name, "iid", clients=M) for name in scenarios],
        seeds=seeds,
    )
    store = CellStore(tmp_path)

    def results(spec: Spec) -> dict[str, Any]:
        found = rows[spec.row](spec.seed, spec.scenario)
        return found if isinstance(found, dict) else toy.invented(found)

    toy.invent_all(one, store, results)
    return Evidence([one], store)


def base(seed: int) -> np.ndarray:
    return 0.5 + 0.4 * np.random.default_rng(seed).random(M)


def noisy(shift: float, noise: float) -> Any:
    return lambda seed, _: base(seed) + shift + noise * np.random.default_rng(100 + seed).normal(size=M)


def compare(found: Evidence, **values: Any) -> claim_tests.Finding:
    return judge(Comparison(**({"experiment": "toy", "scenario": "s", "a": "a", "b": "b"} | values)), found)


def test_verdicts_follow_effect_and_interval(tmp_path: Path) -> None:
    rows = {
        "b": lambda seed, _: base(seed),
        "clear": noisy(0.02, 0.001),
        "unclear": lambda seed, _: base(seed) + 0.003 + np.where(np.arange(M) % 2, 0.1, -0.1),
        "below": noisy(-0.02, 0.001),
    }
    found = evidence(tmp_path, rows)
    assert compare(found, a="clear").verdict == HOLDS
    assert compare(found, a="unclear").verdict == IN_PART
    assert compare(found, a="below").verdict == FAILS
    assert compare(found, a="below", relation="below").verdict == HOLDS
    assert compare(found, a="below", relation="at least", points=3).verdict == HOLDS
    assert compare(found, a="below", relation="at least", points=1).verdict == FAILS
    assert compare(found, a="clear", relation="within", points=3).verdict == HOLDS
    assert compare(found, a="clear", relation="within", points=1).verdict == FAILS
    assert compare(found, a="unclear", relation="within", points=1).verdict == IN_PART
    clear = compare(found, a="clear")
    assert clear.seeds == 3 and abs(float(clear.effect) - 2) < 0.2


def test_missing_cells_are_not_tested(tmp_path: Path) -> None:
    found = evidence(tmp_path, {"a": noisy(0, 0), "b": lambda seed, _: {"failed": "diverged"}})
    assert compare(found, experiment="none").verdict == UNTESTED
    assert compare(found, scenario="none").verdict == UNTESTED
    assert compare(found, a="none").verdict == UNTESTED
    assert compare(found, b="b").verdict == UNTESTED
    assert compare(found, b="a", metric="no_such_score").verdict == UNTESTED
    with pytest.raises(InputError, match="unknown kind of comparison 'guess'"):
        compare(found, kind="guess")


def test_the_interval_is_paired_and_covers_seeds_and_clients() -> None:
    """Two rows that differ by a constant have an interval of no width; a difference between seeds widens it."""
    members = {seed: (base(seed), np.ones(M)) for seed in range(3)}
    shifted = {seed: (values + 0.01, sizes) for seed, (values, sizes) in members.items()}
    moved = {seed: (values + 0.01 * seed, sizes) for seed, (values, sizes) in members.items()}

    def width(other: Any) -> tuple[float, float]:
        found = intervals.estimate([intervals.Figure(other, scores.mean), intervals.Figure(members, scores.mean)])
        assert found is not None
        return intervals.interval(found.resamples[:, 0] - found.resamples[:, 1])

    assert width(shifted) == pytest.approx((0.01, 0.01))
    low, high = width(moved)
    assert low == pytest.approx(0.0) and high == pytest.approx(0.02)  # all draws of the first or the last seed
    single = intervals.estimate([intervals.Figure({0: members[0]}, scores.mean)])
    assert single is not None
    low, high = intervals.interval(single.resamples[:, 0])
    error = members[0][0].std() / np.sqrt(M)
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.15)  # with one seed: over clients


def test_clients_without_a_score_are_left_out_of_both() -> None:
    one, other = np.array([0.1, np.nan, 0.3]), np.array([0.2, 0.9, 0.3])
    found = intervals.estimate([intervals.Figure({0: (each, np.ones(3))}, scores.mean) for each in (one, other)])
    assert found is not None
    np.testing.assert_allclose(found.values, [0.2, 0.25])


def test_metrics_are_those_of_the_library() -> None:
    rng = np.random.default_rng(0)
    values, sizes = rng.random((7, 23)), rng.permutation(1000)[: 7 * 23].reshape(7, 23).astype(float)
    for at in range(7):
        summary = spread.summarize(values[at], sizes[at])
        for name, reduce in {
            "mean": scores.mean,
            "weighted_mean": scores.weighted_mean,
            "worst": scores.worst,
            "worst_decile": scores.worst_decile,
        }.items():
            assert reduce(values, sizes)[at] == pytest.approx(summary[name])
        order = np.argsort(sizes[at])
        assert scores.smallest_decile(values, sizes)[at] == pytest.approx(values[at][order[:3]].mean())
        assert scores.largest_decile(values, sizes)[at] == pytest.approx(values[at][order[-3:]].mean())


def test_a_score_that_cannot_be_resampled_holds_in_part_at_most(tmp_path: Path) -> None:
    rows = {
        name: (lambda seed, _, v=v: toy.invented(base(0), whole_test=v + 0.001 * seed))
        for name, v in (("a", 0.9), ("b", 0.8))
    }
    assert compare(evidence(tmp_path / "one", rows, seeds=1), metric="whole_test").verdict == IN_PART
    assert compare(evidence(tmp_path / "two", rows, seeds=2), metric="whole_test").verdict == HOLDS


def test_range_over_scenarios(tmp_path: Path) -> None:
    shift = {"C=.1": 0.0, "C=.2": 0.004, "C=.5": -0.004}
    found = evidence(tmp_path, {"a": lambda seed, scenario: base(seed) + shift[scenario]}, tuple(shift))
    wanted = {"kind": "range", "b": "", "scenario": "", "scenarios": tuple(shift)}
    assert compare(found, **wanted, points=1.0).verdict == HOLDS
    assert compare(found, **wanted, points=1.0).effect == "+0.80"
    assert compare(found, **wanted, points=0.5).verdict == FAILS
    missing = compare(found, **(wanted | {"scenarios": (*shift, "C=.8")}), points=1.0)
    assert missing.verdict == UNTESTED


def test_errors_of_the_synthetic_study(tmp_path: Path) -> None:
    """Repeats take the place of seeds and clients."""
    study, store = SyntheticStudy(repeats=20), CellStore(tmp_path)
    noise = np.random.default_rng(0).random(20)
    better = 0.01 * np.random.default_rng(1).random(20)

    def results(spec: Spec) -> dict[str, Any]:
        ours = spec.row == "Self-FL, active peers"
        personal = noise - better * ours + (0.5 if ours and spec.scenario == "heterogeneous, C=1" else 0)
        return {"personal": personal.tolist(), "global": noise.tolist()}

    toy.invent_all(study, store, results)
    found = Evidence([study], store)
    asked = {"experiment": study.name, "a": "Self-FL, active peers", "metric": "personal_error"}
    one = judge(Comparison(scenario="homogeneous, C=0.1", b="Ditto", relation="below", **asked), found)
    assert (one.verdict, one.seeds, one.effect) == (HOLDS, 20, f"{-1000 * better.mean():+.2f}")
    same = judge(Comparison(scenario="homogeneous, C=0.1", b="Ditto", **asked | {"metric": "global_error"}), found)
    assert same.verdict == FAILS
    for last, verdict in (("0.8", HOLDS), ("1", FAILS)):
        over = ("heterogeneous, C=0.1", f"heterogeneous, C={last}")
        one = judge(Comparison(scenario="", kind="ratio", scenarios=over, points=0.25, **asked), found)
        assert one.verdict == verdict
    changed = 0.5 / (noise - better).mean()
    assert one.effect == f"{changed:+.2f}"
    assert found.cells(study.name, "homogeneous, C=1", "Self-FL, all peers") == []  # the same as with active peers


def test_one_seed_and_tolerances_are_said(tmp_path: Path) -> None:
    rows = {"a": noisy(0.02, 0), "b": noisy(0, 0)}
    tests = [Comparison("toy", "s", "a", "b", relation="at least", points=0.2)]
    claim = claims.Claim("X1", "Toy", "A is above B.", tests)
    for seeds, verdict in ((1, "holds (one seed)"), (3, "holds")):
        found = evidence(tmp_path / str(seeds), rows, seeds=seeds)
        one: Experiment = found.experiments["toy"]  # type: ignore[assignment]
        page = claims.page([claim], [one], CellStore(tmp_path / str(seeds)), tmp_path)
        assert f"A is above B. | {verdict} | 1 of 1 |" in page
        assert "Tolerance: 0.2 points in toy. Cells:" in page


def test_a_lead_that_grows(tmp_path: Path) -> None:
    lead = {"small": 0.05, "large": 0.02}
    rows = {"a": lambda seed, scenario: base(seed) + lead[scenario], "b": lambda seed, _: base(seed)}
    found = evidence(tmp_path, rows, tuple(lead))
    assert compare(found, kind="gap", scenario="small", than="large").verdict == HOLDS
    assert compare(found, kind="gap", scenario="large", than="small").verdict == FAILS


def test_every_client_is_better_off(tmp_path: Path) -> None:
    def some(share: float) -> Any:
        return lambda seed, _: base(seed) + np.where(np.arange(M) < share * M, 0.01, -0.01)

    found = evidence(tmp_path, {"b": lambda s, _: base(s), "all": some(1.0), "most": some(0.95), "half": some(0.5)})
    verdicts = [compare(found, kind="everyone", a=name).verdict for name in ("all", "most", "half")]
    assert verdicts == [HOLDS, IN_PART, FAILS]
    assert compare(found, kind="everyone", a="most").effect == "95.0 % of clients"


def test_the_fairest_has_the_most_even_gains(tmp_path: Path) -> None:
    rows = {
        "b": lambda seed, _: base(seed),
        "even": lambda seed, _: base(seed) + 0.1,
        "uneven": lambda seed, _: base(seed) + np.linspace(0.01, 0.2, M),
    }
    found = evidence(tmp_path, rows)
    assert compare(found, kind="fairest", a="even", rivals=("uneven",)).verdict == HOLDS
    assert compare(found, kind="fairest", a="uneven", rivals=("even",)).verdict == FAILS


def test_silhouettes(tmp_path: Path) -> None:
    def curve(peak: int) -> Any:
        values = [0.0, *(0.5 - 0.01 * abs(k - peak) for k in range(2, 8)), 0.0]
        return {"server": {"silhouette": [None if k == 6 else one for k, one in enumerate(values)]}}

    rows = {
        "four": lambda seed, _: toy.invented(base(0), notes=curve(4)),
        "falls": lambda seed, _: toy.invented(base(0), notes=curve(2)),
        "mixed": lambda seed, _: toy.invented(base(0), notes=curve(4 + (seed == 2))),
    }
    found = evidence(tmp_path, rows)
    wanted = {"kind": "silhouette", "b": ""}
    verdicts = [compare(found, **wanted, a=name, peak=4).verdict for name in rows]
    assert verdicts == [HOLDS, FAILS, IN_PART]
    assert [compare(found, **wanted, a=name).verdict for name in rows] == [FAILS, HOLDS, FAILS]
    assert compare(found, **wanted, a="mixed", peak=4).effect == "best at k = 4, 4, 5"


def test_few_streams_are_faster_where_sending_down_is_slow(tmp_path: Path) -> None:
    """Equal curves: a round with 4 streams takes 4 + ρM + T_comp, one with M streams M + ρM + T_comp."""
    found = evidence(tmp_path, {"a": noisy(0, 0), "b": noisy(0, 0)})
    wanted = {"kind": "time", "system": "wired", "metric": "personal"}
    faster = compare(found, **wanted, streams=(4, M))
    assert faster.verdict == HOLDS and compare(found, **wanted, streams=(M, 4)).verdict == FAILS
    rounds = 1 + (0.95 - 0.5) / 0.5  # from half the accuracy in round 1 to all of it in round 2
    assert float(faster.effect.removesuffix(" T_dl")) == pytest.approx(rounds * (4 - M), abs=0.01)


def test_rounds_until_a_score_is_reached() -> None:
    curve = np.array([[2.0, 0.2], [4.0, 0.6], [6.0, 0.5]])
    assert claim_tests.rounds_until(curve, 0.1) == pytest.approx(1.0)
    assert claim_tests.rounds_until(curve, 0.4) == pytest.approx(3.0)
    assert claim_tests.rounds_until(curve, 0.9) == 6.0


def test_correlations(tmp_path: Path) -> None:
    confidence = np.linspace(1, 2, M)

    def results(sign: float) -> Any:
        values: list[Any] = (5 - sign * confidence).tolist()
        notes = {"confidence": [None, *confidence[1:].tolist()], "deviation": values}
        return lambda seed, _: toy.invented(base(seed), notes={"clients": notes})

    found = evidence(tmp_path, {"a": results(1.0), "wrong": results(-1.0)})
    wanted = {"kind": "correlation", "b": ""}
    assert compare(found, **wanted, metric="size").effect == "+1.00"
    assert compare(found, **wanted, metric="size").verdict == HOLDS
    assert compare(found, **wanted, metric="deviation", relation="below").verdict == HOLDS
    assert compare(found, **wanted, a="wrong", metric="deviation", relation="below").verdict == FAILS


def test_the_weight_on_the_own_group(tmp_path: Path) -> None:
    same = np.kron(np.eye(2), np.ones((M // 2, M // 2))) / (M // 2)

    def results(share: float) -> Any:
        weights = share * same + (1 - share) / M
        notes = {"server": {"collaboration": weights.tolist()}}
        return lambda seed, _: toy.invented(base(seed), notes=notes, groups=["x"] * (M // 2) + ["y"] * (M // 2))

    found = evidence(tmp_path, {"a": results(0.8), "b": results(0.2)})
    assert compare(found, metric="own_group").effect == "+30.00"  # .8 + .2 / 2 against .2 + .8 / 2


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([HOLDS, HOLDS], HOLDS),
        ([HOLDS, IN_PART], IN_PART),
        ([HOLDS, FAILS], IN_PART),
        ([HOLDS, UNTESTED], IN_PART),
        ([FAILS, UNTESTED], FAILS),
        ([FAILS, IN_PART], IN_PART),
        ([UNTESTED, UNTESTED], UNTESTED),
    ],
)
def test_the_verdict_of_a_claim(verdicts: list[str], expected: str) -> None:
    one = Comparison("toy", "s", "a", "b")
    found = [claim_tests.Finding(one, verdict, "") for verdict in verdicts]
    assert claims.Judgement(claims.Claim("X1", "toy", "", [one]), found).verdict == expected


def misspelled(claims: Sequence[claims.Claim], experiments: Sequence[Experiment | SyntheticStudy]) -> list[str]:
    """Scenarios and rows that claims name and existing experiments do not have."""
    found = []
    for one in experiments:
        if isinstance(one, SyntheticStudy):
            known = one.pairs()
        else:
            known = {(scenario.name, row.label) for scenario, row in one.pairs()}
        for claim in claims:
            for test in claim.comparisons:
                if test.experiment == one.name:
                    found += [
                        f"{claim.id}: {one.name}, {': '.join(pair)}" for pair in test.named() if pair not in known
                    ]
    return list(dict.fromkeys(found))


def test_claims_name_rows_that_exist() -> None:
    experiments = [one for one in studies.find([]) if isinstance(one, Experiment | SyntheticStudy)]
    assert {test.experiment for claim in claims.read() for test in claim.comparisons} <= {
        one.name for one in experiments
    }
    assert misspelled(claims.read(), experiments) == []


def test_a_misspelled_row_is_listed() -> None:
    one = toy.experiment()
    tests = [
        Comparison("toy", "two", "Local", "FedAgv"),
        Comparison("toy", "three", "Local"),
        Comparison("else", "s", "a"),
    ]
    found = misspelled([claims.Claim("X1", "toy", "", tests)], [one])
    assert found == ["X1: toy, two: FedAgv", "X1: toy, three: Local"]


def test_all_claims_are_there() -> None:
    expected = [f"S{k}" for k in range(1, 11)] + [f"P{k}" for k in range(1, 7)]
    expected += [f"U{k}" for k in range(1, 9)] + [f"V{k}" for k in range(1, 6)]
    found = claims.read()
    assert [one.id for one in found] == expected
    assert all(one.comparisons for one in found)
    for one in found:
        for test in one.comparisons:
            assert claim_tests.describe(test)


def test_the_page_shows_verdicts_and_links_to_cells(tmp_path: Path) -> None:
    found = evidence(tmp_path / "cells", {"a": noisy(0.02, 0), "b": noisy(0, 0)})
    one: Experiment = found.experiments["toy"]  # type: ignore[assignment]
    claim = claims.Claim(
        "X1",
        "Toy",
        "A is above B.",
        claim_tests.comparisons({"experiment": "toy", "scenario": ["s", "t"], "a": "a", "b": "b"}),
    )
    page = claims.page([claim], [one], CellStore(tmp_path / "cells"), tmp_path / "docs")
    assert "| [X1](#x1) A is above B. | holds in part | 1 of 2 |" in page
    assert "| s: a above b (personal accuracy) | +2.00 | +2.00 to +2.00 | 3 | holds |" in page
    assert "Not tested: 1 comparison. Cells: [toy](../cells/toy)." in page and "Not tested yet" not in page
    empty = claims.page([claim], [one], CellStore(tmp_path / "empty"), tmp_path / "docs")
    assert "## Not tested yet" in empty and "| X1 A is above B. | Toy | toy |" in empty and "### X1" not in empty
