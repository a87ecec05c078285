"""`bespoke export`: write models of a run as files that other programs read."""

from pathlib import Path
from typing import Annotated

import typer

from bespokefl.cli import output
from bespokefl.cli.options import Overwrite, Quiet
from bespokefl.core.errors import InputError, count


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run, or of newcomers' models.")],
    to: Annotated[
        str, typer.Option(metavar="FORMAT", help="torchscript, onnx or safetensors, or several: onnx,safetensors.")
    ],
    client: Annotated[str | None, typer.Option(help="The client whose model is exported.")] = None,
    all_clients: Annotated[bool, typer.Option("--all", help="Export the models of all clients.")] = False,
    global_model: Annotated[bool, typer.Option("--global", help="Export the global model.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Directory to write; with --all, one directory per client in it. Default: RUN/export/CLIENT."
        ),
    ] = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Export a client's model as TorchScript, ONNX or safetensors, with its preprocessing and a model card.

    bespoke export runs/ditto --client 07 --to onnx
    """
    if [client is not None, all_clients, global_model].count(True) != 1:
        raise InputError("name what to export, one of --client NAME, --all and --global.")
    from bespokefl.cli import terminal
    from bespokefl.workflows.export.api import Exporter
    from bespokefl.workflows.run.jobs import Step

    screen = terminal.console(stderr=True)
    with terminal.messages(screen, verbose=False):
        exporter = Exporter(run, [one.strip() for one in to.split(",") if one.strip()])
        if not all_clients:
            found = exporter.write(client, out, overwrite)
            what = "the global model" if client is None else f"the model of client {client}"
            files = [file["file"] for file in found.card["files"].values()]
            checks = [file["check"] for file in found.card["files"].values()]
            path = found.path
        else:
            names = exporter.names
            exporter.check(names, out, overwrite)
            with terminal.progress_bar(screen, "export", quiet) as report:
                checks = []
                for number, name in enumerate(names, 1):
                    found = exporter.write(name, exporter.directory(name, out), overwrite)
                    checks += [file["check"] for file in found.card["files"].values()]
                    if report is not None:
                        report(Step(name, number, len(names), None, number))
            path, what = found.path.parent, f"the models of {count(len(names), 'client')}"
            files = [file["file"] for file in found.card["files"].values()]
    output.record(path=path, files=files, checks=checks)
    if quiet:
        print(path)
        return
    print(f"Written to {path}: {what} ({', '.join(files)}), preprocessing.json and MODEL_CARD.md.")
    checked = [one for one in checks if one["largest_difference"] is not None]
    if checked:
        largest = max(one["largest_difference"] for one in checked)
        origin = " and ".join(sorted({one["examples"] for one in checked}))
        print(f"Read again and compared with the model, on {origin}: predictions differ by at most {largest:.1e}.")
    if len(checked) < len(checks):
        print('ONNX files were not compared with the model: pip install "bespokefl[onnx]".')
