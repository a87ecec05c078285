"""Splits are read from text, and nothing in the text is ever run."""

import pytest

from bespokefl.core.errors import InputError
from bespokefl.core.spec import parse_call
from bespokefl.data.splits import IID, ByColumn, Classes, Dirichlet, parse


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("iid", ("iid", (), {})),
        ("iid()", ("iid", (), {})),
        (" mlp( 3, hidden=(100, 50) ) ", ("mlp", (3,), {"hidden": (100, 50)})),
        ("a(-0.5, b='x', c=None)", ("a", (-0.5,), {"b": "x", "c": None})),
    ],
)
def test_name_and_arguments(text: str, call: object) -> None:
    assert parse_call(text) == call


@pytest.mark.parametrize(
    "text",
    [
        *("", "a b", "1", "a(1", "a.b(1)", "a()()", "a() + b()", "a; b", "a(x=__import__('os'))", "a(b)", "a(*[1])"),
        *("a(**{'x': 1})", "a\0", "a(x=1, x=2)", "a(x=1 + 2)", "(" * 10_000, "-" * 100_000 + "1", "a(" + "9" * 5000),
    ],
)
def test_anything_else_is_one_sentence(text: str) -> None:
    with pytest.raises(InputError) as error:
        parse_call(text)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    ("text", "split", "canonical"),
    [
        ("iid", IID(), "iid"),
        ("by_column()", ByColumn(), "by_column"),
        ("dirichlet(0.4)", Dirichlet(alpha=0.4), "dirichlet(alpha=0.4)"),
        ("dirichlet(alpha=1)", Dirichlet(alpha=1.0), "dirichlet(alpha=1.0)"),
        ("dirichlet(.1, min_examples=5)", Dirichlet(0.1, 5), "dirichlet(alpha=0.1, min_examples=5)"),
        ("classes(k=2)", Classes(2), "classes(k=2)"),
    ],
)
def test_split_and_its_canonical_text(text: str, split: object, canonical: str) -> None:
    assert parse(text) == split
    assert str(parse(text)) == canonical
    assert parse(canonical) == split


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("dirichelt(alpha=1)", "unknown split 'dirichelt'; did you mean 'dirichlet'?"),
        ("zzz", "unknown split 'zzz'; known: by_column, classes, dirichlet, iid."),
        ("dirichlet(alfa=1)", "unknown key of dirichlet 'alfa'; did you mean 'alpha'?"),
        ("dirichlet", 'dirichlet needs alpha, got none; write "dirichlet(alpha=...)"'),
        ("dirichlet(1, 2, 3)", "dirichlet takes at most 2 arguments (alpha, min_examples), got 3"),
        ("dirichlet(1, alpha=2)", "dirichlet takes alpha once, got it by position and by name; leave one out"),
        ("iid(alpha=1)", "iid takes no arguments, got 1; write 'iid'"),
        ("dirichlet(-0.1)", "alpha must be > 0, got -0.1 (Dirichlet concentration; 0.1 is skewed, 100 is even)"),
        ("dirichlet(0)", "alpha must be > 0, got 0 "),
        ("dirichlet(1e999)", "alpha must be > 0, got inf "),
        ("dirichlet('a')", "alpha must be > 0, got 'a' "),
        ("dirichlet(True)", "alpha must be > 0, got True "),
        ("dirichlet(1, 0)", "min_examples must be a whole number >= 1, got 0"),
        ("classes(0)", "k must be a whole number >= 1, got 0 (classes per client)"),
        ("classes(1.5)", "k must be a whole number >= 1, got 1.5 (classes per client)"),
    ],
)
def test_wrong_split_says_what_to_do(text: str, sentence: str) -> None:
    with pytest.raises(InputError) as error:
        parse(text)
    assert sentence in str(error.value)
