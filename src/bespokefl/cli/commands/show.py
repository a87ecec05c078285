"""The commands that show what there is: methods, models, the demo, experiments, speed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bespokefl.workflows.results.result import Result


def methods(name: Annotated[str | None, typer.Argument(help="One of them, for its hyper-parameters.")] = None) -> None:
    """List the methods, or what one of them takes."""
    from bespokefl.cli import method_help, terminal
    from bespokefl.methods import REGISTRY, find

    screen = terminal.console()
    if name is None:
        rows = [(key, method.summary(), method_help.reference(method)) for key, method in REGISTRY.items()]
        screen.print(terminal.table(["method", "what it does", "paper"], rows, left=3))
        screen.print("Hyper-parameters of one: bespoke methods NAME", markup=False)
        return
    method = find(name)
    screen.print(method_help.page(method), markup=False, soft_wrap=True)
    hyper = [(key, terminal.written(default), meaning) for key, default, meaning in method_help.hyper(method)]
    screen.print()
    screen.print(terminal.table(["hyper-parameter", "default", "meaning"], hyper, left=3))
    if hyper:
        screen.print(f"Give one with --set: bespoke run {name} --set {hyper[0][0]}={hyper[0][1]}", markup=False)
    if method.citation:
        screen.print("\n" + method.citation, markup=False, soft_wrap=True)


def models() -> None:
    """List the built-in models."""
    from bespokefl.cli import terminal
    from bespokefl.models import names

    screen = terminal.console()
    screen.print(terminal.table(["model", "what it is"], list(names().items()), left=2))
    screen.print(
        "Your own: --model module:function, a function that returns a torch module; it may take shape and classes.",
        markup=False,
    )


def demo(
    all_: Annotated[bool, typer.Option("--all", help="Every method there is: up to three minutes.")] = False,
    rounds: Annotated[int, typer.Option(help="Rounds of training.", min=1)] = 20,
    seed: Annotated[int, typer.Option(help="Decides every random draw.")] = 0,
) -> None:
    """See it at work: some methods on handwritten digits, in about a minute."""
    from bespokefl.cli import demo, terminal

    screen, aside = terminal.console(), terminal.console(stderr=True)
    clients = demo.clients(seed)
    screen.print(
        f"{len(clients)} clients have {int(clients.train.sizes.sum())} handwritten digits to train with, each of them "
        f"only three of the ten.\nEvery method trains the same model ({demo.MODEL}) from the same start, {rounds} "
        "rounds.",
        markup=False,
        soft_wrap=True,
    )
    results: list[Result] = []
    with terminal.messages(aside, verbose=False):
        names, unfit = demo.shown(clients, all_)
        for name, trial in demo.trials(names, clients, rounds, seed):
            with terminal.bar(aside, name) as progress:
                results.append(trial(progress))
            if results[-1].interrupted:
                raise KeyboardInterrupt
    screen.print(terminal.comparison(results))
    screen.print(
        "Accuracy: mean over the clients, each on its own test data; worst decile: over the tenth that fares worst.\n"
        "Personal: the model each client uses; global: the common one, where a method has one.\n"
        + (f"Left out, as nobody knows the clients' true groups: {', '.join(unfit)}.\n" if unfit else ""),
        soft_wrap=True,
    )
    next_steps = [
        *([] if all_ else [("bespoke demo --all", "every method, in up to three minutes")]),
        ("bespoke methods ditto", "what a method does, and what can be set"),
        ("bespoke run ditto --rounds 50 --out runs/ditto", "one run, everything about each client on disk"),
        ("bespoke compare ditto pfedvem ucfl", "methods side by side, client by client, with a report"),
        ("bespoke diagnose", "does federating help, and whom does a client resemble?"),
        ("bespoke run ditto --data my.csv --label ill", "your own data"),
    ]
    screen.print("Where to look next:")
    for line, what in next_steps:
        screen.print(f"  {line:<51} {what}", markup=False, soft_wrap=True)


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Name of the experiment. Without it, all are listed.")] = None,
    out: Annotated[Path | None, typer.Option(help="Directory for the results. Default: runs/reproduce-NAME.")] = None,
    part: Annotated[
        bool, typer.Option("--part", help="Run a smaller part, with fewer seeds, rounds or values to try.")
    ] = False,
) -> None:
    """Reproduce an experiment of a paper and check its claims. Stored results are not computed again."""
    from bespokefl.workflows import studies

    if name is None:
        for known, summary in studies.listing().items():
            print(f"{known:<20} {summary}")
        return
    studies.reproduce(name, out=out, part=part)


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Measure fewer repetitions and sizes.")] = False,
    only: Annotated[str | None, typer.Option(help="Name of a single case to measure.")] = None,
    scale: Annotated[
        bool,
        typer.Option("--scale", help="Measure time and memory with more and more clients, a hundred of them active."),
    ] = False,
) -> None:
    """Measure the speed of the simulation on this machine, relative to a plain PyTorch loop."""
    from bespokefl.workflows.benchmarks import scale as growth
    from bespokefl.workflows.benchmarks import speed as bench

    if scale:
        growth.main(quick=quick)
    else:
        bench.main(quick=quick, only=only)
