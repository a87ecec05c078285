"""The command `bespoke`. Everything it does can be called from Python, too.

Heavy imports (torch, rich tables) happen inside the commands, so that help and mistakes are answered at once.
"""

import ast
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bespokefl.core.errors import BespokeError, InputError
from bespokefl.experiments.config import Config, read

if TYPE_CHECKING:
    from bespokefl.experiments.result import Result

INTERRUPTED = 130  # as shells have it: 128 + SIGINT

app = typer.Typer(
    name="bespoke",
    help="Personalized federated learning: a model of its own for every client.",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def main(argv: Sequence[str] | None = None) -> None:
    """The entry point: a mistake becomes one sentence and exit code 2, never a traceback."""
    command = typer.main.get_command(app)
    try:
        with command.make_context("bespoke", list(sys.argv[1:] if argv is None else argv)) as context:
            command.invoke(context)
        code = 0
    except typer.Exit as ended:
        code = ended.exit_code
    except typer.TyperException as error:
        code = _fail(error.format_message(), error.exit_code)
    except BespokeError as error:
        code = _fail(str(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        code = _fail("interrupted; nothing was written.", INTERRUPTED)
    sys.exit(code)


def _fail(sentence: str, code: int) -> int:
    line = " ".join(sentence.split())
    print("error:", line if line.endswith((".", "?", "!")) else line + ".", file=sys.stderr)
    return code


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"bespoke {version('bespokefl')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


# -- run


def _option(key: str, help: str, panel: str = "What is trained") -> Any:
    default = getattr(Config, key)
    told = help if default is None else f"{help} Default: {default}."
    return typer.Option(f"--{key.replace('_', '-')}", help=told, show_default=False, rich_help_panel=panel)


LOCALLY, COMPUTED, WRITTEN = "How it is trained", "How it is computed", "What is shown and written"


@app.command()
def run(
    context: typer.Context,
    method: Annotated[
        str | None, typer.Argument(help='A method: see "bespoke methods". May stand in the config instead.')
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with the same keys; flags win.")] = None,
    data: Annotated[str | None, _option("data", "A name, or an .npz file with x, y and perhaps client.")] = None,
    split: Annotated[
        str | None, _option("split", "iid, dirichlet(alpha=0.4), classes(k=3), by_column, or a saved split.json.")
    ] = None,
    clients: Annotated[int | None, _option("clients", "Number of clients to split the data among.")] = None,
    model: Annotated[
        str | None, _option("model", '"mlp(hidden=(50,))", one of "bespoke models", or your own as module:function.')
    ] = None,
    head: Annotated[
        str | None, _option("head", 'The model\'s head, by name; else "head", else the last linear layer.')
    ] = None,
    loss: Annotated[str | None, _option("loss", "cross_entropy or mse; chosen by the labels if not given.")] = None,
    start: Annotated[
        str | None, _option("start", "Begin with these weights: a .safetensors file, or a run with a global model.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help='A hyper-parameter of the method, such as lr=0.1; see "bespoke methods METHOD". Can be repeated.',
            rich_help_panel=LOCALLY,
        ),
    ] = None,
    rounds: Annotated[int | None, _option("rounds", "Rounds of training.", LOCALLY)] = None,
    participation: Annotated[
        float | None, _option("participation", "Share of the clients drawn in a round, in (0, 1].", LOCALLY)
    ] = None,
    batch_size: Annotated[int | None, _option("batch_size", "Examples per step.", LOCALLY)] = None,
    local_epochs: Annotated[
        int | None, _option("local_epochs", "Passes over its data that a client makes in a round.", LOCALLY)
    ] = None,
    local_steps: Annotated[
        int | None, _option("local_steps", "Steps that a client makes in a round, instead of epochs.", LOCALLY)
    ] = None,
    seed: Annotated[int | None, _option("seed", "Decides every random draw: split, start, batches.", LOCALLY)] = None,
    workers: Annotated[
        int | None, _option("workers", "Processes; 0: all cores. Does not change the result.", COMPUTED)
    ] = None,
    chunk: Annotated[
        int | None, _option("chunk", "Clients computed at once; chosen by a rule if not given.", COMPUTED)
    ] = None,
    device: Annotated[str | None, _option("device", "cpu, cuda, cuda:1, …", COMPUTED)] = None,
    precision: Annotated[str | None, _option("precision", "float32 or float64.", COMPUTED)] = None,
    engine: Annotated[
        str | None, _option("engine", "simulation, or reference: the plain PyTorch loop.", COMPUTED)
    ] = None,
    eval_every: Annotated[
        int | None, _option("eval_every", "Rounds between evaluations; 0: only at the end.", WRITTEN)
    ] = None,
    out: Annotated[
        str | None, _option("out", "The folder to write; a new one under runs/ if not given.", WRITTEN)
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a run that is there already.", rich_help_panel=WRITTEN)
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only where the run is.", rich_help_panel=WRITTEN)
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say what is chosen and why.", rich_help_panel=WRITTEN)
    ] = False,
) -> None:
    """Train one method and write what comes out.

    bespoke run ditto --split "dirichlet(alpha=0.4)" --rounds 50 --set pull=0.5 --out runs/ditto
    """
    apart = {"config", "set_", "quiet", "verbose"}
    given = {key: value for key, value in context.params.items() if key not in apart}
    flags = {key: value for key, value in given.items() if value is not None and value is not False}
    settings = _merged(read(config) if config is not None else {}, flags, _hyper(set_ or []))

    from bespokefl.experiments import terminal
    from bespokefl.experiments.run import run_config

    screen = terminal.console(stderr=True)
    with terminal.messages(screen, verbose), terminal.bar(screen, settings.method, quiet) as progress:
        result = run_config(settings, progress)
    _show(result, quiet)
    if result.interrupted:
        raise typer.Exit(INTERRUPTED)


def _merged(file: dict[str, Any], flags: dict[str, Any], hyper: dict[str, Any]) -> Config:
    """The file's keys, replaced by the flags."""
    before, table = file.get("method"), file.get("set", {})
    method = flags.get("method", before)
    if table and before is not None and method != before:
        print(f"warning: [set] in the config is for {before} and is not used for {method}.", file=sys.stderr)
        table = {}
    both = {**table, **hyper} if isinstance(table, dict) else table
    return Config.of({**file, **flags, "set": both})


def _hyper(pairs: list[str]) -> dict[str, Any]:
    """`lr=0.1` as a name and a value: a number, a list, true, false, or else text."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise InputError(f"--set must be followed by key=value, such as lr=0.1, got {pair!r}.")
        found[key.strip().replace("-", "_")] = _literal(text.strip())
    return found


def _literal(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for read_as in (ast.literal_eval, float):
        with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return read_as(text)
    return text


def _show(result: "Result", quiet: bool) -> None:
    if quiet:
        print(result.path)
        return
    from bespokefl.experiments import terminal

    screen = terminal.console()
    about, sent = result.about, result.communication
    screen.print(
        f"[bold]{result.method}[/] on {about['data']}, {about['split']}, {about['clients']} clients, "
        f"{about['rounds_done']} rounds; {terminal.size(sent['up_bytes'])} up, "
        f"{terminal.size(sent['down_bytes'])} down, {about['timing']['seconds_per_round']:.3g} s per round"
    )
    screen.print(terminal.figures(result))
    for note in result.notes:
        screen.print(note, markup=False)
    path = result.path
    screen.print(f"Written to {path}: clients.csv has a line for each client, result.json these figures.", markup=False)
    again = f"bespoke run --config {path}/config.toml"
    if result.interrupted:
        screen.print(f"To run it to its end: {again}", markup=False, soft_wrap=True)
    else:
        screen.print(f"Once more, with another seed: {again} --seed {about['seed'] + 1}", markup=False, soft_wrap=True)


# -- the other commands


@app.command()
def methods(name: Annotated[str | None, typer.Argument(help="One of them, for its hyper-parameters.")] = None) -> None:
    """List the methods, or what one of them takes."""
    from bespokefl.experiments import manual, terminal
    from bespokefl.methods import REGISTRY, find

    screen = terminal.console()
    if name is None:
        rows = [(key, method.summary(), manual.reference(method)) for key, method in REGISTRY.items()]
        screen.print(terminal.table(["method", "what it does", "paper"], rows, left=3))
        screen.print("Hyper-parameters of one: bespoke methods NAME", markup=False)
        return
    method = find(name)
    screen.print(manual.page(method), markup=False, soft_wrap=True)
    hyper = [(key, terminal.written(default), meaning) for key, default, meaning in manual.hyper(method)]
    screen.print()
    screen.print(terminal.table(["hyper-parameter", "default", "meaning"], hyper, left=3))
    if hyper:
        screen.print(f"Give one with --set: bespoke run {name} --set {hyper[0][0]}={hyper[0][1]}", markup=False)
    if method.citation:
        screen.print("\n" + method.citation, markup=False, soft_wrap=True)


@app.command()
def models() -> None:
    """List the built-in models."""
    from bespokefl.experiments import terminal
    from bespokefl.models import names

    screen = terminal.console()
    screen.print(terminal.table(["model", "what it is"], list(names().items()), left=2))
    screen.print(
        "Your own: --model module:function, a function that returns a torch module; it may take shape and classes.",
        markup=False,
    )


@app.command()
def demo(
    rounds: Annotated[int, typer.Option(help="Rounds of training.", min=1)] = 50,
    seed: Annotated[int, typer.Option(help="Decides every random draw.")] = 0,
) -> None:
    """See it at work: all methods on handwritten digits, in about a minute."""
    from bespokefl.experiments import demo, terminal

    screen, aside = terminal.console(), terminal.console(stderr=True)
    clients = demo.clients(seed)
    screen.print(
        f"{len(clients)} clients have {len(clients.x)} handwritten digits between them, each in its own mix "
        f"({clients.split_name}).\nEvery method trains the same model ({demo.MODEL}) from the same start, "
        f"{rounds} rounds, half of the clients in each.",
        markup=False,
        soft_wrap=True,
    )
    results: list[Result] = []
    with terminal.messages(aside, verbose=False):
        for name, trial in demo.trials(clients, rounds, seed):
            with terminal.bar(aside, name) as progress:
                results.append(trial(progress))
            if results[-1].interrupted:
                raise KeyboardInterrupt
    screen.print(terminal.comparison(results))
    screen.print(
        "Accuracy: mean over the clients, each on its own test data; worst decile: over the tenth that fares worst.\n"
        "Personal: the model each client uses; global: the common one, where a method has one.\n",
        soft_wrap=True,
    )
    next_steps = [
        ("bespoke methods ditto", "what a method does, and what can be set"),
        ("bespoke run ditto --rounds 50 --out runs/ditto", "one run, everything about each client on disk"),
        ("bespoke run ditto --data my.npz --split by_column", "your own data: arrays x, y and client"),
    ]
    screen.print("Where to look next:")
    for line, what in next_steps:
        screen.print(f"  {line:<51} {what}", markup=False, soft_wrap=True)


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="An experiment; without a name they are listed.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where its figures go. Default: runs/reproduce-NAME.")] = None,
    part: Annotated[bool, typer.Option("--part", help="A stated, smaller part of it.")] = False,
) -> None:
    """Run a paper's experiment and check its claims. What is done already is not done again."""
    from bespokefl.experiments import reproduce

    if name is None:
        for known, what in reproduce.listing().items():
            print(f"{known:<20} {what}")
        return
    reproduce.reproduce(name, out=out, part=part)


@app.command()
def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repetitions.")] = False,
    only: Annotated[str | None, typer.Option(help="One of the cases, by name.")] = None,
) -> None:
    """Measure the speed on this machine, as ratios to the plain PyTorch loop."""
    from bespokefl.experiments import bench

    bench.main(quick=quick, only=only)


if __name__ == "__main__":
    main()
