"""Mistakes get one sentence, with the nearest name that would have been right."""

import pytest

from bespokefl.core.errors import BespokeError, DiskError, InputError, TrainingError, count, listing, unknown

KNOWN = ["ditto", "fedavg", "FedProx"]


@pytest.mark.parametrize(
    ("name", "guess"), [("dito", "'ditto'"), ("DITTO", "'ditto'"), ("fedprox", "'FedProx'"), ("fedvag", "'fedavg'")]
)
def test_near_names_are_offered(name: str, guess: str) -> None:
    error = unknown("method", name, KNOWN, see="bespoke methods")
    assert isinstance(error, InputError)
    assert str(error) == f'unknown method {name!r}; did you mean {guess}? See "bespoke methods".'


def test_far_names_get_the_list() -> None:
    assert str(unknown("method", "xyz", KNOWN)) == "unknown method 'xyz'; known: FedProx, ditto, fedavg."


def test_all_can_be_caught_as_one() -> None:
    assert all(issubclass(one, BespokeError) for one in (InputError, TrainingError, DiskError))


def test_a_full_disk_is_one_sentence() -> None:
    assert str(DiskError("cannot write")) == "cannot write; make room."
    told = DiskError("cannot write", kept="round 2 is there", cure="buy one", then="go on")
    assert str(told) == "cannot write; round 2 is there; buy one, then: go on."


@pytest.mark.parametrize(
    ("names", "text"),
    [([], ""), (list("ab"), "a, b"), (list("abcde"), "a, b, c, d, e"), (list("abcdefg"), "a, b, c, d, e and 2 more")],
)
def test_listing(names: list[str], text: str) -> None:
    assert listing(names) == text


def test_count() -> None:
    assert [count(number, "client") for number in (0, 1, 2)] == ["0 clients", "1 client", "2 clients"]
