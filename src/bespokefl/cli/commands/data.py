"""`bespoke data`: list, describe and fetch the data sets that are known by name."""

from pathlib import Path
from typing import Annotated

import typer

from bespokefl.cli import completion, output
from bespokefl.core.errors import InputError

app = typer.Typer(name="data", help="List, describe and fetch data sets that are known by name.", no_args_is_help=True)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help='A data set; see "bespoke data list".', autocompletion=completion.data)
]


@app.command("list")
def list_() -> None:
    """List the data sets with their location, or how to get them."""
    from bespokefl.cli import terminal
    from bespokefl.data.sources import fetching
    from bespokefl.data.sources.catalogue import CATALOGUE

    screen = terminal.console()
    rows = [(one.name, one.description, fetching.describe_location(one)) for one in CATALOGUE.values()]
    output.record(data=[dict(zip(("name", "description", "location"), row, strict=True)) for row in rows])
    output.essential(*CATALOGUE)
    screen.print(terminal.table(["data", "description", "location, or how to get it"], rows, left=3))
    screen.print("Details of one: bespoke data info NAME. Your own data need no name: --data PATH")


@app.command()
def info(name: Name) -> None:
    """Describe a data set: shape, classes, examples, origin, licence, hash."""
    from rich.table import Table

    from bespokefl.cli import terminal
    from bespokefl.data.sources import cache, catalogue, fetching

    one = catalogue.find(name)
    entry = None if one.built_in else cache.find(one.stored)
    rows = {"description": one.description, "classes": f"{one.classes}: {', '.join(one.label_names)}"}
    if entry is not None or one.built_in:
        dataset = fetching.load(one)
        tests = int(dataset.columns["test"].sum()) if "test" in dataset.columns else 0
        rows["examples"] = f"{len(dataset)} of shape {dataset.shape}" + (f", {tests} of them for test" if tests else "")
        if dataset.client is not None:
            rows["clients"] = str(len(set(dataset.client.tolist())))
        rows["fingerprint"] = dataset.fingerprint
    else:
        count = f"{sum(one.counts)}, {one.counts[1]} of them for test" if one.counts else "number unknown"
        rows["examples"] = count + (f", of shape {one.shape}" if one.shape else "")
    if one.columns:
        rows["columns"] = ", ".join(one.columns)
    rows["location"] = fetching.describe_location(one)
    if entry is not None:
        rows["origin"] = entry.origin
    sha256 = one.hash or (entry.hash if entry is not None else None)
    if sha256 is not None:
        rows["sha256"] = sha256 + ("" if one.hash else " (of the copy in the cache)")
    rows["licence"], rows["citation"] = one.licence, one.citation
    output.record(name=name, **rows)
    output.essential(f"{name}: {one.description}")
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
        Path | None, typer.Option("--from", metavar="PATH", help="A directory, archive or .npz file with the data set.")
    ] = None,
) -> None:
    """Get a data set and decode it into the cache, or verify the copy in the cache.

    bespoke data fetch mnist

    bespoke data fetch cifar10 --from cifar-10-python.tar.gz
    """
    from bespokefl.cli import terminal
    from bespokefl.data.sources import cache, catalogue, fetching

    one = catalogue.find(name)
    with terminal.messages(terminal.console(stderr=True), verbose=False):
        entry = fetching.fetch(one, origin)
    output.record(name=name, path=cache.path_of(entry), origin=entry.origin, sha256=entry.hash)
    verified = "as expected" if catalogue.find(one.stored).hash == entry.hash else "no expected value is known"
    print(f"{name} is in {cache.path_of(entry)}, from {entry.origin}; sha256 {entry.hash[:16]}…, {verified}.")


@app.command()
def path(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A data set.", autocompletion=completion.data)
    ] = None,
) -> None:
    """Print the data directory, or the directory of one data set."""
    from bespokefl.data.sources import cache, catalogue

    if name is None:
        output.record(path=cache.directory())
        print(cache.directory())
        return
    one = catalogue.find(name)
    entry = None if one.built_in else cache.find(one.stored)
    if entry is None:
        hint = "it is part of scikit-learn" if one.built_in else f'use "bespoke data fetch {name}"'
        raise InputError(f"{name} is not in the data directory; {hint}")
    output.record(path=cache.path_of(entry))
    print(cache.path_of(entry))
