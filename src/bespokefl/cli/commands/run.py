"""`bespoke run` and `bespoke resume`: train one method and write the results."""

import logging
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from bespokefl.cli import options, output
from bespokefl.core.errors import BespokeError, count
from bespokefl.workflows.run.settings import RunSettings

if TYPE_CHECKING:
    from bespokefl.engines.outcome import OnProgress
    from bespokefl.workflows.newcomers.result import Newcomers
    from bespokefl.workflows.results.result import Result


log = logging.getLogger("bespokefl")


@options.takes_run()
def run(settings: RunSettings, quiet: options.Quiet = False, verbose: options.Verbose = False) -> None:
    """Train one method on a federation of clients and write the results to a directory.

    bespoke run ditto --split "dirichlet(alpha=0.4)" --rounds 50 --set prox_weight=0.5 --out runs/ditto
    """
    from bespokefl.workflows.run.api import run_config

    _train(lambda progress: run_config(settings, progress), settings.method, quiet, verbose)


def resume(
    run: options.RunFolder,
    state_dir: options.StateDirAsBefore = None,
    workers: options.WorkersAsBefore = None,
    cluster: options.ClusterAsBefore = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Resume an interrupted run from its last checkpoint. The result is identical to an uninterrupted run.

    bespoke resume runs/ditto
    """
    from bespokefl.workflows.run import api

    def training(progress: "OnProgress | None") -> "Result":
        return api.resume(run, progress, state_dir=state_dir, workers=workers, cluster=cluster)

    _train(training, run.name, quiet, verbose)


def _train(training: "Callable[[OnProgress | None], Result]", title: str, quiet: bool, verbose: bool) -> None:
    """Train behind a progress bar and print the result; log an error's notes before its message."""
    from bespokefl.cli import terminal

    screen = terminal.console(stderr=True)
    with terminal.messages(screen, verbose):
        try:
            with terminal.progress_bar(screen, title, quiet) as progress:
                result = training(progress)
        except BespokeError as error:
            for note in getattr(error, "__notes__", ()):
                log.warning("%s", note)
            raise
    output.record(**result.about, scores=result.summary(), path=result.path)
    with options.printing_results(result.path):
        if quiet:
            print(result.path)
        else:
            _show(result)
    if result.interrupted:
        raise typer.Exit(options.INTERRUPTED)


def _show(result: "Result") -> None:
    from rich.text import Text

    from bespokefl.cli import terminal

    about, sent = result.about, result.communication
    settings = (
        f" on {about['data']}, {about['split']}, {count(about['clients'], 'client')}, "
        f"{count(about['rounds_done'], 'round')}; {terminal.format_bytes(sent['up_bytes'])} up, "
        f"{terminal.format_bytes(sent['down_bytes'])} down, {about['timing']['seconds_per_round']:.3g} s per round"
    )
    terminal.say(Text.assemble((result.method, "bold"), settings))
    terminal.console().print(terminal.result_table(result))
    newcomers, path = result.newcomers, result.path
    of_newcomers = [] if newcomers is None else [finetune_note(newcomers), *newcomers.notes]
    files = "clients.csv" if newcomers is None else "clients.csv (and newcomers.csv)"
    again = f"To repeat with another seed: bespoke run --config {path}/config.toml --seed {about['seed'] + 1}"
    if result.interrupted:
        again = f"To resume: bespoke resume {shlex.quote(str(path))}"
    written = f"Written to {path}: {files} has a line for each client, result.json these figures."
    terminal.say(*result.notes, *of_newcomers, written, again)


def finetune_note(newcomers: "Newcomers") -> str:
    """Describe the fine-tuning baseline that the newcomers' scores are compared with."""
    about = newcomers.about
    return (
        f"Finetune: the run's {about['finetune_from']} model, trained on each newcomer's data with lr "
        f"{about['finetune_lr']:g} for as many steps as an average client made."
    )
