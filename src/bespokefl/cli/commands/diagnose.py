"""`bespoke diagnose`: predict whether federating helps each client, before long training."""

from typing import TYPE_CHECKING, Annotated

from bespokefl.cli import output
from bespokefl.cli.options import Metric, Quiet, Verbose, takes_run, training_option
from bespokefl.workflows.run.settings import RunSettings

if TYPE_CHECKING:
    from rich.table import Table

    from bespokefl.workflows.diagnose.result import Diagnosis

MAX_CLIENTS = 40  # in the table
NOT_ACCEPTED = (
    *("method", "set_", "newcomers", "rounds", "participation", "batch_size", "local_epochs", "local_steps"),
    *("engine", "faults", "checkpoint_every", "state_dir", "eval_every", "follow", "keep_rounds", "log"),
    *("clip", "noise", "delta"),
)


@takes_run(without=NOT_ACCEPTED)
def diagnose(
    settings: RunSettings,
    steps: Annotated[int, training_option(help="Local steps of each short fit.")] = 50,
    lr: Annotated[float, training_option(help="Learning rate of the short fits.")] = 0.1,
    trial_rounds: Annotated[
        int, training_option(help="Rounds of the trials, which take most of the time; 0: no predicted gains.")
    ] = 20,
    metric: Metric = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Predict what each client gains by federating, which clients are similar, and which method fits.

    bespoke diagnose --data digits --split "iid + rotation(groups=4)" --out runs/diagnosis
    """
    from bespokefl.cli import terminal
    from bespokefl.metrics.metric import METRICS
    from bespokefl.report import write
    from bespokefl.workflows.diagnose.api import diagnose_config

    errors = terminal.console(stderr=True)
    with terminal.messages(errors, verbose), terminal.progress_bar(errors, "diagnosing", quiet) as progress:
        plan = {"steps": steps, "lr": lr, "trial_rounds": trial_rounds, "metric": metric}
        found, path = diagnose_config(settings, progress=progress, **plan)
    write(path)
    output.record(**found.document(), path=path.parent)
    if quiet:
        print(found.recommendation.flags)
        return
    about, advised = found.about, found.recommendation
    terminal.say(
        f"{about['data']}, {about['split']}, {about['clients']} clients, model {about['model']}, seed {about['seed']}"
    )
    terminal.console().print(_table(found))
    if len(found.clients) > MAX_CLIENTS:
        terminal.say(f"{MAX_CLIENTS} of {len(found.clients)} clients, largest gain first; diagnosis.json has all.")
    if found.trials is not None:
        terminal.say(
            f"Predicted gain: {METRICS[found.trials.metric].title} with {found.trials.rival.method} minus that of "
            "Local, from trials on held-out data, with its 95 % interval. "
            f"That of the mean over clients is too narrow: {found.trials.coverage}."
        )
    terminal.say(
        "Variance ratio: how much noise averaging removes at best, 1 is nothing; it promises no accuracy.",
        *found.sentences(),
    )
    verdict = "" if advised.verdict is None else f" ({advised.verdict})"
    terminal.say(f"Recommended: {advised.flags}{verdict}", style="bold")
    terminal.say(
        *(f"  {reason}" for reason in advised.reasons),
        f"  Also worth trying: {', '.join(advised.alternatives)}.",
        f"Written to {path.parent}: diagnosis.html is the full report, diagnosis.json the data.",
    )


def _table(found: "Diagnosis") -> "Table":
    """Return the clients with the largest gains."""
    from bespokefl.cli import terminal
    from bespokefl.workflows.diagnose.recommendation import show_gain, show_interval

    grouped, trials = found.likeness in ("groups", "partly"), found.trials
    columns = ["client", "advice", "examples", *(["group"] if grouped else [])]
    columns += ["variance ratio"] if trials is None else ["predicted gain", "interval", "variance ratio"]
    rows = []
    for one in sorted(found.clients, key=lambda one: (-(one.predicted or 0.0), -one.gain))[:MAX_CLIENTS]:
        row = [one.name, one.advice, str(one.examples), *([str(one.group + 1)] if grouped else [])]
        if trials is not None:
            row.append(show_gain(one.predicted, trials.metric))
            row.append("–" if one.low is None else show_interval(one.low, one.high, trials.metric))
        rows.append([*row, f"{one.gain:.2f}"])
    return terminal.table(columns, rows, left=2)
