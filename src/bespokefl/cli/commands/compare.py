"""`bespoke compare`: methods × seeds on one split, or runs that are there."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bespokefl.cli.commands.tune import read_grid
from bespokefl.cli.options import INTERRUPTED, Quiet, Verbose, numbers, printing_results, takes_run
from bespokefl.core.errors import DiskError, InputError, count
from bespokefl.workflows.run.settings import TRAINING, RunSettings

if TYPE_CHECKING:
    from bespokefl.workflows.compare.result import Comparison


@takes_run(without=("method", "newcomers", "keep_rounds", "state_dir"))
def compare(
    settings: RunSettings,
    methods: Annotated[
        list[str],
        typer.Argument(
            metavar="METHODS", help='Methods (see "bespoke methods"), "all", or folders of runs, such as ./ditto.'
        ),
    ],
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="0,1,2",
            help="Every method is run with each of them, on the split of --seed. Default: 0,1,2.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune", help="Choose every method's hyper-parameters on validation data first.", rich_help_panel=TRAINING
        ),
    ] = False,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METHOD.KEY=VALUES",
            help='What to try when this method is tuned, such as "ditto.prox_weight=0.1,1". Can be repeated.',
            rich_help_panel=TRAINING,
        ),
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Compare methods on the same clients, or runs that are there: who is better off, and how sure is that.

    bespoke compare ditto persfl ucfl --seeds 0,1,2 --rounds 50 --set ditto.prox_weight=0.5 --out runs/compare
    """
    asked, given = _grids(grid or []), numbers(seeds)
    folders = [name for name in methods if _is_folder(name)]
    if folders and len(folders) < len(methods):
        other = next(name for name in methods if name not in folders)
        raise InputError(f"give methods or folders of runs, not both, got {other!r} and {folders[0]!r}.")

    from bespokefl.cli import terminal
    from bespokefl.workflows.compare import api as compare
    from bespokefl.workflows.compare import candidates
    from bespokefl.workflows.compare.existing_runs import compare_runs
    from bespokefl.workflows.results import run_directory

    aside = terminal.console(stderr=True)
    target = run_directory.stable_path(
        Path(settings.out) if settings.out is not None else run_directory.fresh(run_directory.RUNS, "compare")
    )
    with terminal.messages(aside, verbose):
        if folders:
            found = compare_runs(folders, out=target, overwrite=settings.overwrite)
        else:
            placed = replace(settings, out=str(target))
            with terminal.jobs_bar(aside, "comparing", quiet) as progress:
                try:
                    found = compare.compare_config(
                        placed, methods, seeds=given, tune=tune, grids=asked, progress=progress
                    )
                except KeyboardInterrupt:
                    again = candidates.command(settings, methods, given or compare.SEEDS, tune, asked)
                    _say_how_to_go_on(again, target)
                    raise typer.Exit(INTERRUPTED) from None
        page = _report(target)
    with printing_results(target):
        _show(found, target, page, quiet)
    if found.interrupted:
        raise typer.Exit(INTERRUPTED)


def _show(found: "Comparison", target: Path, page: str, quiet: bool) -> None:
    if quiet:
        print(target)
    else:
        from bespokefl.cli import terminal

        screen = terminal.console()
        data, seeds = found.facts.data, ", ".join(map(str, found.seeds)) or "none in common"
        screen.print(
            f"{data['name']}, {data['split']}, {count(data['clients'], 'client')}, model {found.facts.model}, "
            f"seed{'s' * (len(found.seeds) != 1)} {seeds}",
            markup=False,
            soft_wrap=True,
        )
        screen.print(terminal.contest(found))
        place = found.standing
        if place is not None and len(found.methods) > 1:
            ties = "; = cannot be told from it (Wilcoxon's paired test, Holm, 5 %)" if place.ties else ""
            screen.print(f"* the best mean{ties}.", markup=False, soft_wrap=True)
        for sentence in (found.best.sentence, found.fairest.sentence, *found.notes):
            screen.print(sentence, markup=False, soft_wrap=True)
        screen.print(
            f"Written to {target}: {page}clients.csv has a line for each method, seed and client.", markup=False
        )
    if found.interrupted:
        _say_how_to_go_on(found.facts.command or "", target)


def _say_how_to_go_on(command: str, target: Path) -> None:
    print(f"Interrupted. To go on: {command} --out {shlex.quote(str(target))}", file=sys.stderr)


def _report(target: Path) -> str:
    """Write the page beside compare.json, and say so."""
    from bespokefl.report import write

    try:
        write(target / "compare.json")
    except DiskError as error:
        kept = "all else is written"
        raise DiskError(
            error.fact, kept=kept, cure=error.cure, then=f"bespoke report {shlex.quote(str(target))}"
        ) from None
    return "report.html shows everything, "


def _is_folder(name: str) -> bool:
    if not Path(name).is_dir():
        return False
    from bespokefl.methods import REGISTRY  # which takes a while

    return "/" in name or name not in REGISTRY


def _grids(entries: list[str]) -> dict[str, dict[str, list[Any]]]:
    """`ditto.prox_weight=0.1,1` as a method, a name and values."""
    found: dict[str, dict[str, list[Any]]] = {}
    for key, values in read_grid(entries).items():
        method, dot, name = key.partition(".")
        if not dot or not name:
            raise InputError(
                f"--grid must be followed by method.key=value,value, such as ditto.prox_weight=0.1,1, got {key!r}."
            )
        found.setdefault(method.replace("_", "-"), {})[name] = values
    return found
