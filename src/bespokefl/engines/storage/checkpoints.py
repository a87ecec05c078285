"""Checkpoints: all that a run is between two rounds, on disk, so that a killed run goes on as if nothing had happened.

A checkpoint is a folder, `round-00000012`, of two files (see `saved.py`). It is written beside, synced and renamed: it
is there whole or not at all. Two are kept.
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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bespokefl.core.errors import BespokeError, DiskError, InputError, in_brief
from bespokefl.core.files import cure, sync
from bespokefl.engines.storage import checkpoint_format
from bespokefl.engines.storage.checkpoint_format import LoadedCheckpoint, RunSnapshot

log = logging.getLogger("bespokefl")

KEPT = 2
DIGITS = 9  # of a number of rounds or seconds
NAME = re.compile(r"round-(\d{8})")
USUAL = "of Bespoke's own"


@dataclass(frozen=True)
class CheckpointInterval:
    """How often: after so many rounds, or when so many seconds have passed; neither: only when a run is stopped."""

    rounds: int | None = None
    seconds: float | None = None

    @classmethod
    def of(cls, text: str | int) -> "CheckpointInterval":
        """ "10" or 10: rounds; "60s": seconds; 0: never."""
        found = re.fullmatch(r"(\d+)\s*(s|sec|seconds)?", str(text).strip(), re.ASCII)
        if not found:
            raise InputError(f"checkpoint_every must be a number of rounds, or of seconds as in 60s, got {text!r}.")
        if len(found[1]) > DIGITS:
            raise InputError(f"checkpoint_every must have at most {DIGITS} digits, got {in_brief(text)!r}.")
        number = int(found[1])
        if not number:
            return cls()
        return cls(seconds=float(number)) if found[2] else cls(rounds=number)


class OtherRunError(InputError):
    """A checkpoint of another run than the one that would go on from it. Whoever knows a better cure says it."""

    def __init__(self, place: Path, key: str, before: Any, now: Any) -> None:
        self.key = key
        if key == "version":
            what = f"bespokefl {before} made it, and this is {now}"
        elif key == "split":
            what = f"its data, or whose they are, were others (split {str(before)[:12]}, not {str(now)[:12]})"
        elif key == "python":
            what = f"{_listed(before)} came from Python, not {_listed(now)}"
        elif key == "start":
            what = "it began with other weights, or with another model"
        else:
            what = f"its {key} was {in_brief(repr(before))}, not {in_brief(repr(now))}"
        self.fact = f"the checkpoint in {str(place)!r} is of another run: {what}"
        super().__init__(f"{self.fact}; use another folder, or --overwrite to replace it.")


def _listed(values: Any) -> str:
    named = [f"{what} {name}" for what, name in sorted(values.items())] if isinstance(values, dict) else []
    return "its " + " and its ".join(named) if named else "nothing"


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """The name of one value that is not the same, and both."""
    for key in ["version", *sorted({*before, *now})]:
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict) and key != "python":
            if found := _difference(old, new):
                return found
        elif old != new:
            return key, old, new
    return None


class Checkpoints:
    """The checkpoints of one run: written in the background, one at a time."""

    def __init__(
        self,
        folder: Path,
        every: CheckpointInterval,
        identity: Mapping[str, Any],
        begin: Callable[[Path], None] | None = None,
        *,
        put: Callable[[Callable[[Path], None]], None] | None = None,
        made_with: Mapping[str, str] | None = None,
    ) -> None:
        """identity: what makes the run; a checkpoint of another is refused. begin: fills the folder above at first.

        put: what is in the folder above is of another run; with the first checkpoint this is given what fills a new
        folder, and puts that in its place. made_with: what bits may depend on, too; a difference is only told
        """
        self.folder, self.every, self.identity = folder, every, dict(identity)
        self.made_with = _surroundings() | dict(made_with or {})
        self._begin, self._put, self._begun = begin, put, False
        self._good: list[Path] = []  # whole ones, oldest first
        self._thread: threading.Thread | None = None
        self._writing: RunSnapshot | None = None
        self._error: Exception | None = None
        self._new: list[Path] = []  # what was made for the first checkpoint
        self._last = time.monotonic()

    # -- writing

    def due(self, number: int) -> bool:
        if self._thread is not None and not self._thread.is_alive():
            self.wait()  # its slots are free for others
        if self.every.rounds is not None:
            return number % self.every.rounds == 0
        return self.every.seconds is not None and time.monotonic() - self._last >= self.every.seconds

    def save(self, moment: RunSnapshot) -> None:
        """Write it while the run goes on; waits for the one before."""
        self.wait()
        self._last = time.monotonic()
        self._writing = moment
        moment.clients.lend(self.wait)
        self._thread = threading.Thread(target=self._work, args=(moment,), name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Until the last one is on disk; says what went wrong."""
        if self._thread is None:
            return
        self._thread.join()
        moment, self._thread, self._writing = self._writing, None, None
        assert moment is not None
        moment.clients.release()
        if self._error is not None:
            error, self._error = self._error, None
            reason = error if isinstance(error, OSError) else error.__cause__
            if not isinstance(reason, OSError):
                raise error
            raise DiskError(
                f"cannot write a checkpoint to {str(self.folder)!r}: {reason.strerror or reason}",
                kept=kept(self.folder),
                cure=cure(reason),
            ) from None

    def settle(self) -> None:
        """Until the last one is on disk, or is not; for when something worse has happened."""
        with suppress(BespokeError):
            self.wait()

    def _work(self, moment: RunSnapshot) -> None:
        try:
            if self._begun:
                self._write(moment, self.folder)
            else:
                self._open(moment)
        except Exception as error:  # a thread has nobody to tell: wait() does
            self._error = error
            if not any_in(self.folder):
                self._take_back()

    def _open(self, moment: RunSnapshot) -> None:
        """The first checkpoint, and what stands beside it. Of another run's folder nothing goes before it is whole."""
        above = self.folder.parent
        if self._put is not None:
            self._put(lambda new: self._fill(new, moment))
        else:
            before = set(above.iterdir()) if above.exists() else None
            try:
                self._fill(above, moment)
            finally:
                self._new = [above] if before is None else [one for one in above.iterdir() if one not in before]
        self._begun = True

    def _fill(self, above: Path, moment: RunSnapshot) -> None:
        into = above / self.folder.name
        into.mkdir(parents=True, exist_ok=True)
        if self._begin is not None:
            self._begin(above)
        self._write(moment, into)

    def _take_back(self) -> None:
        """Without a checkpoint nobody could go on from what was begun, and it would be in the way of a new start."""
        for one in self._new:
            if one.is_dir():
                shutil.rmtree(one, ignore_errors=True)
            else:
                one.unlink(missing_ok=True)

    def _write(self, moment: RunSnapshot, into: Path) -> None:
        target = into / f"round-{moment.number:08d}"
        new = into / f".{target.name}.{os.getpid()}"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        try:
            checkpoint_format.write(moment, new, identity=self.identity, made_with=self.made_with)
            sync(new)
            if target.exists():  # this very round, written before
                shutil.rmtree(target)
            new.rename(target)
            sync(into)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        good = self.folder / target.name
        self._good = [*(one for one in self._good if one != good), good][-KEPT:]
        for other in _folders(self.folder) if len(self._good) == KEPT else ():  # older, or damaged
            if other not in self._good:
                shutil.rmtree(other, ignore_errors=True)

    # -- reading

    def latest(self, rounds: int, clients: int) -> LoadedCheckpoint | None:
        """The newest checkpoint that is whole, of a run of so many rounds and clients; says if a newer one is not."""
        if self._put is not None:
            return None
        for stale in self.folder.glob(".round-*"):  # of a process that was killed in the middle of it
            shutil.rmtree(stale, ignore_errors=True)
        for folder in _folders(self.folder):
            try:
                found = checkpoint_format.read(folder)
                checkpoint_format.refuse_nonsense(found, rounds, clients)
            except checkpoint_format.DAMAGED as error:
                log.warning(
                    "the checkpoint %s is damaged (%s) and is not used",
                    folder,
                    str(error).splitlines()[0] if str(error) else type(error).__name__,
                )
                continue
            except OSError as error:
                raise DiskError(
                    f"cannot read the checkpoint {str(folder)!r}: {error.strerror or error}",
                    cure="see to the disk, or to who may read it",
                ) from None
            self._compare(found.record.pop("identity"))
            self._tell(found.record.pop("made_with"))
            self._good, self._begun = [folder], True
            return found
        if any_in(self.folder):
            raise InputError(f"no checkpoint in {str(self.folder)!r} is whole; delete that folder to begin again.")
        return None

    def _compare(self, identity: Mapping[str, Any]) -> None:
        now = json.loads(json.dumps(self.identity))
        if found := _difference(identity, now):
            raise OtherRunError(self.folder.parent, *found)

    def _tell(self, before: Mapping[str, str]) -> None:
        """What is not as it was, and may change bits, but need not stop anybody."""
        now = self.made_with
        names = [what for what in sorted({*before, *now}) if before.get(what) != now.get(what)]
        changed = [f"{what} {before.get(what, '?') or USUAL} (now {now.get(what, '?') or USUAL})" for what in names]
        if changed:
            log.warning(
                "the checkpoint was made with %s: the run goes on, but may not end as it would have", ", ".join(changed)
            )

    def clear(self) -> None:
        """The run is finished, and its results are written."""
        self.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _surroundings() -> dict[str, str]:
    return {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
    }


def any_in(folder: Path) -> bool:
    """Whether there is a checkpoint, whole or not."""
    return bool(_folders(folder))


def kept(folder: Path) -> str:
    """What there is to go on from, in words."""
    for one in _folders(folder):
        try:
            return f"the last good checkpoint is of round {checkpoint_format.verified(one)['number']}"
        except checkpoint_format.DAMAGED:
            continue
        except OSError:
            return f"nothing in {str(folder)!r} was changed"
    return "there is no checkpoint yet"


def _folders(folder: Path) -> list[Path]:
    """Newest first."""
    if not folder.is_dir():
        return []
    return sorted((one for one in folder.iterdir() if NAME.fullmatch(one.name)), reverse=True)
