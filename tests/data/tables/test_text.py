"""Words have numbers: 0 is filling, 1 a word that is not known."""

import numpy as np
import pytest

from bespokefl.core.errors import InputError
from bespokefl.data.tables import text


def test_words() -> None:
    assert text.words("  Straße\tAND\nsea ") == ["straße", "and", "sea"]
    assert text.words("") == []


def test_encoded_and_cut() -> None:
    assert text.encode(["b a c", "", "a"], ("a", "b"), 2).tolist() == [[3, 2], [0, 0], [2, 0]]
    assert text.encode(["b a c"], ("a", "b"), 4).tolist() == [[3, 2, 1, 0]]


def test_long_documents_are_read_to_a_limit() -> None:
    document = " ".join(f"w{i}" for i in range(text.MAX_LENGTH + 5))
    assert text.longest([document]) == len(text.all_words([document])) == text.MAX_LENGTH
    assert text.longest([]) == text.longest([""]) == 1


def test_the_most_frequent_words_then_by_the_alphabet() -> None:
    counts = np.array([9, 9, 2, 5, 0, 2])  # of filling and unknown, then of d, b, a, c
    assert text.most_frequent(counts, ("d", "b", "a", "c"), 10) == ("b", "c", "d")
    assert text.most_frequent(counts, ("d", "b", "a", "c"), 2) == ("b", "c")
    with pytest.raises(InputError, match="vocabulary must be at least 1 word, got 0"):
        text.most_frequent(counts, ("d", "b", "a", "c"), 0)


def test_renumbered() -> None:
    assert text.id_map(("a", "b", "c"), ("c", "a")).tolist() == [0, 1, 3, 1, 2]


def test_length_that_most_fit_into() -> None:
    x = np.zeros((100, 9), dtype=np.int64)
    for row, size in zip(x, [2] * 60 + [4] * 35 + [9] * 5, strict=True):
        row[:size] = 7
    assert text.default_length(x) == 4
    assert text.default_length(x[:0]) == text.default_length(np.zeros((3, 2))) == 1
