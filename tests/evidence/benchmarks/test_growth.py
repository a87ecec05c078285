"""The figure of docs/performance.md is drawn from the stored measurements."""

from pathlib import Path

import pytest
from bespokefl_evidence.benchmarks import growth

from bespokefl.core.errors import InputError

ROOT = Path(__file__).parents[3]


def test_the_figure_shows_what_is_stored() -> None:
    points = growth.load(ROOT / growth.STORED)
    assert {one.axis for one in points} == set(growth.PANELS)
    assert growth.drawing(points).svg() == (ROOT / growth.FIGURE).read_text(encoding="utf-8")


def test_without_measurements_there_is_no_figure(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there are no measurements at .*: make them with bespoke bench --growth"):
        growth.load(tmp_path / "growth.json")
