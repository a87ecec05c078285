"""`bespoke report`: the page of a comparison or a run, written once more."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a comparison, or of a run.")],
    out: Annotated[Path | None, typer.Option(help="The file to write. Default: report.html in that folder.")] = None,
) -> None:
    """Write report.html: tables and figures in one file that opens without a network.

    bespoke report runs/compare
    """
    from bespokefl.methods import REGISTRY
    from bespokefl.report import write

    path = write(folder, out, citations={name: method.citation for name, method in REGISTRY.items()})
    print(f"Written to {path}: open it with a browser.")
