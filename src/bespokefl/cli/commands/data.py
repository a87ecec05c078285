"""`bespoke data`: the data sets that are known by name, where they are, and getting them here."""

from pathlib import Path
from typing import Annotated

import typer

from bespokefl.core.errors import InputError

app = typer.Typer(
    name="data",
    help="Data sets by name: what there is, where it is, and getting it here.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help='A data set: see "bespoke data list".')]


@app.command("list")
def list_() -> None:
    """List the data sets: what they are, and where they are found or how to get them."""
    from bespokefl.cli import terminal
    from bespokefl.data.sources import named
    from bespokefl.data.sources.catalogue import CATALOGUE

    screen = terminal.console()
    rows = [(one.name, one.what, named.place(one)) for one in CATALOGUE.values()]
    screen.print(terminal.table(["data", "what it is", "where it is, or how to get it"], rows, left=3))
    screen.print("More about one: bespoke data info NAME. Your own data need no name: --data PATH", markup=False)


@app.command()
def info(name: Name) -> None:
    """Say what is known of a data set: shape, classes, examples, origin, licence, hash."""
    from rich.table import Table

    from bespokefl.cli import terminal
    from bespokefl.data.sources import cache, catalogue, named

    one = catalogue.find(name)
    entry = None if one.built_in else cache.find(one.stored)
    rows = {"what": one.what, "classes": f"{one.classes}: {', '.join(one.label_names)}"}
    if entry is not None or one.built_in:
        dataset = named.load(one)
        tests = int(dataset.columns["test"].sum()) if "test" in dataset.columns else 0
        rows["examples"] = f"{len(dataset)} of shape {dataset.shape}" + (f", {tests} of them for test" if tests else "")
        if dataset.client is not None:
            rows["clients"] = str(len(set(dataset.client.tolist())))
        rows["fingerprint"] = dataset.fingerprint
    else:
        rows["examples"] = (
            f"{sum(one.counts)}, {one.counts[1]} of them for test" if one.counts else "as they come"
        ) + (f", of shape {one.shape}" if one.shape else "")
    if one.columns:
        rows["columns"] = ", ".join(one.columns)
    rows["where"] = named.place(one)
    if entry is not None:
        rows["from"] = entry.origin
    known = one.hash or (entry.hash if entry is not None else None)
    if known is not None:
        rows["sha256"] = known + ("" if one.hash else " (as first decoded here)")
    rows["licence"], rows["citation"] = one.licence, one.citation
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for key, value in rows.items():
        table.add_row(key, value)
    terminal.console().print(table)


@app.command()
def fetch(
    name: Name,
    origin: Annotated[
        Path | None, typer.Option("--from", metavar="PATH", help="A folder, archive or .npz file that holds it.")
    ] = None,
) -> None:
    """Get a data set and decode it into the cache; if it is there already, check that it is whole.

    bespoke data fetch mnist

    bespoke data fetch cifar10 --from cifar-10-python.tar.gz
    """
    from bespokefl.cli import terminal
    from bespokefl.data.sources import cache, catalogue, named

    one = catalogue.find(name)
    with terminal.messages(terminal.console(stderr=True), verbose=False):
        entry = named.fetch(one, origin)
    sure = "as expected" if catalogue.find(one.stored).hash == entry.hash else "nobody has said what to expect"
    print(f"{name} is in {cache.place(entry)}, from {entry.origin}; sha256 {entry.hash[:16]}…, {sure}.")


@app.command()
def path(name: Annotated[str | None, typer.Argument(metavar="NAME", help="A data set.")] = None) -> None:
    """Print the folder that data are kept in, or a data set's own."""
    from bespokefl.data.sources import cache, catalogue

    if name is None:
        print(cache.folder())
        return
    one = catalogue.find(name)
    entry = None if one.built_in else cache.find(one.stored)
    if entry is None:
        told = "it is part of scikit-learn" if one.built_in else f'"bespoke data fetch {name}" puts it there'
        raise InputError(f"{name} is not in the data folder; {told}")
    print(cache.place(entry))
