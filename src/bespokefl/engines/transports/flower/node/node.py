"""A node: one machine with the data of one or many clients, which answers the server's requests.

A request carries the server's plan and message. Clients' data and states never leave the node. The server receives one
sentence about any error at a node.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from bespokefl.core.errors import BespokeError, InputError, TrainingError, listing, said
from bespokefl.core.method import Message, Method, State
from bespokefl.core.rows import Rows, concatenate
from bespokefl.engines.client import ClientSide
from bespokefl.engines.cohorts import chunks
from bespokefl.engines.cohorts.chunks import Executor
from bespokefl.engines.storage.client_states import repeat_single_rows
from bespokefl.engines.storage.safetensors_writer import replace_tensors
from bespokefl.engines.transports.flower import records
from bespokefl.engines.transports.flower.node.client_state_store import ClientStateStore, merge_by_position
from bespokefl.engines.transports.flower.node.score_ledger import RefusedError, ScoreLedger, rounded, too_small
from bespokefl.engines.transports.flower.node.score_policy import ScorePolicy
from bespokefl.engines.transports.flower.run_plan import RunPlan
from bespokefl.engines.transports.wire import Values, prefixed, under

log = logging.getLogger("bespokefl")

PERSONAL = "personal.safetensors"
HELLO, SETUP, TRAIN, SCORE = "hello", "setup", "train", "score"
MIN_SCORE_CHUNK = 8  # clients scored at once, at least: scoring needs little memory
MAX_SCORED = 1000  # clients of a node whose final scores are stored with their models


@dataclass(frozen=True)
class Prepared:
    """What a node builds for a run."""

    side: ClientSide
    executor: Executor
    fingerprint: str  # of the model as this node builds it
    about: Mapping[str, Any] = field(default_factory=dict)  # written with the personal models


class Host(Protocol):
    """A node's clients, and how to build a method and a model for them."""

    @property
    def name(self) -> str:
        """The node's name."""

    def about(self, missing: str = "refuse") -> dict[str, Any]:
        """The clients with their numbers of examples, and the kind of examples, for JSON.

        `missing` is how the run treats missing values; an InputError says why the node cannot take part.
        """

    def prepare(self, plan: RunPlan) -> Prepared:
        """Build method, model and data for a run."""


class Node:
    """Answers requests, one after the other. `folder` keeps clients' states."""

    def __init__(self, host: Host, folder: Path, policy: ScorePolicy | None = None) -> None:
        self.host, self.folder, self.policy = host, folder, policy or ScorePolicy()
        self._plan: RunPlan | None = None
        self._prepared: Prepared | None = None
        self._states: ClientStateStore  # of the plan
        self._ledger: ScoreLedger

    def answer(self, values: Values) -> Values:
        """Answer a request; an error becomes a sentence in the reply."""
        try:
            what = values.get("what")
            if what == HELLO:
                asked = [str(values["missing"])] if "missing" in values else []
                return {"node": self.host.name, "about": json.dumps(self.host.about(*asked))}
            plan, prepared = self._prepare(values)
            work = {TRAIN: self._train, SCORE: self._score, SETUP: lambda *_: {}}.get(str(what))
            if work is not None:
                return {"node": self.host.name} | work(plan, prepared, values)
            raise InputError(
                f"unknown request {what!r}: run the same version of Bespoke at the server and at the nodes."
            )
        except BespokeError as error:
            log.error("%s", error)
            return {"node": self.host.name, "error": str(error)}
        except Exception as error:  # a node must always answer: the server would wait for it
            log.exception("a request failed")
            return {"node": self.host.name, "error": said(error)}

    # -- a run

    def _prepare(self, values: Values) -> tuple[RunPlan, Prepared]:
        plan = RunPlan.read(values["plan"])
        if self._prepared is None or plan != self._plan:
            torch.set_num_threads(1)
            prepared = self.host.prepare(plan)
            if values["fingerprint"] != prepared.fingerprint:
                raise InputError(
                    f"the model at node {self.host.name} is not the server's ({prepared.fingerprint[:12]}, not "
                    f"{str(values['fingerprint'])[:12]}): give both the same model, and the same versions."
                )
            self._plan, self._prepared = plan, prepared
            self._states = ClientStateStore(self.folder / plan.run)
            self._ledger = ScoreLedger(self.folder / plan.run, self.policy)
        if "start" in values:
            self._prepared.side.task.start = values["start"]
        return plan, self._prepared

    def _cohort(self, side: ClientSide, values: Values) -> tuple[list[str], list[int]]:
        names: list[str] = json.loads(values["clients"])
        position = {name: at for at, name in enumerate(side.data.names)}
        unknown = [name for name in names if name not in position]
        if unknown:
            raise InputError(f"node {self.host.name} has no client {listing(unknown)}.")
        return names, [position[name] for name in names]

    def _train(self, plan: RunPlan, prepared: Prepared, values: Values) -> Values:
        side, states = prepared.side, self._states
        number, accepted = int(values["number"]), values["accepted"].tolist()
        names, cohort = self._cohort(side, values)
        digest = records.digest(values)
        known = states.find_reply(number, digest)
        if known is not None:
            log.warning("round %d was requested again; answering with the stored reply", number)
            return known
        state = self._state(side, states, names, accepted, number)
        round = plan.round(number, values["phase"], side.method)
        size, replies = len(cohort), []
        for clients, part in _chunks(side, cohort, prepared.executor.chunk):
            replies.append((part, side.train(clients, _message(values, part), _take(state, part), round)))
        broken = merge_by_position([(part, {"": reply.broken}) for part, reply in replies], size)[""]
        new = merge_by_position([(part, reply.state) for part, reply in replies], size)
        upload = merge_by_position([(part, reply.upload) for part, reply in replies], size)
        reports = values["reports"].nonzero().flatten()
        reply = {
            "broken": broken,
            "work": torch.stack([reply.work for _, reply in replies]).sum(0),
            **({f"upload/{name}": value[reports] for name, value in upload.items()} if len(reports) else {}),
        }  # a method's notes on a client are not part of its upload and stay here
        if broken.any():  # weights that are not finite are not kept
            before = repeat_single_rows(state, size)
            new = {name: _where(broken, before[name], value) for name, value in new.items()}
        states.save_round(number, names, new, reply, digest)
        states.discard_older(names, accepted)
        return reply

    def _state(
        self, side: ClientSide, states: ClientStateStore, names: Sequence[str], accepted: Sequence[int], before: int
    ) -> State:
        """Each client's state of the round that the server accepted last."""
        found = states.load_states(names, accepted, before)
        known = {at for places, _ in found for at in places}
        new = [at for at in range(len(names)) if at not in known]
        if new:
            begun = side.method.start_clients(side.task.start, [names[at] for at in new])
            found.append((new, repeat_single_rows(begun, len(new))))
        return merge_by_position(found, len(names))

    def _score(self, plan: RunPlan, prepared: Prepared, values: Values) -> Values:
        """Score the personal models and the global one on each client's data; the final models are stored here."""
        side, states = prepared.side, self._states
        number, keep = int(values["number"]), bool(values["keep"])
        names, cohort = self._cohort(side, values)
        common: Rows | None = values.get("common")
        start = number == 0 and not keep  # round 0: the initial weights, which are nobody's personal model
        own = not start and (type(side.method).personal is not Method.personal or common is None)
        refusal = self._refusal(values, number, keep, initial=start and _is_same(common, side.task.start))
        if refusal and not keep:
            return refusal
        state = self._state(side, states, names, values["accepted"].tolist(), number + 1) if own else {}
        personal: list[tuple[list[int], State]] = []
        globally: list[tuple[list[int], State]] = []
        models: list[tuple[list[int], State]] = []
        side.task.work.take()
        constant: list[tuple[list[int], State]] = []
        for clients, part in _chunks(side, cohort, max(prepared.executor.chunk, MIN_SCORE_CHUNK)):
            if common is not None and not refusal:
                globally.append((part, side.score(clients, common, final=keep)))
            if own:
                made = side.personal(clients, _message(values, part), _take(state, part), number).expand(len(clients))
                models.append((part, {"": made}))
                if not refusal:
                    personal.append((part, side.score(clients, made, final=keep)))
            if keep and not refusal:
                constant.append((part, side.score_constant(clients)))
        size = len(cohort)
        if keep:
            rows = merge_by_position(models, size) if own else repeat_single_rows({"": common}, size)
            kinds = {"personal": personal or globally, "global": globally, "constant": constant}
            scored = {kind: merge_by_position(parts, size) for kind, parts in kinds.items() if parts}
            self._keep(plan, prepared, names, rows[""], scored)
        if refusal:
            return refusal
        scores = self._scores("score", personal or globally, size)
        scores |= {"work": side.task.work.take()} if keep else {}
        scores |= self._scores("common", globally, size) | self._scores("constant", constant, size)
        return scores | {"hidden": too_small(side.data, cohort, self.policy.smallest_scored)}

    def _refusal(self, values: Values, number: int, keep: bool, *, initial: bool) -> Values:
        """The reply to a request that the node's policy forbids; empty if it may be answered."""
        trained = self._states.has_round(number)
        try:
            self._ledger.admit(number, records.digest(values), final=keep, trained=trained, initial=initial)
        except RefusedError as error:
            log.warning("scores of round %d are refused: %s", number, error)
            return {"refused": str(error)}
        return {}

    def _scores(self, kind: str, parts: list[tuple[list[int], State]], size: int) -> Values:
        return prefixed(kind, rounded(merge_by_position(parts, size), self.policy.score_digits))

    def _keep(
        self, plan: RunPlan, prepared: Prepared, names: Sequence[str], models: Rows, scored: Mapping[str, State]
    ) -> None:
        """Store the personal models, with their test scores by kind of model, which are for the node itself."""
        path = self.folder / plan.run / PERSONAL
        of_test = {
            kind: {
                name.removeprefix("test_"): value.tolist()
                for name, value in own.items()
                if name.startswith("test_") and isinstance(value, torch.Tensor) and value.dim() == 1
            }
            for kind, own in scored.items()
            if len(names) <= MAX_SCORED
        }
        about = {"clients": list(names), "scores": of_test, **prepared.about}
        entries = [(name, block, None) for name, block in zip(models.layout.names, models.blocks, strict=True)]
        try:
            replace_tensors(path, entries, {"bespoke": json.dumps(about, ensure_ascii=False)})
        except OSError as error:
            raise TrainingError(f"cannot write the models to {str(path)!r}: {error.strerror or error}.") from None


def _chunks(side: ClientSide, cohort: Sequence[int], size: int) -> list[tuple[list[int], list[int]]]:
    """The clients that are computed at once, and their positions in the cohort."""
    position = {client: at for at, client in enumerate(cohort)}
    parts = chunks.cut(cohort, side.data.train.sizes.tolist(), size)
    return [(part, [position[client] for client in part]) for part in parts]


def _is_same(rows: Rows | None, start: Rows) -> bool:
    """Whether these are the weights that a run starts with, as the node knows them."""
    if rows is None or rows.layout != start.layout or len(rows) != len(start):
        return False
    return all(torch.equal(one, two.to(one.dtype)) for one, two in zip(rows.blocks, start.blocks, strict=True))


def _message(values: Values, part: Sequence[int]) -> Message:
    return Message(under("shared", values), _take(under("own", values), part))


def _take(values: Mapping[str, Any], part: Sequence[int]) -> dict[str, Any]:
    """Select rows of each value; a single row for all clients stays."""
    index = torch.tensor(part, dtype=torch.int64)
    return {
        name: value[index] if isinstance(value, Rows | torch.Tensor) and len(value) != 1 else value
        for name, value in values.items()
    }


def _where(chosen: torch.Tensor, a: Any, b: Any) -> Any:
    """Rows of `a` where chosen, else of `b`."""
    order = torch.where(chosen, torch.arange(len(chosen)), torch.arange(len(chosen)) + len(chosen))
    return concatenate([a, b])[order]
