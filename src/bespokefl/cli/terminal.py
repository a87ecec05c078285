"""Print to the terminal: progress bars, log messages and tables."""

import logging
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from bespokefl.cli.output import own_screen
from bespokefl.engines import outcome
from bespokefl.metrics.significance import EQUAL, UNCLEAR, WORSE, Standing
from bespokefl.report.tables import format_amount
from bespokefl.workflows.compare.demo import COLUMNS, marked
from bespokefl.workflows.compare.result import FEDAVG, Comparison
from bespokefl.workflows.compare.statistics import BEST, constant_figures
from bespokefl.workflows.newcomers.trainer import NEWCOMER_MODELS
from bespokefl.workflows.results.result import Result
from bespokefl.workflows.results.score_tables import CONSTANT, column_title, constant_title, format_score, unit
from bespokefl.workflows.run import jobs
from bespokefl.workflows.tune.result import Tuning
from bespokefl.workflows.tune.shared_settings import literal

MARKS = {BEST: "*", EQUAL: "=", UNCLEAR: "?"}  # of methods in the table of a comparison
PIPE_WIDTH = 120  # columns, if the output is not a terminal
MAX_TITLE_WIDTH = 16  # of the score in the table of a comparison; longer titles are wrapped
PROGRESS_SCORES = {"validation_loss": "loss", "validation_accuracy": "accuracy"}

Step = outcome.Progress | jobs.Step  # of a run; of a tuning or comparison


def console(*, stderr: bool = False) -> Console:
    """Return a console that prints text as it is, and wraps tables at a fixed width where there is no terminal."""
    found = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not found.is_terminal:
        found.width = PIPE_WIDTH
    return found


def say(*sentences: str | Text, style: str | None = None) -> None:
    """Print sentences; only the terminal wraps them, so that paths and commands in them can be copied."""
    for sentence in sentences:
        console().print(sentence, soft_wrap=True, style=style)


@contextmanager
def messages(screen: Console, verbose: bool) -> Iterator[None]:
    """Print what the library logs: always warnings and notices, and with `verbose` informational messages, too."""

    class ScreenHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kind = "warning" if record.levelno >= logging.WARNING else "note"
            with suppress(OSError):  # a full disk that takes no messages must not end the run
                screen.print(Text(f"{kind}: {record.getMessage()}"), soft_wrap=True)

    with own_screen(ScreenHandler(), verbose):
        yield


@contextmanager
def progress_bar(screen: Console, title: str, quiet: bool = False) -> Iterator[Callable[[Step], None] | None]:
    """Show a progress bar and yield the function that advances it; None if `quiet`, or if there is no terminal."""
    if quiet or not screen.is_terminal:
        yield None
        return
    # No thread refreshes the bar: the engine forks, and a fork copies locks but not the threads that hold them.
    shown = Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[step]}"),
        TextColumn("{task.fields[scores]}", style="cyan"),
        TimeRemainingColumn(compact=True),
        TextColumn("left", style="dim"),
        console=screen,
        auto_refresh=False,
        transient=True,
    )
    with shown:
        task = shown.add_task(title, total=None, step="starting", scores="")
        shown.refresh()

        latest: dict[str, Mapping[str, float]] = {}  # by training: only rounds that are evaluated have scores

        def report(now: Step) -> None:
            step, scores = _describe(now)
            scores = latest[getattr(now, "text", "")] = scores or latest.get(getattr(now, "text", ""), {})
            parts = [
                f"{name} {format_score(scores[score], score)}{unit(score)}"
                for score, name in PROGRESS_SCORES.items()
                if score in scores
            ]
            text = f"validation {', '.join(parts)}" if parts else ""
            shown.update(task, completed=now.done, total=now.total, step=step, scores=text, refresh=True)

        yield report


def _describe(now: Step) -> tuple[str, Mapping[str, float]]:
    """Return what is running, and its latest scores."""
    if isinstance(now, outcome.Progress):
        phase = "" if now.phase == "train" else f" ({now.phase})"
        return f"round {now.done}/{now.total}{phase}", now.scores
    if now.rounds is None:
        return f"{now.number}/{now.total} {now.text}, done", {}
    where = f"round {now.rounds.done}/{now.rounds.total}"
    return f"{now.number}/{now.total} {now.text}, {where}", now.rounds.scores


def table(columns: Sequence[str], rows: Sequence[Sequence[str | Text]], left: int = 1) -> Table:
    """Return a plain table; all but the first `left` columns are numbers and right-aligned."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for number, name in enumerate(columns):
        if number < left:
            shown.add_column(name, overflow="fold")
        else:
            shown.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        shown.add_row(*row)
    return shown


def result_table(result: Result) -> Table:
    """Return a table of the test scores of a run, and of its newcomers if it has any."""
    newcomers = {} if result.newcomers is None else result.newcomers.summary()
    summary = result.summary()
    kinds = {kind: summary[kind] for kind in ("personal", "global")}
    if result.constant is not None:
        kinds[constant_title(result.constant)] = summary[CONSTANT]
    return score_table(kinds | {f"newcomers {kind}": newcomers.get(kind) for kind in NEWCOMER_MODELS})


def score_table(kinds: Mapping[str, Mapping[str, Any] | None]) -> Table:
    """Return a table of scores by kind of model; a kind that a method does not have is None."""
    rows = [
        [f"{kind} {column_title(score)}", *(format_score(value, score) for value in statistics.values())]
        for kind, scores in kinds.items()
        for score in ("accuracy", "loss")
        if (statistics := (scores or {}).get(score)) is not None
    ]
    names = (kinds["personal"] or {})["loss"]
    return table(["on test data", *(name.replace("_", " ") for name in names)], rows)


def tuning_table(tuning: Tuning) -> Table:
    """Return a table of the points of a tuning, and of the constant predictor; a star marks the chosen point."""
    keys = list(tuning.points[0].values)
    shown = tuning.scores
    scores = [name for name in shown if any(line[name] is not None for line in tuning.table)] or shown[:1]
    rows = []
    for at, line in enumerate(tuning.table):
        mark = "*" if at == tuning.chosen else ""
        found = ["failed" if line["failed"] else format_score(line[name], name) for name in scores]
        rows.append([mark, *(literal(line[key]) for key in keys), *found, f"{line['seconds']:.1f}"])
    if tuning.constant is not None:
        values = [format_score(tuning.constant.get(name), name) for name in scores]
        rows.append(["", tuning.constant["name"], *[""] * (len(keys) - 1), *values, ""])
    columns = ["", *keys, *(column_title(name) for name in scores), "seconds"]
    return table(columns, rows, left=1 + len(keys))


def demo_table(found: Comparison) -> Table:
    """Return a table of methods, the best mean first, at most 80 columns wide."""
    rows: list[list[str | Text]] = []
    usual = ((found.figures[FEDAVG] or {}).get("work") or {}).get("gradients")
    for name in found.ranking:
        one = found.figures[name]
        if one is None:
            rows.append([marked(name), "failed", *["-"] * 4])
            continue
        score, gain = one[found.score], one["gain"]
        rows.append(
            [
                marked(name),
                f"{found.format_score(score['mean'])} ± {found.format_score(score['sem'])}",
                found.format_score(score["worst_decile"]),
                "-" if gain is None else f"{gain['improved_share']:.0f}/{gain['decreased_share']:.0f} %",
                f"{one['work']['gradients'] / usual:.1f} x" if one["work"] and usual else "-",
                format_bytes(one["up_bytes"] + one["down_bytes"]),
            ]
        )
    constant = (constant_figures(found) or {}).get(found.score)
    if constant is not None:
        values = [found.format_score(constant[name]) for name in ("mean", "worst_decile")]
        rows.append([constant_title(found.constant or {}), *values, *["-"] * 3])
    shown = table(["method", f"accuracy,{found.unit}", "worst 10 %", "better/worse", "gradients", "sent"], rows)
    shown.caption, shown.caption_justify = Text(COLUMNS, style="dim"), "left"
    return shown


def comparison_table(found: Comparison) -> Table:
    """Return a table of methods: the best mean first, with the marks of `marks_in_words`.

    "steps" are gradient steps per client and round, "gradients" those of one example in the whole run.
    """
    first = f"method ({found.tuning_state})" if found.untuned else "method"
    title = "\n".join(textwrap.wrap(f"test {column_title(found.score)}", MAX_TITLE_WIDTH))
    columns = [first, title, "SD", "worst 10 %", "better/worse", "Jain", "steps", "gradients", "sent", "seconds"]
    rows: list[list[str | Text]] = []
    for name in found.ranking:
        one = found.figures[name]
        if one is None:
            why = "failed" if found.entries[name].failed else "not trained"
            rows.append([name, why, *["-"] * (len(columns) - 2)])
            continue
        score, gain, work = one[found.score], one["gain"] or {}, one["work"]
        shares = [gain.get(share) for share in ("improved_share", "decreased_share")]
        mark = MARKS.get(one["relation"], " ")
        spread = "" if score["sem"] is None else f" ± {found.format_score(score['sem'])}"
        style = "bold" if one["best"] else ""
        rows.append(
            [
                Text(name, style),
                Text(f"{found.format_score(score['mean'])}{spread} {mark}", style),
                found.format_score(score["std"]),
                found.format_score(score["worst_decile"]),
                "-" if None in shares else f"{shares[0]:.0f}/{shares[1]:.0f} %",
                format_score((one["fairness"]["improved"] or {}).get("jain"), "jain"),
                *(["-", "-"] if work is None else [f"{work['steps']:.3g}", format_amount(work["gradients"])]),
                format_bytes(one["up_bytes"] + one["down_bytes"]),
                f"{one['seconds']:.1f}",
            ]
        )
    constant = (constant_figures(found) or {}).get(found.score)
    if constant is not None:
        values = [found.format_score(constant[name]) for name in ("mean", "std", "worst_decile")]
        name = constant_title(found.constant or {})
        rows.append([name, f"{values[0]}  ", *values[1:], *["-"] * (len(columns) - 4)])
    return table(columns, rows)


def marks_in_words(standing: Standing, unit: str) -> str:
    """Return a sentence that explains the marks of a comparison's table."""
    margin = f"{100 * standing.margin:g} point" if unit else f"{standing.margin:.3g}"
    meanings = {
        EQUAL: f"{MARKS[EQUAL]} equal to it within {margin}",
        UNCLEAR: f"{MARKS[UNCLEAR]} too few clients or seeds to tell it from the best",
        WORSE: "no mark: significantly worse",
    }
    found = [text for relation, text in meanings.items() if standing.related(relation)]
    test = " (mixed model over seeds and clients, Holm, 5 %)" if found else ""
    return "; ".join([f"{MARKS[BEST]} the best mean", *found]) + f"{test}."


def format_bytes(count: float) -> str:
    """Return a number of bytes with a unit, such as "6.0 MB"."""
    for symbol in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {symbol}" if symbol == "B" else f"{count:.1f} {symbol}"
        count /= 1000
    return f"{count:.1f} TB"
