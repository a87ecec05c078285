"""`bespoke report`: the page of a comparison, a run or a diagnosis, written once more."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of a comparison, of a run, or of a diagnosis.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write. Default: report.html in that folder; diagnosis.html for a diagnosis."),
    ] = None,
) -> None:
    """Write report.html: tables and figures in one file that opens without a network.

    bespoke report runs/compare
    """
    from bespokefl.methods import REGISTRY
    from bespokefl.report import write
    from bespokefl.workflows.compare import storage
    from bespokefl.workflows.compare.existing_runs import compare_unfinished

    if storage.is_unfinished(folder):
        compare_unfinished(folder).save(folder)  # as Ctrl-C would have left it
    path = write(folder, out, citations={name: method.citation for name, method in REGISTRY.items()})
    print(f"Written to {path}: open it with a browser.")
