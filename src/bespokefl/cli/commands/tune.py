"""`bespoke tune`: hyper-parameters chosen on validation data."""

from typing import Annotated, Any

import typer

from bespokefl.cli.options import INTERRUPTED, Quiet, Verbose, literal, numbers, takes_run
from bespokefl.core.errors import InputError
from bespokefl.workflows.run.settings import TRAINING, RunSettings


@takes_run(without=("eval_every", "keep_rounds", "checkpoint_every"))
def tune(
    settings: RunSettings,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUES",
            help='Values to try of a hyper-parameter, such as "prox_weight=0.1,1,2", or of --rounds, --participation, '
            "--batch-size, --local-epochs, --local-steps. Can be repeated.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="0,1,2", help="Means over runs with these seeds, on one split.", rich_help_panel=TRAINING),
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Choose hyper-parameters on validation data; test data choose nothing.

    bespoke tune ditto --grid "prox_weight=0.1,1,2" --grid "lr=0.01,0.1" --out runs/tune
    """
    asked, given = read_grid(grid or []), numbers(seeds)

    from bespokefl.cli import terminal
    from bespokefl.workflows.tune.api import tune_config
    from bespokefl.workflows.tune.result import command, worded

    aside = terminal.console(stderr=True)
    with terminal.messages(aside, verbose), terminal.grid_bar(aside, settings.method, quiet) as progress:
        tuning = tune_config(settings, asked, given, progress)
    screen = terminal.console()
    if not quiet and tuning.cells:
        screen.print(terminal.grid(tuning))
        screen.print(f"Written to {tuning.path}: grid.csv has a line for each point.", markup=False)
    if tuning.interrupted:
        if not tuning.cells:
            raise KeyboardInterrupt
        screen.print(f"Interrupted. To go on: the same command with --out {tuning.path}", markup=False, soft_wrap=True)
        raise typer.Exit(INTERRUPTED)
    if quiet:
        print(tuning.flags)
        return
    told = f", mean of {len(tuning.seeds)} seeds" if len(tuning.seeds) > 1 else ""
    screen.print(
        f"Chosen by the clients' mean {tuning.by.replace('_', ' ')}{told}: {worded(tuning.best)}",
        markup=False,
        soft_wrap=True,
    )
    screen.print(f"To use it: {command(settings, tuning)}", markup=False, soft_wrap=True)


def read_grid(entries: list[str]) -> dict[str, list[Any]]:
    """`prox_weight=0.1,1,2` as a name and values; commas within brackets are a value's own."""
    found: dict[str, list[Any]] = {}
    for entry in entries:
        key, equals, text = entry.partition("=")
        name = key.strip().replace("-", "_")
        values = [one.strip() for one in _apart(text)]
        if not equals or not name or not all(values):
            raise InputError(f"--grid must be followed by key=value,value, such as prox_weight=0.1,1, got {entry!r}.")
        if name in found:
            raise InputError(f"the grid has {name} twice; give all its values at once.")
        found[name] = [literal(value) for value in values]
    return found


def _apart(text: str) -> list[str]:
    parts, depth = [""], 0
    for one in text:
        depth += (one in "([") - (one in ")]")
        if one == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += one
    return parts
