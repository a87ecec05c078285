"""`bespoke deploy predict` and `bespoke deploy export`: use the models that stay at a node."""

from pathlib import Path
from typing import Annotated

import typer

from bespokefl.cli import output
from bespokefl.cli.commands import export as exports
from bespokefl.cli.commands.deploy import NodeDirectory, NodeName, RunName
from bespokefl.cli.commands.export import Formats
from bespokefl.cli.options import Overwrite, Quiet
from bespokefl.core.errors import InputError, count
from bespokefl.workflows.deploy.layout import find_node, read_node_settings


def predict(
    folder: NodeDirectory,
    data: Annotated[Path, typer.Option(help="An .npz file with x, or a table with the columns of the node's data.")],
    client: Annotated[str | None, typer.Option(help="Whose model. Default: that of the node's only client.")] = None,
    name: NodeName = None,
    run: RunName = None,
    out: Annotated[Path, typer.Option(help="The CSV file to write.")] = Path("predictions.csv"),
    overwrite: Overwrite = False,
) -> None:
    """Predict with a client's own model, at the node that keeps it.

    bespoke deploy predict hospital-a --client ward-7 --data new.csv
    """
    from bespokefl.workflows.deploy import node_models
    from bespokefl.workflows.newcomers import predict as predictions

    predictions.check(out, overwrite)
    directory = find_node(folder, name)
    state = directory / read_node_settings(directory).state
    who, found = node_models.predict(state, data, client=client, run=run)
    found.save(out, overwrite)
    output.record(path=out, client=who, predictions=len(found))
    print(f"Written to {out}: {count(len(found), 'prediction')} by the model of client {who}.")


def export(
    folder: NodeDirectory,
    to: Formats,
    client: Annotated[str | None, typer.Option(help="Whose model. Default: that of the node's only client.")] = None,
    all_clients: Annotated[bool, typer.Option("--all", help="Export the models of all clients of the node.")] = False,
    name: NodeName = None,
    run: RunName = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Directory to write; with --all, one directory per client in it. Default: export/CLIENT in the "
            "directory of the run at the node."
        ),
    ] = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Export a client's own model as TorchScript, ONNX or safetensors, at the node that keeps it.

    bespoke deploy export hospital-a --client ward-7 --to onnx
    """
    if all_clients and client is not None:
        raise InputError(f"give --client {client} or --all, not both.")
    from bespokefl.cli import terminal
    from bespokefl.workflows.deploy import node_models
    from bespokefl.workflows.export.api import Exporter

    directory = find_node(folder, name)
    with terminal.messages(terminal.console(stderr=True), verbose=False):
        state = directory / read_node_settings(directory).state
        exporter = Exporter(node_models.node_result(state, run), exports.formats(to))
        chosen = exporter.names if all_clients else [client or node_models.only_client(exporter.names)]
        exports.write(exporter, chosen, all_clients, out, overwrite, quiet)
