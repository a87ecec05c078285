"""The command `bespoke`. Everything it does can also be called from Python.

Slow imports (torch, rich tables) are inside the commands, so that help and error messages appear at once.

output         --json, --quiet, --verbose and --log-file of all commands
completion     values that shells complete
options        options that several commands share; those of a run follow from `RunSettings`
commands       one module per command or group of commands
terminal       tables, progress bars and messages
split_drawing  pictures of splits
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

from bespokefl.cli import output
from bespokefl.cli.commands import (
    compare,
    data,
    deploy,
    deploy_models,
    diagnose,
    evidence,
    export,
    new,
    newcomers,
    run,
    show,
    split,
    tune,
)
from bespokefl.cli.options import INTERRUPTED, as_hyper_parameter, usage_message
from bespokefl.core.errors import COMMAND_LINE, BespokeError, DiskError, in_brief, settings_written_in
from bespokefl.core.system.files import FULL, absolute

# Before version 0.26, typer raises click's own exceptions.
USAGE_ERROR: Any = getattr(typer, "TyperException", None) or importlib.import_module("click").ClickException

COMPLETION = "_BESPOKE_COMPLETE"  # the environment variable by which shells ask for completions

FIRST_STEPS = (
    "First steps: `bespoke demo`, then `bespoke run ditto --out runs/ditto` and `bespoke compare ditto pfedvem ucfl`; "
    "on your own table, `bespoke diagnose --data my.csv --label ill --client hospital`."
)

app = typer.Typer(
    name="bespoke",
    help="Personalized federated learning: a model of its own for every client.",
    epilog=FIRST_STEPS,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
for command in (
    show.demo,
    run.run,
    run.resume,
    tune.tune,
    compare.compare,
    diagnose.diagnose,
    compare.report,
    newcomers.personalize,
    newcomers.predict,
    export.export,
    show.methods,
    show.models,
    evidence.reproduce,
    evidence.bench,
):
    app.command()(command)
MAX_SENTENCE = 1500  # characters of an error
deploy.app.command()(deploy_models.predict)
deploy.app.command()(deploy_models.export)
NO_REPORT = ("server", "node")  # commands that run until Ctrl-C, without a result to report
for group in (app, data.app, split.app, new.app, deploy.app):
    for one in group.registered_commands:
        assert one.callback is not None
        without = ("json", "quiet") if one.callback.__name__ in NO_REPORT else ()
        title = one.name or one.callback.__name__
        one.callback = output.shared(one.callback, title if group is app else f"{group.info.name} {title}", without)
    if group is not app:
        app.add_typer(group)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line: an error becomes one sentence and exit code 2, never a traceback."""
    _open_closed_streams()
    command = typer.main.get_command(app)
    if COMPLETION in os.environ:  # the shell asks for completions
        os.environ["COLUMNS"] = "1000"  # one line for each
        command.main(prog_name="bespoke")
    output.begin()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        arguments = evidence.with_cells(compare.with_tuning_time(arguments))
        with settings_written_in(COMMAND_LINE):
            _execute(command, arguments)
        sys.stdout.flush()
        code = 0
    except typer.Exit as ended:
        code = ended.exit_code
    except USAGE_ERROR as error:
        context = getattr(error, "ctx", None)
        title = "" if context is None else context.command_path.partition(" ")[2]
        without_command = not error.format_message()  # `bespoke data`, for example: the help is printed
        code = 0 if without_command else _fail(usage_message(arguments, error), error.exit_code, arguments, title)
    except BespokeError as error:
        code = _fail(str(error), 2, arguments)
    except BrokenPipeError:  # the reader of the output has closed it
        code = 0
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            code = _fail(
                f"cannot use {in_brief(error.filename)!r}: {error.strerror}; use a shorter name.", 2, arguments
            )
        elif error.errno not in FULL:
            raise
        else:
            where = "the output" if error.filename is None else f"to {str(error.filename)!r}"
            code = _fail(str(DiskError(f"cannot write {where}: {error.strerror}")), 2, arguments)
    except (KeyboardInterrupt, typer.Abort):
        code = _fail("interrupted.", INTERRUPTED, arguments)
    _discard_output()
    sys.exit(code)


def _execute(command: Any, arguments: list[str]) -> None:
    """Run a command; an unknown option that is a hyper-parameter of the method, such as --lr, stands for --set."""
    try:
        with command.make_context("bespoke", list(arguments)) as context:
            command.invoke(context)
    except USAGE_ERROR as error:
        option = getattr(error, "option_name", None)
        rewritten = None if option is None else as_hyper_parameter(arguments, option)
        if rewritten is None:
            raise
    else:
        return
    _execute(command, rewritten)


def _fail(sentence: str, code: int, arguments: Sequence[str], title: str = "") -> int:
    line = in_brief(sentence, MAX_SENTENCE)  # names from a file, or what a library says, may be long
    line = line if line.endswith((".", "?", "!")) else line + "."
    with suppress(OSError):  # on a full disk, only the exit code is left
        print("error:", line, file=sys.stderr)
    with suppress(OSError):
        output.record_error(line, arguments, title)
    return code


def _open_closed_streams() -> None:
    """Discard what is written to a standard stream that was closed (`bespoke … >&-`).

    Otherwise the next file that is opened would take its number, and with it what child processes print.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("r" if name == "stdin" else "w"))  # noqa: SIM115


def _discard_output() -> None:
    """Discard output that cannot be written, about which the interpreter would complain when it exits."""
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
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
    else:
        absolute(".")  # raises an error if the current directory was removed, as libraries fail there
