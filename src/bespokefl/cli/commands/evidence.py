"""`bespoke reproduce` and `bespoke bench`: the papers' experiments, and the speed of the simulation."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bespokefl.cli import output
from bespokefl.core.errors import InputError

if TYPE_CHECKING:
    from bespokefl_evidence.studies.cells import CellStore
    from bespokefl_evidence.studies.runner import Status, Study

CHECKOUT_CELLS = Path("evidence/cells")  # in a checkout of the repository
DEFAULT_CELLS = Path("runs/cells")
UNFINISHED = Path("runs/unfinished-cells")  # checkpoints of cells that were interrupted
DOCS = Path("docs")
PAGE = "results.md"
EVERYTHING = "all"


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help=f'Names of experiments, or "{EVERYTHING}". Without one, all are listed.'
        ),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Stop after this time, such as 90m, 2h or 45s; resume later.")
    ] = None,
    status: Annotated[
        bool, typer.Option("--status", help="Show how many cells there are, the time they took and the time left.")
    ] = False,
    table: Annotated[
        bool,
        typer.Option("--table", help="Compute nothing: print the tables of NAME or, without NAME, write all pages."),
    ] = False,
    priority: Annotated[
        int | None, typer.Option(min=1, help="Compute only cells that are at least this important; 1 is the highest.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Number of cells computed at once. Default: one for each core.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="A Ray cluster that trains the cells: auto, HOST:PORT, or none, the default.")
    ] = None,
    files: Annotated[Path | None, typer.Option(help="Directory of data files that no registry has.")] = None,
    cells: Annotated[
        Path | None,
        typer.Option(help=f"Directory of cells. Default: {CHECKOUT_CELLS} if it exists, or else {DEFAULT_CELLS}."),
    ] = None,
    part: Annotated[bool, typer.Option("--part", hidden=True)] = False,
) -> None:
    """Reproduce experiments of papers: compute the cells that are missing, and compare with the published results.

    A cell is one method in one scenario with one seed. Its result is a small file; an interrupted cell is resumed.

    bespoke reproduce ucfl-cifar10 --budget 90m
    """
    from bespokefl_evidence import studies
    from bespokefl_evidence.studies.cells import CellStore

    chosen = list(dict.fromkeys(names or []))
    if not (chosen or status or table):
        output.record(experiments=[{"name": known, "summary": summary} for known, summary in studies.listing().items()])
        output.essential(*studies.listing())
        for known, summary in studies.listing().items():
            print(f"{known:<20} {summary}")
        return
    found = studies.find([] if EVERYTHING in chosen else chosen)
    if part:
        _warn("--part is now --priority 1, the most important cells; our own studies run a smaller version.")
        priority = priority or 1
        for one in found:
            if isinstance(one, studies.OWN):
                studies.reproduce(one.name, out=cells, part=True)
        found = [one for one in found if not isinstance(one, studies.OWN)]
    store = CellStore(cells or (CHECKOUT_CELLS if CHECKOUT_CELLS.is_dir() else DEFAULT_CELLS))
    if status:
        _print_status(found, store)
    elif table and not chosen:
        _write_pages(found, store)
    elif found:
        if not table:
            _compute(found, store, budget, files, priority, processes, cluster)
        _record_status(found, store)
        _print_tables(found, store)


def with_cells(arguments: list[str]) -> list[str]:
    """Replace `bespoke reproduce --out`, the former name of --cells, with a warning."""
    renamed = [f"--cells{one[5:]}" if one == "--out" or one.startswith("--out=") else one for one in arguments]
    if arguments[:1] != ["reproduce"] or renamed == arguments:
        return arguments
    _warn("--out is now --cells.")
    return renamed


def _warn(sentence: str) -> None:
    from bespokefl.cli import terminal

    terminal.console(stderr=True).print(f"warning: {sentence}", markup=False, soft_wrap=True)


def _compute(
    experiments: "Sequence[Study]",
    store: "CellStore",
    budget: str | None,
    files: Path | None,
    priority: int | None,
    processes: int | None,
    cluster: str | None,
) -> None:
    from bespokefl_evidence.studies import runner

    from bespokefl.cli import terminal
    from bespokefl.workflows.run.settings import RunSettings, checked

    if files is not None and not files.is_dir():
        raise InputError(f"there is no directory {str(files)!r} (--files).")
    runner.compute_missing(
        experiments,
        store,
        scratch=UNFINISHED,
        budget=None if budget is None else runner.seconds(budget),
        files=files,
        priority=priority,
        processes=processes,
        cluster=checked(RunSettings.__dataclass_fields__["cluster"], cluster or "none"),
        console=terminal.console(stderr=True),
    )


def _print_status(experiments: "Sequence[Study]", store: "CellStore") -> None:
    from bespokefl_evidence.pages.results import duration

    from bespokefl.cli import terminal

    found = _record_status(experiments, store)
    known = [one.left for one in found if one.left is not None]
    rows = [
        [one.experiment, str(one.priority), str(one.done), str(one.total), duration(one.spent), duration(one.left)]
        for one in found
    ]
    total = [sum(one.done for one in found), sum(one.total for one in found)]
    left = duration(sum(known) if known else None)
    left = left if len(known) in (0, len(found)) else f"over {left}"
    rows.append(["all", "", *map(str, total), duration(sum(one.spent for one in found)), left])
    columns = ["experiment", "priority", "cells", "of", "computing time", "left, estimated"]
    terminal.console().print(terminal.table(columns, rows))


def _record_status(experiments: "Sequence[Study]", store: "CellStore") -> "list[Status]":
    """Give --json and --quiet how far the experiments are."""
    from bespokefl_evidence.studies import runner

    found = runner.status(experiments, store)
    output.record(cells=store.directory, experiments=[asdict(one) for one in found])
    output.essential(*(f"{one.experiment}, priority {one.priority}: {one.done} of {one.total}" for one in found))
    return found


def _print_tables(found: "Sequence[Study]", store: "CellStore") -> None:
    from bespokefl_evidence import studies
    from bespokefl_evidence.pages import compare_check
    from bespokefl_evidence.pages import results as pages
    from bespokefl_evidence.studies.compare_check import CompareCheck
    from bespokefl_evidence.studies.experiment import Experiment

    from bespokefl.cli import terminal

    for one in found:
        if isinstance(one, Experiment):
            print(pages.section(one, store, figures=[]))
        elif isinstance(one, studies.OWN) and all(store.get(spec) is not None for spec in one.specs(store)):
            one.show(store, terminal.console())
        elif isinstance(one, CompareCheck):
            print(compare_check.page(one, store))
        else:
            print(f"{one.name}: not all cells are computed; see bespoke reproduce {one.name} --status.")


def _write_pages(found: "Sequence[Study]", store: "CellStore") -> None:
    """Write the pages into docs in a checkout of the repository, or else next to the cells."""
    from bespokefl_evidence.pages import results as pages

    paths = pages.write(found, store, DOCS if (DOCS / PAGE).exists() else store.directory.parent)
    output.record(files=paths)
    output.essential(*map(str, paths))
    for path in paths:
        print(f"Written to {path}.")


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Measure fewer repetitions and sizes.")] = False,
    only: Annotated[
        str | None, typer.Option(help="Name of a single case to measure; with --methods, of a method.")
    ] = None,
    scale: Annotated[
        bool,
        typer.Option("--scale", help="Measure time and memory with more and more clients, a hundred of them active."),
    ] = False,
    methods: Annotated[
        bool, typer.Option("--methods", help="Measure what rounds of every method cost, relative to their gradients.")
    ] = False,
    growth: Annotated[
        bool, typer.Option("--growth", help="Measure and draw the cost against clients, parameters and rounds.")
    ] = False,
    draw: Annotated[bool, typer.Option("--draw", help="With --growth: draw the stored measurements again.")] = False,
) -> None:
    """Measure the speed of the simulation on this machine, relative to a plain PyTorch loop."""
    from bespokefl_evidence.benchmarks import growth as curves
    from bespokefl_evidence.benchmarks import methods as pricing
    from bespokefl_evidence.benchmarks import scale as sizing
    from bespokefl_evidence.benchmarks import scored
    from bespokefl_evidence.benchmarks import speed as bench

    if scale + methods + growth > 1:
        raise typer.BadParameter("--scale, --methods and --growth measure different things: give one of them.")
    if growth:
        points = curves.main(quick=quick, stored=draw)
        output.record(points=[asdict(one) for one in points])
        output.essential(*(f"{one.size} {one.axis}: {one.seconds:.3g} s" for one in points))
    elif methods:
        prices = pricing.main(quick=quick, only=only)
        output.record(prices=[asdict(one) for one in prices])
        output.essential(*(f"{one.case} {one.method} {one.phase}: {one.price:.2f}" for one in prices))
    elif scale:
        sizes = sizing.main(quick=quick)
        output.record(sizes=[asdict(one) for one in sizes])
        output.essential(*(f"{one.method}, {one.clients} clients: {one.seconds:.3f} s" for one in sizes))
    elif only == scored.CASE.name:
        output.record(scored=asdict(scored.main(quick=quick)))
    else:
        cases = bench.main(quick=quick, only=only)
        output.record(cases=[asdict(one) for one in cases])
        if only is None:
            output.record(scored=asdict(scored.main(quick=quick)))
        ratios = {one.case.name: ", ".join(f"{ratio:.3g}x" for ratio in one.ratios.values()) for one in cases}
        output.essential(*(f"{name}: {ratio}" for name, ratio in ratios.items()))
