"""`bespoke run`: one method, trained and written down."""

import logging
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from bespokefl.cli.options import COMPUTED, INTERRUPTED, Quiet, RunFolder, StateDir, Verbose, takes_run, telling
from bespokefl.core.errors import BespokeError, count
from bespokefl.workflows.run.settings import Config

if TYPE_CHECKING:
    from bespokefl.workflows.newcomers.result import Newcomers
    from bespokefl.workflows.results.result import Result


log = logging.getLogger("bespokefl")

Processes = Annotated[
    int | None,
    typer.Option(
        "--workers",
        help="Processes from now on; 0: all cores. Does not change the result. Default: as many as there were.",
        show_default=False,
        rich_help_panel=COMPUTED,
    ),
]


@takes_run()
def run(settings: Config, quiet: Quiet = False, verbose: Verbose = False) -> None:
    """Train one method and write what comes out.

    bespoke run ditto --split "dirichlet(alpha=0.4)" --rounds 50 --set prox_weight=0.5 --out runs/ditto
    """
    from bespokefl.cli import terminal
    from bespokefl.workflows.run.api import run_config

    screen = terminal.console(stderr=True)
    with (
        terminal.messages(screen, verbose),
        _noting(),
        terminal.progress_bar(screen, settings.method, quiet) as progress,
    ):
        result = run_config(settings, progress)
    with telling(result.path):
        _show(result, quiet)
    if result.interrupted:
        raise typer.Exit(INTERRUPTED)


def resume(
    run: RunFolder,
    state_dir: StateDir = None,
    workers: Processes = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Go on with a run that was stopped or killed; it ends as if it had not been.

    bespoke resume runs/ditto
    """
    from bespokefl.cli import terminal
    from bespokefl.workflows.run.api import resume

    screen = terminal.console(stderr=True)
    with terminal.messages(screen, verbose), _noting(), terminal.progress_bar(screen, run.name, quiet) as progress:
        result = resume(run, progress, state_dir=state_dir, workers=workers)
    with telling(result.path):
        _show(result, quiet)
    if result.interrupted:
        raise typer.Exit(INTERRUPTED)


@contextmanager
def _noting() -> Iterator[None]:
    """What is noted of a mistake, such as how to go on, is said before it: of the mistake itself one sentence is."""
    try:
        yield
    except BespokeError as error:
        for note in getattr(error, "__notes__", ()):
            log.warning("%s", note)
        raise


def _show(result: "Result", quiet: bool) -> None:
    if quiet:
        print(result.path)
        return
    from bespokefl.cli import terminal

    screen = terminal.console()
    about, sent = result.about, result.communication
    screen.print(
        f"[bold]{result.method}[/] on {about['data']}, {about['split']}, {count(about['clients'], 'client')}, "
        f"{count(about['rounds_done'], 'round')}; {terminal.format_bytes(sent['up_bytes'])} up, "
        f"{terminal.format_bytes(sent['down_bytes'])} down, {about['timing']['seconds_per_round']:.3g} s per round"
    )
    screen.print(terminal.result_table(result))
    late = result.newcomers
    for note in [*result.notes, *([] if late is None else [finetune_note(late), *late.notes])]:
        screen.print(note, markup=False)
    path = result.path
    files = "clients.csv" if late is None else "clients.csv (and newcomers.csv)"
    screen.print(f"Written to {path}: {files} has a line for each client, result.json these figures.", markup=False)
    again = f"bespoke run --config {path}/config.toml"
    if result.interrupted:
        screen.print(f"To go on: bespoke resume {shlex.quote(str(path))}", markup=False, soft_wrap=True)
    else:
        screen.print(f"Once more, with another seed: {again} --seed {about['seed'] + 1}", markup=False, soft_wrap=True)


def finetune_note(newcomers: "Newcomers") -> str:
    about = newcomers.about
    return (
        f"Finetune: newcomers train the run's {about['finetune_from']} model on, with lr {about['finetune_lr']:g} and "
        "as many steps as an average client made."
    )
