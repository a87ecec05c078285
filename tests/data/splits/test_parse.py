"""Splits are read from text, and nothing in the text is ever run."""

import pytest

from bespokefl.core.errors import InputError
from bespokefl.core.user_input.spec import parse_call
from bespokefl.data.splits import (
    IID,
    PRESETS,
    ByColumn,
    Classes,
    Dirichlet,
    Fallah,
    LogNormal,
    PermutedLabels,
    Quantity,
    Rotation,
    parse,
)


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
        ("lognormal(2, 0, 2)", LogNormal(2), "lognormal(k=2)"),
        (
            "lognormal(k=5, mu=4, sigma=1, shares=False)",
            LogNormal(5, 4, 1, shares=False),
            "lognormal(k=5, mu=4.0, sigma=1.0, shares=False)",
        ),
        ("fallah(k=196)", Fallah(196), "fallah(k=196)"),
        ("quantity", Quantity(), "quantity"),
        ("quantity(5, equal=True)", Quantity(5, True), "quantity(k=5, equal=True)"),
        ("by_column(column='a+b (c')", ByColumn("a+b (c"), "by_column(column='a+b (c')"),
        (" ds-1 ", PRESETS["ds-1"], "ds-1"),
        ("dirichlet(8)+rotation(4)", Dirichlet(8) + Rotation(4), "dirichlet(alpha=8.0) + rotation(groups=4)"),
        ("ds-1 + permuted_labels(groups=2)", PRESETS["ds-1"] + PermutedLabels(2), "ds-1 + permuted_labels(groups=2)"),
        (
            "by_column(column='+') + rotation(2)",
            ByColumn("+") + Rotation(2),
            "by_column(column='+') + rotation(groups=2)",
        ),
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
        ("zzz", "unknown split 'zzz'; known: by_column, classes, dirichlet, domains, ds-1, "),
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
        ("dirichlet(1, 0)", "min_examples must be an integer >= 1, got 0"),
        ("classes(0)", "k must be an integer >= 1, got 0 (classes per client)"),
        ("classes(1.5)", "k must be an integer >= 1, got 1.5 (classes per client)"),
        ("ds-5", "unknown split 'ds-5'; did you mean 'ds-"),
        ("ds-1(k=2)", "ds-1 takes no arguments; write 'ds-1'"),
        ("iid + ", 'expected a name such as "this" or "this(key=1)", got'),
        ("iid + ids-1", "unknown split 'ids-1'"),
        ("gaussian(between=1)", "gaussian generates data with clients and is not a split"),
        ("rotation", 'rotation needs groups, got none; write "rotation(groups=...)"'),
        ("rotation(0)", "groups must be an integer >= 1, got 0"),
        ("rotation(True)", "groups must be an integer >= 1, got True"),
        ("permuted_labels(2.0)", "groups must be an integer >= 1, got 2.0"),
        ("lognormal(2, 'a')", "mu must be a finite number, got 'a'"),
        ("lognormal(2, 0, 0)", "sigma must be > 0, got 0"),
        ("lognormal(2, sigma=1e999)", "sigma must be > 0, got inf"),
        ("lognormal(2, shares=1)", "shares must be True or False, got 1"),
        ("fallah(1)", "k must be an integer >= 2, got 1"),
        ("by_column(3)", "column must be the name of a column, got 3"),
        ("subclass(column=3)", "column must be the name of a column, got 3"),
        ("domains(3)", "column must be the name of a column, got 3"),
        ("sample(0)", "examples must be an integer >= 1, got 0"),
    ],
)
def test_wrong_split_says_what_to_do(text: str, sentence: str) -> None:
    with pytest.raises(InputError) as error:
        parse(text)
    assert sentence in str(error.value)
