"""Writes and reads the checkpoints of a run, so that a killed run can be resumed with an identical result.

A checkpoint is a directory, `round-00000012`, with two files (see `checkpoint_format.py`). It is written under another
name, synced and renamed, so that it exists completely or not at all. The last two are kept.
"""

import json
import logging
import os
import platform
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bespokefl.core.errors import BespokeError, DiskError, InputError, in_brief, spell
from bespokefl.core.system.files import cure, sync, write_text
from bespokefl.engines.storage import checkpoint_format
from bespokefl.engines.storage.checkpoint_format import LoadedCheckpoint, RunSnapshot

log = logging.getLogger("bespokefl")

NUM_KEPT = 2
MAX_DIGITS = 9  # of a number of rounds or seconds
NAME = re.compile(r"round-(\d{8})")
CALLBACKS = "callbacks.json"  # beside the checkpoints: the states of callbacks
BUILT_IN = "of Bespoke's own"


@dataclass(frozen=True)
class CheckpointInterval:
    """Time between two checkpoints, in rounds or in seconds; with neither, only an interrupted run writes one."""

    rounds: int | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, text: str | int) -> "CheckpointInterval":
        """Parse "10" or 10 as rounds, "60s" as seconds, 0 as never."""
        found = re.fullmatch(r"(\d+)\s*(s|sec|seconds)?", str(text).strip(), re.ASCII)
        if not found:
            raise InputError(
                f"{spell('checkpoint_every')} must be a number of rounds, or of seconds as in 60s, got {text!r}."
            )
        if len(found[1]) > MAX_DIGITS:
            raise InputError(
                f"{spell('checkpoint_every')} must have at most {MAX_DIGITS} digits, got {in_brief(text)!r}."
            )
        number = int(found[1])
        if not number:
            return cls()
        return cls(seconds=float(number)) if found[2] else cls(rounds=number)


class OtherRunError(InputError):
    """The checkpoint belongs to another run than the one that is to be resumed.

    `key` names the difference; `fact` is the message without advice, for callers that have better advice.
    """

    def __init__(self, folder: Path, key: str, before: Any, now: Any) -> None:
        self.key = key
        differences = {
            "version": f"it was made by bespokefl {before}, and this is {now}",
            "split": f"its data or split differ (split {str(before)[:12]}, not {str(now)[:12]})",
            "python": f"it was trained with {_python_objects(before)}, and this run with {_python_objects(now)}",
            "start": "it started from other weights or with another model",
        }
        usual = f"its {key} was {in_brief(repr(before))}, not {in_brief(repr(now))}"
        self.fact = f"the checkpoint in {str(folder)!r} is of another run: {differences.get(key, usual)}"
        super().__init__(f"{self.fact}; use another directory, or --overwrite to replace it.")


def _python_objects(values: Any) -> str:
    names = [f"the {kind} {name}" for kind, name in sorted(values.items())] if isinstance(values, dict) else []
    return f"{' and '.join(names)} from Python" if names else "nothing from Python"


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """The key of the first value that differs, and both values."""
    for key in ["version", *sorted({*before, *now})]:
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict) and key != "python":
            if found := _difference(old, new):
                return found
        elif old != new:
            return key, old, new
    return None


class Checkpoints:
    """The checkpoints of one run. A thread writes them, one at a time, while the run continues.

    folder           the directory of the checkpoints, in the directory of the run
    interval         how often to write one
    identity         what defines the run; a checkpoint with another identity is rejected
    write_run_files  is called with the directory of the run before the first checkpoint is written
    replace_run      given if the directory has results of another run: with the first checkpoint it is called with a
                     function that fills a new directory, and then replaces the previous directory by that
    environment      what else may influence bits; a difference is reported, not rejected
    """

    def __init__(
        self,
        folder: Path,
        interval: CheckpointInterval,
        identity: Mapping[str, Any],
        write_run_files: Callable[[Path], None] | None = None,
        *,
        replace_run: Callable[[Callable[[Path], None]], None] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.interval, self.identity = folder, interval, dict(identity)
        self.environment = _environment() | dict(environment or {})
        self._write_run_files, self._replace_run, self._run_exists = write_run_files, replace_run, False
        self._intact: list[Path] = []  # oldest first
        self._writing: tuple[RunSnapshot, Future[None]] | None = None
        self._last = time.monotonic()
        self._callbacks = self._stored_callbacks = "{}"  # the states of callbacks, as JSON: now, and on disk
        self._callbacks_lock = threading.Lock()
        self.on_written: Callable[[int, Path], None] | None = None  # called in the main thread

    # -- writing

    def is_due(self, number: int) -> bool:
        """Whether a checkpoint is to be written after this round."""
        if self._writing is not None and self._writing[1].done():
            self.wait()  # releases the slots of its snapshot
        if self.interval.rounds is not None:
            return number % self.interval.rounds == 0
        return self.interval.seconds is not None and time.monotonic() - self._last >= self.interval.seconds

    def save(self, snapshot: RunSnapshot) -> None:
        """Write a checkpoint in the background, after the previous one."""
        self.wait()
        self._last = time.monotonic()
        snapshot.clients.on_slots_needed(self.wait)
        thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing = snapshot, thread.submit(self._write if self._run_exists else self._write_first, snapshot)
        thread.shutdown(wait=False)

    def wait(self) -> None:
        """Wait until the last checkpoint is on disk; raise the error if it could not be written."""
        if self._writing is None:
            return
        snapshot, written = self._writing
        error = written.exception()
        self._writing = None
        snapshot.clients.release()
        if error is not None:
            reason = error if isinstance(error, OSError) else error.__cause__
            if not isinstance(reason, OSError):
                raise error
            raise DiskError(
                f"cannot write a checkpoint to {str(self.folder)!r}: {reason.strerror or reason}",
                kept=describe_latest(self.folder),
                cure=cure(reason),
            ) from None
        if self.on_written is not None:
            self.on_written(snapshot.number, self._intact[-1])

    def keep_callbacks(self, states: Mapping[str, Any]) -> None:
        """Keep the states of callbacks for a resumed run; they are written with the first checkpoint, then at once."""
        self._callbacks = json.dumps(states)
        if self._run_exists:
            self._write_callbacks()

    def _write_callbacks(self) -> None:
        """Write the states that changed: after a round, or in the thread that has written the first checkpoint."""
        with self._callbacks_lock:
            text = self._callbacks
            if text != self._stored_callbacks:
                with suppress(BespokeError):  # a full disk; the next checkpoint reports it
                    write_text(self.folder / CALLBACKS, text)
                    self._stored_callbacks = text

    def wait_ignoring_errors(self) -> None:
        """Wait until no checkpoint is being written, after another error that is to be reported instead."""
        with suppress(BespokeError):
            self.wait()

    def _write_first(self, snapshot: RunSnapshot) -> None:
        """Write the first checkpoint and the files of the run."""
        run = self.folder.parent
        if self._replace_run is not None:
            self._replace_run(lambda new: self._fill_run(new, snapshot))
        else:
            before = set(run.iterdir()) if run.exists() else None
            try:
                self._fill_run(run, snapshot)
            except Exception:
                if not has_checkpoint(self.folder):  # nobody could resume the run, whose files would block a new start
                    for path in [run] if before is None else set(run.iterdir()) - before:
                        if path.is_dir():
                            shutil.rmtree(path, ignore_errors=True)
                        else:
                            with suppress(OSError):
                                path.unlink()
                raise
        self._run_exists = True
        self._write_callbacks()  # rounds may have ended meanwhile

    def _fill_run(self, run: Path, snapshot: RunSnapshot) -> None:
        folder = run / self.folder.name
        folder.mkdir(parents=True, exist_ok=True)
        if self._write_run_files is not None:
            self._write_run_files(run)
        if self._callbacks != "{}":
            write_text(folder / CALLBACKS, self._callbacks)  # complete as soon as the run can be resumed
        self._write(snapshot, folder)

    def _write(self, snapshot: RunSnapshot, folder: Path | None = None) -> None:
        folder = folder or self.folder
        target = folder / f"round-{snapshot.number:08d}"
        new = folder / f".{target.name}.{os.getpid()}"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        try:
            checkpoint_format.write(snapshot, new, identity=self.identity, made_with=self.environment)
            sync(new)
            if target.exists():  # the same round, written before
                shutil.rmtree(target)
            new.rename(target)
            sync(folder)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        final = self.folder / target.name
        self._intact = [*(path for path in self._intact if path != final), final][-NUM_KEPT:]
        for path in _checkpoint_folders(self.folder) if len(self._intact) == NUM_KEPT else ():
            if path not in self._intact:  # older or damaged
                shutil.rmtree(path, ignore_errors=True)

    # -- reading

    def load_latest(self, rounds: int, clients: int) -> LoadedCheckpoint | None:
        """Load the newest intact checkpoint of a run with so many rounds and clients; warn about damaged ones."""
        if self._replace_run is not None:
            return None
        for unfinished in self.folder.glob(".round-*"):  # of a process that was killed
            shutil.rmtree(unfinished, ignore_errors=True)
        for folder in _checkpoint_folders(self.folder):
            try:
                loaded = checkpoint_format.read(folder)
                checkpoint_format.check_plausible(loaded, rounds, clients)
            except checkpoint_format.DAMAGE_ERRORS as error:
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                log.warning("the checkpoint %s is damaged (%s) and is not used", folder, reason)
                continue
            except OSError as error:
                raise DiskError(
                    f"cannot read the checkpoint {str(folder)!r}: {error.strerror or error}",
                    cure="check the disk and the permissions",
                ) from None
            self._check_identity(loaded.record.pop("identity"))
            self._warn_about_environment(loaded.record.pop("made_with"))
            self._intact, self._run_exists = [folder], True
            return loaded
        if has_checkpoint(self.folder):
            raise InputError(f"no checkpoint in {str(self.folder)!r} is intact; delete that directory to start again.")
        return None

    def load_callbacks(self) -> dict[str, Any]:
        """The states of callbacks that the interrupted run left; none if they are missing or damaged."""
        with suppress(OSError, ValueError):
            states = json.loads((self.folder / CALLBACKS).read_text(encoding="utf-8"))
            return states if isinstance(states, dict) else {}
        return {}

    def _check_identity(self, before: Mapping[str, Any]) -> None:
        if difference := _difference(before, json.loads(json.dumps(self.identity))):
            raise OtherRunError(self.folder.parent, *difference)

    def _warn_about_environment(self, before: Mapping[str, str]) -> None:
        now = self.environment
        changed = [
            f"{name} {before.get(name, '?') or BUILT_IN} (now {now.get(name, '?') or BUILT_IN})"
            for name in sorted({*before, *now})
            if before.get(name) != now.get(name)
        ]
        if changed:
            log.warning(
                "the checkpoint was made with %s: the run resumes, but its result may differ from that of an "
                "uninterrupted run",
                ", ".join(changed),
            )


def _environment() -> dict[str, str]:
    return {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
    }


def has_checkpoint(folder: Path) -> bool:
    """Whether a directory has a checkpoint, intact or damaged."""
    return bool(_checkpoint_folders(folder))


def describe_latest(folder: Path) -> str:
    """Describe the newest intact checkpoint in a directory, for an error message."""
    for checkpoint in _checkpoint_folders(folder):
        try:
            number = checkpoint_format.read_verified_record(checkpoint)["number"]
            return f"the last good checkpoint is of round {number}"
        except checkpoint_format.DAMAGE_ERRORS:
            continue
        except OSError:
            return f"nothing in {str(folder)!r} was changed"
    return "there is no checkpoint yet"


def _checkpoint_folders(folder: Path) -> list[Path]:
    """The newest first."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if NAME.fullmatch(path.name)), reverse=True)
