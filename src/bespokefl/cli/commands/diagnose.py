"""`bespoke diagnose`: predict whether federating helps each client, before long training."""

from typing import Annotated

from bespokefl.cli.options import Quiet, Verbose, takes_run, training_option
from bespokefl.workflows.run.settings import RunSettings

MAX_CLIENTS = 40  # in the table
NOT_ACCEPTED = (
    *("method", "set_", "newcomers", "rounds", "participation", "batch_size", "local_epochs", "local_steps"),
    *("engine", "faults", "checkpoint_every", "state_dir", "eval_every", "keep_rounds", "log"),
    *("clip", "noise", "delta"),
)


@takes_run(without=NOT_ACCEPTED)
def diagnose(
    settings: RunSettings,
    steps: Annotated[int, training_option(help="Local steps of each short fit.")] = 50,
    lr: Annotated[float, training_option(help="Learning rate of the short fits.")] = 0.1,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Predict what each client gains by federating, which clients are similar, and which method fits.

    bespoke diagnose --data digits --split "iid + rotation(groups=4)" --out runs/diagnosis
    """
    from bespokefl.cli import terminal
    from bespokefl.report import write
    from bespokefl.workflows.diagnose.api import diagnose_config

    errors = terminal.console(stderr=True)
    with terminal.messages(errors, verbose), terminal.progress_bar(errors, "diagnosing", quiet) as progress:
        found, path = diagnose_config(settings, steps=steps, lr=lr, progress=progress)
    write(path)
    if quiet:
        print(found.recommendation.flags)
        return
    about, advised = found.about, found.recommendation
    terminal.say(
        f"{about['data']}, {about['split']}, {about['clients']} clients, model {about['model']}, seed {about['seed']}"
    )
    grouped = found.likeness in ("groups", "partly")
    columns = ["client", "advice", "examples", *(["group"] if grouped else []), "gain", "with all", "paper's GAIN"]
    rows = []
    shown = sorted(found.clients, key=lambda one: -one.gain)[:MAX_CLIENTS]
    for one in shown:
        group = [str(one.group + 1)] if grouped else []
        gains = [f"{value:.2f}" for value in (one.gain, one.gain_with_all, one.paper_gain)]
        rows.append([one.name, one.advice, str(one.examples), *group, *gains])
    terminal.console().print(terminal.table(columns, rows, left=2))
    if len(shown) < len(found.clients):
        terminal.say(f"The {len(shown)} of {len(found.clients)} clients with the largest gain; diagnosis.json has all.")
    terminal.say(
        "Gain: factor by which the variance of its model shrinks when it learns from others optimally; 1 is no gain.",
        *found.sentences(),
    )
    terminal.say(f"Recommended: {advised.flags}", style="bold")
    terminal.say(
        *(f"  {reason}" for reason in advised.reasons),
        f"  Also worth trying: {', '.join(advised.alternatives)}.",
        f"Written to {path.parent}: diagnosis.html is the full report, diagnosis.json the data.",
    )
