"""A progress bar on standard error while data are fetched and decoded, if it is a terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bespokefl.data.readers.files import Report, no_report


@contextmanager
def show(name: str) -> Iterator[Report]:
    """Show the reports in a bar with this name."""
    if not sys.stderr.isatty():
        yield no_report
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("[bold]{task.fields[data]}"), BarColumn(bar_width=30), TextColumn("{task.description}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("looking", total=None, data=name)

        def report(what: str, done: float, total: float) -> None:
            bar.update(task, description=what, completed=done, total=total or None)

        yield report
