"""The simulation: whole federations on one machine, round after round.

One round: draw clients, send messages, train chunks of clients on the workers, commit states, aggregate the uploads.
Rounds commit: nothing of a round is seen before it is complete. One that fails costs itself: those before are saved.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import accumulate, groupby, islice

import torch

from bespokefl.core.errors import BespokeError
from bespokefl.core.method import Message, Method, Phase, Round, State
from bespokefl.core.nn import probe
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.engines import chunks, stacking
from bespokefl.engines.client import ClientSide, Data
from bespokefl.engines.evaluation import Scores, refuse_non_finite
from bespokefl.engines.federation import Draw, Federation
from bespokefl.engines.interrupts import stop_softly
from bespokefl.engines.outcome import Outcome
from bespokefl.engines.progress import Progress, Report
from bespokefl.engines.reference import ReferenceLoop
from bespokefl.engines.settings import Settings
from bespokefl.engines.storage.checkpoint_format import RunSnapshot, reject_if_altered
from bespokefl.engines.storage.checkpoints import Checkpoints
from bespokefl.engines.traffic import Traffic
from bespokefl.engines.transports.processes import InProcessPool, Pool, num_workers, open_pool
from bespokefl.engines.transports.wire import Values, under

log = logging.getLogger("bespokefl")


@dataclass
class Simulated(Outcome):
    """What a simulation leaves: also everybody's personal model, and how it was computed."""

    personal_rows: Rows
    executor: chunks.Executor
    workers: int
    states: str  # where clients' states were: memory or files


Chunk = list[int]  # clients of a chunk: positions in the joint data


class Simulation:
    """One run of one method; or several of them, on other data or seeds, trained as one (`stacked`)."""

    def __init__(self, method: Method, task: Task, data: Data, settings: Settings, classes: int | None) -> None:
        self._begin(method, task, [data], [settings], classes, [task.start])

    @classmethod
    def stacked(
        cls,
        method: Method,
        task: Task,
        data: Sequence[Data],
        settings: Sequence[Settings],
        classes: int | None,
        starts: Sequence[Rows] | None = None,
    ) -> "Simulation":
        """Several federations at once. Their settings may differ in the seed only; starts: each its own weights."""
        made = cls.__new__(cls)
        made._begin(method, task, data, settings, classes, starts or [task.start] * len(data))
        return made

    def _begin(
        self,
        method: Method,
        task: Task,
        data: Sequence[Data],
        settings: Sequence[Settings],
        classes: int | None,
        starts: Sequence[Rows],
    ) -> None:
        self.method, self.task, self.settings = method, task, settings[0]
        self.data = stacking.join(data, [one.seed for one in settings]) if len(data) > 1 else data[0]
        probe.check(task, self.data.x[:3], self.data.y[:3], classes)
        self.executor = chunks.choose_executor(task, self.data, self.settings)
        task.stacked = False  # the task may come from another run
        if self.executor.stacked:
            task.stack()
        log.info("chunk %d: %s", self.executor.chunk, self.executor.reason)
        loop = ReferenceLoop(task) if self.settings.reference else None
        self.side = ClientSide(
            method, task, self.data, self.settings.budget, self.settings.seed, loop, self.settings.privacy
        )
        members = zip(starts, data, settings, strict=True)
        self.federations = [Federation(method, start, one, own) for start, one, own in members]
        self._starts = list(accumulate((len(one) for one in data), initial=0))
        self._sizes: list[int] = self.data.train.sizes.tolist()
        self._home = [at for at, one in enumerate(data) for _ in one.names]
        self._workers = 1
        self._seconds: list[float] = []
        self._latest: dict[str, float] = {}
        self._checkpoints: Checkpoints | None = None
        self._saved = 0  # the round of the newest checkpoint
        self.failed = False  # whether a job has; what was done before is saved

    @property
    def server(self) -> State:
        """The only federation's server."""
        return self.federations[0].server

    # -- the run

    def run(self, report: Report | None = None, checkpoints: Checkpoints | None = None) -> Simulated:
        """From the start, or from the last checkpoint."""
        return self.run_all(report, checkpoints)[0]

    def run_all(self, report: Report | None = None, checkpoints: Checkpoints | None = None) -> list[Simulated]:
        """Every federation's outcome. Only a single one can have checkpoints."""
        phases = self.method.phases(self.settings.rounds)
        planned = sum(phase.rounds for phase in phases)
        self._checkpoints = checkpoints
        with ExitStack() as leaving:
            pool, stopped = leaving.enter_context(self.pool()), leaving.enter_context(stop_softly())
            if checkpoints is not None:
                leaving.callback(checkpoints.wait_ignoring_errors)  # whatever happens, none is on its way afterwards
            done = self._resume(checkpoints, planned)
            if done and "personal" not in self.federations[0].history[-1]:  # it was stopped while it scored this round
                self._follow(pool, done, planned)
            schedule = enumerate((p for p in phases for _ in range(p.rounds)), start=1)
            for number, phase in islice(schedule, done, None):
                self.round(pool, number, phase)
                stop = stopped()
                self._follow(pool, number, planned)
                if checkpoints is not None and number < planned and (stop or checkpoints.is_due(number)):
                    self._save(checkpoints, number)
                if report is not None:
                    report(Progress(number, planned, phase.name, self._latest))
                if stop:
                    break
            if checkpoints is not None:
                checkpoints.wait()
            return [self._outcome(pool, federation, planned) for federation in self.federations]

    def _follow(self, pool: Pool | InProcessPool, number: int, planned: int) -> None:
        """Note how everybody does, in the middle of a run, after every so many rounds."""
        every = self.settings.eval_every
        if number == planned or not every or number % every:
            return
        for federation in self.federations:
            _, personal, globally = self._evaluate(pool, federation, number, keep=False)
            self._latest = federation.keep_scores(personal, globally)

    def _save(self, checkpoints: Checkpoints, number: int) -> None:
        checkpoints.save(self._moment(number))
        self._saved = number

    def _rescue(self, pool: Pool | InProcessPool, sent: Sequence[Traffic]) -> None:
        """A job has failed: the rounds before are saved, as when a run is stopped, and nothing of this one is."""
        self.failed = True
        pool.close()  # the machine may be short of memory
        for federation, before in zip(self.federations, sent, strict=True):
            federation.communication = before  # messages were counted when they were made
        checkpoints, number = self._checkpoints, len(self._seconds)
        if checkpoints is None:
            return
        try:
            if number > self._saved:
                self._save(checkpoints, number)
            checkpoints.wait()
        except BespokeError as error:  # the job's failure is told, too, and ends the run
            log.warning("%s", error)

    def _moment(self, number: int) -> RunSnapshot:
        (federation,) = self.federations
        moment = federation.moment(number)
        moment.record["seconds"] = list(self._seconds)
        return moment

    def _resume(self, checkpoints: Checkpoints | None, planned: int) -> int:
        """Go back to the last checkpoint, if there is one; how many rounds are done."""
        found = None if checkpoints is None else checkpoints.load_latest(planned, len(self.data))
        if found is None:
            return 0
        (federation,) = self.federations
        with reject_if_altered(found):
            federation.restore(found)
        self._seconds, self._saved = found.record["seconds"], found.number
        log.warning("going on after round %d", found.number)
        return found.number

    def _outcome(self, pool: Pool | InProcessPool, federation: Federation, planned: int) -> Simulated:
        rows, personal, globally = self._evaluate(pool, federation, len(self._seconds), keep=True)
        self._latest = federation.keep_scores(personal, globally)
        assert rows is not None
        return Simulated.of(
            federation,
            personal,
            globally,
            seconds=self._seconds,
            planned=planned,
            personal_rows=rows,
            executor=self.executor,
            workers=self._workers,
            states="files" if federation.store.mapped else "memory",
        )

    def round(self, pool: Pool | InProcessPool, number: int, phase: Phase) -> None:
        """One round, committed."""
        began = time.perf_counter()
        draws = [federation.draw(number, phase) for federation in self.federations]
        trains = [start + i for start, draw in zip(self._starts, draws, strict=False) for i in draw.trains]
        parts = self._cut(trains, self.executor.chunk, draws)
        rounds = [draw.round for draw in draws]
        found = self._map(pool, "train", parts, lambda part: self._request(part, rounds))
        replies = {part[0]: self._aside(values) for part, values in found}
        own: list[list[tuple[Chunk, Values]]] = [[] for _ in draws]
        for part in parts:  # in their own order, whatever the order of the answers
            values = replies.pop(part[0])
            homes = self._by_home(part)
            answers = [values] if len(homes) == 1 else stacking.divide(values, [len(clients) for _, clients in homes])
            for (home, clients), answer in zip(homes, answers, strict=True):
                own[home].append((clients, answer))
        for federation, draw, pairs in zip(self.federations, draws, own, strict=True):
            federation.commit(draw, [clients for clients, _ in pairs], [values for _, values in pairs])
        seconds = time.perf_counter() - began
        self._seconds.append(seconds)
        for federation in self.federations:
            federation.history[-1]["seconds"] = seconds / len(self.federations)

    def _cut(self, clients: Sequence[int], size: int, draws: Sequence[Draw]) -> list[Chunk]:
        """Chunks over all federations, or, where their messages do not go together, chunks of each."""
        if len(draws) == 1:
            return chunks.cut(clients, self._sizes, size)
        probe = self.federations[0].request(draws[0].trains[:1], draws[0].round, count=False)
        if stacking.mergeable(probe):
            return [sorted(part) for part in chunks.cut(clients, self._sizes, size)]
        return [
            part
            for _, own in groupby(clients, key=lambda client: self._home[client])
            for part in chunks.cut(list(own), self._sizes, size)
        ]

    def _by_home(self, part: Chunk) -> list[tuple[int, Chunk]]:
        """A chunk's clients, federation by federation, as positions in their own."""
        groups = groupby(part, key=lambda client: self._home[client])
        return [(home, [client - self._starts[home] for client in clients]) for home, clients in groups]

    def _aside(self, values: Values) -> Values:
        """An answer, where states of its size belong until the round is over."""
        if len(self.federations) > 1:  # a study of small runs
            return values
        return self.federations[0].store.spill(under("state", values), values)

    def _request(self, part: Chunk, rounds: Sequence[Round]) -> Values:
        homes = self._by_home(part)
        requests = [self.federations[home].request(clients, rounds[home], count=True) for home, clients in homes]
        if len(requests) == 1:
            return requests[0]
        return stacking.merge(requests, [len(clients) for _, clients in homes])

    # -- evaluation

    def _evaluate(
        self, pool: Pool | InProcessPool, federation: Federation, number: int, *, keep: bool
    ) -> tuple[Rows | None, Scores, Scores | None]:
        """Everybody's personal model, and the global one, on everybody's own data."""
        common = self.method.global_model(federation.server)
        globally = (
            None if common is None else self._scores(pool, federation, lambda part: {"rows": common, "keep": keep})[0]
        )
        if globally is not None and common is not None and type(self.method).personal is Method.personal:
            return (common.expand(len(federation.data)) if keep else None), globally, globally
        round = federation.round(number, "evaluate")
        personal, rows = self._scores(
            pool, federation, lambda part: federation.request(part, round, count=False) | {"keep": keep}
        )
        return rows, personal, globally

    def _scores(
        self, pool: Pool | InProcessPool, federation: Federation, request: Callable[[Chunk], Values]
    ) -> tuple[Scores, Rows | None]:
        start = self._starts[self.federations.index(federation)]
        everybody = [start + i for i in range(len(federation.data))]
        parts = chunks.cut(everybody, self._sizes, chunks.to_score(self.task, federation.data))
        scores: Scores = {}
        rows: Rows | None = None
        for part, values in self._map(pool, "score", parts, lambda part: request([client - start for client in part])):
            at = torch.tensor(part) - start
            for name, own in under("score", values).items():
                scores.setdefault(name, torch.zeros(len(everybody), dtype=own.dtype))[at] = own
            if "rows" in values:
                rows = federation.store.allocate(values["rows"], len(everybody)) if rows is None else rows
                for block, new in zip(rows.blocks, values["rows"].blocks, strict=True):
                    block[at] = new
        refuse_non_finite(scores, federation.data, len(federation.history))
        return scores, rows

    # -- jobs

    def _map(
        self, pool: Pool | InProcessPool, what: str, parts: list[Chunk], request: Callable[[Chunk], Values]
    ) -> Iterator[tuple[Chunk, Values]]:
        """The parts and their answers, as they come. What fails here has changed nothing yet."""

        def bind(part: Chunk) -> Callable[[], Values]:
            return lambda: {"cohort": torch.tensor(part)} | request(part)

        names = ["clients " + ", ".join(self.data.names[i] for i in part) for part in parts]
        sent = [federation.communication for federation in self.federations]
        try:
            for at, values in pool.map(what, [bind(part) for part in parts], names):
                yield parts[at], values
        except Exception:
            self._rescue(pool, sent)
            raise

    def answer(self, what: str, values: Values) -> Values:
        """A job, done with nothing but its own values and the client's side."""
        cohort = values["cohort"].tolist()
        if what == "score" and "rows" in values:
            found = self.side.score(cohort, values["rows"], by_class=values["keep"])
            return {f"score/{name}": value for name, value in found.items()}
        message = Message(under("shared", values), under("own", values))
        state = under("state", values)
        if what == "train":
            round = self.federations[0].round(values["number"], values["phase"])
            reply = self.side.train(cohort, message, state, round)
            return {
                "broken": reply.broken,
                **{f"upload/{name}": value for name, value in reply.upload.items()},
                **{f"state/{name}": value for name, value in reply.state.items()},
                **{f"note/{name}": value for name, value in reply.notes.items()},
            }
        rows = self.side.personal(cohort, message, state, values["number"]).expand(len(cohort))
        found = self.side.score(cohort, rows, by_class=values["keep"])
        scores = {f"score/{name}": value for name, value in found.items()}
        return scores | ({"rows": rows} if values["keep"] else {})

    @contextmanager
    def pool(self) -> Iterator[Pool | InProcessPool]:
        """The workers, for as long as they are needed."""
        self._workers = num_workers(self.task, self.settings)
        with open_pool(self.answer, self._workers) as pool:
            yield pool
