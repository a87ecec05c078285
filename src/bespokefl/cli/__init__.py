"""The command `bespoke`. Everything it does can be called from Python, too.

Heavy imports (torch, rich tables) happen inside the commands, so that help and mistakes are answered at once.
"""

import errno
import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from bespokefl.cli.commands import compare, data, deploy, diagnose, newcomers, report, run, show, split, tune
from bespokefl.cli.options import INTERRUPTED
from bespokefl.core.errors import BespokeError, DiskError, in_brief
from bespokefl.core.files import FULL, absolute

# Before 0.26 typer let click's own exceptions through.
MISTAKE: Any = getattr(typer, "TyperException", None) or importlib.import_module("click").ClickException

app = typer.Typer(
    name="bespoke",
    help="Personalized federated learning: a model of its own for every client.",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
for command in (
    run.run,
    run.resume,
    tune.tune,
    compare.compare,
    diagnose.diagnose,
    report.report,
    newcomers.personalize,
    newcomers.predict,
    show.methods,
    show.models,
    show.demo,
    show.reproduce,
    show.bench,
):
    app.command()(command)
for group in (data.app, split.app, deploy.app):
    app.add_typer(group)


def main(argv: Sequence[str] | None = None) -> None:
    """The entry point: a mistake becomes one sentence and exit code 2, never a traceback."""
    command = typer.main.get_command(app)
    try:
        with command.make_context("bespoke", list(sys.argv[1:] if argv is None else argv)) as context:
            command.invoke(context)
        sys.stdout.flush()
        code = 0
    except typer.Exit as ended:
        code = ended.exit_code
    except MISTAKE as error:
        code = _fail(error.format_message(), error.exit_code)
    except BespokeError as error:
        code = _fail(str(error), 2)
    except BrokenPipeError:  # whoever read the output has seen enough
        code = 0
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            code = _fail(f"cannot use {in_brief(error.filename)!r}: {error.strerror}; use a shorter name.", 2)
        elif error.errno not in FULL:
            raise
        else:
            where = "the output" if error.filename is None else f"to {str(error.filename)!r}"
            code = _fail(str(DiskError(f"cannot write {where}: {error.strerror}")), 2)
    except (KeyboardInterrupt, typer.Abort):
        code = _fail("interrupted.", INTERRUPTED)
    _let_go()
    sys.exit(code)


def _fail(sentence: str, code: int) -> int:
    line = " ".join(sentence.split())
    with suppress(OSError):  # messages may go to a full disk: then the code has to do
        print("error:", line if line.endswith((".", "?", "!")) else line + ".", file=sys.stderr)
    return code


def _let_go() -> None:
    """Output that nobody takes would make the interpreter complain at its end."""
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except OSError:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115


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
    else:
        absolute(".")  # refuses a folder that is gone, in which libraries do not work
