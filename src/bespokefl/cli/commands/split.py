"""`bespoke split`: create, draw and export splits of data among clients."""

import inspect
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from bespokefl.cli import completion, output
from bespokefl.cli.options import takes_run
from bespokefl.core.errors import InputError
from bespokefl.core.system.files import write_text
from bespokefl.workflows.run.settings import LOADING, RunSettings

if TYPE_CHECKING:
    from rich.text import Text

    from bespokefl.data import Clients

MAX_DRAWN = 40  # clients that are drawn without --all
LEVELS = "▁▂▃▄▅▆▇█"
SHADES = ("#90cdf4", "#63b3ed", "#4299e1", "#3182ce", "#2b6cb0", "#2c5282")


class _Group(TyperGroup):
    """`bespoke split SPLIT …` is short for `bespoke split make SPLIT …`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = not args or args[0] in self.commands or args[0].startswith("-")
        return super().resolve_command(ctx, args if known else ["make", *args])


app = typer.Typer(
    cls=_Group,
    name="split",
    help='Split data among clients: bespoke split "dirichlet(alpha=0.4)" --data digits --out split.json',
)

SplitText = Annotated[
    str, typer.Argument(metavar="SPLIT", help='"dirichlet(alpha=0.4)", ds-1, …; see "bespoke split list".')
]
SplitOrFile = Annotated[
    str, typer.Argument(metavar="SPLIT", help="A split, or a saved split.json.", autocompletion=completion.splits)
]
CLIENT_SETTINGS = (*(key for key in LOADING if key != "split"), "missing", "seed")  # what determines the clients


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
@takes_run(only=CLIENT_SETTINGS)
def make(
    settings: RunSettings,
    split: SplitText,
    out: Annotated[Path | None, typer.Option(help="The split.json to write.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
) -> None:
    """Split data and write the result as JSON; without --out, only show it.

    bespoke split make "dirichlet(alpha=8) + rotation(groups=4)" --data digits --clients 20 --out split.json
    """
    if out is not None and out.exists() and not overwrite:
        raise InputError(f"{str(out)!r} exists already; use --overwrite to replace it, or another name")
    clients = _load_clients(settings, split)
    if out is None:
        _draw(clients, all_=False)
        return
    clients.save_split(out)
    output.record(path=out)
    _print_statistics(clients)
    print(f"Written to {out}; use it with --split {out}, show it with: bespoke split show {out}")


@app.command()
@takes_run(only=CLIENT_SETTINGS)
def show(
    settings: RunSettings,
    split: SplitOrFile,
    all_: Annotated[bool, typer.Option("--all", help=f"Draw all clients, not only {MAX_DRAWN}.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the drawing to this HTML file instead.")] = None,
) -> None:
    """Draw the examples by client and class, with statistics of how different the clients are.

    bespoke split show ds-3 --data digits
    """
    clients = _load_clients(settings, split)
    if out is None:
        _draw(clients, all_)
        return
    if out.suffix != ".html":
        raise InputError(f"the drawing is an HTML page, so --out must end in .html, got {str(out)!r}")
    from bespokefl.cli.split_drawing import page

    write_text(out, page(clients))
    output.record(path=out)
    _print_statistics(clients)
    print(f"Written to {out}.")


@app.command()
@takes_run(only=CLIENT_SETTINGS)
def export(
    settings: RunSettings,
    split: SplitOrFile,
    to: Annotated[str, typer.Option(help="pflib or flower.")],
    out: Annotated[Path, typer.Option(help="The directory to write; it must not exist.")],
) -> None:
    """Write the clients' examples in the layout of another framework.

    bespoke split export split.json --to pflib --out dataset/Digits
    """
    from bespokefl.data.export import export as write

    clients = _load_clients(settings, split)
    write(clients, to, out)
    output.record(path=out)
    _print_statistics(clients)
    print(f"Written to {out}.")


@app.command("list")
def list_() -> None:
    """List the kinds of splits, and the splits of papers."""
    from bespokefl.cli import terminal
    from bespokefl.core.user_input import plugins
    from bespokefl.data.splits import PRESETS, SPLITS, Change, find

    screen = terminal.console()
    kinds = [
        (
            _signature(kind),
            "change" if issubclass(kind, Change) else "split",
            inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0],
        )
        for kind in (*SPLITS.values(), *map(find, plugins.entry_points(plugins.SPLITS).keys() - SPLITS.keys()))
    ]
    output.record(splits=[dict(zip(("split", "kind", "description"), one, strict=True)) for one in kinds])
    output.essential(*(kind[0] for kind in kinds), *PRESETS)
    screen.print(terminal.table(["split", "", "description"], kinds, left=3))
    screen.print('Changes are added to a split: "dirichlet(alpha=8) + rotation(groups=4)"\n')
    named = [(one.name, str(one.split), str(one.clients), one.origin) for one in PRESETS.values()]
    output.record(presets=[dict(zip(("name", "split", "clients", "paper"), one, strict=True)) for one in named])
    screen.print(terminal.table(["name", "definition", "clients", "paper"], named, left=4))


def _signature(kind: Any) -> str:
    """The split with its parameters, such as dirichlet(alpha, min_examples=3)."""
    given = ", ".join(one.name if one.default is MISSING else f"{one.name}={one.default!r}" for one in fields(kind))
    return f"{kind.kind}({given})" if given else str(kind.kind)


def _load_clients(settings: RunSettings, split: str) -> "Clients":
    """The clients of a new or a saved split; a saved one names its data."""
    from bespokefl.data.split_file import describe
    from bespokefl.workflows.run.client_loading import load_clients

    if not split.endswith(".json") or settings.data != RunSettings.data:
        return load_clients(replace(settings, split=split))
    data_name, _ = describe(split)
    try:
        return load_clients(replace(settings, split=split, data=data_name))
    except InputError:
        raise InputError(
            f"{split!r} was made for data called {data_name!r}, which cannot be loaded by that name; add --data"
        ) from None


def _print_statistics(clients: "Clients") -> None:
    from bespokefl.cli import terminal
    from bespokefl.cli.split_drawing import heading, statistics
    from bespokefl.data.split_statistics import class_counts

    found = [dict(zip(("statistic", "value", "meaning"), one, strict=True)) for one in statistics(clients)]
    output.record(
        data=clients.data_name, split=clients.split_name, seed=clients.seed, hash=clients.hash, statistics=found
    )
    sizes = {part: getattr(clients, part).sizes.tolist() for part in ("train", "validation", "test")}
    output.record(clients=clients.names, sizes=sizes, classes=clients.label_names, class_counts=class_counts(clients))
    screen = terminal.console()
    screen.print(heading(clients), soft_wrap=True)
    screen.print(terminal.table(["statistic", "", "meaning"], statistics(clients), left=3))


def _draw(clients: "Clients", all_: bool) -> None:
    """Print the statistics and a bar for each client and class."""
    import numpy as np
    from rich.table import Table
    from rich.text import Text

    from bespokefl.cli import terminal
    from bespokefl.data import split_statistics

    _print_statistics(clients)
    screen = terminal.console()
    counts = split_statistics.class_counts(clients)
    num, classes = counts.shape
    shown = np.arange(num) if all_ or num <= MAX_DRAWN else np.unique(np.linspace(0, num - 1, MAX_DRAWN).astype(int))
    names = clients.label_names or ("all",)
    show_names = classes <= 24 and max(map(len, names)) <= 3  # the names of the classes fit
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("client", no_wrap=True, max_width=20)
    if clients.groups is not None:
        table.add_column("group", justify="right")
    table.add_column("train", justify="right")
    for name in names if show_names else ["classes"]:
        table.add_column(name, no_wrap=True, justify="left")
    largest = counts.max()
    for client in shown.tolist():
        cells = [_cell(count, largest) for count in counts[client].tolist()]
        group = [] if clients.groups is None else [str(clients.groups[client])]
        size = str(int(counts[client].sum()))
        table.add_row(Text(clients.names[client]), *group, size, *(cells if show_names else [Text.assemble(*cells)]))
    screen.print(table)
    screen.print(f"{LEVELS[-1]} means {largest} examples, {LEVELS[0]} few, and a blank none.")
    if len(shown) < num:
        screen.print(f"{len(shown)} of {num} clients, evenly spaced; use --all to draw all of them.")


def _cell(count: int, largest: int) -> "Text":
    from rich.text import Text

    if count == 0:
        return Text(" ")
    share = (count / largest) ** 0.5  # keeps small numbers visible
    level, shade = (min(int(share * len(scale)), len(scale) - 1) for scale in (LEVELS, SHADES))
    return Text(LEVELS[level], style=SHADES[shade])
