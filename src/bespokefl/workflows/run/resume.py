"""A run to go on with: what its folder says of it, or a sentence about what else is there and what to do with that."""

import shlex
from pathlib import Path

from bespokefl.core.errors import InputError
from bespokefl.data.sources import loader as sources
from bespokefl.data.sources import synthetic
from bespokefl.engines.storage.checkpoints import OtherRunError, has_checkpoint
from bespokefl.workflows.results import run_directory
from bespokefl.workflows.run import settings as configs
from bespokefl.workflows.run.settings import Config


def read(place: Path) -> Config:
    """What is to be gone on with in this folder; refuses one without an unfinished run."""
    file = place / "config.toml"
    run_directory.sweep(place)
    if not has_checkpoint(place / run_directory.CHECKPOINTS):
        raise InputError(_instead(place))
    if not file.is_file():
        again = "" if run_directory.is_strange(place) else ", or give the command that began it once more: it goes on"
        raise InputError(f"the run in {str(place)!r} has checkpoints, but its config.toml is gone; put it back{again}.")
    values = configs.read(file)
    if values.get("method") is None:
        raise InputError(f"{str(file)!r} is not as the run wrote it: it names no method; put it back as it was.")
    try:
        config = Config.of(values)
    except InputError as error:
        raise InputError(f"{str(file)!r} is not as the run wrote it: {error}") from None
    _check_origin(place, config)
    return config


def _instead(place: Path) -> str:
    """What is there where no run is to go on with."""
    from bespokefl.workflows.compare import storage as compare_folder
    from bespokefl.workflows.tune import result as tuning

    what, at = repr(str(place)), shlex.quote(str(place))
    if not place.is_dir():
        missing = "is a file" if place.exists() else "is not there"
        return f"{what} {missing}; name the folder of a run that was stopped or killed."
    if run_directory.is_run(place, compare_folder.SIGNS):
        command = compare_folder.read_plan(place).get("command")
        told = f"{command} --out {at}" if command else "the same call of bespokefl.compare"
        return f"{what} holds a comparison, not a run; this goes on with it: {told}."
    if run_directory.is_run(place, tuning.SIGNS):
        return f"{what} holds a tuning, not a run; the command that began it, with --out {at}, goes on with it."
    if run_directory.is_run(place):
        return f"the run in {what} is finished; there is nothing to resume."
    if any(place.iterdir()) and not run_directory.is_strange(place):
        return f"the run in {what} has no checkpoint yet; the command that began it starts it again."
    return f"{what} is not the folder of an unfinished run: it has no checkpoints; name the folder of one."


def _check_origin(place: Path, config: Config) -> None:
    """Refuse what was made in Python, and data that are gone."""
    data = Path(config.data)
    named = config.data in sources.names() or synthetic.is_drawn(config.data)
    if config.model.startswith("<") or not (named or data.is_absolute() or data.exists()):
        what = f"model, {config.model}," if config.model.startswith("<") else f"data, {config.data!r},"
        raise InputError(
            f"the {what} of the run in {str(place)!r} came from Python; the same call of bespokefl.run, with "
            f"checkpoint={str(place)!r}, goes on with it."
        )
    if not named and not data.exists():
        raise InputError(
            f"the data of the run in {str(place)!r} are gone: there is no {config.data!r}; put them back, or write "
            f"their new place into {str(place / 'config.toml')!r}."
        )


def refused(error: OtherRunError, place: Path, config: Config) -> InputError:
    """The checkpoint is not of the run that its config.toml now makes: what to put back."""
    file = place / "config.toml"
    if error.key == "python":
        return InputError(
            f"{error.fact}; the same call of bespokefl.run, with checkpoint={str(place)!r}, goes on with it."
        )
    if error.key == "version":
        cure = "use that version to go on"
    elif error.key == "split":
        cure = f"put the data {config.data!r} back as they were"
    elif error.key == "start":
        cure = f"put the model {config.model!r} back as it was"
    else:
        cure = f"put that back in {str(file)!r}"
    anew = f"bespoke run --config {shlex.quote(str(file))} --out ANOTHER_FOLDER"
    return InputError(f"{error.fact}; {cure}, or begin anew: {anew}.")
