"""The bar is for terminals only."""

import io
import sys

import pytest

from bespokefl.data.readers import files
from bespokefl.data.sources import progress


class Screen(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize("terminal", [False, True])
def test_bar(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    screen = Screen(terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with progress.show("mini") as report:
        report("unpacking", 3, 0)
        report("reading", 1, 4)
    assert ("mini" in screen.getvalue() and "reading" in screen.getvalue()) == terminal
    assert bool(screen.getvalue()) == terminal
    assert (report is files.no_report) != terminal
