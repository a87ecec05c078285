"""Test the page of a diagnosis in a browser: figures, layout, and escaping of names."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bespokefl.core.errors import InputError
from bespokefl.report import write
from tests.report.chromium import Chromium, chromium

pytestmark = pytest.mark.slow  # they need a browser

HOSTILE = "</script><img src=x onerror=window.hacked=1>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with chromium() as one:
        yield one


def document(num: int = 8) -> dict[str, Any]:
    names = [HOSTILE, *(f"site {at}" for at in range(1, num))]
    clients = [
        {
            "name": name,
            "examples": 10 + at,
            "variance": 1.0,
            "gain_with_all": 1.1,
            "gain_in_group": 2.0 + at,
            "paper_gain": 4.0,
            "group": at % 2,
            "nearest": names[:2],
            "gain": 2.0 + at,
            "advice": "with its group",
        }
        for at, name in enumerate(names)
    ]
    return {
        "format": "bespoke-diagnosis-1",
        "clients": clients,
        "likeness": "groups",
        "streams": 2,
        "silhouettes": [0.0, 0.6, 0.2],
        "collaboration": [[1 / num] * num] * num,
        "survey": {"streams": 3, "silhouettes": [0.0, 0.1, 0.2], "agreement": 0.1, "inside": 0.5},
        "kinds": {"label": 0.0, "size": 0.3, "feature": 0.6, "concept": None},
        "present": ["size", "feature"],
        "true_groups": None,
        "sentences": ["First.", "Second."],
        "recommendation": {
            "method": "ifca",
            "flags": "ifca --set clusters=2",
            "reasons": ["Because."],
            "alternatives": ["cfl"],
        },
        "about": {
            "data": HOSTILE,
            "split": "iid",
            "split_hash": "0" * 64,
            "clients": num,
            "model": "mlp",
            "seed": 0,
            "steps": 50,
            "lr": 0.1,
            "seconds": 1.0,
            "versions": {"bespokefl": "0"},
            "sent": {"fits": 100},
        },
    }


def save(folder: Path, **changes: Any) -> Path:
    (folder / "diagnosis.json").write_text(json.dumps(document() | changes))
    return write(folder)


@pytest.mark.parametrize("width", [400, 1600])
def test_everything_is_drawn_and_fits(browser: Chromium, tmp_path: Path, width: int) -> None:
    page = save(tmp_path)
    browser.size(width)
    browser.open(page)
    num = browser.value("document.querySelectorAll('.plot').length")
    assert num == 4
    for at in range(num):
        plot = f"document.querySelectorAll('.plot')[{at}]"
        scroll = "one.scrollIntoView({block: 'center', behavior: 'instant'})"
        browser.until(f"(one => ({scroll}, one.querySelector('.main-svg') !== null))({plot})")
    assert browser.complaints() == []
    assert [one for one in browser.requests() if not one.startswith("data:")] == [page.resolve().as_uri()]
    assert browser.value("document.documentElement.scrollWidth <= innerWidth")
    assert browser.value("window.hacked") is None
    assert browser.value("document.querySelectorAll('#clients tbody tr').length") == 8


def test_without_groups_and_survey(browser: Chromium, tmp_path: Path) -> None:
    browser.size(1200)
    browser.open(save(tmp_path, survey=None, silhouettes=[0.0], likeness="alike", present=[]))
    assert browser.value("document.querySelectorAll('.plot').length") == 2
    assert browser.complaints() == []


@pytest.mark.parametrize("text", ["{", "[]", '{"format": "something"}'])
def test_other_files_are_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / "diagnosis.json").write_text(text)
    with pytest.raises(InputError, match="expected a diagnosis in"):
        write(tmp_path)


def test_a_missing_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        write(tmp_path / "diagnosis.json")
