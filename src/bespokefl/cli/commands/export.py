"""`bespoke export`: write models of a run as files that other programs read."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bespokefl.cli import output
from bespokefl.cli.options import Overwrite, Quiet
from bespokefl.core.errors import InputError, count

if TYPE_CHECKING:
    from bespokefl.workflows.export.api import Exporter

Formats = Annotated[
    str, typer.Option(metavar="FORMAT", help="torchscript, onnx or safetensors, or several: onnx,safetensors.")
]


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run, or of newcomers' models.")],
    to: Formats,
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

    with terminal.messages(terminal.console(stderr=True), verbose=False):
        exporter = Exporter(run, formats(to))
        write(exporter, exporter.names if all_clients else [client], all_clients, out, overwrite, quiet)


def formats(text: str) -> list[str]:
    """Parse the value of --to."""
    return [one.strip() for one in text.split(",") if one.strip()]


def write(
    exporter: "Exporter",
    clients: Sequence[str | None],
    in_directories: bool,
    out: Path | None,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Export the models of clients (None: the global model) and print what was written.

    `in_directories` makes a directory for each client in `out`; otherwise `out` is that of the only one.
    """
    from bespokefl.cli import terminal
    from bespokefl.workflows.run.jobs import Step

    directories = [exporter.directory(one, out) if in_directories or out is None else out for one in clients]
    if in_directories:
        exporter.check(clients, out, overwrite)
    checks = []
    with terminal.progress_bar(terminal.console(stderr=True), "export", quiet or not in_directories) as report:
        for number, (name, directory) in enumerate(zip(clients, directories, strict=True), 1):
            found = exporter.write(name, directory, overwrite)
            checks += [file["check"] for file in found.card["files"].values()]
            if report is not None:
                report(Step(str(name), number, len(clients), None, number))
    path, what = found.path, "the global model" if clients[0] is None else f"the model of client {clients[0]}"
    if in_directories:
        path, what = path.parent, f"the models of {count(len(clients), 'client')}"
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
