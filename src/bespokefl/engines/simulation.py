"""The simulation: a whole federation on one machine, round after round.

One round: draw clients, send messages, train chunks of clients on the workers, commit states, aggregate the uploads.
Rounds commit: nothing of a round is seen before it is complete.
"""

import logging
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bespokefl.core import chance
from bespokefl.core.errors import TrainingError, listing
from bespokefl.core.method import ALL, NONE, Message, Method, Phase, Round, State, Uploads
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.engines import chunks, wire
from bespokefl.engines.client import Budget, ClientSide, Data
from bespokefl.engines.reference import ReferenceLoop
from bespokefl.engines.store import Store
from bespokefl.engines.workers import Here, Pool, cores

log = logging.getLogger("bespokefl")

Scores = dict[str, Tensor]  # "test_accuracy", "validation_loss", … -> one value per client


@dataclass(frozen=True)
class Settings:
    """How to run, beside the method."""

    rounds: int = 20
    participation: float = 1.0
    batch_size: int = 32
    local_epochs: int = 1
    local_steps: int | None = None  # instead of local_epochs
    seed: int = 0
    eval_every: int = 0  # 0: only at the end
    workers: int = 0  # 0: all cores
    chunk: int | None = None  # None: chosen by chunks.choose
    warm: bool = False  # the start is given weights, not random ones
    reference: bool = False  # the plain loop instead of the fast engine


@dataclass(frozen=True)
class Communication:
    """What went over the wire, counted where it passes."""

    up_bytes: int = 0
    down_bytes: int = 0
    up_floats: int = 0
    down_floats: int = 0

    def plus(self, *, up: tuple[int, int] = (0, 0), down: tuple[int, int] = (0, 0)) -> "Communication":
        return Communication(
            self.up_bytes + up[0], self.down_bytes + down[0], self.up_floats + up[1], self.down_floats + down[1]
        )


@dataclass
class Outcome:
    """What a run leaves: states, scores per client (in the order of `Data.names`), history."""

    server: State
    personal_rows: Rows
    global_rows: Rows | None
    personal: Scores
    globally: Scores | None
    history: list[dict[str, Any]]
    client_notes: list[dict[str, Any]]
    communication: Communication
    executor: chunks.Executor
    workers: int
    seconds_per_round: float
    rounds_done: int
    rounds_planned: int


@dataclass
class Progress:
    """What a progress display is told after every round."""

    done: int
    total: int
    phase: str
    scores: dict[str, float] = field(default_factory=dict)


Report = Callable[[Progress], None]


class Simulation:
    """One run of one method."""

    def __init__(self, method: Method, task: Task, data: Data, settings: Settings, classes: int | None) -> None:
        self.method, self.task, self.data, self.settings = method, task, data, settings
        task.check(data.x[:3], data.y[:3], classes)
        self.executor = self._executor()
        task.stacked = False  # the task may come from another run
        if self.executor.stacked:
            task.stack()
        log.info("chunk %d: %s", self.executor.chunk, self.executor.reason)
        lifetime = max(1, int(settings.rounds * settings.participation + 1e-9))
        budget = Budget(settings.batch_size, settings.local_epochs, settings.local_steps, lifetime)
        loop = ReferenceLoop(task) if settings.reference else None
        self.side = ClientSide(method, task, data, budget, settings.seed, loop)
        self.store = Store(lambda new: method.start_clients(task.start, [data.names[i] for i in new]))
        self.server: State = method.start_server(task.start, self._know(0, "start"))
        self.communication = Communication()
        self.history: list[dict[str, Any]] = []
        self.client_notes: list[dict[str, Any]] = []
        self._sizes = data.train.sizes.tolist()
        self._workers = 1
        self._latest: dict[str, float] = {}

    # -- the run

    def run(self, report: Report | None = None) -> Outcome:
        phases = self.method.phases(self.settings.rounds)
        planned = sum(phase.rounds for phase in phases)
        seconds: list[float] = []
        with self.pool() as pool, _stop_softly() as stopped:
            for number, phase in enumerate((p for p in phases for _ in range(p.rounds)), start=1):
                began = time.perf_counter()
                row = self.round(pool, number, phase)
                seconds.append(time.perf_counter() - began)
                self.history.append(row | {"seconds": seconds[-1]})
                last = number == planned or stopped()
                every = self.settings.eval_every
                if not last and every and number % every == 0:
                    self.history[-1] |= self._evaluated(*self._evaluate(pool, number, keep=False)[1:])
                if report is not None:
                    report(Progress(number, planned, phase.name, self._latest))
                if last:
                    break
            done = len(seconds)
            rows, personal, globally = self._evaluate(pool, done, keep=True)
            if self.history:
                self.history[-1] |= self._evaluated(personal, globally)
        assert rows is not None
        return Outcome(
            server=self.server,
            personal_rows=rows,
            global_rows=self.method.global_model(self.server),
            personal=personal,
            globally=globally,
            history=self.history,
            client_notes=self.client_notes,
            communication=self.communication,
            executor=self.executor,
            workers=self._workers,
            seconds_per_round=sum(seconds) / max(1, len(seconds)),
            rounds_done=done,
            rounds_planned=planned,
        )

    def round(self, pool: Pool | Here, number: int, phase: Phase) -> dict[str, Any]:
        """One round, committed."""
        settings, names = self.settings, self.data.names
        # 1. Who takes part.
        key = (settings.seed, "cohort", number)
        drawn = chance.sample(len(names), settings.participation, *key, sampling=phase.sampling).tolist()
        trains = list(range(len(names))) if phase.trains == ALL else drawn
        reports = {ALL: trains, NONE: []}.get(phase.reports, drawn)
        round = self._know(number, phase.name, tuple(reports))
        # 2. Chunks of clients train.
        parts = chunks.cut(trains, self._sizes, self.executor.chunk)
        before = self.communication

        def job(part: list[int]) -> Callable[[], dict[str, Any]]:
            return lambda: self._train_job(part, round)

        replies: list[dict[str, Any]] = [{}] * len(parts)
        for at, values in pool.map("train", [job(part) for part in parts], [self._names(part) for part in parts]):
            replies[at] = values
        self._refuse_broken(number, replies)
        # 3. The round commits: states first, then the server.
        for part, values in zip(parts, replies, strict=True):
            self.store.put(part, _under("state", values))
            self._keep_notes(number, part, _under("note", values))
        uploads = self._uploads(parts, replies, set(reports))
        if len(uploads):
            self.server = self.method.aggregate(self.server, uploads, round)
        after = self.communication
        return {
            "round": number,
            "phase": phase.name,
            "trained": len(trains),
            "reported": len(reports),
            "up_bytes": after.up_bytes - before.up_bytes,
            "down_bytes": after.down_bytes - before.down_bytes,
            **{name: _plain(value) for name, value in round.notes.items()},
        }

    def _train_job(self, part: list[int], round: Round) -> dict[str, Any]:
        message = self.method.message(self.server, part, round)
        shared, own = wire.size(message.shared), wire.size(message.own)
        down = (shared[0] * len(part) + own[0], shared[1] * len(part) + own[1])
        self.communication = self.communication.plus(down=down)
        return self._job(part, message, round)

    def _job(self, part: list[int], message: Message, round: Round) -> dict[str, Any]:
        return {
            "cohort": torch.tensor(part),
            "number": round.number,
            "phase": round.phase,
            **{f"shared/{name}": value for name, value in message.shared.items()},
            **{f"own/{name}": value for name, value in message.own.items()},
            **{f"state/{name}": value for name, value in self.store.get(part).items()},
        }

    def _uploads(self, parts: list[list[int]], replies: list[dict[str, Any]], reports: set[int]) -> Uploads:
        clients: list[int] = []
        chunks_up: list[State] = []
        for part, values in zip(parts, replies, strict=True):
            kept = [at for at, client in enumerate(part) if client in reports]
            upload = _under("upload", values)
            if not kept:
                continue
            if len(kept) < len(part):
                upload = {name: value[torch.tensor(kept)] for name, value in upload.items()}
            clients += [part[at] for at in kept]
            chunks_up.append(upload)
            self.communication = self.communication.plus(up=wire.size(upload))
        return Uploads(clients, self.data.train.sizes[torch.tensor(clients, dtype=torch.int64)], chunks_up)

    # -- evaluation

    def _evaluate(self, pool: Pool | Here, number: int, *, keep: bool) -> tuple[Rows | None, Scores, Scores | None]:
        """Everybody's personal model, and the global one, on everybody's own data."""
        everybody = list(range(len(self.data)))
        common = self.method.global_model(self.server)
        same = type(self.method).personal is Method.personal and common is not None
        globally = None if common is None else self._scores(pool, everybody, lambda part: {"rows": common})[0]
        if same:
            assert globally is not None and common is not None
            return (common.expand(len(everybody)) if keep else None), globally, globally
        round = self._know(number, "evaluate")

        def job(part: list[int]) -> dict[str, Any]:
            return self._job(part, self.method.message(self.server, part, round), round) | {"keep": keep}

        personal, rows = self._scores(pool, everybody, job)
        return rows, personal, globally

    def _scores(
        self, pool: Pool | Here, clients: list[int], job: Callable[[list[int]], dict[str, Any]]
    ) -> tuple[Scores, Rows | None]:
        parts = chunks.cut(clients, self._sizes, max(self.executor.chunk, 8))

        def bind(part: list[int]) -> Callable[[], dict[str, Any]]:
            return lambda: {"cohort": torch.tensor(part)} | job(part)

        answers: list[dict[str, Any]] = [{}] * len(parts)
        for at, values in pool.map("score", [bind(part) for part in parts], [self._names(part) for part in parts]):
            answers[at] = values
        back = torch.argsort(torch.tensor([client for part in parts for client in part]))
        scores = {
            name: torch.cat([_under("score", values)[name] for values in answers])[back]
            for name in _under("score", answers[0])
        }
        for part in ("train", "validation", "test"):
            bad = torch.isinf(scores[f"{part}_loss"]) | (
                torch.isnan(scores[f"{part}_loss"]) & (getattr(self.data, part).sizes > 0)
            )
            if bad.any():
                names = [self.data.names[i] for i in bad.nonzero().flatten().tolist()]
                raise TrainingError(
                    f"the {part} loss became non-finite by round {len(self.history)} for clients {listing(names)}: "
                    "use a smaller learning rate."
                )
        rows = Rows.cat([values["rows"] for values in answers])[back] if "rows" in answers[0] else None
        return scores, rows

    def _evaluated(self, personal: Scores, globally: Scores | None) -> dict[str, Any]:
        """Means over clients for the round's line, and for the progress display."""
        line: dict[str, Any] = {}
        for kind, scores in (("personal", personal), ("global", globally)):
            line[kind] = None if scores is None else {name: _mean(values) for name, values in scores.items()}
        self._latest = {name: value for name, value in line["personal"].items() if name.startswith("validation")}
        return line

    # -- what workers do

    def answer(self, what: str, values: dict[str, Any]) -> dict[str, Any]:
        """A job, done with nothing but its own values and the client's side."""
        cohort = values["cohort"].tolist()
        if what == "score" and "rows" in values:
            return {f"score/{name}": v for name, v in self.side.score(cohort, values["rows"]).items()}
        message = Message(_under("shared", values), _under("own", values))
        state = _under("state", values)
        if what == "train":
            reply = self.side.train(cohort, message, state, self._know(values["number"], values["phase"]))
            return {
                "broken": torch.tensor(reply.broken, dtype=torch.int64),
                **{f"upload/{name}": value for name, value in reply.upload.items()},
                **{f"state/{name}": value for name, value in reply.state.items()},
                **{f"note/{name}": value for name, value in reply.notes.items()},
            }
        rows = self.side.personal(cohort, message, state, values["number"]).expand(len(cohort))
        scores = {f"score/{name}": value for name, value in self.side.score(cohort, rows).items()}
        return scores | ({"rows": rows} if values["keep"] else {})

    # -- inside

    def _know(self, number: int, phase: str, reporting: tuple[int, ...] = ()) -> Round:
        settings = self.settings
        return Round(
            number=number,
            phase=phase,
            seed=settings.seed,
            names=self.data.names,
            participation=settings.participation,
            reporting=reporting,
            warm=settings.warm,
            groups=self.data.groups if self.method.needs_groups else None,
        )

    def _executor(self) -> chunks.Executor:
        settings = self.settings
        if settings.reference:
            return chunks.Executor(1, False, "the plain PyTorch loop")
        typical = int(self.data.train.sizes.float().mean())
        return chunks.choose(
            self.task,
            self.data.x[:3],
            self.data.y[:3],
            batch_size=min(settings.batch_size, typical),
            chunk=settings.chunk,
        )

    @contextmanager
    def pool(self) -> Iterator[Pool | Here]:
        """The workers, for as long as they are needed."""
        cuda = self.task.start.device.type != "cpu"
        alone = cuda or self.settings.reference or "fork" not in multiprocessing.get_all_start_methods()
        self._workers = 1 if alone else self.settings.workers or cores()
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        pool: Pool | Here = Pool(self.answer, self._workers) if self._workers > 1 else Here(self.answer)
        try:
            yield pool
        finally:
            pool.close()
            torch.set_num_threads(threads)

    def _names(self, part: Sequence[int]) -> str:
        return "clients " + listing([self.data.names[i] for i in part])

    def _refuse_broken(self, number: int, replies: list[dict[str, Any]]) -> None:
        broken = sorted(i for values in replies for i in values["broken"].tolist())
        if broken:
            names = listing([self.data.names[i] for i in broken])
            raise TrainingError(
                f"the weights became non-finite in round {number} for clients {names}: use a smaller learning rate."
            )

    def _keep_notes(self, number: int, part: list[int], notes: dict[str, Tensor]) -> None:
        for at, client in enumerate(part):
            if notes:
                row = {name: _plain(values[at]) for name, values in notes.items()}
                self.client_notes.append({"round": number, "client": self.data.names[client]} | row)


def _under(prefix: str, values: dict[str, Any]) -> dict[str, Any]:
    start = prefix + "/"
    return {name.removeprefix(start): value for name, value in values.items() if name.startswith(start)}


def _plain(value: Any) -> Any:
    """A tensor as numbers or lists of them, for JSON."""
    return value.tolist() if isinstance(value, Tensor) else value


def _mean(values: Tensor) -> float:
    return float(torch.nanmean(values))


@contextmanager
def _stop_softly() -> Iterator[Callable[[], bool]]:
    """Ctrl-C ends the run after the round in hand, with its results; a second Ctrl-C ends it at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def handle(number: int, frame: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        log.warning("stopping after this round; press Ctrl-C again to stop at once")

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)
