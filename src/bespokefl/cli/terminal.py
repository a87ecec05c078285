"""What a person sees in the terminal: a progress bar, messages, tables."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from bespokefl.engines import progress
from bespokefl.engines.storage.client_states import NOTICE
from bespokefl.workflows.compare.result import Comparison
from bespokefl.workflows.newcomers.result import Newcomers
from bespokefl.workflows.results import score_tables
from bespokefl.workflows.results.result import Result
from bespokefl.workflows.run import jobs
from bespokefl.workflows.tune import api as tune
from bespokefl.workflows.tune.result import SCORES, Tuning

PIPE_WIDTH = 120  # where there is no terminal to ask


def console(*, stderr: bool = False) -> Console:
    found = Console(stderr=stderr, highlight=False)
    return found if found.is_terminal else Console(stderr=stderr, highlight=False, width=PIPE_WIDTH)


@contextmanager
def messages(screen: Console, verbose: bool) -> Iterator[None]:
    """Show what the library logs: warnings and notices always, other choices it makes if asked for."""

    class Shown(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kind = "warning" if record.levelno >= logging.WARNING else "note"
            with suppress(OSError):  # messages that go to a full disk must not cost the run
                screen.print(Text(f"{kind}: {record.getMessage()}"), soft_wrap=True)

    log, handler = logging.getLogger("bespokefl"), Shown()
    before = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO if verbose else NOTICE)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.level, log.propagate = before


Update = Callable[[float, float, str, Mapping[str, float]], None]  # done, of how much, in words, scores


@contextmanager
def _moving(screen: Console, title: str) -> Iterator[Update]:
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

        def update(done: float, total: float, text: str, scores: Mapping[str, float]) -> None:
            names = {"validation_loss": "loss", "validation_accuracy": "accuracy"}
            found = [
                f"{word} {score_tables.format_score(scores[name], name)}{score_tables.unit(name)}"
                for name, word in names.items()
                if name in scores
            ]
            worded = f"validation {', '.join(found)}" if found else ""
            shown.update(task, completed=done, total=total, round=text, scores=worded, refresh=True)

        yield update


@contextmanager
def bar(screen: Console, title: str, quiet: bool = False) -> Iterator[progress.Report | None]:
    """A progress bar while inside; None where nobody looks."""
    if quiet or not screen.is_terminal:
        yield None
        return
    with _moving(screen, title) as update:

        def report(now: progress.Progress) -> None:
            phase = "" if now.phase == "train" else f" ({now.phase})"
            update(now.done, now.total, f"round {now.done}/{now.total}{phase}", now.scores)

        yield report


@contextmanager
def grid_bar(screen: Console, title: str, quiet: bool = False) -> Iterator[tune.Report | None]:
    """One progress bar for all trainings of a tuning."""
    if quiet or not screen.is_terminal:
        yield None
        return
    with _moving(screen, title) as update:

        def report(now: tune.Step) -> None:
            rounds = f"round {now.rounds.done}/{now.rounds.total}"
            update(now.done, now.total, f"{now.number}/{now.total} {now.text}, {rounds}", now.rounds.scores)

        yield report


@contextmanager
def jobs_bar(screen: Console, title: str, quiet: bool = False) -> Iterator[jobs.Report | None]:
    """One progress bar for all runs of a comparison."""
    if quiet or not screen.is_terminal:
        yield None
        return
    with _moving(screen, title) as update:

        def report(now: jobs.Step) -> None:
            update(now.done, now.total, f"{int(now.done)}/{now.total} {now.text}", now.scores)

        yield report


def table(columns: Sequence[str], rows: Sequence[Sequence[str | Text]], left: int = 1) -> Table:
    """A plain table; all but the first `left` columns are numbers."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for number, name in enumerate(columns):
        if number < left:
            shown.add_column(name, overflow="fold")
        else:
            shown.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        shown.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return shown


def figures(result: Result) -> Table:
    """The figures of one run."""
    summary = result.summary()
    measures = [name for name in ("accuracy", "loss") if summary["personal"][name] is not None]
    rows = []
    for kind in ("personal", "global"):
        for measure in measures if summary[kind] is not None else []:
            rows.append(_row(kind, measure, summary[kind][measure]))
    if result.newcomers is not None:
        rows += _newcomer_rows(result.newcomers, "newcomers ")
    columns = ["on test data", *(name.replace("_", " ") for name in summary["personal"]["loss"])]
    return table(columns, rows)


def newcomer_figures(newcomers: Newcomers) -> Table:
    """The figures of clients that came later."""
    columns = ["on test data", *(name.replace("_", " ") for name in newcomers.summary()["personal"]["loss"])]
    return table(columns, _newcomer_rows(newcomers, ""))


def _newcomer_rows(newcomers: Newcomers, prefix: str) -> list[list[str]]:
    summary = newcomers.summary()
    measures = [name for name in ("accuracy", "loss") if summary["personal"][name] is not None]
    return [
        _row(f"{prefix}{kind}", measure, summary[kind][measure])
        for kind in ("personal", "finetune")
        for measure in measures
    ]


def _row(kind: str, measure: str, found: Mapping[str, float | None]) -> list[str]:
    return [
        f"{kind} {score_tables.column_title(measure)}",
        *(score_tables.format_score(value, measure) for value in found.values()),
    ]


def grid(tuning: Tuning) -> Table:
    """A tuning's points, the chosen one marked."""
    keys = list(tuning.points[0].values)
    measures = [name for name in SCORES if any(line[name] is not None for line in tuning.table)]
    rows = []
    for at, line in enumerate(tuning.table):
        mark = "*" if at == tuning.chosen else ""
        scores = [
            "failed" if line["failed"] else score_tables.format_score(line[name], name)
            for name in measures or SCORES[:1]
        ]
        rows.append([mark, *(written(line[key]) for key in keys), *scores, f"{line['seconds']:.1f}"])
    columns = ["", *keys, *(score_tables.column_title(name) for name in measures or SCORES[:1]), "seconds"]
    return table(columns, rows, left=1 + len(keys))


def comparison(results: Sequence[Result]) -> Table:
    """The accuracy of several methods on the same clients; 80 columns hold it."""
    rows, score = [], "accuracy"
    for result in results:
        summary = result.summary()
        own, common = summary["personal"][score], summary["global"]
        sent = result.communication["up_bytes"] + result.communication["down_bytes"]
        rows.append(
            [
                result.method,
                *(score_tables.format_score(own[name], score) for name in ("mean", "worst_decile", "std")),
                score_tables.format_score(common[score]["mean"], score) if common else "-",
                size(sent),
                f"{result.timing['seconds']:.1f}",
            ]
        )
    unit = score_tables.unit(score)
    columns = ["method", f"personal,{unit}", "worst decile", "std", f"global,{unit}", "sent", "seconds"]
    return table(columns, rows)


def contest(found: Comparison) -> Table:
    """A comparison's methods, the best mean first, in bold and with a star; = marks what cannot be told from it."""
    columns = [
        "method",
        f"test {score_tables.column_title(found.score)}",
        "SD",
        "worst 10 %",
        "better off",
        "worse off",
        "Jain",
        "sent",
    ]
    columns += ["time/T_dl", "seconds"]
    rows: list[list[str | Text]] = []
    for name in found.ranking:
        one = found.figures[name]
        if one is None:
            why = "failed" if found.entries[name].failed else "not trained"
            rows.append([name, why, *["-"] * (len(columns) - 2)])
            continue
        score, gain, time = one[found.score], one["gain"] or {}, one["model_time"]
        mark = "*" if one["best"] else "=" if one["tie"] else " "
        spread = "" if score["sem"] is None else f" ± {found.told(score['sem'])}"
        style = "bold" if one["best"] else ""
        rows.append(
            [
                Text(name, style),
                Text(f"{found.told(score['mean'])}{spread} {mark}", style),
                found.told(score["std"]),
                found.told(score["worst_decile"]),
                *(_percent(gain.get(share)) for share in ("improved_share", "decreased_share")),
                score_tables.format_score((one["fairness"]["improved"] or {}).get("jain"), "jain"),
                size(one["up_bytes"] + one["down_bytes"]),
                "-" if time is None else f"{next(iter(time.values())):,.0f}",
                f"{one['seconds']:.1f}",
            ]
        )
    return table(columns, rows)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} %"


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
