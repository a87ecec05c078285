"""Compute the missing cells of experiments: in order of importance, several at once, within a budget of time.

Every cell is trained in a process of its own with one thread. It can be interrupted at any time (Ctrl-C, a kill, the
end of the budget) and resumes from its last checkpoint.
"""

import logging
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import bespokefl
from bespokefl.core.errors import BespokeError, InputError
from bespokefl.engines.transports.processes import cores
from bespokefl_evidence.studies.cells import CellStore, Spec

LOOK_AGAIN = 2.0  # seconds between two looks at the clock while cells are trained


class Study(Protocol):
    """What the runner needs of an experiment."""

    @property
    def name(self) -> str: ...

    @property
    def summary(self) -> str:
        """One line about it."""
        ...

    def specs(self, store: CellStore) -> Iterator[Spec]:
        """All cells whose settings are known by now."""
        ...

    def compute(self, spec: Spec, scratch: Path, files: Path | None) -> tuple[dict[str, Any], float] | None:
        """Compute a cell: its results and the seconds; None if it was interrupted."""
        ...


@dataclass(frozen=True)
class Status:
    """How far an experiment is."""

    experiment: str
    priority: int
    done: int
    total: int
    spent: float  # seconds
    left: float | None  # seconds of computing, estimated; None if nothing is known of a cell


def in_order(studies: Sequence[Study], store: CellStore) -> list[Spec]:
    """All cells of these studies, most important first; within a priority, by experiment and then by seed."""
    position = {study.name: at for at, study in enumerate(studies)}
    specs = [spec for study in studies for spec in study.specs(store)]

    def importance(spec: Spec) -> tuple[int, int, int]:
        return spec.priority, position[spec.experiment], -1 if spec.settings.get("tuning") else spec.seed

    return sorted(specs, key=importance)


def compute_missing(
    studies: Sequence[Study],
    store: CellStore,
    *,
    scratch: Path,
    budget: float | None = None,
    files: Path | None = None,
    priority: int | None = None,
    processes: int | None = None,
    console: Console | None = None,
) -> bool:
    """Compute what is missing; returns whether all cells are there now.

    Parameters
    ----------
    scratch : Path
        A directory for checkpoints of unfinished cells.
    budget : float or None
        Seconds after which running cells are interrupted; they can be resumed.
    files : Path or None
        The directory of data files that no registry has.
    priority : int or None
        Only cells of at least this importance: 1 is the most important.
    """
    screen = console or Console()
    by_name = {study.name: study for study in studies}
    deadline = None if budget is None else time.monotonic() + budget
    failed: dict[str, str] = {}
    num = processes or cores()
    running: dict[Future[Any], Spec] = {}
    with (
        ProcessPoolExecutor(num, get_context("spawn"), _initialize) as pool,
        Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=screen
        ) as bar,
    ):
        task = bar.add_task("cells")
        try:
            while True:
                wanted = [one for one in in_order(studies, store) if priority is None or one.priority <= priority]
                missing = [one for one in wanted if store.get(one) is None and one.file not in failed]
                bar.update(task, total=len(wanted), completed=len(wanted) - len(missing))
                busy = {spec.file for spec in running.values()}
                for spec in [one for one in missing if one.file not in busy][: num - len(running)]:
                    job = by_name[spec.experiment].compute, spec, scratch / _directory(spec), files
                    running[pool.submit(_compute, *job)] = spec
                if not running:
                    break
                ended, _ = wait(running, timeout=LOOK_AGAIN, return_when=FIRST_COMPLETED)
                for future in ended:
                    _finish(future, running.pop(future), store, screen, failed)
                if deadline is not None and time.monotonic() > deadline:
                    screen.print("The time is over; unfinished cells are resumed next time.")
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            for process in list((pool._processes or {}).values()):
                if process.pid is not None:
                    os.kill(process.pid, signal.SIGINT)
            for future in list(running):
                future.cancel()
            wait(running, timeout=60)
            for future, spec in running.items():
                if future.done() and not future.cancelled():
                    _finish(future, spec, store, screen, failed)
            pool.shutdown(wait=True, cancel_futures=True)
            if deadline is None or time.monotonic() < deadline:
                raise
            return False
    for file, reason in failed.items():
        screen.print(f"not computed: {file}: {reason}", markup=False, soft_wrap=True)
    return not failed


def _finish(future: Future[Any], spec: Spec, store: CellStore, screen: Console, failed: dict[str, str]) -> None:
    try:
        found = future.result()
    except BespokeError as error:
        failed[spec.file] = str(error)
        return
    if found is not None:
        results, seconds = found
        store.put(spec, results, seconds, bespokefl.__version__)
        screen.print(f"{spec}: {seconds:.0f} s", markup=False, highlight=False)


def _initialize() -> None:
    torch.set_num_threads(1)
    logging.getLogger("bespokefl").setLevel(logging.ERROR)


def _compute(compute: Any, spec: Spec, scratch: Path, files: Path | None) -> tuple[dict[str, Any], float] | None:
    try:
        found: tuple[dict[str, Any], float] | None = compute(spec, scratch, files)
    except KeyboardInterrupt:  # outside a training
        return None
    if found is not None:
        shutil.rmtree(scratch, ignore_errors=True)
    return found


def _directory(spec: Spec) -> str:
    """The directory of a cell's checkpoints: another one if the settings change."""
    return f"{spec.file.removesuffix('.json').replace('/', '__')}-{spec.hash}"


def status(studies: Sequence[Study], store: CellStore) -> list[Status]:
    """How many cells are there, what they took and what the others will take, by experiment and priority."""
    found = []
    for study in studies:
        specs = list(study.specs(store))
        cells = [store.get(one) for one in specs]
        known: dict[tuple[str, str, bool], list[float]] = {}
        for spec, cell in zip(specs, cells, strict=True):
            if cell is not None:
                tuning = bool(spec.settings.get("tuning"))
                known.setdefault((spec.scenario, spec.row.partition(" tuning ")[0], tuning), []).append(cell.seconds)
        everything = [value for values in known.values() for value in values]
        for priority in sorted({one.priority for one in specs}):
            own = [(spec, cell) for spec, cell in zip(specs, cells, strict=True) if spec.priority == priority]
            left = 0.0
            for spec, cell in own:
                if cell is None:
                    tuning = bool(spec.settings.get("tuning"))
                    like = known.get((spec.scenario, spec.row.partition(" tuning ")[0], tuning)) or everything
                    left += sum(like) / len(like) if like else float("nan")
            done = [cell for _, cell in own if cell is not None]
            found.append(
                Status(
                    study.name,
                    priority,
                    len(done),
                    len(own),
                    sum(cell.seconds for cell in done),
                    None if left != left else left,
                )
            )
    return found


def seconds(text: str) -> float:
    """Read a duration such as "90m", "2h", "45s" or "1h30m"."""
    parts = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?", text.strip())
    if parts is None or not any(parts.groups()):
        raise InputError(f"a budget must be a time such as 90m, 2h or 45s, got {text!r}.")
    hours, minutes, rest = (float(one or 0) for one in parts.groups())
    return 3600 * hours + 60 * minutes + rest
