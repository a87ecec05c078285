"""`bespoke tune`: choose hyper-parameters on validation data."""

from typing import Annotated, Any

import typer

from bespokefl.cli import output
from bespokefl.cli.options import INTERRUPTED, Metric, Quiet, Verbose, literal, numbers, takes_run, training_option
from bespokefl.core.errors import InputError
from bespokefl.workflows.run.settings import RunSettings


@takes_run(without=("eval_every", "follow", "keep_rounds", "checkpoint_every"))
def tune(
    settings: RunSettings,
    grid: Annotated[
        list[str] | None,
        training_option(
            metavar="KEY=VALUES",
            help='Values to try for a hyper-parameter, such as "prox_weight=0.1,1,2", or for rounds, participation, '
            "batch_size, local_epochs or local_steps. Can be repeated.",
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        training_option(
            metavar="5|0-9|0,1,2",
            help="Average over runs with so many seeds (0 to 4), or with these, on the same split.",
        ),
    ] = None,
    metric: Metric = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Choose hyper-parameters by grid search on validation data. Test data are not used.

    bespoke tune ditto --grid "prox_weight=0.1,1,2" --grid "lr=0.01,0.1" --out runs/tune
    """
    values, seed_list = read_grid(grid or []), numbers(seeds)

    from bespokefl.cli import terminal
    from bespokefl.metrics.metric import metric_of
    from bespokefl.workflows.tune.api import tune_config
    from bespokefl.workflows.tune.grid import in_words
    from bespokefl.workflows.tune.result import run_command

    errors = terminal.console(stderr=True)
    with terminal.messages(errors, verbose), terminal.progress_bar(errors, settings.method, quiet) as progress:
        tuning = tune_config(settings, values, seed_list, progress, metric)
    output.record(
        path=tuning.path, interrupted=tuning.interrupted, seeds=tuning.seeds, metric=tuning.by, points=tuning.table
    )
    if not quiet and tuning.cells:
        terminal.console().print(terminal.tuning_table(tuning))
        terminal.say(f"Written to {tuning.path}: grid.csv has one line per point.")
    if tuning.interrupted:
        if not tuning.cells:
            raise KeyboardInterrupt
        terminal.say(f"Interrupted. To resume: the same command with --out {tuning.path}")
        raise typer.Exit(INTERRUPTED)
    output.record(best=tuning.best, flags=tuning.flags)
    if quiet:
        print(tuning.flags)
        return
    seeds_used = f", mean of {len(tuning.seeds)} seeds" if len(tuning.seeds) > 1 else ""
    terminal.say(
        f"Chosen by the clients' mean validation {metric_of(tuning.by).title}{seeds_used}: {in_words(tuning.best)}",
        f"To use it: {run_command(settings, tuning)}",
    )


def read_grid(entries: list[str]) -> dict[str, list[Any]]:
    """Parse `prox_weight=0.1,1,2` into a name and its values; commas within brackets belong to a value."""
    found: dict[str, list[Any]] = {}
    for entry in entries:
        key, equals, text = entry.partition("=")
        name = key.strip().replace("-", "_")
        values = [one.strip() for one in _split_at_commas(text)]
        if not equals or not name or not all(values):
            raise InputError(f"--grid must be followed by key=value,value, such as prox_weight=0.1,1, got {entry!r}.")
        if name in found:
            raise InputError(f"the grid has {name} twice; give all its values at once.")
        found[name] = [literal(value) for value in values]
    return found


def _split_at_commas(text: str) -> list[str]:
    parts, depth = [""], 0
    for one in text:
        depth += (one in "([") - (one in ")]")
        if one == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += one
    return parts
