"""What a person sees in the terminal: a progress bar, messages, tables."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from bespokefl.engines import simulation
from bespokefl.experiments.result import Result

PIPE_WIDTH = 120  # where there is no terminal to ask


def console(*, stderr: bool = False) -> Console:
    found = Console(stderr=stderr, highlight=False)
    return found if found.is_terminal else Console(stderr=stderr, highlight=False, width=PIPE_WIDTH)


@contextmanager
def messages(screen: Console, verbose: bool) -> Iterator[None]:
    """Show what the library logs: warnings always, choices it makes if asked for."""

    class Shown(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kind = "warning" if record.levelno >= logging.WARNING else "note"
            screen.print(Text(f"{kind}: {record.getMessage()}"), soft_wrap=True)

    log, handler = logging.getLogger("bespokefl"), Shown()
    before = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO if verbose else logging.WARNING)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.level, log.propagate = before


@contextmanager
def bar(screen: Console, title: str, quiet: bool = False) -> Iterator[simulation.Report | None]:
    """A progress bar while inside; None where nobody looks."""
    if quiet or not screen.is_terminal:
        yield None
        return
    # Without a thread of its own: the engine forks, and a fork copies locks but not the threads that hold them.
    shown = Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[round]}"),
        TextColumn("{task.fields[scores]}", style="cyan"),
        TimeRemainingColumn(compact=True),
        TextColumn("left", style="dim"),
        console=screen,
        auto_refresh=False,
        transient=True,
    )
    with shown:
        task = shown.add_task(title, total=None, round="starting", scores="")
        shown.refresh()

        def report(now: simulation.Progress) -> None:
            names = {"validation_loss": "loss", "validation_accuracy": "accuracy"}
            scores = [f"{word} {now.scores[name]:.3f}" for name, word in names.items() if name in now.scores]
            phase = "" if now.phase == "train" else f" ({now.phase})"
            shown.update(
                task,
                completed=now.done,
                total=now.total,
                round=f"round {now.done}/{now.total}{phase}",
                scores=f"validation {', '.join(scores)}" if scores else "",
                refresh=True,
            )

        yield report


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> Table:
    """A plain table; all but the first `left` columns are numbers."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for number, name in enumerate(columns):
        if number < left:
            shown.add_column(name, overflow="fold")
        else:
            shown.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        shown.add_row(*(Text(cell) for cell in row))
    return shown


def figures(result: Result) -> Table:
    """The figures of one run."""
    summary = result.summary()
    measures = [name for name in ("accuracy", "loss") if summary["personal"][name] is not None]
    rows = []
    for kind in ("personal", "global"):
        for measure in measures if summary[kind] is not None else []:
            found = summary[kind][measure]
            rows.append([f"{kind} {measure}", *(number(value) for value in found.values())])
    columns = ["on test data", *(name.replace("_", " ") for name in summary["personal"]["loss"])]
    return table(columns, rows)


def comparison(results: Sequence[Result]) -> Table:
    """Several methods on the same clients."""
    rows = []
    for result in results:
        summary = result.summary()
        own, common = summary["personal"]["accuracy"], summary["global"]
        sent = result.communication["up_bytes"] + result.communication["down_bytes"]
        rows.append(
            [
                result.method,
                *(number(own[name]) for name in ("mean", "worst_decile", "std")),
                number(common["accuracy"]["mean"]) if common else "-",
                size(sent),
                f"{result.timing['seconds']:.1f}",
            ]
        )
    columns = ["method", "personal accuracy", "worst decile", "std", "global accuracy", "sent", "seconds"]
    return table(columns, rows)


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}" if abs(value) < 1000 else f"{value:.4g}"


def size(count: float) -> str:
    """Bytes for people: 6.0 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def written(value: Any) -> str:
    """A default as one would type it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
