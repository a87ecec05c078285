"""The round loop, the same for simulations and deployments.

A round draws clients, makes messages, exchanges them for uploads through a transport, screens and aggregates these, and
commits. Nothing of a round is visible before it is complete: a round that fails leaves the rounds before it intact.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import islice
from typing import TypeVar

import torch

from bespokefl.core.errors import BespokeError, TrainingError, listing
from bespokefl.core.method import Method, Phase, State
from bespokefl.core.rows import Rows
from bespokefl.core.work import SIZE
from bespokefl.engines import evaluation
from bespokefl.engines.callbacks import Callbacks
from bespokefl.engines.cohorts.stacking import Members, divide, merge, mergeable
from bespokefl.engines.evaluation import Scores
from bespokefl.engines.federation import Federation
from bespokefl.engines.interrupts import delay_interrupts
from bespokefl.engines.outcome import OnProgress, Outcome, Progress
from bespokefl.engines.storage.checkpoint_format import RunSnapshot, reject_if_altered
from bespokefl.engines.storage.checkpoints import Checkpoints
from bespokefl.engines.transports.protocol import Draw, ScoreRequest, TrainReply, TrainRequest, Transport

log = logging.getLogger("bespokefl")

T = TypeVar("T")


class RoundLoop:
    """Runs one federation over a transport; or several simulated ones, whose clients are trained as one.

    Several must have the same method and number of rounds, and cannot have checkpoints. The transport knows the clients
    of all federations, one after the other.
    """

    def __init__(self, federations: Sequence[Federation], transport: Transport) -> None:
        self.federations, self.transport = list(federations), transport
        self.method, self.settings = federations[0].method, federations[0].settings
        self.failed = False  # whether an exchange failed; the rounds before it are saved
        self._members = Members([len(one.data) for one in federations])
        self._seconds: list[float] = []  # of every round
        self._callbacks = Callbacks()
        self._checkpoints: Checkpoints | None = None
        self._saved = 0  # the round of the newest checkpoint

    @property
    def server(self) -> State:
        """The server's state, of the only federation."""
        return self.federations[0].server

    @contextmanager
    def open(self) -> Iterator[None]:
        """Keep the transport open."""
        self.transport.open()
        try:
            yield
        finally:
            self.transport.close()

    # -- the run

    def run(
        self,
        report: OnProgress | None = None,
        checkpoints: Checkpoints | None = None,
        callbacks: Callbacks | None = None,
    ) -> Outcome:
        """Run all rounds of the only federation, from the start or from the last checkpoint."""
        self._callbacks = callbacks or Callbacks()
        try:
            outcome = self.run_all(report, checkpoints)[0]
        except BaseException as error:
            self._callbacks.failed(error, len(self._seconds))
            raise
        self._callbacks.ended(outcome)
        return outcome

    def run_all(self, report: OnProgress | None = None, checkpoints: Checkpoints | None = None) -> list[Outcome]:
        """Run all rounds and return every federation's outcome.

        Ctrl-C ends a simulation after the current round, with a checkpoint; a deployment is stopped by its transport.
        The last round is reported after the final evaluation, with its scores.
        """
        phases = self.method.phases(self.settings.rounds)
        planned = sum(phase.rounds for phase in phases)
        self._checkpoints = checkpoints
        with ExitStack() as resources:
            interrupted = None if self.transport.remote else resources.enter_context(delay_interrupts())
            resources.enter_context(self.open())
            if checkpoints is not None:
                resources.callback(checkpoints.wait_ignoring_errors)  # no checkpoint is being written afterwards
                checkpoints.on_written = self._callbacks.checkpoint_written
            done = self._resume(planned)
            self._begin(done, planned)
            schedule = enumerate((phase for phase in phases for _ in range(phase.rounds)), start=1)
            for number, phase in islice(schedule, done, None):
                self.round(number, phase)
                stop = interrupted is not None and interrupted()
                last = stop or number == planned
                self._evaluate_if_due(number, planned)
                if not last:
                    self._end_round()
                self._save_if_due(number, planned, stop)
                if not last and report is not None:
                    report(Progress.after(self.federations[-1].history[-1], planned))
                if stop:
                    break
            if checkpoints is not None:
                checkpoints.wait()
            outcomes = [self._outcome(at, planned) for at in range(len(self.federations))]
            if planned:
                self._end_round()
                if report is not None:
                    report(Progress.after(self.federations[-1].history[-1], planned))
            return outcomes

    def _begin(self, done: int, planned: int) -> None:
        """Score the initial weights, or complete the last round of a run that ended while it was evaluated."""
        federation, checkpoints = self.federations[0], self._checkpoints
        if not done:
            self._evaluate_start()
        pending = done > 0 and "personal" not in federation.history[-1] and self._is_due(done, planned)
        history = federation.history[: done - (pending or done == planned)]  # the last round is still to be reported
        states = {} if checkpoints is None or not done else checkpoints.load_callbacks()
        self._callbacks.begin(federation, planned, history, states)
        if pending:
            self._evaluate_if_due(done, planned)
            self._end_round()

    def _end_round(self) -> None:
        """Report the last round to the callbacks and keep their states for a resumed run."""
        self._callbacks.round_ended(self.federations[0].history[-1])
        if self._checkpoints is not None:
            self._checkpoints.keep_callbacks(self._callbacks.states())

    def round(self, number: int, phase: Phase) -> None:
        """Run one round and commit it."""
        began = time.perf_counter()
        draws = [federation.draw(number, phase) for federation in self.federations]
        trains = [client for at, draw in enumerate(draws) for client in self._members.joint(at, draw.trains)]
        replies = list(self._guarded(self.transport.exchange(self._train_requests(draws, trains))))
        own: list[list[TrainReply]] = [[] for _ in draws]
        for reply in replies:
            for member, part in divide(reply, self._members.split(reply.clients)):
                own[member].append(part)
        for federation, parts in zip(self.federations, own, strict=True):
            self._check_weights(federation, number, parts)
        lost: dict[int, str] = {}
        for at, (federation, draw, parts) in enumerate(zip(self.federations, draws, own, strict=True)):
            refused = federation.commit(draw, parts)
            lost |= dict(zip(self._members.joint(at, list(refused)), refused.values(), strict=True))
        self.transport.commit(replace(draws[0], trains=trains), lost)
        seconds = time.perf_counter() - began
        self._seconds.append(seconds)
        for federation in self.federations:
            federation.history[-1]["seconds"] = seconds / len(self.federations)

    def _train_requests(self, draws: Sequence[Draw], clients: Sequence[int]) -> list[TrainRequest]:
        """One request for each group of the clients that train, which are positions among those of all federations."""
        if len(draws) > 1 and mergeable(self.federations[0].message(draws[0].trains[:1], draws[0].round)):
            parts = [sorted(part) for part in self.transport.partition(clients)]
        else:
            members = [self._members.joint(at, draw.trains) for at, draw in enumerate(draws)]
            parts = [part for own in members for part in self.transport.partition(own)]
        reports = frozenset(draws[0].reports) if len(draws) == 1 else frozenset(clients)

        def request(part: list[int]) -> TrainRequest:
            own = self._members.split(part)
            return TrainRequest(
                part,
                draws[0].round,
                lambda: merge(
                    [self.federations[at].message(who, draws[at].round, count=True) for at, who in own],
                    [len(who) for _, who in own],
                ),
                reports,
            )

        return [request(part) for part in parts]

    def _check_weights(self, federation: Federation, number: int, replies: Sequence[TrainReply]) -> None:
        """Reject weights that diverged: a simulation ends, a deployment goes on without these clients."""
        names = [
            federation.data.names[client]
            for reply in replies
            for client, broken in zip(reply.clients, reply.broken.tolist(), strict=True)
            if broken
        ]
        if not names:
            return
        fault = "became absurdly large or non-finite"
        if not self.transport.remote:
            raise TrainingError(
                f"the weights {fault} in round {number} for clients {listing(sorted(names))}: "
                "use a smaller learning rate."
            )
        log.warning("the weights of clients %s %s and are not used", listing(sorted(names)), fault)
        if len(names) == sum(len(reply.clients) for reply in replies):
            raise TrainingError(f"the weights of all clients {fault} in round {number}: use a smaller learning rate.")

    # -- evaluation

    def _evaluate_if_due(self, number: int, planned: int) -> None:
        """Score all clients after every `eval_every` rounds."""
        if not self._is_due(number, planned):
            return
        for at, federation in enumerate(self.federations):
            personal, globally, _, _ = self.evaluate(at, number)
            federation.keep_scores(personal, globally)
            self._callbacks.evaluated(federation, number, (personal, globally), final=False)

    def _is_due(self, number: int, planned: int) -> bool:
        """Whether a round is evaluated. The last one is scored by the outcome."""
        every = self.settings.eval_every
        return number < planned and every > 0 and number % every == 0

    def _evaluate_start(self) -> None:
        """Score the initial weights on every client's data: round 0 of the curves, the same for every method."""
        if not self.settings.eval_every:
            return
        for at, federation in enumerate(self.federations):
            round = federation.round(0, "evaluate")
            parts = self.transport.partition(self._members.joint(at, range(len(federation.data))), scoring=True)
            requests = [ScoreRequest(part, round, None, federation.start, False) for part in parts]
            scores: Scores = {}
            for reply in self._guarded(self.transport.evaluate(requests)):
                own = [client - self._members.offsets[at] for client in reply.clients]
                evaluation.scatter(scores, own, reply.globally or {}, len(federation.data))
            federation.keep_initial_scores(evaluation.finite(scores))

    def evaluate(
        self, member: int, number: int, *, final: bool = False
    ) -> tuple[Scores, Scores | None, Rows | None, list[str]]:
        """Score the personal models and the global one on every client's own data.

        Returns both scores, the personal models if this is the final evaluation of local clients, and the clients of a
        deployment that did not answer or have no finite loss.
        """
        federation = self.federations[member]
        size, offset = len(federation.data), self._members.offsets[member]
        global_model = self.method.global_model(federation.server)
        shared = global_model if type(self.method).personal is Method.personal else None  # everybody's personal model
        round = federation.round(number, "evaluate")

        def request(part: list[int]) -> ScoreRequest:
            own = [client - offset for client in part]
            message = (lambda: federation.message(own, round)) if shared is None else None
            return ScoreRequest(part, round, message, global_model, final)

        parts = self.transport.partition(self._members.joint(member, range(size)), scoring=True)
        personal: Scores = {}
        globally: Scores = {}
        constant: Scores = {}
        scored: set[int] = set()
        refused: set[int] = set()
        work = torch.zeros(SIZE, dtype=torch.int64)
        for reply in self._guarded(self.transport.evaluate([request(part) for part in parts])):
            own = [client - offset for client in reply.clients]
            if reply.refused:
                refused.update(own)
                continue
            scored.update(own)
            work += 0 if reply.work is None else reply.work
            evaluation.scatter(personal, own, reply.personal or {}, size)
            evaluation.scatter(globally, own, reply.globally or {}, size)
            evaluation.scatter(constant, own, reply.constant or {}, size)
        personal = personal if shared is None else globally
        if refused and not scored:
            personal = globally = evaluation.unknown_scores(size)
        sources = scored, refused
        unscored = evaluation.check((personal, globally), federation.data, number, sources, self.transport.remote)
        if final:
            federation.constant = evaluation.finite(constant)
        models: Rows | None = None
        federation.final_work = work if final else federation.final_work
        if final and not self.transport.remote:
            models = self.transport.personal_models(offset, size) if shared is None else shared.expand(size)
        return personal, (None if global_model is None else globally), models, unscored

    def _outcome(self, member: int, planned: int) -> Outcome:
        federation = self.federations[member]
        personal, globally, models, unscored = self.evaluate(member, len(self._seconds), final=True)
        federation.keep_scores(personal, globally)
        self._callbacks.evaluated(federation, len(self._seconds), (personal, globally), final=True)
        execution = self.transport.execution()
        return Outcome(
            server=federation.server,
            global_rows=self.method.global_model(federation.server),
            models=models,
            kept_rows=Rows.cat(federation.kept) if federation.kept else None,
            personal=personal,
            globally=globally,
            constant=federation.constant or None,
            initial=federation.initial,
            client_scores=federation.client_scores,
            unscored=unscored,
            history=federation.history,
            lost={client: dict(reasons) for client, reasons in sorted(federation.lost.items())},
            uploaded=dict(sorted(federation.uploaded.items())),
            by_client=federation.by_client,
            client_notes=federation.client_notes,
            communication=federation.communication,
            final_work=federation.final_work,
            seconds_per_round=sum(self._seconds) / max(1, len(self._seconds)),
            rounds_done=len(self._seconds),
            rounds_planned=planned,
            executor=execution.executor,
            workers=execution.workers,
            states=execution.states,
            placement=execution.placement,
        )

    # -- checkpoints

    def _save_if_due(self, number: int, planned: int, stop: bool) -> None:
        checkpoints = self._checkpoints
        if checkpoints is None:
            return
        if self.transport.remote:  # nodes delete states that the server will not ask for again
            self._save(checkpoints, number)
            checkpoints.wait()
        elif number < planned and (stop or checkpoints.is_due(number)):
            self._save(checkpoints, number)

    def snapshot(self, number: int) -> RunSnapshot:
        """A snapshot of the run between two rounds."""
        (federation,) = self.federations
        states, where = self.transport.snapshot()
        record = federation.record() | where | {"seconds": list(self._seconds)}
        return RunSnapshot(number, federation.server, states, list(federation.kept), record)

    def _save(self, checkpoints: Checkpoints, number: int) -> None:
        checkpoints.save(self.snapshot(number))
        self._saved = number

    def _resume(self, planned: int) -> int:
        """Return to the last checkpoint, if there is one; returns the number of rounds that are done."""
        if self._checkpoints is None:
            return 0
        (federation,) = self.federations
        found = self._checkpoints.load_latest(planned, len(federation.data))
        if found is None:
            return 0
        with reject_if_altered(found):
            federation.restore(found)
            self.transport.restore(found)
        self._seconds, self._saved = list(found.record["seconds"]), found.number
        log.warning("resuming after round %d", found.number)
        return found.number

    def _guarded(self, replies: Iterator[T]) -> Iterator[T]:
        """Pass replies on. If an exchange fails, nothing of this round has changed yet: save the rounds before it."""
        try:
            yield from replies
        except Exception:
            self._rescue()
            raise

    def _rescue(self) -> None:
        """Save the completed rounds after a failure."""
        self.failed = True
        self.transport.close()  # the machine may be short of memory
        for federation in self.federations:
            federation.communication = federation.recorded  # messages are counted when they are made
        checkpoints, number = self._checkpoints, len(self._seconds)
        if checkpoints is None:
            return
        try:
            if number > self._saved:
                self._save(checkpoints, number)
            checkpoints.wait()
        except BespokeError as error:  # the failure itself is raised, too, and ends the run
            log.warning("%s", error)
