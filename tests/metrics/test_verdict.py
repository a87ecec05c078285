"""Test verdicts on synthetic clients."""

import numpy as np
import pytest

from bespokefl.core.errors import InputError
from bespokefl.metrics.verdict import best_performing, fairest, performing

NAN = float("nan")
RNG = np.random.default_rng(0)
COMMON = RNG.random((3, 20))  # three seeds, twenty clients


class TestBestPerforming:
    def test_a_clear_winner(self) -> None:
        found = best_performing({"good": COMMON + 0.1, "bad": COMMON})
        assert (found.method, found.ties, found.support) == ("good", (), 1.0)
        assert found.sentence.startswith(f"good performs best (mean {(COMMON + 0.1).mean():.4g}, 95 % interval ")
        assert found.sentence.endswith("significantly ahead of all others; it comes first in 100 % of resamples.")

    def test_a_tie_says_so(self) -> None:
        other = COMMON + 0.2 * RNG.standard_normal(COMMON.shape)
        scores = {"one": COMMON, "other": other}
        found = best_performing(scores)
        best, tied = ("one", "other") if COMMON.mean() > other.mean() else ("other", "one")
        assert (found.method, found.ties) == (best, (tied,))
        assert found.support is not None and 0.5 < found.support < 1
        assert f"but does not differ significantly from {tied};" in found.sentence

    def test_of_ties_the_one_that_helps_most_clients(self) -> None:
        gains = {"high": np.array([6.0, 5.5, -0.5, -0.6, -0.7, -0.8, -0.9]), "wide": np.linspace(0.5, 0.6, 7)}
        scores = {name: 70 + one for name, one in gains.items()}
        assert scores["high"].mean() > scores["wide"].mean()
        found = best_performing(scores, gains)
        assert (found.method, found.ties) == ("wide", ("high",))
        assert "of these wide leaves most clients better off, 100 %" in found.sentence
        assert best_performing(scores).method == "high"
        assert best_performing(scores, {"high": gains["high"]}).method == "high"

    def test_a_significant_lead_is_not_given_up(self) -> None:
        scores = {"high": COMMON + 0.1, "low": COMMON}
        gains = {"high": COMMON - 0.5, "low": COMMON}  # wrong, but the test decides first
        assert best_performing(scores, gains).method == "high"

    def test_too_few_clients_to_tell(self) -> None:
        found = best_performing({"good": [0.9, 0.8, 0.7], "bad": [0.1, 0.2, 0.3]})
        assert found.method == "good" and found.ties == ("bad",)
        assert "(with 3 pairs no difference can be significant)" in found.sentence

    def test_losses(self) -> None:
        assert best_performing({"a": COMMON + 1, "b": COMMON}, higher_is_better=False).method == "b"

    def test_alone(self) -> None:
        found = best_performing({"only": [0.5, 0.75]})
        assert found.method == "only" and found.sentence.startswith("only is the only method (mean 0.625")


class TestFairest:
    def test_even_gains_are_fair(self) -> None:
        gains = {"even": np.full(20, 0.1) + 0.001 * np.arange(20), "uneven": 0.2 * RNG.random(20)}
        found = fairest(gains)
        assert found.method == "even" and set(found.votes.values()) == {"even"} and found.support == 1.0
        assert found.sentence.startswith("even is fairest: 4 of 4 measures")
        assert "among 2 methods that perform" in found.sentence

    def test_fair_without_performance_is_not_fair(self) -> None:
        gains = {"useful": 0.1 + 0.1 * RNG.random(20), "idle": np.full(20, 0.01), "harmful": np.full(20, -0.1)}
        assert performing(gains) == ["useful"]
        assert fairest(gains).method == "useful"

    def test_who_performs(self) -> None:
        some = np.array([1.0, 1.0, 1.0, 1.0])
        gains = {
            "best": 2 * some,
            "half": some,
            "less": 0.99 * some,
            "many worse off": np.array([30.0, -1, -1, -1]),
            "as many": np.array([9.0, 9.0, -1, -1]),
        }
        assert performing(gains) == ["best", "as many"]  # a mean gain of 4 sets the mark at 2
        del gains["as many"]
        assert performing(gains) == ["best", "half"]

    def test_no_method_performs(self) -> None:
        found = fairest({"a": [-0.1, -0.2], "b": [0.0, 0.0]})
        assert found.method is None and found.support is None and found.votes == {}
        assert found.sentence.startswith("No method is fairest, as none performs")

    def test_seeds_are_averaged(self) -> None:
        gains = {"a": np.array([[0.0, 4.0, NAN], [4.0, 0.0, 2.0]]), "b": np.array([[1.0, 3.0, 2.0], [1.0, 3.0, 2.0]])}
        assert set(fairest(gains).votes.values()) == {"a"}  # 2, 2, 2 against 1, 3, 2

    def test_it_is_as_sure_as_the_data_are(self) -> None:
        close = fairest({"a": 0.1 + 0.1 * RNG.random(8), "b": 0.1 + 0.1 * RNG.random(8)}, seed=1)
        assert close.support is not None and 0.2 < close.support < 1.0

    def test_bad_input(self) -> None:
        with pytest.raises(InputError, match="pass the gains of at least one method"):
            fairest({})
        with pytest.raises(InputError, match="a and b must be of the same clients"):
            fairest({"a": [0.5], "b": [0.5, 0.5]})
