"""Letters to nodes and their answers, over Flower's Grid: what is sent again, and until when an answer counts.

A node that was killed and comes back has lost what it was sent, a SuperLink that was restarted may have: so a letter
without an answer is sent again. A node that gets it twice answers from its disk.
"""

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from flwr.app import Message

from bespokefl.core.errors import BespokeError
from bespokefl.engines.transports.flower import records
from bespokefl.engines.transports.flower.blob import UnreadableError
from bespokefl.engines.transports.flower.node import HELLO
from bespokefl.engines.transports.flower.timeouts import Timeouts
from bespokefl.engines.transports.wire import Values

log = logging.getLogger("bespokefl")

KIND = "train"  # Flower knows three kinds of messages; what is asked for stands in the letter itself
LOOK = 2.0  # seconds between two looks at who is there
AGAIN = 3.0  # seconds until a letter that failed is sent again


class StoppedError(BespokeError):
    """Somebody wants the run to stop: nobody is waited for any more."""


class Grid(Protocol):
    """What is needed of Flower's."""

    def get_nodes(self) -> Iterable[Any]: ...

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str | None]: ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]: ...


@dataclass
class NodeInfo:
    """A node that has said who it is."""

    name: str
    id: int
    about: dict[str, Any]


@dataclass
class PendingRequest:
    """One request on its way."""

    values: Values
    sent: float | None = None
    ids: set[str] = field(default_factory=set)  # of every time that it was sent
    to: tuple[int, str] | None = None  # the node, and since when it had been there
    not_before: float = 0.0


class NodeMessenger:
    """Sends requests to nodes by their names, and gathers the answers."""

    def __init__(
        self,
        grid: Grid,
        timeouts: Timeouts,
        clock: Callable[[], float] = time.monotonic,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """stopped: whether the run is to stop, in the middle of whatever it waits for"""
        self.grid, self.timeouts, self.clock, self.stopped = grid, timeouts, clock, stopped
        self.known: dict[str, NodeInfo] = {}
        self._greeting: dict[int, PendingRequest] = {}
        self._greeted: set[int] = set()
        self._present: dict[int, tuple[str, str]] = {}  # by id: the name that it is registered by, and since when
        self._looked = -LOOK

    def gather(self, enough: Callable[[Mapping[str, NodeInfo]], bool]) -> None:
        """Wait for nodes until there are enough, or the time is over."""
        until = self.clock() + self.timeouts.gather
        while not enough(self.known) and self.clock() < until:
            self._turn({}, {})
            time.sleep(self.timeouts.poll)

    def exchange(
        self,
        requests: Mapping[str, Values],
        number: int,
        until: Callable[[Mapping[str, Values], float], bool] | None = None,
    ) -> dict[str, Values]:
        """The nodes' answers by name, of those that came in time.

        until   whether the answers are enough after so many seconds; the time-out, if not given
        """
        over = until or (lambda answers, seconds: seconds >= self.timeouts.timeout)
        letters = {name: PendingRequest(values) for name, values in requests.items()}
        answers: dict[str, Values] = {}
        began = self.clock()
        while len(answers) < len(letters) and not over(answers, self.clock() - began):
            if not self._turn(letters, answers, number):
                time.sleep(self.timeouts.poll)
        return answers

    # -- inside

    def _turn(self, letters: Mapping[str, PendingRequest], answers: dict[str, Values], number: int = 0) -> bool:
        """Look who is there, send what is to be sent, take in what has come; whether something came."""
        if self.stopped():
            raise StoppedError("the run was stopped.")
        now = self.clock()
        if now - self._looked >= LOOK:
            self._looked = now
            self._look()
        due = [(node, letter) for node, letter in self._greeting.items() if self._due(letter, node, now)]
        for name, letter in letters.items():
            node = self.known[name].id if name in self.known else None
            if name not in answers and node in self._present and self._due(letter, node, now):
                due.append((node, letter))
        self._send(due, number, now)
        return self._collect(letters, answers, now)

    def _look(self) -> None:
        """Who is there; whoever is new is asked who it is."""
        try:
            self._present = {int(one.node_id): (one.name, one.last_activated_at) for one in self.grid.get_nodes()}
        except Exception as error:  # the SuperLink may be on its way up again
            log.warning("the SuperLink does not answer: %s", error)
            return
        for node in self._present:
            if node not in self._greeted and node not in self._greeting:
                self._greeting[node] = PendingRequest({"what": HELLO})
        for node in [one for one in self._greeting if one not in self._present]:
            del self._greeting[node]

    def _due(self, letter: PendingRequest, node: int, now: float) -> bool:
        if now < letter.not_before:
            return False
        # a node that was started again does not know what it was sent before
        moved = letter.to != (node, self._present[node][1])
        return letter.sent is None or moved or now - letter.sent >= self.timeouts.resend

    def _send(self, due: list[tuple[int, PendingRequest]], number: int, now: float) -> None:
        if not due:
            return
        time_to_live = max(self.timeouts.timeout, self.timeouts.give_up) + 60
        messages = [
            Message(records.pack(letter.values), node, KIND, ttl=time_to_live, group_id=str(number))
            for node, letter in due
        ]
        try:
            ids = list(self.grid.push_messages(messages))
        except Exception as error:
            log.warning("letters could not be sent and will be again: %s", error)
            ids = [None] * len(due)
        for (node, letter), id in zip(due, ids or [None] * len(due), strict=True):
            if not id:
                letter.not_before = now + AGAIN
                continue
            letter.sent, letter.to = now, (node, self._present[node][1])
            letter.ids.add(id)

    def _collect(self, letters: Mapping[str, PendingRequest], answers: dict[str, Values], now: float) -> bool:
        wanted: dict[str, tuple[str | None, PendingRequest]] = {}
        for letter in self._greeting.values():
            wanted |= dict.fromkeys(letter.ids, (None, letter))
        for name, letter in letters.items():
            if name not in answers:
                wanted |= dict.fromkeys(letter.ids, (name, letter))
        if not wanted:
            return False
        try:
            replies = list(self.grid.pull_messages(list(wanted)))
        except Exception as error:
            log.warning("answers could not be fetched and will be again: %s", error)
            return False
        for reply in replies:
            asked = wanted.get(reply.metadata.reply_to_message_id)
            if asked is not None:
                asked[1].ids.discard(reply.metadata.reply_to_message_id)
                self._take(asked[0], asked[1], reply, answers, now)
        return bool(replies)

    def _take(
        self, name: str | None, letter: PendingRequest, reply: Message, answers: dict[str, Values], now: float
    ) -> None:
        if reply.has_error():  # the node went away, or its process died: it will be asked again
            letter.sent, letter.not_before = None, now + AGAIN
            return
        try:
            values = records.unpack(reply.content)
        except UnreadableError as error:
            values = {"error": f"its answer cannot be read: {error}", "damaged": True}
        if name is None:
            self._meet(letter, values)
            return
        if "error" in values and not values.get("damaged"):
            log.warning("node %s: %s", name, values["error"])
        answers[name] = values

    def _meet(self, letter: PendingRequest, values: Values) -> None:
        """A node says who it is. One that is registered under another name than it says is not believed."""
        assert letter.to is not None
        node = letter.to[0]
        self._greeting.pop(node, None)
        self._greeted.add(node)
        try:
            name, about = str(values["node"]), json.loads(values["about"])
            clients = about["clients"]
            if not isinstance(clients, dict) or not clients:
                raise ValueError("it has no clients")
        except (KeyError, ValueError, TypeError) as error:
            log.warning("a node is left out: %s", values.get("error", error))
            return
        registered = self._present.get(node, ("", ""))[0]
        if registered and registered != name:
            log.warning("a node is left out: it says it is %r, but its key is that of %r", name, registered)
            return
        other = self.known.get(name)
        if other is not None and other.id != node and other.id in self._present:
            log.warning("a second node says it is %r; it is left out while the first one is there", name)
            self._greeted.discard(node)
            return
        if other is not None and other.about != about:
            log.warning("node %s came back with other clients or data and is left out", name)
            return
        self.known[name] = NodeInfo(name, node, about)
