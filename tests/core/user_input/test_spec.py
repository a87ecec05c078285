"""Values against annotations: what is accepted, what it becomes, what is refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bespokefl.core.errors import InputError
from bespokefl.core.user_input.spec import convert, imported


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (3, int, 3),
        (3.0, int, 3),
        (np.int64(3), int, 3),
        (1, float, 1.0),
        (np.float32(0.5), float, 0.5),
        ("x", str, "x"),
        (True, bool, True),
        (np.bool_(False), bool, False),
        (None, int | None, None),
        (2, int | None, 2),
        ("auto", int | str, "auto"),
        (2, int | str, 2),
        ({"lr": [1, [2]]}, Mapping[str, Any], {"lr": (1, (2,))}),
        ([1, 2], list[int], [1, 2]),
    ],
)
def test_a_fitting_value_is_converted(value: Any, annotation: Any, expected: Any) -> None:
    found = convert("x", value, annotation)
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "annotation", "sentence"),
    [
        (2.5, int, "x must be an integer, got 2.5."),
        (True, int, "x must be an integer, got True."),
        ("2", float, "x must be a number, got '2'."),
        (True, float | None, "x must be a number, got True."),
        (1, bool, "x must be true or false, got 1."),
        (1, str | None, "x must be text, got 1."),
        ("\ud800", str, "x must be text, got '\\ud800'."),
        (None, int, "x must be an integer, got None."),
        (10**400, float, "x must be a number, got 1000"),
        (1.5, int | str, "x must be an integer or text, got 1.5."),
        ({1: 2}, Mapping[str, Any], "x must be a table of hyper-parameters"),
    ],
)
def test_another_value_is_refused_in_a_sentence(value: Any, annotation: Any, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        convert("x", value, annotation)
    assert str(caught.value).startswith(sentence)


def test_an_unknown_name_in_a_module_lists_what_the_module_defines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_of_test_spec.py").write_text("from dataclasses import dataclass\n\n\nclass Own: ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InputError, match=r"unknown class in 'mine_of_test_spec': 'Nope'; known: Own\."):
        imported("mine_of_test_spec:Nope", "method", "class")
