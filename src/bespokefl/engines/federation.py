"""The server's side of one run: its state, everybody's kept states, what was sent, what was noted."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bespokefl.core import rng as chance
from bespokefl.core.errors import TrainingError, listing
from bespokefl.core.method import ALL, NONE, Method, Phase, Round, State, Uploads
from bespokefl.core.rows import Rows
from bespokefl.engines.client import Data
from bespokefl.engines.evaluation import Scores, means
from bespokefl.engines.faults import spoil
from bespokefl.engines.screening import Entry, Screening
from bespokefl.engines.settings import Settings
from bespokefl.engines.storage.checkpoint_format import LoadedCheckpoint, RunSnapshot
from bespokefl.engines.storage.client_states import ClientStates
from bespokefl.engines.traffic import DownlinkCounter, Traffic, columns
from bespokefl.engines.transports import wire
from bespokefl.engines.transports.wire import Values, under


@dataclass(frozen=True)
class Draw:
    """Who takes part in a round."""

    round: Round
    trains: list[int]
    reports: list[int]
    dropped: tuple[int, ...] = ()  # asked, but gone
    everyone: bool = False  # all clients train, whoever reports


class Federation:
    """A server and the clients' states. Clients are positions in `data.names`."""

    def __init__(self, method: Method, start: Rows, data: Data, settings: Settings) -> None:
        settings.privacy.check(method)
        self.method, self.data, self.settings = method, data, settings
        self.sizes: list[int] = data.train.sizes.tolist()
        self.store = ClientStates(
            lambda new: method.start_clients(start, [data.names[i] for i in new]),
            len(data),
            None if settings.state_dir is None else Path(settings.state_dir),
        )
        self.server: State = method.start_server(start, self.round(0, "start"))
        self.communication = Traffic()
        self.history: list[dict[str, Any]] = []
        self.client_notes: list[dict[str, Any]] = []
        self.lost: dict[str, Counter[str]] = {}  # by client: why and how often its upload did not count
        self.uploaded: Counter[str] = Counter()  # by client: uploads that have left it, whether they counted or not
        self.by_client: set[str] = set()  # names in the history with a place for every client
        self._sent = 0  # bytes sent down up to the last round
        self._layout = start.layout
        self._screening = Screening(method, start)
        self._down = DownlinkCounter()
        self.kept: list[Rows] = []  # the common model after each round, where it is asked for

    def round(self, number: int, phase: str, reporting: tuple[int, ...] = ()) -> Round:
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
        """Who trains and who reports."""
        count, key = len(self.data), (self.settings.seed, "cohort", number - self._undrawn(number))
        drawn = chance.sample(count, self.settings.participation, *key, sampling=phase.sampling).tolist()
        everyone = phase.trains == ALL
        trains = list(range(count)) if everyone else drawn
        dropped = [client for client in trains if self._fault(number, client) == "drop"]
        if dropped:
            gone = set(dropped)
            trains, drawn = ([client for client in who if client not in gone] for who in (trains, drawn))
        reports = {ALL: trains, NONE: []}.get(phase.reports, drawn)
        return Draw(self.round(number, phase.name, tuple(reports)), trains, reports, tuple(dropped), everyone)

    def _undrawn(self, number: int) -> int:
        """Rounds of earlier phases that are everybody's, as a survey is: without them all methods draw the same."""
        found, begun = 0, 1
        for phase in self.method.phases(self.settings.rounds):
            if number < begun + phase.rounds:
                break
            found += phase.rounds * (phase.trains == ALL and phase.reports in (ALL, NONE))
            begun += phase.rounds
        return found

    def request(self, part: Sequence[int], round: Round, *, count: bool) -> Values:
        """What these clients get: the server's message, and their own state, which they would have kept."""
        message = self.method.message(self.server, part, round)
        if count and self.settings.record:
            shared, own = wire.size(message.shared), wire.size(message.own)
            down = (shared[0] * len(part) + own[0], shared[1] * len(part) + own[1])
            self.communication = self.communication.plus(down=down)
            self._down.add(message, len(part))
        return {
            "number": round.number,
            "phase": round.phase,
            **{f"shared/{name}": value for name, value in message.shared.items()},
            **{f"own/{name}": value for name, value in message.own.items()},
            **{f"state/{name}": value for name, value in self.store.get(part).items()},
        }

    def commit(self, draw: Draw, parts: Sequence[Sequence[int]], replies: Sequence[Values]) -> None:
        """The round becomes true: states first, then the server, then a line of history."""
        number = draw.round.number
        workload = self.method.workload(self.server, draw.round) if self.settings.record else None
        self._refuse_broken(number, parts, replies)
        before = self.communication
        uploads, lost = self._uploads(draw.round, parts, replies, set(draw.reports))
        for part, values in zip(parts, replies, strict=True):
            self._put(part, under("state", values), set() if draw.everyone else lost.keys())
            if self.settings.record:
                self._keep_notes(number, part, under("note", values))
        if len(uploads):
            accepted = replace(draw.round, reporting=uploads.clients) if lost else draw.round
            self.server = self.method.aggregate(self.server, uploads, accepted)
        lost = dict(sorted((lost | dict.fromkeys(draw.dropped, "dropped out")).items()))
        for client, reason in lost.items():
            self.lost.setdefault(self.data.names[client], Counter())[reason] += 1
        common = self.method.global_model(self.server) if self.settings.keep_rounds else None
        if common is not None:
            self.kept.append(common)
        if not self.settings.record:
            self.history.append({"round": number})
            return
        self.history.append(
            {
                "round": number,
                "phase": draw.round.phase,
                "trained": len(draw.trains),
                "reported": len(uploads),
                **({"lost": {self.data.names[client]: reason for client, reason in lost.items()}} if lost else {}),
                "up_bytes": self.communication.up_bytes - before.up_bytes,
                "down_bytes": before.down_bytes - self._sent,
                "down_streams": self._down.columns / self._layout.width,
                "up_models": sum(map(columns, uploads)) / self._layout.width,
                "workload": workload,
                **{name: _plain(value) for name, value in draw.round.notes.items()},
                **{name: _plain(value) for name, value in draw.round.client_notes.items()},
            }
        )
        self.by_client |= set(draw.round.client_notes)
        self._sent = before.down_bytes
        self._down = DownlinkCounter()

    def keep_scores(self, personal: Scores, globally: Scores | None) -> dict[str, float]:
        """Note the mean scores with the last round; those on validation data come back, to be shown."""
        found = means(personal)
        if self.history:
            self.history[-1] |= {"personal": found, "global": None if globally is None else means(globally)}
        shown = {name: value for name, value in found.items() if name.startswith("validation")}
        return {name: value for name, value in shown.items() if value is not None}

    # -- to go on later

    def moment(self, number: int) -> RunSnapshot:
        """All that this is between two rounds."""
        record = {
            "communication": asdict(self.communication),
            "history": [dict(line) for line in self.history],
            "client_notes": list(self.client_notes),
            "by_client": sorted(self.by_client),
            "sent": self._sent,
            "lost": {client: dict(reasons) for client, reasons in self.lost.items()},
            "uploaded": dict(self.uploaded),
        }
        return RunSnapshot(number, self.server, self.store.snapshot(), list(self.kept), record)

    def restore(self, found: LoadedCheckpoint) -> None:
        """Be what this was then."""
        self.server = found.server
        self.store.update(found.clients, found.states)
        self.kept = found.kept_models
        record = found.record
        self.communication = Traffic(**record["communication"])
        self.history, self.client_notes = record["history"], record["client_notes"]
        self.by_client, self._sent = set(record["by_client"]), record["sent"]
        self.lost = {client: Counter(reasons) for client, reasons in record["lost"].items()}
        self.uploaded = Counter(record.get("uploaded", {}))  # not kept by earlier versions, which had no noise

    # -- inside

    def _fault(self, number: int, client: int) -> str | None:
        return self.settings.faults.of_client(self.settings.seed, number, self.data.names[client])

    def _put(self, part: Sequence[int], state: State, lost: Collection[int]) -> None:
        """Keep the states; whose upload did not count goes back to what it was."""
        kept = [at for at, client in enumerate(part) if client not in lost]
        if len(kept) < len(part):
            state = {name: value[torch.tensor(kept, dtype=torch.int64)] for name, value in state.items()}
        if kept:
            self.store.update([part[at] for at in kept], state)

    def _uploads(
        self, round: Round, parts: Sequence[Sequence[int]], replies: Sequence[Values], reports: set[int]
    ) -> tuple[Uploads, dict[int, str]]:
        """What arrived in time and can be used; and of the others why not."""
        lost: dict[int, str] = {}
        entries: list[Entry] = []
        for part, values in zip(parts, replies, strict=True):
            kept = [at for at, client in enumerate(part) if client in reports]
            if not kept:
                continue
            upload = under("upload", values)
            if upload:
                self.uploaded.update(self.data.names[part[at]] for at in kept)
            if len(kept) < len(part):
                upload = {name: value[torch.tensor(kept)] for name, value in upload.items()}
            if self.settings.record:
                self.communication = self.communication.plus(up=wire.size(upload))
            entries += self._spoilt(round.number, [part[at] for at in kept], upload, lost)
        used, refused = self._screening(entries, self.server, round) if self.settings.record else (entries, {})
        clients = [client for own, _ in used for client in own]
        sizes = torch.tensor([self.sizes[client] for client in clients])
        return Uploads(clients, sizes, [upload for _, upload in used]), lost | refused

    def _spoilt(self, number: int, clients: list[int], upload: State, lost: dict[int, str]) -> list[Entry]:
        """A chunk of uploads as the simulated faults leave it."""
        fates = [self._fault(number, client) for client in clients]
        if not upload or not any(fates):  # who sends nothing sends nothing broken
            return [(clients, upload)]
        lost |= {client: "too late" for client, fate in zip(clients, fates, strict=True) if fate == "slow"}
        sound = [at for at, fate in enumerate(fates) if fate is None]
        index = torch.tensor(sound, dtype=torch.int64)
        entries = [([clients[at] for at in sound], {name: value[index] for name, value in upload.items()})]
        for at, fate in enumerate(fates):
            if fate is not None and fate != "slow":
                own = {name: value[at : at + 1] for name, value in upload.items()}
                rng = chance.generator(self.settings.seed, "spoil", number, self.data.names[clients[at]])
                entries.append(([clients[at]], spoil(own, fate, rng)))
        return entries if sound else entries[1:]

    def _refuse_broken(self, number: int, parts: Sequence[Sequence[int]], replies: Sequence[Values]) -> None:
        names = [
            self.data.names[client]
            for part, values in zip(parts, replies, strict=True)
            for client, broken in zip(part, values["broken"].tolist(), strict=True)
            if broken
        ]
        if names:
            raise TrainingError(
                f"the weights became absurdly large or non-finite in round {number} for clients "
                f"{listing(sorted(names))}: use a smaller learning rate."
            )

    def _keep_notes(self, number: int, part: Sequence[int], notes: dict[str, Tensor]) -> None:
        listed = {name: _plain(values) for name, values in notes.items()}
        for at, client in enumerate(part if notes else ()):
            row = {name: values[at] for name, values in listed.items()}
            self.client_notes.append({"round": number, "client": self.data.names[client]} | row)


def _plain(value: Any) -> Any:
    """A tensor as numbers or lists of them, for JSON."""
    return value.tolist() if isinstance(value, Tensor) else value
