"""`bespoke deploy`: the same methods over several machines, on Flower."""

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bespokefl.cli.options import INTERRUPTED, Overwrite, Quiet, takes_run
from bespokefl.core.errors import InputError, count
from bespokefl.workflows.run.settings import RunSettings

if TYPE_CHECKING:
    import threading

app = typer.Typer(name="deploy", help="Run a method over several machines: bespoke deploy demo shows it on this one.")

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a deployment, as deploy init wrote it.")]
RunName = Annotated[str | None, typer.Option("--run", help="The name of the run. Default: the last one.")]
Days = Annotated[int, typer.Option(help="Days for which the server's certificate is valid.")]
NOT_HERE = ("data", "split", "clients", "newcomers", "faults", "engine", "workers", "chunk", "device", "state_dir")
PATHS = ("checkpoint_every", "out", "overwrite", "fractions", "label", "client", "drop", "task", "text")


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if find_spec("flwr") is None:
        raise InputError('deployments need Flower, which is not installed: pip install "bespokefl[flower]".')
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write: a new one.")],
    node: Annotated[list[str] | None, typer.Option(help="The name of a node; once for each.")] = None,
    address: Annotated[str, typer.Option(help="host:port by which the nodes reach the server.")] = "127.0.0.1:9092",
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS and no keys; only for 127.0.0.1.")] = False,
    days: Days = 365,
) -> None:
    """Write what a deployment needs: configurations, certificates, a key pair for each node, and a README.

    bespoke deploy init hospitals --node hospital-a --node hospital-b --address server.example.org:9092
    """
    from bespokefl.workflows.deploy import init as making

    making.init(folder, node or [], address, insecure=insecure, days=days)
    print(f"Written to {folder}: README.md there says what to do on which machine.")


@app.command()
def renew(folder: Folder, days: Days = 365) -> None:
    """Give the server a new certificate, from the same authority; nodes need nothing new.

    bespoke deploy renew hospitals
    """
    from bespokefl.workflows.deploy import init as making

    making.renew(folder, days)
    print("The server has a new certificate: start it again.")


@app.command()
def server(folder: Folder) -> None:
    """Run the server of a deployment, until Ctrl-C.

    bespoke deploy server hospitals
    """
    from bespokefl.workflows.deploy import certificates
    from bespokefl.workflows.deploy import layout as place
    from bespokefl.workflows.deploy.server import supervisor

    deployment = place.Deployment.at(folder)
    place.private(deployment.server)
    if not deployment.settings.insecure:
        certificate = deployment.server / "certificates" / "server.crt"
        certificates.check_certificate(certificate, f"bespoke deploy renew {folder}", deployment.host)
    ready = f"The server is up on {deployment.settings.address}. Ctrl-C ends it; runs go on when it is started again."
    _foreground(lambda stopped: supervisor.run_server(deployment, stopped, lambda: print(ready, flush=True)))


@app.command()
def node(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the node, or of its deployment.")],
    name: Annotated[str | None, typer.Option(help="Which node, where DIR is the whole deployment's.")] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Its data: a name, a file, a folder, or module:function. Default: as in node.toml."),
    ] = None,
) -> None:
    """Run a node of a deployment, until Ctrl-C. Its data and its clients' models stay here.

    bespoke deploy node hospital-a --data records.npz
    """
    from bespokefl.workflows.deploy import layout as place
    from bespokefl.workflows.deploy.node import main as nodes

    where = place.node_folder(folder, name)
    if data is not None and Path(data).exists():
        data = str(Path(data).resolve())
    settings = place.node_settings(where, data=data)
    if name is not None and name != settings.name:
        raise InputError(f"{str(folder)!r} is the folder of node {settings.name!r}, not of {name!r}.")
    place.private(where / settings.state)
    ready = f"Node {settings.name} is connected to {settings.server}. Ctrl-C ends it."
    _foreground(lambda stopped: nodes.run_node(where, settings, stopped, lambda: print(ready, flush=True)))


@app.command()
@takes_run(without=("method", *NOT_HERE, *PATHS))
def start(
    settings: RunSettings,
    folder: Folder,
    method: Annotated[str, typer.Option(help='A method: see "bespoke methods".')],
    run: Annotated[str | None, typer.Option(help="A name for the run; one that was stopped goes on.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is done.")] = False,
) -> None:
    """Start a run, on the server's machine. What is trained is chosen here; the data are the nodes' own.

    bespoke deploy start hospitals --method pfedvem --rounds 50
    """
    from bespokefl import methods, models
    from bespokefl.core.errors import unknown
    from bespokefl.core.nn.losses import LOSSES
    from bespokefl.workflows.deploy import demo, runs
    from bespokefl.workflows.deploy import layout as place
    from bespokefl.workflows.run import initial_weights as starts
    from bespokefl.workflows.run import privacy_accounting
    from bespokefl.workflows.run.convert import engine_settings

    deployment = place.Deployment.at(folder)
    engine_settings(settings).privacy.check(methods.build(method, dict(settings.set)))
    privacy_accounting.check(settings)
    models.check(settings.model)
    if settings.loss is not None and settings.loss not in LOSSES:
        raise unknown("loss", settings.loss, LOSSES)
    if settings.start is not None:
        starts.read(settings.start)
        settings = replace(settings, start=str(Path(settings.start).resolve()))
    name = runs.start(deployment, replace(settings, method=method, data="deployment"), run)
    print(f"Run {name} has been started; see it with: bespoke deploy status {folder}")
    if wait:
        demo.follow(deployment, name, {}, lambda line: print(line, flush=True), longest=float("inf"))


@app.command()
def status(folder: Folder) -> None:
    """Show the nodes and the runs of a deployment.

    bespoke deploy status hospitals
    """
    from bespokefl.cli import terminal
    from bespokefl.workflows.deploy import layout as place
    from bespokefl.workflows.deploy import runs

    deployment = place.Deployment.at(folder)
    screen = terminal.console()
    present = runs.present(deployment)
    screen.print(terminal.table(["node", "is"], [[name, state] for name, state in present.items()], left=2))
    rows = [
        [
            name,
            str(news.get("state", "")),
            f"{news.get('round', 0)} of {news.get('rounds', '?')}",
            news.get("error", ""),
        ]
        for name, news in runs.known(deployment).items()
    ]
    screen.print(terminal.table(["run", "is", "rounds", ""], rows, left=4))


@app.command()
def stop(folder: Folder, run: RunName = None) -> None:
    """Stop a run; `deploy start --run NAME` goes on with it.

    bespoke deploy stop hospitals
    """
    from bespokefl.workflows.deploy import layout as place
    from bespokefl.workflows.deploy import runs

    deployment = place.Deployment.at(folder)
    name = run or runs.last(deployment)
    runs.stop(deployment, name)
    print(f"Run {name} is stopped.")


@app.command()
def fetch(
    folder: Folder,
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    run: RunName = None,
    overwrite: Overwrite = False,
) -> None:
    """Copy what a run has found, for bespoke report and others. Clients' own models are not in it: they stay home.

    bespoke deploy fetch hospitals --out runs/hospitals
    """
    from bespokefl.workflows.deploy import layout as place
    from bespokefl.workflows.deploy import runs

    deployment = place.Deployment.at(folder)
    runs.fetch(deployment, run or runs.last(deployment), out, overwrite)
    print(f"Written to {out}: clients.csv has a line for each client.")


@app.command()
def predict(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the node, or of its deployment.")],
    data: Annotated[Path, typer.Option(help="An .npz file with x, or a table with the columns of the node's.")],
    client: Annotated[str | None, typer.Option(help="Whose model. Default: the node's only client.")] = None,
    name: Annotated[str | None, typer.Option(help="Which node, where DIR is the whole deployment's.")] = None,
    run: RunName = None,
    out: Annotated[Path, typer.Option(help="The CSV file to write.")] = Path("predictions.csv"),
    overwrite: Overwrite = False,
) -> None:
    """Write what a client's own model says about examples, at the node that keeps it.

    bespoke deploy predict hospital-a --client ward-7 --data new.csv
    """
    from bespokefl.workflows.deploy import layout as place
    from bespokefl.workflows.deploy.node import predict as home
    from bespokefl.workflows.newcomers import predict as predictions

    predictions.check(out, overwrite)
    who, found = home.predict(place.node_state(place.node_folder(folder, name)), data, client=client, run=run)
    found.save(out, overwrite)
    print(f"Written to {out}: {count(len(found), 'prediction')} by the model of client {who}.")


@app.command()
def demo(
    method: Annotated[str, typer.Option(help="A method with personal models.")] = "pfedvem",
    rounds: Annotated[int, typer.Option(help="Rounds of training.")] = 5,
    seed: Annotated[int, typer.Option(help="Decides every random draw.")] = 0,
    out: Annotated[Path | None, typer.Option(help="The folder to write; a new one under runs/ if not given.")] = None,
    quiet: Quiet = False,
) -> None:
    """See a deployment on this machine: a server and three nodes with TLS and keys, in about a minute.

    bespoke deploy demo
    """
    from bespokefl.cli import terminal
    from bespokefl.methods import REGISTRY
    from bespokefl.report import write
    from bespokefl.workflows.deploy import demo
    from bespokefl.workflows.results import run_directory as folder

    target = folder.stable_path(out or folder.fresh(folder.RUNS, f"deploy-{method}"))
    folder.check(target, overwrite=False)
    result = demo.demo(method, rounds, seed, target, (lambda _: None) if quiet else _say())
    page = write(target, None, citations={name: one.citation for name, one in REGISTRY.items()})
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
    rounds: Annotated[int, typer.Option(help="Rounds of each; the first does not count.")] = 6,
    model: Annotated[list[str] | None, typer.Option(help='"100 kB" or "10 MB". Default: both.')] = None,
    flower: Annotated[bool, typer.Option("--flower/--no-flower", help="Flower's own nodes and strategy, too.")] = True,
) -> None:
    """Measure what a round costs beside training, with three nodes on this machine, and Flower's own for the same.

    bespoke deploy overhead --model "100 kB" --no-flower --rounds 3
    """
    from bespokefl.cli import terminal
    from bespokefl.workflows.benchmarks import deployment_overhead as overhead

    found = overhead.overhead(rounds, _say(), model or tuple(overhead.WIDTHS), flower=flower)
    rows = [[size, *(f"{seconds:.2f}" for seconds in own.values())] for size, own in found.items()]
    names = ["bespoke deploy node", "Flower's SuperNode"][: 1 + flower]
    terminal.console().print(terminal.table(["seconds per round", *names], rows, left=1))


def _say() -> Callable[[str], None]:
    import time

    began = time.monotonic()
    return lambda line: print(f"{time.monotonic() - began:6.1f} s  {line}", flush=True)


def _foreground(work: Callable[["threading.Event"], Any]) -> None:
    """Run until Ctrl-C or SIGTERM, and show what is logged."""
    from bespokefl.cli import terminal
    from bespokefl.workflows.deploy import processes

    with terminal.messages(terminal.console(stderr=True), True), processes.until_signalled() as stopped:
        try:
            work(stopped)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
