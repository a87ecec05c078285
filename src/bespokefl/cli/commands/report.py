"""`bespoke report`: write the page of a comparison, a run or a diagnosis again."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a comparison, a run or a diagnosis.")],
    out: Annotated[
        Path | None,
        typer.Option(help="File to write. Default: report.html in DIR; diagnosis.html for a diagnosis."),
    ] = None,
) -> None:
    """Write an HTML report: tables and figures in one file that needs no network.

    bespoke report runs/compare
    """
    from bespokefl.methods import REGISTRY
    from bespokefl.report import write
    from bespokefl.workflows.compare import storage
    from bespokefl.workflows.compare.existing_runs import compare_unfinished

    if storage.is_unfinished(folder):
        compare_unfinished(folder).save(folder)  # as Ctrl-C would have left it
    path = write(folder, out, citations={name: method.citation for name, method in REGISTRY.items()})
    print(f"Written to {path}; open it in a browser.")
