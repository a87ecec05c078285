"""The server's side of one federation: its state, who is drawn, which uploads count, and what is recorded."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bespokefl.core import rng as rngs
from bespokefl.core.blocks.local import keep_local
from bespokefl.core.method import ALL, NONE, Message, Method, Phase, Round, State, Uploads
from bespokefl.core.rows import Rows
from bespokefl.core.work import SIZE
from bespokefl.engines.client import Data
from bespokefl.engines.evaluation import MAX_FOLLOWED_CLIENTS, Scores, means, plain
from bespokefl.engines.faults import break_upload
from bespokefl.engines.protection.screening import Entry, Screening, select
from bespokefl.engines.protection.shares import limit_shares
from bespokefl.engines.settings import Settings
from bespokefl.engines.storage.checkpoint_format import LoadedCheckpoint
from bespokefl.engines.storage.client_states import on_device, on_host
from bespokefl.engines.transports import wire
from bespokefl.engines.transports.protocol import Draw, TrainReply

WORK = ("gradient_steps", "gradients", "head_gradients")  # names in the history of what `WorkCounter` counts
DROPPED, TOO_LATE = "dropped out", "too late"  # reasons why an upload is lost, besides those of the screening


@dataclass(frozen=True)
class Traffic:
    """The bytes and numbers sent up (by clients) and down (by the server)."""

    up_bytes: int = 0
    down_bytes: int = 0
    up_floats: int = 0
    down_floats: int = 0

    def plus(self, *, up: tuple[int, int] = (0, 0), down: tuple[int, int] = (0, 0)) -> "Traffic":
        """Add (bytes, numbers) in either direction."""
        return Traffic(
            self.up_bytes + up[0], self.down_bytes + down[0], self.up_floats + up[1], self.down_floats + down[1]
        )


class DownlinkCounter:
    """Counts the columns that the server sends in a round if identical rows are sent once; numbers are ignored."""

    def __init__(self) -> None:
        self._shared = 0
        self._by_stream: dict[int, int] = {}
        self._own = 0  # rows that only one client receives

    def add(self, message: Message, clients: int) -> None:
        """Count a message to this many clients."""
        self._shared = max(self._shared, columns(message.shared))  # the same in all messages of a round
        own = columns(message.own)
        if message.stream is None:
            self._own += own
        else:
            self._by_stream |= dict.fromkeys(message.stream.tolist(), own // clients)

    @property
    def columns(self) -> int:
        """The number of columns so far."""
        return self._shared + sum(self._by_stream.values()) + self._own


def columns(values: Mapping[str, Any]) -> int:
    """The number of columns of all rows among these values."""
    return sum(len(value) * value.layout.width for value in values.values() if isinstance(value, Rows))


class Federation:
    """A server and what it knows of its clients, which are positions in `data.names`."""

    def __init__(self, method: Method, start: Rows, data: Data, settings: Settings) -> None:
        method = keep_local(method, start.layout)
        settings.privacy.check(method, start)
        self.method, self.start, self.data, self.settings = method, start, data, settings
        self.sizes: list[int] = data.train.sizes.tolist()
        self.server: State = on_host(method.start_server(start, self.round(0, "start")))
        self.communication = Traffic()
        self.history: list[dict[str, Any]] = []
        self.client_notes: list[dict[str, Any]] = []
        self.lost: dict[str, Counter[str]] = {}  # by client: reasons why its uploads were not used, with counts
        self.uploaded: Counter[str] = Counter()  # by client: uploads that left it, whether they were used or not
        self.by_client: set[str] = set()  # names in the history with a value for every client
        self.kept: list[Rows] = []  # the global model after each round, if requested
        self.recorded = Traffic()  # up to the last round
        self._has_client_states = bool(method.start_clients(start, data.names[:1]))
        self.final_work: Tensor | None = None  # of making the final personal models
        self.initial: dict[str, float | None] = {}  # mean scores of the initial weights, if they were scored
        self.client_scores: list[dict[str, Any]] = []  # test scores of all clients in every evaluated round
        self.constant: Scores = {}  # of the constant predictors, after the final evaluation
        self._screening = Screening(method, start)
        self._down = DownlinkCounter()

    def round(self, number: int, phase: str, reporting: tuple[int, ...] = ()) -> Round:
        """What server and clients know about a round."""
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

    def draw(self, number: int, phase: Phase) -> Draw:
        """Draw the clients that train and those that report."""
        count, key = len(self.data), (self.settings.seed, "cohort", number - self._rounds_without_draw(number))
        sampling = "bernoulli" if self.settings.stragglers else phase.sampling
        drawn = rngs.sample(count, self.settings.participation, *key, sampling=sampling).tolist()
        # Without client states, training a client that does not report has no effect.
        all_train = phase.trains == ALL or (self.settings.stragglers and self._has_client_states)
        trains = list(range(count)) if all_train else drawn
        dropped = [client for client in trains if self._fault(number, client) == "drop"]
        if dropped:
            absent = set(dropped)
            trains, drawn = ([client for client in who if client not in absent] for who in (trains, drawn))
        reports = {ALL: trains, NONE: []}.get(phase.reports, drawn)
        return Draw(self.round(number, phase.name, tuple(reports)), trains, reports, tuple(dropped), all_train)

    def _rounds_without_draw(self, number: int) -> int:
        """Rounds of earlier phases in which all clients take part: without them all methods draw the same cohorts."""
        found, begin = 0, 1
        for phase in self.method.phases(self.settings.rounds):
            if number < begin + phase.rounds:
                break
            found += phase.rounds * (phase.trains == ALL and phase.reports in (ALL, NONE))
            begin += phase.rounds
        return found

    def message(self, clients: Sequence[int], round: Round, *, count: bool = False) -> Message:
        """The server's message to these clients; `count` adds it to the traffic."""
        message = self.method.message(self.server, clients, round)
        if count and self.settings.record:
            shared, own = wire.size(message.shared), wire.size(message.own)
            down = (shared[0] * len(clients) + own[0], shared[1] * len(clients) + own[1])
            self.communication = self.communication.plus(down=down)
            self._down.add(message, len(clients))
        return message

    def commit(self, draw: Draw, replies: Sequence[TrainReply]) -> dict[int, str]:
        """Aggregate a round's uploads and record it; returns the clients whose uploads were not used, and why."""
        draw = self._without_missing(draw, replies)
        workload = self.method.workload(self.server, draw.round) if self.settings.record else None
        uploads, lost = self._usable(draw, replies)
        if len(uploads):
            accepted = replace(draw.round, reporting=uploads.clients) if lost else draw.round
            self.server = on_host(self.method.aggregate(self.server, uploads, accepted))
        lost = dict(sorted((lost | dict.fromkeys(draw.dropped, DROPPED)).items()))
        for client, reason in lost.items():
            self.lost.setdefault(self.data.names[client], Counter())[reason] += 1
        global_model = self.method.global_model(self.server) if self.settings.keep_rounds else None
        if global_model is not None:
            self.kept.append(global_model)
        if self.settings.record:
            self._record(draw, replies, uploads, lost, workload)
        else:
            self.history.append({"round": draw.round.number})
        return lost

    def _without_missing(self, draw: Draw, replies: Sequence[TrainReply]) -> Draw:
        """The draw without clients that did not answer; these count as dropped out."""
        answered = {client for reply in replies for client in reply.clients}
        missing = [client for client in draw.trains if client not in answered]
        if not missing:
            return draw
        if not replies or any(reply.upload for reply in replies):
            # The upload may have left its client although no reply arrived in time.
            reporting = set(draw.reports)
            self.uploaded.update(self.data.names[client] for client in missing if client in reporting)
        reports = [client for client in draw.reports if client in answered]
        return replace(
            draw,
            round=replace(draw.round, reporting=tuple(reports)),
            trains=[client for client in draw.trains if client in answered],
            reports=reports,
            dropped=(*draw.dropped, *missing),
        )

    def _usable(self, draw: Draw, replies: Sequence[TrainReply]) -> tuple[Uploads, dict[int, str]]:
        """The uploads that arrived in time and can be used; for the others, the reason why not."""
        lost: dict[int, str] = {}
        entries: list[Entry] = []
        reports = set(draw.reports)
        for reply in replies:
            kept = [at for at, client in enumerate(reply.clients) if client in reports]
            if not kept:
                continue
            clients, upload = select((reply.clients, reply.upload), kept)
            if upload:
                self.uploaded.update(self.data.names[client] for client in clients)
            if self.settings.record:
                self.communication = self.communication.plus(up=wire.size(upload))
            entries += self._with_faults(draw.round.number, (clients, upload), lost)
        used, refused = self._screening(entries, self.server, draw.round) if self.settings.record else (entries, {})
        clients = [client for own, _ in used for client in own]
        sizes = torch.tensor([self.sizes[client] for client in clients])
        if self.settings.max_share is not None:
            sizes = limit_shares(sizes, self.settings.max_share)
        return Uploads(clients, sizes, [upload for _, upload in used]), lost | refused

    def _with_faults(self, number: int, entry: Entry, lost: dict[int, str]) -> list[Entry]:
        """A chunk of uploads after simulated faults."""
        clients, upload = entry
        faults = [self._fault(number, client) for client in clients]
        if not upload or not any(faults):  # Nothing to break: the client uploads nothing.
            return [entry]
        sound = [at for at, fault in enumerate(faults) if fault is None]
        entries = [select(entry, sound)] if sound else []
        for at, (client, fault) in enumerate(zip(clients, faults, strict=True)):
            if fault == "slow":
                lost[client] = TOO_LATE
            elif fault is not None:
                rng = rngs.generator(self.settings.seed, "spoil", number, self.data.names[client])
                entries.append(([client], break_upload(select(entry, [at])[1], fault, rng)))
        return entries

    def _fault(self, number: int, client: int) -> str | None:
        return self.settings.faults.of_client(self.settings.seed, number, self.data.names[client])

    # -- records

    def _record(
        self, draw: Draw, replies: Sequence[TrainReply], uploads: Uploads, lost: dict[int, str], workload: float | None
    ) -> None:
        """Append a line to the history, and clients' notes."""
        number, width, names = draw.round.number, self.start.layout.width, self.data.names
        now, before = self.communication, self.recorded
        for reply in replies:
            notes = {name: _plain(values) for name, values in reply.notes.items()}
            for at, client in enumerate(reply.clients if notes else ()):
                row = {name: values[at] for name, values in notes.items()}
                self.client_notes.append({"round": number, "client": names[client]} | row)
        self.history.append(
            {
                "round": number,
                "phase": draw.round.phase,
                "trained": len(draw.trains),
                "reported": len(uploads),
                **({"lost": {names[client]: reason for client, reason in lost.items()}} if lost else {}),
                "up_bytes": now.up_bytes - before.up_bytes,
                "down_bytes": now.down_bytes - before.down_bytes,
                "down_streams": self._down.columns / width,
                "up_models": sum(map(columns, uploads)) / width,
                "workload": workload,
                **_work(replies),
                **{name: _plain(value) for name, value in draw.round.notes.items()},
                **{name: _plain(value) for name, value in draw.round.client_notes.items()},
            }
        )
        self.by_client |= set(draw.round.client_notes)
        self.recorded, self._down = now, DownlinkCounter()

    def keep_scores(self, personal: Scores, globally: Scores | None) -> None:
        """Add the mean scores to the last round."""
        if self.history:
            of_models = {"personal": personal, "global": globally}
            self.history[-1] |= {
                kind: None if scores is None else means(scores, self.settings.followed)
                for kind, scores in of_models.items()
            }
            self._keep_client_scores(self.history[-1]["round"], personal)

    def keep_initial_scores(self, scores: Scores) -> None:
        """Keep the scores of the initial weights, as round 0."""
        self.initial = means(scores, self.settings.followed)
        self._keep_client_scores(0, scores)

    def _keep_client_scores(self, number: int, scores: Scores) -> None:
        """Keep the test scores of all clients, unless they are too many; the last round may be scored twice."""
        if len(self.data) <= MAX_FOLLOWED_CLIENTS and scores:
            tests = {name: f"test_{name}" for name in self.settings.followed}
            known = {name: plain(scores[test]) for name, test in tests.items() if test in scores}
            earlier = [line for line in self.client_scores if line["round"] != number]
            self.client_scores = [*earlier, {"round": number, **known}]

    # -- checkpoints

    def record(self) -> dict[str, Any]:
        """A checkpoint's content except tensors, for JSON."""
        return {
            "communication": asdict(self.communication),
            "history": [dict(line) for line in self.history],
            "client_notes": list(self.client_notes),
            "by_client": sorted(self.by_client),
            "sent": self.recorded.down_bytes,
            "lost": {client: dict(reasons) for client, reasons in self.lost.items()},
            "uploaded": dict(self.uploaded),
            "initial": self.initial,
            "client_scores": list(self.client_scores),
        }

    def restore(self, checkpoint: LoadedCheckpoint) -> None:
        """Restore the state from a checkpoint."""
        record = checkpoint.record
        device = self.start.device
        self.server = on_device(checkpoint.server, device)
        self.kept = [rows.to(device=device) for rows in checkpoint.kept_models]
        self.communication = Traffic(**record["communication"])
        self.recorded = replace(self.communication, down_bytes=record["sent"])
        self.history, self.client_notes = record["history"], record["client_notes"]
        self.by_client = set(record["by_client"])
        self.lost = {client: Counter(reasons) for client, reasons in record["lost"].items()}
        self.initial, self.client_scores = record.get("initial", {}), record.get("client_scores", [])
        self.uploaded = Counter(record["uploaded"])


def _work(replies: Sequence[TrainReply]) -> dict[str, int]:
    """The work of a round's clients together; nothing if some of it is unknown."""
    known = [reply.work for reply in replies if reply.work is not None]
    if len(known) < len(replies):
        return {}
    return dict(zip(WORK, torch.stack(known).sum(0).tolist() if known else [0] * SIZE, strict=True))


def _plain(value: Any) -> Any:
    """A tensor as numbers or lists of them, for JSON."""
    return value.tolist() if isinstance(value, Tensor) else value
