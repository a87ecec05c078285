"""The command `bespoke`. Everything it does can be called from Python, too.

Heavy imports (torch, rich tables) happen inside the commands, so that help and mistakes are answered at once.
"""

import ast
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bespokefl.core.errors import BespokeError, InputError
from bespokefl.experiments.config import Config, read

if TYPE_CHECKING:
    from bespokefl.experiments.newcomers import Newcomers
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
    except BrokenPipeError:  # whoever read the output has seen enough
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 (for the interpreter's own last flush)
        code = 0
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


# -- options that several commands have


def _option(key: str, help: str, panel: str = "What is trained") -> Any:
    default = getattr(Config, key)
    told = help if default is None else f"{help} Default: {default}."
    return typer.Option(f"--{key.replace('_', '-')}", help=told, show_default=False, rich_help_panel=panel)


LOCALLY, COMPUTED, WRITTEN = "How it is trained", "How it is computed", "What is shown and written"

Text = str | None
Whole = int | None
Real = float | None

MethodName = Annotated[Text, typer.Argument(help='A method: see "bespoke methods". May stand in the config instead.')]
ConfigFile = Annotated[Path | None, typer.Option(help="A TOML file with the same keys; flags win.")]
Data = Annotated[Text, _option("data", "A name, or an .npz file with x, y and perhaps client.")]
Split = Annotated[Text, _option("split", "iid, dirichlet(alpha=0.4), classes(k=3), by_column, or a saved split.json.")]
Clients = Annotated[Whole, _option("clients", "Number of clients to split the data among.")]
Model = Annotated[
    Text, _option("model", '"mlp(hidden=(50,))", one of "bespoke models", or your own as module:function.')
]
Head = Annotated[Text, _option("head", 'The model\'s head, by name; else "head", else the last linear layer.')]
Loss = Annotated[Text, _option("loss", "cross_entropy or mse; chosen by the labels if not given.")]
Start = Annotated[
    Text, _option("start", "Begin with these weights: a .safetensors file, or a run with a global model.")
]
HeldBack = Annotated[Real, _option("newcomers", "Share of clients held back from training, personalized at the end.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help='A hyper-parameter of the method, such as lr=0.1; see "bespoke methods METHOD". Can be repeated.',
        rich_help_panel=LOCALLY,
    ),
]
Rounds = Annotated[Whole, _option("rounds", "Rounds of training.", LOCALLY)]
Participation = Annotated[Real, _option("participation", "Share of the clients drawn in a round, in (0, 1].", LOCALLY)]
BatchSize = Annotated[Whole, _option("batch_size", "Examples per step.", LOCALLY)]
LocalEpochs = Annotated[Whole, _option("local_epochs", "Passes over its data that a client makes in a round.", LOCALLY)]
LocalSteps = Annotated[
    Whole, _option("local_steps", "Steps that a client makes in a round, instead of epochs.", LOCALLY)
]
Seed = Annotated[Whole, _option("seed", "Decides every random draw: split, start, batches.", LOCALLY)]
Workers = Annotated[Whole, _option("workers", "Processes; 0: all cores. Does not change the result.", COMPUTED)]
Chunk = Annotated[Whole, _option("chunk", "Clients computed at once; chosen by a rule if not given.", COMPUTED)]
Device = Annotated[Text, _option("device", "cpu, cuda, cuda:1, …", COMPUTED)]
Precision = Annotated[Text, _option("precision", "float32 or float64.", COMPUTED)]
Engine = Annotated[Text, _option("engine", "simulation, or reference: the plain PyTorch loop.", COMPUTED)]
Out = Annotated[Text, _option("out", "The folder to write; a new one under runs/ if not given.", WRITTEN)]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there already.", rich_help_panel=WRITTEN)]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print only the one line that matters.", rich_help_panel=WRITTEN)
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say what is chosen and why.", rich_help_panel=WRITTEN)]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")]


# -- run


@app.command()
def run(
    context: typer.Context,
    method: MethodName = None,
    config: ConfigFile = None,
    data: Data = None,
    split: Split = None,
    clients: Clients = None,
    model: Model = None,
    head: Head = None,
    loss: Loss = None,
    start: Start = None,
    newcomers: HeldBack = None,
    set_: Set = None,
    rounds: Rounds = None,
    participation: Participation = None,
    batch_size: BatchSize = None,
    local_epochs: LocalEpochs = None,
    local_steps: LocalSteps = None,
    seed: Seed = None,
    workers: Workers = None,
    chunk: Chunk = None,
    device: Device = None,
    precision: Precision = None,
    engine: Engine = None,
    eval_every: Annotated[
        Whole, _option("eval_every", "Rounds between evaluations; 0: only at the end.", WRITTEN)
    ] = None,
    keep_rounds: Annotated[
        bool,
        typer.Option(
            "--keep-rounds", help="Keep the common model of every round, for newcomers.", rich_help_panel=WRITTEN
        ),
    ] = False,
    out: Out = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Train one method and write what comes out.

    bespoke run ditto --split "dirichlet(alpha=0.4)" --rounds 50 --set pull=0.5 --out runs/ditto
    """
    settings = _settings(context, config, set_)

    from bespokefl.experiments import terminal
    from bespokefl.experiments.run import run_config

    screen = terminal.console(stderr=True)
    with terminal.messages(screen, verbose), terminal.bar(screen, settings.method, quiet) as progress:
        result = run_config(settings, progress)
    _show(result, quiet)
    if result.interrupted:
        raise typer.Exit(INTERRUPTED)


def _settings(context: typer.Context, config: Path | None, pairs: list[str] | None) -> Config:
    """What was asked for: the config, the flags, the hyper-parameters."""
    known = {one.name for one in fields(Config)}
    given = {key: value for key, value in context.params.items() if key in known}
    flags = {key: value for key, value in given.items() if value is not None and value is not False}
    return _merged(read(config) if config is not None else {}, flags, _hyper(pairs or []))


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
    late = result.newcomers
    for note in [*result.notes, *([] if late is None else [_beside(late), *late.notes])]:
        screen.print(note, markup=False)
    path = result.path
    files = "clients.csv" if late is None else "clients.csv (and newcomers.csv)"
    screen.print(f"Written to {path}: {files} has a line for each client, result.json these figures.", markup=False)
    again = f"bespoke run --config {path}/config.toml"
    if result.interrupted:
        screen.print(f"To run it to its end: {again}", markup=False, soft_wrap=True)
    else:
        screen.print(f"Once more, with another seed: {again} --seed {about['seed'] + 1}", markup=False, soft_wrap=True)


def _beside(newcomers: "Newcomers") -> str:
    about = newcomers.about
    return (
        f"Finetune: newcomers train the run's {about['finetune_from']} model on, with lr {about['finetune_lr']:g} and "
        "as many steps as an average client made."
    )


# -- what comes before and after


@app.command()
def tune(
    context: typer.Context,
    method: MethodName = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUES",
            help='Values to try of a hyper-parameter, such as "pull=0.1,1,2", or of --rounds, --participation, '
            "--batch-size, --local-epochs, --local-steps. Can be repeated.",
            rich_help_panel=LOCALLY,
        ),
    ] = None,
    seeds: Annotated[
        Text,
        typer.Option(metavar="0,1,2", help="Means over runs with these seeds, on one split.", rich_help_panel=LOCALLY),
    ] = None,
    config: ConfigFile = None,
    data: Data = None,
    split: Split = None,
    clients: Clients = None,
    model: Model = None,
    head: Head = None,
    loss: Loss = None,
    start: Start = None,
    newcomers: HeldBack = None,
    set_: Set = None,
    rounds: Rounds = None,
    participation: Participation = None,
    batch_size: BatchSize = None,
    local_epochs: LocalEpochs = None,
    local_steps: LocalSteps = None,
    seed: Seed = None,
    workers: Workers = None,
    chunk: Chunk = None,
    device: Device = None,
    precision: Precision = None,
    engine: Engine = None,
    out: Out = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Choose hyper-parameters on validation data; test data choose nothing.

    bespoke tune ditto --grid "pull=0.1,1,2" --grid "lr=0.01,0.1" --out runs/tune
    """
    settings = _settings(context, config, set_)
    asked, numbers = _grid(grid or []), _numbers(seeds)

    from bespokefl.experiments import terminal
    from bespokefl.experiments.tune import command, tune_config, worded

    aside = terminal.console(stderr=True)
    with terminal.messages(aside, verbose), terminal.grid_bar(aside, settings.method, quiet) as progress:
        tuning = tune_config(settings, asked, numbers, progress)
    screen = terminal.console()
    if not quiet and tuning.cells:
        screen.print(terminal.grid(tuning))
        screen.print(f"Written to {tuning.path}: grid.csv has a line for each point.", markup=False)
    if tuning.interrupted:
        if not tuning.cells:
            raise KeyboardInterrupt
        screen.print(f"Interrupted. To go on: the same command with --out {tuning.path}", markup=False, soft_wrap=True)
        raise typer.Exit(INTERRUPTED)
    if quiet:
        print(tuning.flags)
        return
    told = f", mean of {len(tuning.seeds)} seeds" if len(tuning.seeds) > 1 else ""
    screen.print(
        f"Chosen by the clients' mean {tuning.by.replace('_', ' ')}{told}: {worded(tuning.best)}",
        markup=False,
        soft_wrap=True,
    )
    screen.print(f"To use it: {command(settings, tuning)}", markup=False, soft_wrap=True)


def _grid(entries: list[str]) -> dict[str, list[Any]]:
    """`pull=0.1,1,2` as a name and values; commas within brackets are a value's own."""
    found: dict[str, list[Any]] = {}
    for entry in entries:
        key, equals, text = entry.partition("=")
        name = key.strip().replace("-", "_")
        values = [one.strip() for one in _apart(text)]
        if not equals or not name or not all(values):
            raise InputError(f"--grid must be followed by key=value,value, such as pull=0.1,1, got {entry!r}.")
        if name in found:
            raise InputError(f"the grid has {name} twice; give all its values at once.")
        found[name] = [_literal(value) for value in values]
    return found


def _apart(text: str) -> list[str]:
    parts, depth = [""], 0
    for one in text:
        depth += (one in "([") - (one in ")]")
        if one == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += one
    return parts


def _numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(one) for one in text.split(",")]
    except ValueError:
        raise InputError(
            f"--seeds must be whole numbers with commas between them, such as 0,1,2, got {text!r}."
        ) from None


@app.command()
def personalize(
    run: RunFolder,
    data: Annotated[Path, typer.Option(help="An .npz file with x, y and perhaps client: the newcomers' data.")],
    client: Annotated[
        Text, typer.Option(help="Only this client of the file; or the name of the only one, if the file names none.")
    ] = None,
    out: Out = None,
    overwrite: Overwrite = False,
    workers: Workers = None,
    device: Annotated[
        Text, typer.Option(help="cpu, cuda, …; the run's own if not given.", rich_help_panel=COMPUTED)
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Give clients that took no part in a run their own models, by its method's rule.

    bespoke personalize runs/ditto --data new.npz --client ward-7 --out runs/ward-7
    """
    from bespokefl.experiments import folder, newcomers, terminal
    from bespokefl.experiments import personalize as late
    from bespokefl.experiments.run import RUNS

    target = folder.fresh(RUNS, "newcomers") if out is None else Path(out)
    folder.check(target, overwrite, newcomers.SIGNS, newcomers.WHAT)
    with terminal.messages(terminal.console(stderr=True), verbose=False):
        found = late.personalize(run, data, client=client, workers=workers or 0, device=device)
    path = found.save(target, overwrite)
    if quiet:
        print(path)
        return
    screen = terminal.console()
    origin = found.origin
    screen.print(
        f"[bold]{origin['method']}[/] on {origin['data']}: {len(found.names)} newcomers from {data}", highlight=False
    )
    screen.print(terminal.newcomer_figures(found))
    for note in (_beside(found), *found.notes):
        screen.print(note, markup=False)
    screen.print(
        f"Written to {path}: newcomers.csv has a line for each. To use a model: "
        f"bespoke predict {path} --client {shlex.quote(found.names[0])} --data x.npz",
        markup=False,
        soft_wrap=True,
    )


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, or of newcomers' models.")],
    client: Annotated[str, typer.Option(help="Whose model.")],
    data: Annotated[Path, typer.Option(help="An .npz file with x.")],
    out: Annotated[Path, typer.Option(help="The CSV file to write.")] = Path("predictions.csv"),
    overwrite: Overwrite = False,
) -> None:
    """Write what a client's own model says about examples: labels and probabilities, or values.

    bespoke predict runs/ditto --client 07 --data x.npz --out predictions.csv
    """
    from bespokefl.experiments import predict

    predict.check(out, overwrite)
    found = predict.predict(run, client, data)
    found.save(out, overwrite)
    print(f"Written to {out}: {len(found)} predictions by the model of client {client}.")


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
    all_: Annotated[bool, typer.Option("--all", help="Every method there is: up to three minutes.")] = False,
    rounds: Annotated[int, typer.Option(help="Rounds of training.", min=1)] = 20,
    seed: Annotated[int, typer.Option(help="Decides every random draw.")] = 0,
) -> None:
    """See it at work: some methods on handwritten digits, in about a minute."""
    from bespokefl.experiments import demo, terminal

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
