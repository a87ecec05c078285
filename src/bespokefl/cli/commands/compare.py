"""`bespoke compare`: compare methods on one split, or existing runs; `bespoke report`: write the page of results."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bespokefl.cli import completion, output
from bespokefl.cli.commands.tune import read_grid
from bespokefl.cli.options import (
    INTERRUPTED,
    Metric,
    Quiet,
    Verbose,
    numbers,
    printing_results,
    takes_run,
    training_option,
)
from bespokefl.core.errors import DiskError, InputError, count
from bespokefl.workflows.run.settings import RunSettings
from bespokefl.workflows.tune.duration import DEFAULT_TIME, is_time

if TYPE_CHECKING:
    from bespokefl.workflows.compare.result import Comparison


@takes_run(without=("method", "newcomers", "keep_rounds", "state_dir"))
def compare(
    settings: RunSettings,
    methods: Annotated[
        list[str],
        typer.Argument(
            metavar="METHODS",
            help='Methods (see "bespoke methods"), "all", or directories of runs, such as ./ditto.',
            autocompletion=completion.methods,
        ),
    ],
    seeds: Annotated[
        str | None,
        training_option(
            metavar="5|0-9|0,1,2",
            help="Run every method with so many seeds (0 to 4), or with these, on the split of --seed. Default: 5; "
            "with fewer, no method can be called best.",
        ),
    ] = None,
    tune: Annotated[
        str | None,
        training_option(
            "--tune",
            metavar="TIME",
            help="Time in which the hyper-parameters of all methods are chosen on validation data first, such as 90s, "
            f"10m or 1h. Default: {DEFAULT_TIME}.",
        ),
    ] = None,
    no_tune: Annotated[
        bool, training_option("--no-tune", help="Do not tune; the results are then marked as untuned.")
    ] = False,
    budget: Annotated[
        str,
        training_option(
            metavar="steps|gradients|time|none",
            help="What is the same for all methods: the local steps of a client and round, the total number of "
            "gradients or the processor time (both by fewer rounds), or nothing.",
        ),
    ] = "steps",
    grid: Annotated[
        list[str] | None,
        training_option(
            metavar="METHOD.KEY=VALUES",
            help='Values to try when tuning a method, such as "ditto.prox_weight=0.1,1". Can be repeated.',
        ),
    ] = None,
    metric: Metric = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Compare methods on the same clients, or compare existing runs, with significance tests and a report.

    bespoke compare ditto persfl ucfl --seeds 5 --rounds 50 --set ditto.prox_weight=0.5 --out runs/compare
    """
    grids, seed_list = _grids(grid or []), numbers(seeds)
    if no_tune and tune is not None:
        raise InputError(f"give --tune {tune} or --no-tune, not both.")
    runs = _directories(methods)

    from bespokefl.cli import terminal
    from bespokefl.metrics.verdict import MIN_SEEDS
    from bespokefl.workflows.compare.existing_runs import compare_runs
    from bespokefl.workflows.tune.shared_settings import output_directory

    errors = terminal.console(stderr=True)
    target = output_directory(settings, "compare")
    with terminal.messages(errors, verbose):
        if runs:
            found = compare_runs(runs, metric=metric, out=target, overwrite=settings.overwrite)
        else:
            if seed_list is not None and len(seed_list) < MIN_SEEDS and not quiet:
                errors.print(f"With fewer than {MIN_SEEDS} seeds no method can be called best.")
            chosen = {"tune": False if no_tune else tune, "budget": budget, "grids": grids, "metric": metric}
            with terminal.progress_bar(errors, "comparing", quiet) as progress:
                found = _train(settings, methods, seed_list, chosen, target, progress)
        _write_report(target)
    _record(found, target)
    with printing_results(target):
        _show(found, target, quiet)
    if found.interrupted:
        raise typer.Exit(INTERRUPTED)


def _record(found: "Comparison", target: Path) -> None:
    """Give the result to --json."""
    verdicts = {"best": found.best, "fairest": found.fairest}
    output.record(
        path=target,
        untuned=found.untuned,
        untuned_methods=found.untuned_methods,
        interrupted=found.interrupted,
        seeds=found.seeds,
        methods=found.table,
        **{
            name: {"method": one.method, "conclusive": one.conclusive, "sentence": one.sentence}
            for name, one in verdicts.items()
        },
        notes=found.notes,
    )


def _train(
    settings: RunSettings,
    methods: list[str],
    seeds: list[int] | None,
    chosen: dict[str, Any],
    target: Path,
    progress: Any,
) -> "Comparison":
    """Compare methods; an interruption before the first run has ended prints how to resume."""
    from bespokefl.workflows.compare import api, candidates

    config = replace(settings, out=str(target))
    try:
        return api.compare_config(config, methods, seeds=seeds, progress=progress, **chosen)
    except KeyboardInterrupt:
        _print_how_to_resume(candidates.command(settings, methods, seeds or api.SEEDS, **chosen), target)
        raise typer.Exit(INTERRUPTED) from None


def with_tuning_time(arguments: list[str]) -> list[str]:
    """Give a `--tune` without a time, as in earlier versions, the default time; a number is a time, or a wrong one."""
    found = []
    for at, one in enumerate(arguments):
        found.append(one)
        following = "".join(arguments[at + 1 : at + 2])
        if one == "--tune" and arguments[0] == "compare" and not following[:1].isdigit() and not is_time(following):
            found.append(DEFAULT_TIME)
    return found


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a comparison, a run or a diagnosis.")],
    formats: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="html|latex|markdown|csv",
            help="Formats, such as latex,csv. Default: html, or none with --figures.",
        ),
    ] = "",
    figures: Annotated[
        str,
        typer.Option(metavar="svg|pdf|png", help="Write every figure in these formats, with its numbers as CSV."),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write, or directory for csv, figures and several formats. Default: report.html, report.tex "
            "or report.md in DIR (diagnosis.html for a diagnosis), or the directory DIR/report."
        ),
    ] = None,
) -> None:
    """Write a report: an HTML page that needs no network, or files for a paper.

    bespoke report runs/compare --format latex --figures pdf
    """
    from bespokefl.methods import REGISTRY
    from bespokefl.report import export
    from bespokefl.workflows.compare import storage
    from bespokefl.workflows.compare.existing_runs import compare_unfinished

    if storage.is_unfinished(folder):
        compare_unfinished(folder).save(folder)  # as Ctrl-C would have left it
    wanted, pictures = ([one.strip() for one in text.split(",") if one.strip()] for text in (formats, figures))
    citations = {name: method.citation for name, method in REGISTRY.items()}
    wanted = wanted or ([] if pictures else ["html"])
    paths = export(folder, out, formats=wanted, pictures=pictures, citations=citations)
    output.record(path=paths[0] if len(paths) == 1 else paths[0].parent, files=paths)
    if len(paths) > 1:
        print(f"Written to {paths[0].parent}: {len(paths)} files.")
    else:
        print(f"Written to {paths[0]}{'; open it in a browser' if wanted == ['html'] else ''}.")


def _show(found: "Comparison", target: Path, quiet: bool) -> None:
    if quiet:
        print(target)
    else:
        from bespokefl.cli import terminal

        data, seeds = found.metadata.data, ", ".join(map(str, found.seeds)) or "none in common"
        terminal.say(
            f"{data['name']}, {data['split']}, {count(data['clients'], 'client')}, model {found.metadata.model}, "
            f"seed{'s' * (len(found.seeds) != 1)} {seeds}{f', {found.tuning_state}' if found.untuned else ''}"
        )
        terminal.console().print(terminal.comparison_table(found))
        sentences = [found.best.sentence, found.fairest.sentence, *found.notes]
        if found.standing is not None and len(found.methods) > 1:
            sentences.insert(0, terminal.marks_in_words(found.standing, found.unit))
        files = "report.html is the full report, methods.csv has one line per method, "
        files += "clients.csv one per method, seed and client"
        terminal.say(*sentences, f"Written to {target}: {files}.")
    if found.interrupted:
        _print_how_to_resume(found.metadata.command or "", target)


def _print_how_to_resume(command: str, target: Path) -> None:
    print(f"Interrupted. To resume: {command} --out {shlex.quote(str(target))}", file=sys.stderr)


def _write_report(target: Path) -> None:
    from bespokefl.report import write

    try:
        write(target / "compare.json")
    except DiskError as error:
        command = f"bespoke report {shlex.quote(str(target))}"
        raise DiskError(error.fact, kept="everything else is written", cure=error.cure, then=command) from None


def _directories(methods: list[str]) -> list[str]:
    """Return the directories of runs; either all of the arguments are directories, or none."""
    runs = [name for name in methods if _is_directory(name)]
    if runs and len(runs) < len(methods):
        other = next(name for name in methods if name not in runs)
        raise InputError(f"give methods or directories of runs, not both, got {other!r} and {runs[0]!r}.")
    return runs


def _is_directory(name: str) -> bool:
    if not Path(name).is_dir():
        return False
    from bespokefl.methods import REGISTRY  # imports torch, which takes seconds

    return "/" in name or name not in REGISTRY


def _grids(entries: list[str]) -> dict[str, dict[str, list[Any]]]:
    """Parse `ditto.prox_weight=0.1,1` into a method, a name and values."""
    found: dict[str, dict[str, list[Any]]] = {}
    for key, values in read_grid(entries).items():
        method, dot, name = key.partition(".")
        if not dot or not name:
            raise InputError(
                f"--grid must be followed by method.key=value,value, such as ditto.prox_weight=0.1,1, got {key!r}."
            )
        found.setdefault(method.replace("_", "-"), {})[name] = values
    return found
