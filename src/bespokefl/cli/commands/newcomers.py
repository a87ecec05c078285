"""`bespoke personalize` and `bespoke predict`: what a finished run is used for."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from bespokefl.cli.commands.run import finetune_note
from bespokefl.cli.options import Out, Overwrite, Quiet, RunFolder, Workers
from bespokefl.core.errors import count
from bespokefl.workflows.run.settings import COMPUTATION


def personalize(
    run: RunFolder,
    data: Annotated[
        Path,
        typer.Option(help="The newcomers' data: an .npz file with x, y and perhaps client, or a table as the run had."),
    ],
    client: Annotated[
        str | None,
        typer.Option(help="Only this client of the file; or the name of the only one, if the file names none."),
    ] = None,
    out: Out = None,
    overwrite: Overwrite = False,
    workers: Workers = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, …; the run's own if not given.", rich_help_panel=COMPUTATION)
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Give clients that took no part in a run their own models, by its method's rule.

    bespoke personalize runs/ditto --data new.npz --client ward-7 --out runs/ward-7
    """
    from bespokefl.cli import terminal
    from bespokefl.workflows.newcomers import personalize as late
    from bespokefl.workflows.newcomers import result as newcomers
    from bespokefl.workflows.results import run_directory

    target = run_directory.fresh(run_directory.RUNS, "newcomers") if out is None else Path(out)
    run_directory.check(target, overwrite, newcomers.SIGNS, newcomers.WHAT)
    with terminal.messages(terminal.console(stderr=True), verbose=False):
        found = late.personalize(run, data, client=client, workers=workers or 0, device=device)
    path = found.save(target, overwrite)
    if quiet:
        print(path)
        return
    screen = terminal.console()
    origin = found.origin
    screen.print(
        f"[bold]{origin['method']}[/] on {origin['data']}: {count(len(found.names), 'newcomer')} from {data}",
        highlight=False,
    )
    screen.print(terminal.newcomer_figures(found))
    for note in (finetune_note(found), *found.notes):
        screen.print(note, markup=False)
    screen.print(
        f"Written to {path}: newcomers.csv has a line for each. To use a model: "
        f"bespoke predict {path} --client {shlex.quote(found.names[0])} --data x.npz",
        markup=False,
        soft_wrap=True,
    )


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, or of newcomers' models.")],
    client: Annotated[str, typer.Option(help="Whose model.")],
    data: Annotated[Path, typer.Option(help="An .npz file with x, or a table with the columns of the run's.")],
    out: Annotated[Path, typer.Option(help="The CSV file to write.")] = Path("predictions.csv"),
    overwrite: Overwrite = False,
) -> None:
    """Write what a client's own model says about examples: labels and probabilities, or values.

    bespoke predict runs/ditto --client 07 --data x.npz --out predictions.csv
    """
    from bespokefl.workflows.newcomers import predict

    predict.check(out, overwrite)
    found = predict.predict(run, client, data)
    found.save(out, overwrite)
    print(f"Written to {out}: {count(len(found), 'prediction')} by the model of client {client}.")
