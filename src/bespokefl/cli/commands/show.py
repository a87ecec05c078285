"""Commands that show what is built in: methods, models and a demonstration."""

import inspect
import re
import textwrap
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from bespokefl.core.method import Method
    from bespokefl.data.clients import Clients

DEMO_METHODS = ("local", "fedavg", "ditto", "selffl", "persfl", "ucfl", "pfedvem")  # without --all
MAX_VENUE_LENGTH = 24  # characters; longer names of journals are left out
NEXT_STEPS = {
    "bespoke methods ditto": "what a method does, and its hyper-parameters",
    "bespoke run ditto --rounds 50 --out runs/ditto": "one run, with the results of each client on disk",
    "bespoke compare ditto pfedvem ucfl": "compare methods client by client, with an HTML report",
    "bespoke diagnose": "find out whether federating helps, and which clients are similar",
    "bespoke run ditto --data my.csv --label ill": "train on your own data",
}


def methods(name: Annotated[str | None, typer.Argument(help="A method, to show its hyper-parameters.")] = None) -> None:
    """List the methods, or show one of them with its hyper-parameters and its paper."""
    from bespokefl.cli import terminal
    from bespokefl.methods import REGISTRY, find
    from bespokefl.workflows.tune.shared_settings import literal

    screen = terminal.console()
    if name is None:
        rows = [(key, method.summary(), reference(method)) for key, method in REGISTRY.items()]
        screen.print(terminal.table(["method", "what it does", "paper"], rows, left=3))
        terminal.say("To show the hyper-parameters of a method: bespoke methods NAME")
        return
    method = find(name)
    module = inspect.getmodule(method)  # its docstring has the paper, the objective, and differences from the paper
    terminal.say(inspect.cleandoc((module and module.__doc__) or method.__doc__ or ""), "")
    hyper = [(key, literal(value), text) for key, value, text in hyperparameters(method)]
    screen.print(terminal.table(["hyper-parameter", "default", "meaning"], hyper, left=3))
    if hyper:
        terminal.say(f"To change one: bespoke run {name} --set {hyper[0][0]}={hyper[0][1]}")
    if method.citation:
        terminal.say("\n" + method.citation)


def hyperparameters(method: "type[Method]") -> list[tuple[str, Any, str]]:
    """Return the name, the default and the meaning (the comment next to it) of each hyper-parameter."""
    comments: dict[str, str] = {}
    for base in reversed(method.__mro__[:-1]):  # without object
        with suppress(OSError, TypeError):  # a class defined in an interpreter has no file
            source = textwrap.dedent(inspect.getsource(base))
            comments |= dict(re.findall(r"^    (\w+): [^#\n]*# *(.*)$", source, re.MULTILINE))
    return [(name, value, comments.get(name, "")) for name, value in method().hyper().items()]


def reference(method: "type[Method]") -> str:
    """Return a short reference to the paper, such as "Li et al., ICML 2021"."""
    fields = dict(re.findall(r"(\w+)\s*=\s*\{(.*?)\},?\s*$", method.citation, re.DOTALL | re.MULTILINE))
    authors = [one.partition(",")[0].strip() for one in re.split(r"\s+and\s+", fields.get("author", "")) if one.strip()]
    if not authors:
        return ""
    who = authors[0] + (" et al." if len(authors) > 2 else f" and {authors[1]}" if len(authors) == 2 else "")
    venue = next((fields[kind] for kind in ("booktitle", "journal", "school") if kind in fields), "")
    venue = f"{venue} " if len(venue) <= MAX_VENUE_LENGTH else ""
    return f"{who}, {venue}{fields.get('year', '')}".strip()


def models() -> None:
    """List the built-in models."""
    from bespokefl.cli import terminal
    from bespokefl.models import names

    terminal.console().print(terminal.table(["model", "description"], list(names().items()), left=2))
    terminal.say(
        "Your own model: --model module:function, where the function returns a torch.nn.Module. It may have the "
        "parameters shape and classes."
    )


def demo(
    all_: Annotated[bool, typer.Option("--all", help="Run all methods, which takes up to three minutes.")] = False,
    rounds: Annotated[int, typer.Option(help="Number of training rounds.", min=1)] = 20,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
) -> None:
    """Train several methods on handwritten digits and compare them, in about a minute."""
    from bespokefl.cli import terminal
    from bespokefl.core.errors import count
    from bespokefl.data import load
    from bespokefl.workflows.run.api import run

    errors = terminal.console(stderr=True)
    clients = load("digits").split("classes(k=3)", clients=20, seed=seed)
    settings: dict[str, Any] = {"model": "mlp", "participation": 1.0, "batch_size": 10, "local_epochs": 2}
    terminal.say(
        f"{int(clients.train.sizes.sum())} images of handwritten digits for training are split among {len(clients)} "
        "clients; each client has only three of the ten digits.\nEach method trains the same model "
        f"({settings['model']}) from the same initial weights, in {count(rounds, 'round')}."
    )
    results = []
    with terminal.messages(errors, verbose=False):
        names, unfit = choose_methods(clients, all_)
        for name in names:
            with terminal.progress_bar(errors, name) as progress:
                results.append(run(name, clients, rounds=rounds, seed=seed, progress=progress, **settings))
            if results[-1].interrupted:
                raise KeyboardInterrupt
    terminal.console().print(terminal.demo_table(results))
    more = {} if all_ else {"bespoke demo --all": "all methods, in up to three minutes"}
    terminal.say(
        "Accuracy is the mean over clients, each on its own test data; worst decile is the mean of the worst 10 % of "
        "the clients.\nPersonal: the model that each client uses. Global: the model that all clients share, if the "
        "method has one.\n"
        + (f"Left out, because the true groups of the clients are unknown: {', '.join(unfit)}.\n" if unfit else ""),
        "Next steps:",
        *(f"  {command:<51} {purpose}" for command, purpose in (more | NEXT_STEPS).items()),
    )


def choose_methods(clients: "Clients", everything: bool) -> tuple[list[str], list[str]]:
    """Return the methods of the demonstration, and those left out because they need the true groups of the clients."""
    from bespokefl.methods import REGISTRY, build

    names = [name for name in REGISTRY if everything or name in DEMO_METHODS]
    unfit = [name for name in names if build(name).needs_groups and clients.groups is None]
    return [name for name in names if name not in unfit], unfit
