"""Finds the run to resume in a directory, or says in one sentence why there is none and what to do instead."""

import json
import shlex
from pathlib import Path

from bespokefl.core.errors import PYTHON, InputError, settings_written_in
from bespokefl.data.sources import loader as sources
from bespokefl.data.sources import synthetic
from bespokefl.engines.storage.checkpoints import OtherRunError, has_checkpoint
from bespokefl.workflows.results import run_directory
from bespokefl.workflows.run import settings as run_settings
from bespokefl.workflows.run.settings import RunSettings


def read(directory: Path) -> RunSettings:
    """Return the settings of the unfinished run in this directory; raises `InputError` if there is none."""
    file = directory / "config.toml"
    run_directory.remove_leftovers(directory)
    if not has_checkpoint(directory / run_directory.CHECKPOINTS):
        raise InputError(_describe(directory))
    if not file.is_file():
        started = not run_directory.has_foreign_files(directory)
        again = ", or repeat the command that started it, which resumes it" if started else ""
        raise InputError(f"the run in {str(directory)!r} has checkpoints, but no config.toml; restore the file{again}.")
    values = run_settings.read(file)
    if values.get("method") is None:
        raise InputError(f"{str(file)!r} is not as the run wrote it: it has no method; restore the file.")
    try:
        with settings_written_in(PYTHON):  # keys of TOML files are spelled as in Python
            settings = RunSettings.of(values)
    except InputError as error:
        raise InputError(f"{str(file)!r} is not as the run wrote it: {error}") from None
    _check_inputs(directory, settings)
    return settings


def _describe(directory: Path) -> str:
    """Describe what a directory holds that has no run to resume."""
    what, quoted = repr(str(directory)), shlex.quote(str(directory))
    if not directory.is_dir():
        missing = "is a file" if directory.exists() else "does not exist"
        return f"{what} {missing}; name the directory of an interrupted run."
    if run_directory.is_run(directory, run_directory.COMPARISON_SIGNS):
        command = json.loads((directory / run_directory.COMPARISON_SIGNS[0]).read_bytes()).get("command")
        again = f"{command} --out {quoted}" if command else "the same call of bespokefl.compare"
        return f"{what} holds a comparison, not a run; this resumes it: {again}."
    if run_directory.is_run(directory, run_directory.TUNING_SIGNS):
        return f"{what} holds a tuning, not a run; the command that started it, with --out {quoted}, resumes it."
    if run_directory.is_run(directory):
        return f"the run in {what} is finished; there is nothing to resume."
    if any(directory.iterdir()) and not run_directory.has_foreign_files(directory):
        return f"the run in {what} has no checkpoint yet; the command that started it starts it again."
    return f"{what} is not the directory of an unfinished run: it has no checkpoints; name the directory of one."


def _check_inputs(directory: Path, settings: RunSettings) -> None:
    """Raise an error for a model or data that came from Python, and for data that do not exist any more."""
    data = Path(settings.data)
    named = settings.data in sources.names() or synthetic.is_synthetic(settings.data)
    if settings.model.startswith("<") or not (named or data.is_absolute() or data.exists()):
        what = f"model, {settings.model}," if settings.model.startswith("<") else f"data, {settings.data!r},"
        raise InputError(f"the {what} of the run in {str(directory)!r} came from Python; {_same_call(directory)}.")
    if not named and not data.exists():
        raise InputError(
            f"the data of the run in {str(directory)!r} are missing: there is no {settings.data!r}; restore them, or "
            f"write their new path into {str(directory / 'config.toml')!r}."
        )


def rejected(error: OtherRunError, directory: Path, settings: RunSettings) -> InputError:
    """Return the error for a checkpoint that does not belong to the run in config.toml, with what to restore."""
    file = directory / "config.toml"
    if error.key == "python":
        return InputError(f"{error.fact}; {_same_call(directory)}.")
    cures = {
        "version": "use that version to resume",
        "split": f"restore the data {settings.data!r}",
        "start": f"restore the model {settings.model!r}",
    }
    cure = cures.get(error.key, f"restore that in {str(file)!r}")
    anew = f"bespoke run --config {shlex.quote(str(file))} --out ANOTHER_FOLDER"
    return InputError(f"{error.fact}; {cure}, or start a new run: {anew}.")


def _same_call(directory: Path) -> str:
    return f"the same call of bespokefl.run, with checkpoint={str(directory)!r}, resumes it"
