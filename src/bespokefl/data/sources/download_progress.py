"""A bar on the terminal while data are fetched and decoded, which happens once; nothing where there is no terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bespokefl.data.readers.files import Report, silent


@contextmanager
def shown(name: str) -> Iterator[Report]:
    """Reports go to the bar of this name, on standard error."""
    if not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("[bold]{task.fields[data]}"), BarColumn(bar_width=30), TextColumn("{task.description}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("looking", total=None, data=name)

        def report(what: str, done: float, total: float) -> None:
            bar.update(task, description=what, completed=done, total=total or None)

        yield report
