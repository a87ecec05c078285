"""Uploads, messages, rounds, and the hyper-parameters that every method refuses."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from bespokefl.core.errors import InputError
from bespokefl.core.method import Message, Method, Round, Uploads
from bespokefl.core.rows import Layout, Rows
from bespokefl.core.user_input.hyper_parameters import Limit, above, at_least, interval, one_of
from bespokefl.methods import UCFL, Ditto, FedAvg, PFedVEM, SelfFL

LAYOUT = Layout(("a", "b"), ((2,), ()))
MATRIX = torch.tensor([[1.0, 2, 3], [4, 5, 6], [7, 8, 10]], dtype=torch.float64)
EXAMPLES = torch.tensor([1, 2, 5])


def uploads(*cuts: int) -> Uploads:
    """Three clients' rows in chunks of these sizes."""
    rows = Rows.from_matrix(LAYOUT, MATRIX)
    values = torch.tensor([10.0, 20.0, 30.0])
    chunks, at = [], 0
    for size in cuts:
        chunks.append({"weights": rows[at : at + size], "value": values[at : at + size]})
        at += size
    return Uploads([4, 0, 2], EXAMPLES, chunks)


@pytest.mark.parametrize("cuts", [(3,), (1, 2), (2, 1), (1, 1, 1)])
class TestUploads:
    def test_means(self, cuts: tuple[int, ...]) -> None:
        up = uploads(*cuts)
        by_examples = (1 * MATRIX[0] + 2 * MATRIX[1] + 5 * MATRIX[2]) / 8
        torch.testing.assert_close(up.mean("weights").matrix()[0], by_examples)
        torch.testing.assert_close(up.mean("weights", by="equal").matrix()[0], MATRIX.mean(0))
        by_values = (10 * MATRIX[0] + 20 * MATRIX[1] + 30 * MATRIX[2]) / 60
        torch.testing.assert_close(up.mean("weights", by=up["value"]).matrix()[0], by_values)

    def test_as_one(self, cuts: tuple[int, ...]) -> None:
        up = uploads(*cuts)
        assert torch.equal(up["weights"].matrix(), MATRIX)
        assert up["value"].tolist() == [10, 20, 30]
        assert len(up) == 3 and up.clients == (4, 0, 2)
        assert "value" in up and "other" not in up

    def test_more_than_once(self, cuts: tuple[int, ...]) -> None:
        up = uploads(*cuts)
        first = [len(chunk["weights"]) for chunk in up]
        assert first == [len(chunk["weights"]) for chunk in up] == list(cuts)


def test_shares_sum_to_one() -> None:
    up = uploads(3)
    assert up.shares("examples").tolist() == [1 / 8, 2 / 8, 5 / 8]
    assert up.shares("equal").tolist() == [1 / 3] * 3
    assert up.shares(torch.tensor([3, 1, 0])).tolist() == [3 / 4, 1 / 4, 0]


def test_messages_are_shared_and_own() -> None:
    message = Message(shared={"weights": 1.0, "both": 2.0}, own={"both": 3.0})
    assert message["weights"] == 1.0 and message["both"] == 3.0
    assert "weights" in message and "both" in message and "other" not in message


def test_the_servers_draws_follow_from_seed_and_round() -> None:
    def draw(number: int, seed: int = 0, purpose: str = "x") -> list[float]:
        return Round(number, "train", seed, ("a",)).generator(purpose).random(3).tolist()

    assert draw(1) == draw(1)
    assert len({tuple(draw(*key)) for key in [(1,), (2,), (1, 1), (1, 0, "y")]}) == 4


def test_notes_of_one_round_are_not_those_of_another() -> None:
    first, second = Round(1, "train", 0, ("a",)), Round(2, "train", 0, ("a",))
    first.note(figure=1.0)
    assert first.notes == {"figure": 1.0} and not second.notes


@pytest.mark.parametrize(
    ("hyper", "sentence"),
    [
        ({"lr": 0.0}, "lr must be > 0, got 0.0"),
        ({"lr": -1.0}, "lr must be > 0"),
        ({"lr": math.nan}, "lr must be > 0, got nan"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1.0"),
        ({"momentum": -0.1}, "momentum must be in"),
        ({"weight_decay": -0.1}, "weight_decay must be >= 0, got -0.1"),
        ({"weights": "size"}, "weights must be 'examples' or 'equal', got 'size'"),
    ],
)
def test_senseless_hyper_parameters(hyper: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        FedAvg(**hyper)  # type: ignore[arg-type]


def test_a_method_says_what_it_is() -> None:
    assert FedAvg.summary() == "One global model: the average of the models that clients train."
    assert FedAvg(lr=0.5).hyper() == {"lr": 0.5, "momentum": 0.0, "weight_decay": 0.0, "weights": "examples"}
    assert [phase.rounds for phase in FedAvg().phases(7)] == [7]


def test_a_method_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Method()  # type: ignore[abstract]


def test_double_weights_for_single_rows() -> None:
    rows = Rows.from_matrix(LAYOUT, MATRIX.float())
    mean = Uploads([0, 1, 2], EXAMPLES, [{"weights": rows}]).mean("weights")
    assert mean.dtype == torch.float32
    np.testing.assert_allclose(mean.matrix()[0].numpy(), (MATRIX * EXAMPLES[:, None]).sum(0) / 8, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Ditto(lr="a"), "lr of ditto must be a number, got 'a'."),
        (lambda: Ditto(lr=True), "lr of ditto must be a number, got True."),
        (lambda: Ditto(lr=None), "lr of ditto must be a number, got None."),
        (lambda: Ditto(lr=np.array([0.1])), "lr of ditto must be a number, got array([0.1])."),
        (lambda: Ditto(weights=3), "weights of ditto must be text, got 3."),
        (lambda: SelfFL(max_steps=2.5), "max_steps of selffl must be INTEGER, got 2.5."),
        (lambda: SelfFL(smoothing="all"), "smoothing of selffl must be a number, got 'all'."),
        (lambda: SelfFL(initialise=1), "initialise of selffl must be true or false, got 1."),
        (lambda: PFedVEM(samples=1.5), "samples of pfedvem must be INTEGER, got 1.5."),
        (lambda: UCFL(streams=2.5), "streams of ucfl must be INTEGER or text, got 2.5."),
    ],
)
def test_hyper_parameters_of_another_kind_are_refused(make: Callable[[], Method], said: str) -> None:
    with pytest.raises(InputError) as error:
        make()
    assert re.fullmatch(re.escape(said).replace("INTEGER", "(a whole number|an integer)"), str(error.value))


def test_whole_numbers_and_numpys_are_numbers() -> None:
    assert Ditto(lr=1, prox_weight=np.float32(0.5)).prox_weight == 0.5
    assert SelfFL(max_steps=np.int64(3), smoothing=None, initialise=np.bool_(True), divisor=1).max_steps == 3
    assert UCFL(streams=2).streams == 2


def test_a_strangers_method_is_checked_too() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Mine(FedAvg):
        depth: int = 3
        shape: tuple[int, ...] = (1, 2)  # left to its own check

    assert Mine(shape=[1]).shape == [1]
    with pytest.raises(InputError, match=r"depth of fedavg must be (a whole number|an integer), got 'deep'"):
        Mine(depth="deep")


@pytest.mark.parametrize("name", ["origin", "possible", "positive", "undefined", "choices"])
def test_declarations_of_earlier_versions_are_rejected(name: str) -> None:
    former = type("Former", (FedAvg,), {name: ("variance",)})
    with pytest.raises(InputError, match=rf"^Former declares its uploads by {name}, which earlier versions used: def"):
        former()


def test_the_upload_of_earlier_versions_is_rejected() -> None:
    class Former(FedAvg):
        def upload(self, start, server, round):  # type: ignore[no-untyped-def,override]
            return {"weights": start}

    with pytest.raises(InputError, match=r"^Former declares its uploads by upload\(self, start, server, round\)"):
        Former()


def test_hyper_parameters_may_have_the_names_of_former_declarations() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Mine(FedAvg):
        choices: int = 3

    assert Mine(choices=4).choices == 4


def test_hyper_parameters_are_stored_in_their_type() -> None:
    made = SelfFL(lr=1, max_steps=3.0, smoothing=np.float64(0.5))  # type: ignore[arg-type]
    assert [type(value) for value in (made.lr, made.max_steps, made.smoothing)] == [float, int, float]


@pytest.mark.parametrize(
    ("limit", "valid", "invalid", "text"),
    [
        (at_least(1), [1, 2.5], [0, -1, math.inf, math.nan], ">= 1"),
        (above(0), [1e-300, 3], [0.0, -1.0, math.inf, math.nan], "> 0"),
        (interval("[0, 1)"), [0, 0.5], [1, -1e-9, math.nan], "in [0, 1)"),
        (interval("(0, 1]"), [1, 0.5], [0, 1.1, math.nan], "in (0, 1]"),
        (one_of("a", "b", 1), ["a", "b", 1], ["c", 2], "'a', 'b' or 1"),
    ],
)
def test_limits(limit: Limit, valid: list[object], invalid: list[object], text: str) -> None:
    assert limit.text == text
    assert [value for value in (*valid, *invalid) if limit.allows(value)] == valid
