"""Commands that show what is built in: methods, models and a demonstration."""

import inspect
import re
import textwrap
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bespokefl.cli import completion, output

if TYPE_CHECKING:
    from bespokefl.core.method import Method

MAX_VENUE_LENGTH = 24  # characters; longer names of journals are left out


def methods(
    name: Annotated[
        str | None, typer.Argument(help="A method, to show its hyper-parameters.", autocompletion=completion.methods)
    ] = None,
) -> None:
    """List the methods, or show one of them with its hyper-parameters and its paper."""
    from bespokefl.cli import terminal
    from bespokefl.core.user_input import plugins
    from bespokefl.methods import REGISTRY, find
    from bespokefl.workflows.tune.shared_settings import literal

    screen = terminal.console()
    if name is None:
        rows = [(key, method.summary(), reference(method)) for key, method in REGISTRY.items()]
        others = plugins.entry_points(plugins.METHODS).items()
        rows += [(key, f"from {point.value}", "") for key, point in others if key not in REGISTRY]
        output.record(methods=[dict(zip(("name", "summary", "paper"), row, strict=True)) for row in rows])
        output.essential(*(row[0] for row in rows))
        screen.print(terminal.table(["method", "what it does", "paper"], rows, left=3))
        terminal.say(
            "To show the hyper-parameters of a method: bespoke methods NAME",
            "Your own method: module:Class instead of a name; bespoke new method NAME writes one to start from.",
        )
        return
    method = find(name)
    module = inspect.getmodule(method)  # its docstring has the paper, the objective, and differences from the paper
    text, known = inspect.cleandoc((module and module.__doc__) or method.__doc__ or ""), hyperparameters(method)
    settings = [dict(zip(("name", "default", "meaning"), one, strict=True)) for one in known]
    output.record(name=name, description=text, hyper_parameters=settings, citation=method.citation)
    terminal.say(text, "")
    hyper = [(key, literal(value), text) for key, value, text in known]
    output.essential(*(f"{key}={value}" for key, value, _ in hyper))
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

    output.record(models=[{"name": name, "description": text} for name, text in names().items()])
    output.essential(*names())
    terminal.console().print(terminal.table(["model", "description"], list(names().items()), left=2))
    terminal.say(
        "Your own model: --model module:function, where the function returns a torch.nn.Module. It may have the "
        "parameters shape and classes."
    )


def demo(
    all_: Annotated[bool, typer.Option("--all", help="Run all methods, which takes about three minutes.")] = False,
    rounds: Annotated[int, typer.Option(help="Number of training rounds.", min=1)] = 10,
    seed: Annotated[int, typer.Option(help="First of three seeds.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Directory for the report. Default: runs/demo.")] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
) -> None:
    """Compare methods on handwritten digits, in about a minute, and write a report."""
    from bespokefl.cli import terminal
    from bespokefl.report import write
    from bespokefl.workflows.compare import demo as demonstration
    from bespokefl.workflows.results import run_directory

    errors = terminal.console(stderr=True)
    target = run_directory.stable_path(out or run_directory.fresh(run_directory.RUNS, "demo"))
    run_directory.check(target, overwrite=False, signs=run_directory.COMPARISON_SIGNS, what="a comparison")
    clients = demonstration.demo_clients()
    terminal.say(*demonstration.introduction(clients, everything=all_))
    with terminal.messages(errors, verbose=False), terminal.progress_bar(errors, "comparing") as progress:
        found = demonstration.demo(clients, everything=all_, rounds=rounds, seed=seed, progress=progress)
    if found.interrupted:
        raise KeyboardInterrupt
    page = write(found.save(target) / "compare.json")
    output.record(
        path=target, report=page, seeds=found.seeds, methods=found.table, sentence=demonstration.meaning(found)
    )
    terminal.console().print(terminal.demo_table(found))
    terminal.say("", demonstration.meaning(found), "", f"The report: {page}")
    if open_:
        webbrowser.open(page.resolve().as_uri())
