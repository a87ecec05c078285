"""Compute the missing cells of experiments: in order of importance, several at once, within a budget of time.

Every cell is trained in a process of its own with one thread. It can be interrupted at any time (Ctrl-C, a kill, the
end of the budget) and resumes from its last checkpoint.
"""

import logging
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import bespokefl
from bespokefl.core.errors import BespokeError, InputError, TrainingError, count
from bespokefl.engines.transports.cluster.connection import num_cores
from bespokefl.engines.transports.processes import cores
from bespokefl.workflows.run.jobs import SERVERS_PER_CORE
from bespokefl_evidence.studies.cells import CellStore, Spec

LOOK_AGAIN = 2.0  # seconds between two looks at the clock while cells are trained


Compute = Callable[[Spec, Path, Path | None], tuple[dict[str, Any], float] | None]  # as `Study.compute`


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


@runtime_checkable
class Spreading(Protocol):
    """A study whose cells can be trained on a cluster."""

    def compute_on(self, cluster: str) -> Compute:
        """As `compute`, with the clients of the cell on a worker of a Ray cluster."""
        ...


@runtime_checkable
class Tuned(Protocol):
    """A study that knows which cells follow when tuning is done."""

    def waiting(self, store: CellStore) -> Iterator[Spec]:
        """Cells whose settings depend on tuning that is not done yet, with provisional settings."""
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
    cluster: str = "none",
    console: Console | None = None,
) -> bool:
    """Compute what is missing; returns whether all cells are there now, which the budget can prevent.

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
    processes : int or None
        Number of cells that are trained at once; None: one for each core, of the cluster if there is one.
    cluster : str
        A Ray cluster on whose workers the clients are; servers and checkpoints are here.

    Raises
    ------
    InputError
        When cells cannot be computed, such as for lack of data; all others are computed before.
    """
    screen = console or Console()
    computing = {study.name: _computation(study, cluster, screen) for study in studies}
    deadline = None if budget is None else time.monotonic() + budget
    failed: dict[str, str] = {}
    at_once = cores()
    if cluster != "none":  # asked here, so that a missing cluster ends the command
        at_once = min(num_cores(cluster), SERVERS_PER_CORE * cores())
    num = processes or at_once
    running: dict[Future[Any], Spec] = {}
    for spec in in_order(studies, store):
        store.get(spec)  # a damaged cell is reported before anything starts
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
                with interrupts_blocked():  # workers inherit this
                    for spec in [one for one in missing if one.file not in busy][: num - len(running)]:
                        job = computing[spec.experiment], spec, scratch / _directory(spec), files
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
            for future in _interrupt(pool, running):
                _finish(future, running[future], store, screen, failed)
            if deadline is None or time.monotonic() < deadline:
                raise
            return False
    if failed:
        reasons = list(dict.fromkeys(failed.values()))
        more = f" (and {count(len(reasons) - 1, 'other reason')})" if len(reasons) > 1 else ""
        raise InputError(f"{count(len(failed), 'cell')} cannot be computed{more}: {reasons[0]}")
    return True


def _computation(study: Study, cluster: str, screen: Console) -> Compute:
    """The function that computes a study's cells."""
    if cluster == "none":
        return study.compute
    if isinstance(study, Spreading):
        return study.compute_on(cluster)
    screen.print(f"{study.name} is computed on this machine: its cells are not trained on a cluster.")
    return study.compute


def _interrupt(pool: ProcessPoolExecutor, running: Iterable[Future[Any]]) -> list[Future[Any]]:
    """Let all workers write a checkpoint and end; returns what has ended."""
    for process in list((pool._processes or {}).values()):
        if process.pid is not None:
            os.kill(process.pid, signal.SIGINT)
    waiting = [future for future in running if not future.cancel()]
    wait(waiting)
    pool.shutdown(wait=True, cancel_futures=True)
    return waiting


def _finish(future: Future[Any], spec: Spec, store: CellStore, screen: Console, failed: dict[str, str]) -> None:
    try:
        found = future.result()
    except BespokeError as error:
        failed[spec.file] = str(error)
        return
    except BrokenProcessPool:
        raise TrainingError(
            "a process that computes cells was killed, perhaps for lack of memory; all finished cells are stored: "
            "repeat the command, with fewer --processes."
        ) from None
    if found is not None:
        results, seconds = found
        store.put(spec, results, seconds, bespokefl.__version__)
        screen.print(f"{spec}: {seconds:.0f} s", markup=False, highlight=False)


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Defer Ctrl-C until the end of this block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _initialize() -> None:
    """Prepare a worker, which sees interrupts only while it computes, and only those that the main process sends."""
    os.setpgrp()  # the terminal's Ctrl-C is for the main process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    logging.getLogger("bespokefl").setLevel(logging.ERROR)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # a killed main process leaves no workers; checkpoints remain


def _compute(compute: Compute, spec: Spec, scratch: Path, files: Path | None) -> tuple[dict[str, Any], float] | None:
    found: tuple[dict[str, Any], float] | None = None
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        found = compute(spec, scratch, files)
    except KeyboardInterrupt:  # outside a training
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
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
        cells = [(spec, store.get(spec)) for spec in study.specs(store)]
        estimate = Estimate([(spec, cell.seconds) for spec, cell in cells if cell is not None])
        cells += [(spec, None) for spec in study.waiting(store)] if isinstance(study, Tuned) else []
        for priority in sorted({spec.priority for spec, _ in cells}):
            own = [(spec, cell) for spec, cell in cells if spec.priority == priority]
            done = [cell.seconds for _, cell in own if cell is not None]
            left = [estimate.seconds(spec) for spec, cell in own if cell is None]
            known = None if None in left else sum(one for one in left if one is not None)
            found.append(Status(study.name, priority, len(done), len(own), sum(done), known))
    return found


class Estimate:
    """How long cells will take: as long per round as those of the same row, or else as the others of the study."""

    def __init__(self, done: Sequence[tuple[Spec, float]]) -> None:
        self._rates: dict[tuple[str, ...], list[float]] = {}
        for spec, taken in done:
            for key in self._keys(spec):
                self._rates.setdefault(key, []).append(taken / self._rounds(spec))

    def seconds(self, spec: Spec) -> float | None:
        """The seconds of a cell; None if nothing is known of the study."""
        rates = next((self._rates[key] for key in self._keys(spec) if key in self._rates), None)
        return None if rates is None else self._rounds(spec) * sum(rates) / len(rates)

    @staticmethod
    def _keys(spec: Spec) -> list[tuple[str, ...]]:
        row = spec.row.partition(" tuning ")[0]
        return [(spec.scenario, row), (row,), ()]

    @staticmethod
    def _rounds(spec: Spec) -> int:
        return int(spec.settings.get("run", {}).get("rounds", 1))


def seconds(text: str) -> float:
    """Read a duration such as "90m", "2h", "45s" or "1h30m"."""
    parts = re.fullmatch(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?", text.strip())
    if parts is None or not any(parts.groups()):
        raise InputError(f"a budget must be a time such as 90m, 2h or 45s, got {text!r}.")
    hours, minutes, rest = (float(one or 0) for one in parts.groups())
    return 3600 * hours + 60 * minutes + rest
