"""`bespoke deploy`: the same methods over several machines, on Flower."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from bespokefl.cli import completion, output
from bespokefl.cli.options import INTERRUPTED, Overwrite, Quiet, takes_run
from bespokefl.core.errors import InputError, unknown
from bespokefl.workflows.deploy.layout import Deployment, find_node, make_private, read_node_settings
from bespokefl.workflows.run.settings import LOADING, RunSettings

app = typer.Typer(name="deploy", help="Run a method over several machines. Try bespoke deploy demo first.")

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a deployment.")]
NodeDirectory = Annotated[Path, typer.Argument(metavar="DIR", help="The directory of the node or of its deployment.")]
NodeName = Annotated[str | None, typer.Option("--name", help="The node, if DIR is that of a deployment.")]
RunName = Annotated[str | None, typer.Option("--run", help="The name of the run. Default: the latest.")]
Days = Annotated[int, typer.Option(help="Days for which the server's certificate is valid.")]
OF_NODES = (*LOADING, "newcomers", "faults", "engine", "workers", "chunk", "device", "state_dir")
OF_FILES = ("checkpoint_every", "out", "overwrite")


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if find_spec("flwr") is None:
        raise InputError('deployments need Flower, which is not installed: pip install "bespokefl[flower]".')
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The directory to write: a new one.")],
    node: Annotated[list[str] | None, typer.Option(help="The name of a node; repeat for each.")] = None,
    address: Annotated[str, typer.Option(help="host:port at which the nodes reach the server.")] = "127.0.0.1:9092",
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS and no keys; only for 127.0.0.1.")] = False,
    days: Days = 365,
    example: Annotated[
        bool, typer.Option("--example", help="Give each node two clients with handwritten digits, to try it.")
    ] = False,
) -> None:
    """Write a new deployment: settings, certificates, a key pair for each node, and a README.

    bespoke deploy init hospitals --node hospital-a --node hospital-b --address server.example.org:9092
    """
    from bespokefl.workflows.deploy import init as initialization

    initialization.init(folder, node or [], address, insecure=insecure, days=days)
    if example:
        from bespokefl.workflows.deploy.demo import write_example

        write_example(folder, node or [])
    output.record(path=folder)
    print(f"Written to {folder}. README.md there describes what to do on each machine.")


@app.command()
def renew(folder: Directory, days: Days = 365) -> None:
    """Renew the server's certificate. The nodes need no change.

    bespoke deploy renew hospitals
    """
    from bespokefl.workflows.deploy import init as initialization

    initialization.renew(folder, days)
    output.record(path=folder)
    print("The server has a new certificate: restart the server.")


@app.command()
def server(folder: Directory) -> None:
    """Run the server of a deployment until Ctrl-C.

    bespoke deploy server hospitals
    """
    from bespokefl.workflows.deploy.server import supervisor

    deployment = Deployment.at(folder)
    make_private(deployment.server)
    ready = f"The server is ready on {deployment.settings.address}. Ctrl-C ends it; its runs resume when it restarts."
    _foreground(lambda stopped: supervisor.run_server(deployment, stopped, lambda: print(ready, flush=True)))


@app.command()
def node(
    folder: NodeDirectory,
    name: NodeName = None,
    data: Annotated[
        str | None,
        typer.Option(help="Its data: a name, a file, a directory, or module:function. Default: as in node.toml."),
    ] = None,
) -> None:
    """Run a node of a deployment until Ctrl-C. Its data and its clients' models stay on this machine.

    bespoke deploy node hospital-a --data records.npz
    """
    from bespokefl.workflows.deploy.node import run_node

    directory = find_node(folder, name)
    if data is not None and Path(data).exists():
        data = str(Path(data).resolve())
    settings = read_node_settings(directory, data=data)
    if name is not None and name != settings.name:
        raise InputError(f"{str(folder)!r} is the directory of node {settings.name!r}, not of {name!r}.")
    make_private(directory / settings.state)
    ready = f"Node {settings.name} is ready and connected to {settings.server}. Ctrl-C ends it."
    _foreground(lambda stopped: run_node(directory, settings, stopped, lambda: print(ready, flush=True)))


@app.command()
@takes_run(without=("method", *OF_NODES, *OF_FILES))
def start(
    settings: RunSettings,
    folder: Directory,
    method: Annotated[str, typer.Option(help='A method: see "bespoke methods".', autocompletion=completion.methods)],
    run: Annotated[str | None, typer.Option(help="A name for the run; a stopped run of this name resumes.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the run is done.")] = False,
) -> None:
    """Start or resume a run, on the server's machine. The nodes provide the data.

    bespoke deploy start hospitals --method pfedvem --rounds 50
    """
    from bespokefl import methods, models, trackers
    from bespokefl.core.nn.losses import LOSSES
    from bespokefl.metrics.differential_privacy import check_accountant
    from bespokefl.workflows.deploy import demo, runs
    from bespokefl.workflows.results.result import load_run
    from bespokefl.workflows.run import initial_weights
    from bespokefl.workflows.run.convert import engine_settings

    deployment = Deployment.at(folder)
    engine_settings(settings).privacy.check(methods.build(method, dict(settings.set)))
    if settings.noise:
        check_accountant()
    models.check(settings.model)
    trackers.of(settings.log)
    if settings.loss is not None and settings.loss not in LOSSES:
        raise unknown("loss", settings.loss, LOSSES)
    if settings.start is not None:
        initial_weights.read(settings.start)
        settings = replace(settings, start=str(Path(settings.start).resolve()))
    name = runs.start(deployment, replace(settings, method=method, data="deployment"), run)
    output.record(run=name)
    output.essential(name)
    print(f"Run {name} has been started; show its status with: bespoke deploy status {folder}")
    if wait:
        demo.follow(deployment, name, {}, lambda line: print(line, flush=True), timeout=float("inf"))
        result = load_run(deployment.run_directory(name) / runs.RESULT)
        output.record(**result.about, scores=result.summary(), path=result.path)


@app.command()
def status(folder: Directory) -> None:
    """Show the nodes and the runs of a deployment.

    bespoke deploy status hospitals
    """
    from bespokefl.cli import terminal
    from bespokefl.workflows.deploy import runs

    deployment = Deployment.at(folder)
    screen, nodes, known = terminal.console(), runs.list_nodes(deployment), runs.list_runs(deployment)
    output.record(nodes=nodes, runs=known)
    output.essential(*(f"node {node}: {state}" for node, state in nodes.items()))
    output.essential(*(f"run {name}: {run.get('state', '')}" for name, run in known.items()))
    screen.print(terminal.table(["node", "status"], [list(node) for node in nodes.items()], left=2))
    rows = [
        [name, runs.described(run), f"{run.get('round', 0)} of {run.get('rounds', '?')}", run.get("error", "")]
        for name, run in known.items()
    ]
    screen.print(terminal.table(["run", "status", "rounds", ""], rows, left=4))


@app.command()
def stop(folder: Directory, run: RunName = None) -> None:
    """Stop a run; `deploy start --run NAME` resumes it.

    bespoke deploy stop hospitals
    """
    from bespokefl.workflows.deploy import runs

    deployment = Deployment.at(folder)
    name = run or runs.latest_run(deployment)
    runs.stop(deployment, name)
    output.record(run=name)
    output.essential(name)
    print(f"Run {name} is stopped.")


@app.command()
def fetch(
    folder: Directory,
    out: Annotated[Path, typer.Option(help="The directory to write.")],
    run: RunName = None,
    overwrite: Overwrite = False,
) -> None:
    """Copy the result of a run, for bespoke report and others. Clients' own models stay at the nodes.

    bespoke deploy fetch hospitals --out runs/hospitals
    """
    from bespokefl.workflows.deploy import runs

    deployment = Deployment.at(folder)
    runs.fetch(deployment, run or runs.latest_run(deployment), out, overwrite)
    output.record(path=out)
    print(f"Written to {out}: clients.csv has a line for each client.")


@app.command()
def demo(
    method: Annotated[
        str, typer.Option(help="A method with personal models.", autocompletion=completion.methods)
    ] = "pfedvem",
    rounds: Annotated[int, typer.Option(help="Rounds of training.")] = 5,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
    out: Annotated[Path | None, typer.Option(help="The directory to write. Default: a new one under runs/.")] = None,
    quiet: Quiet = False,
) -> None:
    """Try a deployment on this machine: a server and three nodes with TLS and keys, in about a minute.

    bespoke deploy demo
    """
    from bespokefl.cli import terminal
    from bespokefl.methods import REGISTRY
    from bespokefl.report import write
    from bespokefl.workflows.deploy import demo
    from bespokefl.workflows.results import run_directory

    target = run_directory.stable_path(out or run_directory.fresh(run_directory.RUNS, f"deploy-{method}"))
    run_directory.check(target, overwrite=False)
    result = demo.demo(method, rounds, seed, target, (lambda _: None) if quiet else _timed_print())
    page = write(target, None, citations={name: one.citation for name, one in REGISTRY.items()})
    output.record(**result.about, scores=result.summary(), path=target, report=page)
    if quiet:
        print(target)
        return
    screen = terminal.console()
    screen.print(terminal.result_table(result))
    for note in result.notes:
        screen.print(note, markup=False)
    screen.print(f"Written to {target}; open {page} with a browser.", markup=False)


@app.command()
def overhead(
    rounds: Annotated[int, typer.Option(help="Rounds of each measurement; the first does not count.")] = 6,
    model: Annotated[list[str] | None, typer.Option(help='"100 kB" or "10 MB". Default: both.')] = None,
    flower: Annotated[bool, typer.Option("--flower/--no-flower", help="Measure Flower's own nodes as well.")] = True,
) -> None:
    """Measure the time of a round besides training, with three nodes on this machine.

    bespoke deploy overhead --model "100 kB" --no-flower --rounds 3
    """
    from bespokefl_evidence.benchmarks import deployment_overhead

    from bespokefl.cli import terminal

    found = deployment_overhead.overhead(
        rounds, _timed_print(), model or tuple(deployment_overhead.WIDTHS), flower=flower
    )
    rows = [[size, *(f"{seconds:.2f}" for seconds in by_node.values())] for size, by_node in found.items()]
    output.record(seconds_per_round=found)
    output.essential(*(" ".join(row) for row in rows))
    names = ["bespoke deploy node", "Flower's SuperNode"][: 1 + flower]
    terminal.console().print(terminal.table(["seconds per round", *names], rows, left=1))


def _timed_print() -> Callable[[str], None]:
    started = time.monotonic()
    return lambda line: print(f"{time.monotonic() - started:6.1f} s  {line}", flush=True)


def _foreground(work: Callable[[threading.Event], Any]) -> None:
    """Run until Ctrl-C or SIGTERM, and print log messages."""
    from bespokefl.cli import terminal
    from bespokefl.workflows.deploy import processes

    with terminal.messages(terminal.console(stderr=True), True), processes.until_signalled() as stopped:
        try:
            work(stopped)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
