"""The server of a deployment: the same rounds as in simulation, with clients that live at nodes.

One round: draw clients, send each node a letter with the message for its clients, wait for the answers, screen the
uploads, aggregate, write a checkpoint. Only then does the next round begin, so that a server that was killed can ask
for the same round again. Clients' states never come here: the server only remembers which round it accepted from
whom, and a client whose answer did not count goes back to its state of then.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from bespokefl.core.errors import InputError, TrainingError, listing
from bespokefl.core.method import Method, Phase, State
from bespokefl.core.task import Task
from bespokefl.engines.client import PARTS
from bespokefl.engines.evaluation import Scores
from bespokefl.engines.federation import Draw, Federation
from bespokefl.engines.outcome import Outcome
from bespokefl.engines.progress import Progress, Report
from bespokefl.engines.settings import Settings
from bespokefl.engines.storage.checkpoint_format import reject_if_altered
from bespokefl.engines.storage.checkpoints import Checkpoints
from bespokefl.engines.transports.flower import replies as answered
from bespokefl.engines.transports.flower.client_registry import homes, remote_data
from bespokefl.engines.transports.flower.client_state_store import LATEST_STATE
from bespokefl.engines.transports.flower.messenger import NodeMessenger
from bespokefl.engines.transports.flower.node import SCORE, SETUP, TRAIN
from bespokefl.engines.transports.flower.run_plan import RunPlan, fingerprint
from bespokefl.engines.transports.wire import Values, under

log = logging.getLogger("bespokefl")


@dataclass
class Deployed(Outcome):
    """What a deployment leaves at the server. Scores are NaN where a node did not answer any more."""

    unheard: list[str]  # clients whose last models could not be scored


class Server:
    """One run over the nodes that a post knows."""

    def __init__(
        self, method: Method, task: Task, settings: Settings, post: NodeMessenger, run: str, recipe: Any
    ) -> None:
        self.method, self.task, self.settings, self.post = method, task, settings, post
        self.homes = homes(post)
        self.data = remote_data(post)
        groups = self.data.groups if method.needs_groups else None
        if method.needs_groups and groups is None:
            raise InputError(f"{method.name} needs the clients' true groups: every node must name them.")
        self.plan = RunPlan.of(run, self.data.names, groups, settings, recipe)
        self.federation = Federation(method, task.start, self.data, settings)
        self.accepted = dict.fromkeys(self.data.names, 0)  # the round of the state that each client goes on from
        self._head = {"plan": self.plan.text(), "fingerprint": fingerprint(task, warm=settings.warm)}
        self._place = {name: at for at, name in enumerate(self.data.names)}
        self._seconds: list[float] = []
        self._scores: dict[str, float] = {}

    # -- the run

    def run(self, report: Report | None = None, checkpoints: Checkpoints | None = None) -> Deployed:
        """From the start, or from the last checkpoint."""
        phases = self.method.phases(self.settings.rounds)
        schedule = [phase for phase in phases for _ in range(phase.rounds)]
        done = self._resume(checkpoints, len(schedule))
        self._setup()
        for number, phase in list(enumerate(schedule, start=1))[done:]:
            self.round(number, phase)
            every = self.settings.eval_every
            if every and number % every == 0 and number < len(schedule):
                self._scores = self.federation.keep_scores(*self._evaluate(number, keep=False)[:2])
            if checkpoints is not None:
                self._save(checkpoints, number)
            if report is not None:
                report(Progress(number, len(schedule), phase.name, self._scores))
        return self._outcome(len(schedule))

    def _setup(self) -> None:
        """Everybody builds the model; one that differs is found before the first round."""
        answers = self.post.exchange(dict.fromkeys(self.homes, {"what": SETUP} | self._head), 0)
        silent = [name for name in self.homes if name not in answers]
        if silent:
            log.warning("nodes %s have not answered yet", listing(silent))
        wrong = [str(values["error"]) for values in answers.values() if "error" in values]
        if wrong:
            raise InputError(wrong[0])

    def _save(self, checkpoints: Checkpoints, number: int) -> None:
        moment = self.federation.moment(number)
        moment.record |= {"accepted": dict(self.accepted), "seconds": list(self._seconds)}
        checkpoints.save(moment)
        checkpoints.wait()  # nodes throw away what the server will not ask for again, so it must be on disk

    def _resume(self, checkpoints: Checkpoints | None, planned: int) -> int:
        found = None if checkpoints is None else checkpoints.load_latest(planned, len(self.data))
        if found is None:
            return 0
        with reject_if_altered(found):
            self.federation.restore(found)
            self.accepted = dict(found.record["accepted"])
        self._seconds = list(found.record["seconds"])
        log.warning("going on after round %d", found.number)
        return found.number

    # -- a round

    def round(self, number: int, phase: Phase) -> None:
        began = time.perf_counter()
        draw = self.federation.draw(number, phase)
        parts = self._by_node(draw.trains)
        reports = set(draw.reports)
        requests = {}
        for node, part in parts.items():
            request = self.federation.request(part, draw.round, count=True)
            mine = {"reports": torch.tensor([client in reports for client in part])}
            requests[node] = {"what": TRAIN} | self._head | self._start(part) | self._asked(part) | mine | request
        answers = self.post.exchange(_without_states(requests), number, self._enough(parts, number))
        self._refuse_too_few(parts, answers, number)
        self._commit(draw, phase, parts, answers)
        seconds = time.perf_counter() - began
        self._seconds.append(seconds)
        self.federation.history[-1]["seconds"] = seconds

    def _enough(self, parts: Mapping[str, Sequence[int]], number: int) -> Callable[[Mapping[str, Values], float], bool]:
        """Whether to wait no longer: after the time-out, if enough clients have answered; at last in any case."""
        timeouts = self.post.timeouts
        needed = self._needed(parts)
        told: list[bool] = []

        def over(answers: Mapping[str, Values], seconds: float) -> bool:
            if seconds < timeouts.timeout:
                return False
            heard = _heard(parts, answers)
            if heard >= needed or seconds >= timeouts.give_up:
                return True
            if not told:
                told.append(True)
                log.warning("round %d has %d of at least %d clients and waits on", number, heard, needed)
            return False

        return over

    def _needed(self, parts: Mapping[str, Sequence[int]]) -> int:
        return min(self.post.timeouts.minimum, sum(map(len, parts.values())))

    def _refuse_too_few(self, parts: Mapping[str, Sequence[int]], answers: Mapping[str, Values], number: int) -> None:
        heard, needed = _heard(parts, answers), self._needed(parts)
        if heard >= needed:
            return
        wrong = [f"node {node}: {values['error']}" for node, values in answers.items() if "error" in values]
        why = wrong[0] if wrong else f"start the other nodes (waited {self.post.timeouts.give_up:g} seconds)"
        raise TrainingError(
            f"only {heard} of at least {needed} clients answered in round {number}; {why.rstrip('.')}, then resume the "
            "run."
        )

    def _commit(
        self, draw: Draw, phase: Phase, parts: Mapping[str, Sequence[int]], answers: Mapping[str, Values]
    ) -> None:
        """The answers become the round: who did not answer in time, or not in the right form, is lost to it."""
        pieces: list[tuple[list[int], Values]] = []
        heard: set[int] = set()
        reporting = set(draw.reports)
        broken: list[str] = []
        for node, values in answers.items():
            part = parts[node]
            found = answered.pieces(part, [client in reporting for client in part], values)
            if found is None:
                if "error" not in values or values.get("damaged"):
                    log.warning("node %s: its answer is refused: it is not in the form that was asked for", node)
                continue
            pieces += found
            heard |= set(part)
            bad = values["broken"].tolist()
            broken += [self.data.names[client] for client, one in zip(part, bad, strict=True) if one]
        if broken:
            log.warning(
                "the weights of clients %s became absurdly large or non-finite and do not count",
                listing(sorted(broken)),
            )
            if len(broken) == len(heard):
                raise TrainingError(
                    f"the weights of all clients became absurdly large or non-finite in round {draw.round.number}: use "
                    "a smaller learning rate."
                )
        pieces = answered.in_order(pieces, self.federation.sizes)
        reports = [client for client in draw.reports if client in heard]
        missing = tuple(client for client in draw.trains if client not in heard)
        taken = replace(
            draw,
            round=self.federation.round(draw.round.number, phase.name, tuple(reports)),
            trains=[client for client in draw.trains if client in heard],
            reports=reports,
            dropped=missing,
        )
        self.federation.commit(taken, [part for part, _ in pieces], [values for _, values in pieces])
        if not pieces or any(under("upload", values) for _, values in pieces):
            # an answer that never came, or came too late, may have left its client all the same
            self.federation.uploaded.update(self.data.names[client] for client in missing if client in reporting)
        lost = self.federation.history[-1].get("lost", {})
        for client in draw.trains:
            name = self.data.names[client]
            if client in heard and (draw.everyone or name not in lost):
                self.accepted[name] = draw.round.number
            elif draw.everyone:  # whoever trains anyway does not go back
                self.accepted[name] = LATEST_STATE
        if lost:
            log.warning("round %d: %s", draw.round.number, "; ".join(f"{who}: {why}" for who, why in lost.items()))

    # -- evaluation

    def _evaluate(self, number: int, *, keep: bool) -> tuple[Scores, Scores | None, list[str]]:
        """Everybody's personal model, and the common one, on everybody's own data; and who did not answer."""
        common = self.method.global_model(self.federation.server)
        alone = common is not None and type(self.method).personal is Method.personal
        round = self.federation.round(number, "evaluate")
        parts = self._by_node(range(len(self.data)))
        requests = {}
        for node, part in parts.items():
            request = (
                {"number": number, "phase": "evaluate"} if alone else self.federation.request(part, round, count=False)
            )
            whole = {} if common is None else {"common": common}
            requests[node] = (
                {"what": SCORE, "keep": keep} | self._head | self._start(part) | self._asked(part) | whole | request
            )
        answers = self.post.exchange(_without_states(requests), number, self._enough(parts, number))
        personal: list[tuple[list[int], State]] = []
        globally: list[tuple[list[int], State]] = []
        failed: list[str] = []
        for node, part in parts.items():
            sizes = [getattr(self.data, name).sizes[part] for name in PARTS]
            own, others = (answered.scored(answers.get(node, {}), kind, sizes) for kind in ("score", "common"))
            if own is None:
                continue
            scores, bad = own
            personal.append((part, scores))
            failed += [self.data.names[part[at]] for at in bad]
            if common is not None and others is not None:
                globally.append((part, others[0]))
        heard = {client for part, _ in personal for client in part}
        if not heard:
            raise TrainingError(f"no node answered when the models were to be scored after round {number}.")
        if len(failed) == len(heard):
            raise TrainingError(
                f"the loss of all clients became non-finite by round {number}: use a smaller learning rate."
            )
        unheard = [name for at, name in enumerate(self.data.names) if at not in heard or name in failed]
        if unheard:
            log.warning("clients %s did not say what their models are worth", listing(unheard))
        size = len(self.data)
        return (
            answered.spread(personal, size),
            (answered.spread(globally, size) if common is not None else None),
            unheard,
        )

    def _outcome(self, planned: int) -> Deployed:
        personal, globally, unheard = self._evaluate(len(self._seconds), keep=True)
        self._scores = self.federation.keep_scores(personal, globally)
        return Deployed.of(self.federation, personal, globally, seconds=self._seconds, planned=planned, unheard=unheard)

    # -- inside

    def _by_node(self, clients: Sequence[int]) -> dict[str, list[int]]:
        """The clients by the node that they live at, both in canonical order."""
        wanted = set(clients)
        found = {node: [self._place[name] for name in names] for node, names in self.homes.items()}
        own = {node: sorted(client for client in part if client in wanted) for node, part in found.items()}
        return {node: own[node] for node in sorted(own) if own[node]}

    def _asked(self, part: Sequence[int]) -> Values:
        names = [self.data.names[client] for client in part]
        return {"clients": json.dumps(names), "accepted": torch.tensor([self.accepted[name] for name in names])}

    def _start(self, part: Sequence[int]) -> Values:
        """Given weights to begin with, for clients that have no state yet."""
        new = any(self.accepted[self.data.names[client]] == 0 for client in part)
        return {"start": self.task.start} if self.settings.warm and new else {}


def _heard(parts: Mapping[str, Sequence[int]], answers: Mapping[str, Values]) -> int:
    """How many clients' answers have come."""
    return sum(len(parts[node]) for node, values in answers.items() if "error" not in values)


def _without_states(requests: Mapping[str, Values]) -> dict[str, Values]:
    """A client has its state; the server would only send a beginning."""
    return {
        node: {name: value for name, value in values.items() if not name.startswith("state/")}
        for node, values in requests.items()
    }
