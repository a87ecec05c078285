"""What all commands share: `--json`, `--quiet`, `--verbose` and `--log-file`.

`shared` gives a command those of these options that it does not have itself. A command describes its result with
`record`; with --json this is printed as one JSON object, and everything else goes to stderr. With --quiet, only the
lines of `essential` are printed, or the path of what was written.
"""

import inspect
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from bespokefl.core.errors import InputError
from bespokefl.workflows.run.settings import OUTPUT

log = logging.getLogger("bespokefl")

NOTICE = logging.INFO + 5  # as in engines.storage.client_states, which imports torch
FORMAT = "%(asctime)s %(levelname)s %(message)s"
OPTIONS: dict[str, Any] = {
    "json": Annotated[
        bool,
        typer.Option(
            "--json", help="Print the result as one JSON object; all else goes to stderr.", rich_help_panel=OUTPUT
        ),
    ],
    "quiet": Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only the essential line.", rich_help_panel=OUTPUT)
    ],
    "verbose": Annotated[
        bool, typer.Option("--verbose", "-v", help="Print which choices are made, and why.", rich_help_panel=OUTPUT)
    ],
    "log_file": Annotated[
        Path | None, typer.Option("--log-file", help="Append messages with times to this file.", rich_help_panel=OUTPUT)
    ],
}

verbose = False  # whether informational messages are shown, whatever a command does itself
_document: dict[str, Any] = {}
_essential: list[str] = []
_printed = False  # whether the JSON object was printed
_title = ""  # of the command that runs


def record(**values: Any) -> None:
    """Describe the result of a command, for --json; "path" is where it was written, for --quiet."""
    _document.update(values)


def essential(*lines: str) -> None:
    """Give the lines that --quiet prints."""
    _essential.extend(lines)


def begin() -> None:
    """Forget what an earlier command of this process has recorded."""
    global _printed, _title
    _document.clear()
    _essential.clear()
    _printed, _title = False, ""


def record_error(sentence: str, arguments: Sequence[str], title: str = "") -> None:
    """Print the JSON object of a command that failed, if these arguments ask for one."""
    if "--json" in arguments and not _printed:
        _document.clear()
        record(error=sentence)
        _print(sys.stdout, _title or title)


def shared(command: Callable[..., None], title: str, without: tuple[str, ...] = ()) -> Callable[..., None]:
    """The command, which users call `title`, with the shared options that it does not have itself, except `without`."""
    own = inspect.signature(command)
    added = [name for name in OPTIONS if name not in own.parameters and name not in without]
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [one.replace(kind=keyword) for one in own.parameters.values()]
    parameters += [
        inspect.Parameter(name, keyword, default=None if name == "log_file" else False, annotation=OPTIONS[name])
        for name in added
    ]

    def call(**values: Any) -> None:
        chosen = {name: values.pop(name) for name in added}
        _run(lambda: command(**values), chosen, title)

    call.__name__, call.__doc__ = command.__name__, command.__doc__
    call.__annotations__ = {one.name: one.annotation for one in parameters}
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call


def _run(command: Callable[[], None], chosen: dict[str, Any], name: str) -> None:
    global verbose, _title
    begin()
    verbose, _title = bool(chosen.get("verbose")), name
    printed = sys.stdout
    with ExitStack() as stack:
        stack.enter_context(_messages(chosen.get("log_file"), name))
        if chosen.get("json"):
            stack.enter_context(redirect_stdout(sys.stderr))
        elif chosen.get("quiet"):
            stack.enter_context(redirect_stdout(stack.enter_context(Path(os.devnull).open("w"))))
        try:
            command()
        except typer.Exit as ended:
            if chosen.get("json") and (_document or ended.exit_code):
                _print(printed, name)
            raise
    if chosen.get("json"):
        _print(printed, name)
    elif chosen.get("quiet"):
        for line in _essential or [_document[key] for key in ("path", "hash") if key in _document][:1]:
            print(line)


def _print(stream: Any, name: str) -> None:
    global _printed
    known = {"command": name} if name else {}
    text = json.dumps(known | _plain(_document), ensure_ascii=False, allow_nan=False)
    _printed = True
    print(text, file=stream, flush=True)


def _plain(value: Any) -> Any:
    """Values that JSON has types for: paths become texts, arrays lists, and numbers that are not finite null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, bool | int | str | None) else str(value)


class _Lines(logging.Handler):
    """Prints messages to stderr; commands with progress bars replace it by a handler of their own."""

    def emit(self, entry: logging.LogRecord) -> None:
        kind = "warning" if entry.levelno >= logging.WARNING else "note"
        print(f"{kind}: {entry.getMessage()}", file=sys.stderr)


@contextmanager
def _messages(path: Path | None, name: str) -> Iterator[None]:
    """Show messages of the library, and append them to a file."""
    lines, handlers = _Lines(NOTICE if not verbose else logging.INFO), []
    if path is not None:
        try:
            file = logging.FileHandler(path, encoding="utf-8")
        except OSError as error:
            raise InputError(f"--log-file cannot be written: {str(path)!r}: {error.strerror or error}.") from None
        file.setFormatter(logging.Formatter(FORMAT))
        handlers.append(file)
    before = log.level, log.propagate
    for handler in (lines, *handlers):
        log.addHandler(handler)
    log.setLevel(logging.INFO if verbose or handlers else NOTICE)
    log.propagate = False
    try:
        for handler in handlers:
            handler.handle(_entry(logging.INFO, f"bespoke {name} begins"))
        yield
    except BaseException as error:
        if not (isinstance(error, typer.Exit) and not error.exit_code):
            for handler in handlers:
                handler.handle(_entry(logging.ERROR, str(error) or type(error).__name__))
        raise
    else:
        for handler in handlers:
            handler.handle(_entry(logging.INFO, f"bespoke {name} is done"))
    finally:
        for handler in (lines, *handlers):
            log.removeHandler(handler)
            handler.close()
        log.level, log.propagate = before


def _entry(level: int, text: str) -> logging.LogRecord:
    return logging.LogRecord("bespokefl", level, "", 0, text, None, None)


@contextmanager
def own_screen(handler: logging.Handler, informational: bool) -> Iterator[None]:
    """Let a command's own handler print messages instead; messages of which level depends on `informational`."""
    handler.setLevel(logging.INFO if informational or verbose else NOTICE)
    replaced = [one for one in log.handlers if isinstance(one, _Lines)]
    before = log.level, log.propagate
    for one in replaced:
        log.removeHandler(one)
    log.addHandler(handler)
    log.setLevel(min(handler.level, before[0] or handler.level))
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        for one in replaced:
            log.addHandler(one)
        log.level, log.propagate = before
