"""`bespoke personalize` and `bespoke predict`: use the models of a finished run."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from bespokefl.cli import output
from bespokefl.cli.commands.run import finetune_note
from bespokefl.cli.options import Out, Overwrite, Quiet, RunFolder, Workers
from bespokefl.core.errors import count
from bespokefl.workflows.run.settings import COMPUTATION


def personalize(
    run: RunFolder,
    data: Annotated[
        Path,
        typer.Option(
            help="Data of the newcomers: an .npz file with x, y and optionally client, or a table like the run's."
        ),
    ],
    client: Annotated[
        str | None,
        typer.Option(help="Only this client of the file; or the name of the only one, if the file has no names."),
    ] = None,
    out: Out = None,
    overwrite: Overwrite = False,
    workers: Workers = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, … Default: the device of the run.", rich_help_panel=COMPUTATION)
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Train personal models for clients that did not take part in a run, by the rule of its method.

    bespoke personalize runs/ditto --data new.npz --client ward-7 --out runs/ward-7
    """
    from rich.text import Text

    from bespokefl.cli import terminal
    from bespokefl.workflows.newcomers import personalize as newcomers
    from bespokefl.workflows.newcomers.result import KIND, MARKERS
    from bespokefl.workflows.newcomers.trainer import NEWCOMER_MODELS
    from bespokefl.workflows.results import run_directory

    target = run_directory.fresh(run_directory.RUNS, "newcomers") if out is None else Path(out)
    run_directory.check(target, overwrite, MARKERS, KIND)
    with terminal.messages(terminal.console(stderr=True), verbose=False):
        found = newcomers.personalize(run, data, client=client, workers=workers or 0, device=device)
    path = found.save(target, overwrite)
    output.record(path=path, run=run, clients=found.names, scores=found.summary(), notes=found.notes)
    if quiet:
        print(path)
        return
    settings = f" on {found.origin['data']}: {count(len(found.names), 'newcomer')} from {data}"
    terminal.say(Text.assemble((found.origin["method"], "bold"), settings))
    terminal.console().print(terminal.score_table({kind: found.summary()[kind] for kind in NEWCOMER_MODELS}))
    terminal.say(
        finetune_note(found),
        *found.notes,
        f"Written to {path}: newcomers.csv has one line per client. To use a model: "
        f"bespoke predict {path} --client {shlex.quote(found.names[0])} --data x.npz",
    )


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run, or of newcomers' models.")],
    client: Annotated[str, typer.Option(help="The client whose model is used.")],
    data: Annotated[Path, typer.Option(help="An .npz file with x, or a table with the columns of the run's data.")],
    out: Annotated[Path, typer.Option(help="The CSV file to write.")] = Path("predictions.csv"),
    overwrite: Overwrite = False,
) -> None:
    """Write the predictions of a client's own model to a CSV file: labels and probabilities, or values.

    bespoke predict runs/ditto --client 07 --data x.npz --out predictions.csv
    """
    from bespokefl.workflows.newcomers import predict

    predict.check(out, overwrite)
    found = predict.predict(run, client, data)
    found.save(out, overwrite)
    output.record(path=out, client=client, predictions=len(found))
    print(f"Written to {out}: {count(len(found), 'prediction')} by the model of client {client}.")
