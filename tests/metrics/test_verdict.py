"""Test verdicts on synthetic clients."""

import numpy as np
import pytest

from bespokefl.core.errors import InputError
from bespokefl.metrics import spread
from bespokefl.metrics.fairness import jain
from bespokefl.metrics.fairness_choice import spread_of
from bespokefl.metrics.improvement import improved_share, improvements, quantum
from bespokefl.metrics.verdict import best_performing, fairest, performing

NAN = float("nan")


def made(
    means: dict[str, float], num_seeds: int, num_clients: int, *, rest: float = 0.03, stream: int = 0
) -> dict[str, np.ndarray]:
    """Draw scores, (seeds, clients), of methods with these means; clients and seeds suit each method differently."""
    rng = np.random.default_rng(stream)
    common = 0.05 * rng.standard_normal(num_clients)
    return {
        name: mean
        + common
        + 0.02 * rng.standard_normal(num_clients)
        + 0.005 * rng.standard_normal((num_seeds, 1))
        + rest * rng.standard_normal((num_seeds, num_clients))
        for name, mean in means.items()
    }


THREE = {"local": 0.7, "fedavg": 0.6, "ditto": 0.8}


class TestBestPerforming:
    def test_a_clear_winner(self) -> None:
        scores = made(THREE, 5, 30)
        found = best_performing(scores, percent=True)
        assert (found.method, found.ties, found.conclusive) == ("ditto", (), True)
        assert found.support == 1.0
        assert found.sentence.startswith(
            f"ditto performs best (mean {100 * scores['ditto'].mean():.1f} %, 95 % interval"
        )
        lead = f"of local by {100 * (scores['ditto'] - scores['local']).mean():.1f} points (95 % interval "
        assert "with 5 seeds and 30 clients it is significantly ahead of all others, " + lead in found.sentence

    @pytest.mark.parametrize("stream", range(20))
    def test_never_best_with_a_lower_mean_than_local(self, stream: int) -> None:
        """Six clients after three rounds: Ditto at 48.8 was called best beside Local's 55.1, as it has gains."""
        scores = made({"local": 0.551, "fedavg": 0.3, "ditto": 0.488}, 1, 6, rest=0.15, stream=stream)
        gains = {"ditto": quantum(scores["ditto"], scores["fedavg"], scores["local"])}
        found = best_performing(scores, gains, percent=True)
        means = {name: one.mean() for name, one in scores.items()}
        assert found.method == max(means, key=lambda name: means[name])
        assert "performs best" not in found.sentence and not found.conclusive
        assert "better off" not in found.sentence or found.method == "ditto"

    def test_few_seeds_say_what_cannot_be_concluded(self) -> None:
        one, three = (best_performing(made(THREE, number, 30), percent=True) for number in (1, 3))
        for found in (one, three):
            assert (found.method, found.ties, found.conclusive) == ("ditto", (), False)
            assert "No method is called best yet: ditto has the best mean" in found.sentence
            assert "significantly ahead of all others" in found.sentence and "performs best" not in found.sentence
        assert one.sentence.endswith(
            "One seed says nothing about other seeds: this holds for these clients and this seed only; run at least 5."
        )
        assert three.sentence.endswith("3 seeds are too few to conclude about other seeds; run at least 5.")

    def test_too_few_clients_or_seeds_to_tell(self) -> None:
        found = best_performing(made({"one": 0.7, "other": 0.72}, 5, 6, rest=0.1), percent=True)
        assert len(found.ties) == 1 and not found.conclusive
        assert "No method can be called best: " in found.sentence
        assert f"there are too few clients or seeds to tell it from {found.ties[0]}" in found.sentence

    def test_equal_within_a_margin(self) -> None:
        scores = made({"one": 0.7, "far": 0.5}, 5, 200)
        scores["other"] = scores["one"] + 0.001 * np.random.default_rng(1).standard_normal((5, 200)) - 0.00001
        found = best_performing(scores, percent=True)
        assert found.ties == ("other",) and "other is equal to it within 1 point." in found.sentence
        assert "too few" not in found.sentence
        scores["other"] = scores["one"] + 0.001 * np.random.default_rng(1).standard_normal((5, 200)) - 0.001
        found = best_performing(scores, percent=True)
        assert found.conclusive and found.sentence.endswith(", a lead of less than 1 point.")

    def test_of_ties_the_one_that_helps_most_clients_is_named(self) -> None:
        gains = {"high": np.array([6.0, 5.5, -0.5, -0.6, -0.7, -0.8, -0.9]), "wide": np.linspace(0.5, 0.6, 7)}
        scores = {name: 70 + one for name, one in gains.items()}
        assert scores["high"].mean() > scores["wide"].mean()
        found = best_performing(scores, gains)
        assert (found.method, found.ties) == ("high", ("wide",))
        assert "Of these, wide leaves most clients better off than both Local and FedAvg, 100 %." in found.sentence
        assert "Of these" not in best_performing(scores).sentence

    def test_reservations(self) -> None:
        found = best_performing(made(THREE, 5, 30), reservations=["methods were not tuned"])
        assert not found.conclusive and found.sentence.endswith(". Methods were not tuned.")
        assert "performs best" not in found.sentence

    def test_losses(self) -> None:
        scores = made({"a": 1.7, "b": 0.7}, 5, 20)
        found = best_performing(scores, higher_is_better=False)
        assert found.method == "b" and found.conclusive

    def test_alone(self) -> None:
        found = best_performing({"only": [0.5, 0.75]})
        assert found.method == "only" and found.sentence.startswith("only is the only method (mean 0.625")

    def test_wrong_winners_are_rare_and_planted_ones_are_found(self) -> None:
        wrong = [best_performing(made({"a": 0.7, "b": 0.7}, 5, 20, stream=at), resamples=1) for at in range(200)]
        right = [best_performing(made({"a": 0.7, "b": 0.75}, 5, 20, stream=at), resamples=1) for at in range(50)]
        assert sum(one.conclusive for one in wrong) <= 20  # 10 are expected; more than 20 come by chance once in 500
        assert sum(one.conclusive and one.method == "b" for one in right) >= 48


def spreading(mean: float, deviation: float, num_seeds: int = 5, num_clients: int = 30) -> np.ndarray:
    """Return scores with this mean and about this deviation between clients, almost the same with each seed."""
    rng = np.random.default_rng(0)
    values = np.linspace(-1, 1, num_clients) * deviation * np.sqrt(3)
    found: np.ndarray = mean + values + 0.001 * rng.standard_normal((num_seeds, num_clients))
    return found


class TestFairest:
    def gains(self, scores: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: one - 0.5 for name, one in scores.items()}  # over baselines at .5

    def test_even_scores_are_fair(self) -> None:
        scores = {"even": spreading(0.8, 0.05), "uneven": spreading(0.805, 0.1)}
        found = fairest(self.gains(scores), scores, percent=True)
        assert (found.method, found.conclusive, found.support) == ("even", True, 1.0)
        assert set(found.votes.values()) == {"even"}
        worst = np.mean([spread.worst_decile(one) for one in scores["even"]])
        assert found.sentence.startswith(
            f"even is fairest: it has the best mean of the worst tenth of the clients ({100 * worst:.1f} %) and the "
            "lowest standard deviation between clients"
        )
        assert "of 2 methods within 1 point of the best mean" in found.sentence
        assert "PersFL's four measures of the gains prefer it too" in found.sentence

    def test_the_table_is_not_contradicted(self) -> None:
        """A standard deviation of 12.0 and a worst tenth of 62.6 were called fairer than 7.1 and 75.7."""
        scores = {"wide": spreading(0.85, 0.12), "narrow": spreading(0.84, 0.07)}
        assert fairest(self.gains(scores), scores).method == "narrow"
        lower = {"wide": scores["wide"], "narrow": scores["narrow"] - 0.03}  # 4 points behind
        found = fairest(self.gains(lower), lower, percent=True)
        assert found.method is None
        assert "only wide is within 1 point of the best mean, but of all methods narrow has the best" in found.sentence

    def test_worst_tenth_and_deviation_disagree(self) -> None:
        low = spreading(0.8, 0.05)
        low[:, :3] = 0.4  # three clients are left behind
        scores = {"some lose": low + 0.03, "wide": spreading(0.8, 0.15)}
        found = fairest(self.gains(scores), scores, margin=0.1, percent=True)
        assert found.method is None and not found.conclusive
        assert "wide has the best mean of the worst tenth" in found.sentence
        assert "some lose the lowest standard deviation" in found.sentence

    def test_equal_worst_tenths_are_all_named(self) -> None:
        high, low = spreading(0.8, 0.1), spreading(0.7, 0.02)
        low[:, :3] = high[:, :3]
        found = fairest(self.gains({"high": high, "low": low}), {"high": high, "low": low}, percent=True)
        assert "of all methods high and low have the best mean of the worst tenth" in found.sentence
        assert ", low the lowest standard deviation" in found.sentence
        low[:, :3] += 0.01
        found = fairest(self.gains({"high": high, "low": low}), {"high": high, "low": low}, percent=True)
        assert "of all methods low has the best mean of the worst tenth" in found.sentence
        assert " and the lowest standard deviation" in found.sentence

    def test_equal_gains_of_few_clients_are_not_fair(self) -> None:
        """Jain's index is 1 if one client in fifty is better off: it alone counts."""
        base = spreading(0.6, 0.1, num_clients=50)
        few = base.copy()
        few[:, 0] += 0.1
        scores = {"local": base, "fedavg": base - 0.1, "few": few, "most": base + 0.05 * np.linspace(0.5, 1.5, 50)}
        gains = {name: quantum(scores[name], scores["fedavg"], scores["local"]) for name in ("few", "most")}
        assert jain(improvements(gains["few"][0])) == pytest.approx(1.0)
        assert improved_share(gains["few"]) == pytest.approx(2.0)
        assert fairest(gains, scores).method != "few"
        alone = {name: scores[name] for name in ("local", "fedavg", "few")}
        found = fairest({"few": gains["few"]}, alone)
        assert found.method is None or found.method != "few"

    def test_measures_that_disagree_name_no_winner(self) -> None:
        scores = {"even": spreading(0.8, 0.05), "uneven": spreading(0.805, 0.1)}
        gains = {"even": scores["even"] - 0.5, "uneven": np.full((5, 30), 0.3) + 0.0001 * np.arange(30)}
        found = fairest(gains, scores)
        assert found.method is None and found.votes["jain"] == "uneven"
        assert "even comes closest" in found.sentence
        assert "PersFL's measures of the gains do not all prefer it: " in found.sentence

    def test_a_baseline_can_be_fairest(self) -> None:
        scores = {"local": spreading(0.8, 0.02), "ditto": spreading(0.75, 0.1)}
        found = fairest({"ditto": scores["ditto"] - scores["local"]}, scores)
        assert found.method == "local" and "PersFL" not in found.sentence

    def test_uncertain_is_not_fairest(self) -> None:
        rng = np.random.default_rng(3)
        scores = {name: 0.8 + 0.1 * rng.standard_normal((5, 12)) for name in ("a", "b")}
        found = fairest(self.gains(scores), scores, margin=1.0)
        assert found.method is None
        assert found.support is None or found.support < 0.8

    def test_few_seeds(self) -> None:
        scores = {"even": spreading(0.8, 0.05, 2), "uneven": spreading(0.805, 0.1, 2)}
        found = fairest(self.gains(scores), scores)
        assert found.method is None and "even comes closest" in found.sentence
        assert found.sentence.endswith("2 seeds are too few to conclude about other seeds; run at least 5.")

    def test_reservations(self) -> None:
        scores = {"even": spreading(0.8, 0.05), "uneven": spreading(0.805, 0.1)}
        found = fairest(self.gains(scores), scores, reservations=["the methods are untuned"])
        assert found.method is None and not found.conclusive and "even comes closest" in found.sentence
        assert found.sentence.endswith(". The methods are untuned.")

    def test_losses(self) -> None:
        scores = {"even": spreading(0.8, 0.05), "uneven": spreading(0.799, 0.1)}
        found = fairest({name: 1 - one for name, one in scores.items()}, scores, higher_is_better=False)
        assert found.method == "even"
        worst = np.mean([spread.worst_decile(one, higher_is_better=False) for one in scores["even"]])
        assert f"the worst tenth of the clients ({worst:.4g})" in found.sentence

    def test_figures_are_those_of_tables(self) -> None:
        scores = np.random.default_rng(0).random((3, 25))
        scores[:, 4] = scores[1, 7] = NAN
        found = spread_of(scores)
        tables = [spread.summarize(one, np.ones(25)) for one in scores]
        for name in ("mean", "worst_decile", "std"):
            assert getattr(found, name) == pytest.approx(np.mean([one[name] for one in tables]))

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

    def test_gains_are_averaged_over_seeds(self) -> None:
        gains = {"a": np.array([[0.0, 4.0, NAN], [4.0, 0.0, 2.0]]), "b": np.array([[1.0, 3.0, 2.0], [1.0, 3.0, 2.0]])}
        assert set(fairest(gains).votes.values()) == {"a"}  # 2, 2, 2 against 1, 3, 2

    def test_bad_input(self) -> None:
        with pytest.raises(InputError, match="pass the gains of at least one method"):
            fairest({})
        with pytest.raises(InputError, match="a and b must be of the same clients"):
            fairest({"a": [0.5], "b": [0.5, 0.5]})
