"""Requests to nodes and their replies over Flower's Grid, with repeats and time-outs.

A node that was killed and restarted has lost its requests, and so may a restarted SuperLink: a request without a reply
is sent again. A node that receives it twice replies from its disk.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid as Grid

from bespokefl.core.errors import StoppedError
from bespokefl.engines.transports.flower import records
from bespokefl.engines.transports.flower.node.node import HELLO
from bespokefl.engines.transports.flower.node.replies import brief, error_of, read_introduction
from bespokefl.engines.transports.flower.schema import MalformedError
from bespokefl.engines.transports.flower.timeouts import Timeouts
from bespokefl.engines.transports.wire import Values

log = logging.getLogger("bespokefl")

MESSAGE_TYPE = "train"  # Flower has three types of messages; the request itself says what is wanted
REFRESH = 2.0  # seconds between two queries for the connected nodes
SLOWER = 4.0  # so many times slower than the slowest reply so far may be late without a repeat
RETRY = 3.0  # seconds until a request that could not be sent is sent again


@dataclass
class NodeInfo:
    """A node that has introduced itself."""

    name: str
    id: int
    about: dict[str, Any]


@dataclass
class PendingRequest:
    """A request that has no reply yet."""

    values: Values
    name: str | None = None  # the node's; None: it has yet to introduce itself
    sent: float | None = None
    ids: set[str] = field(default_factory=set)  # one for each time that it was sent
    to: tuple[int, str] | None = None  # the node's id, and since when it was connected
    not_before: float = 0.0  # when it may be sent again


class NodeMessenger:
    """Sends requests to nodes by name and collects their replies."""

    def __init__(self, grid: Grid, timeouts: Timeouts, stopped: Callable[[], bool] = lambda: False) -> None:
        """`stopped` is asked while waiting whether the run is to stop."""
        self.grid, self.timeouts, self.stopped = grid, timeouts, stopped
        self.hello: Values = {}  # what nodes are told when they are asked to introduce themselves
        self.known: dict[str, NodeInfo] = {}
        self.unable: dict[str, str] = {}  # nodes that cannot take part, with the reason
        self.left_out: dict[str, str] = {}  # nodes whose introduction cannot be used, with the reason
        self._introducing: dict[int, PendingRequest] = {}
        self._introduced: set[int] = set()
        self._present: dict[int, tuple[str, str]] = {}  # by id: the registered name, and since when it is connected
        self._refreshed = -REFRESH
        self._last_reply = self._slowest = 0.0  # when any node has replied last, and the longest time for a reply

    def gather(self, enough: Callable[[Mapping[str, NodeInfo]], bool], *, strict: bool = True) -> None:
        """Wait until there are enough nodes, or for the time-out.

        If `strict`, it also ends if a connected node cannot take part.
        """
        until = time.monotonic() + self.timeouts.gather
        while not enough(self.known) and time.monotonic() < until:
            if strict and self.unable and not self._introducing:
                return
            self._step({}, {})
            time.sleep(self.timeouts.poll)

    def leave_out(self, reasons: Mapping[str, str]) -> None:
        """Go on without these nodes."""
        for name, reason in reasons.items():
            log.warning("node %s is left out: %s", name, reason)
            self.known.pop(name, None)
            self.left_out[name] = reason

    def exchange(
        self,
        requests: Mapping[str, Values],
        number: int,
        until: Callable[[Mapping[str, Values], float], bool] | None = None,
    ) -> dict[str, Values]:
        """Send requests; returns the replies by node that arrived in time.

        `until(replies, seconds)` says whether to stop waiting. By default the time-out decides.
        """
        over = until or (lambda replies, seconds: seconds >= self.timeouts.timeout)
        pending = {name: PendingRequest(values, name) for name, values in requests.items()}
        replies: dict[str, Values] = {}
        began = time.monotonic()
        while len(replies) < len(pending) and not over(replies, time.monotonic() - began):
            if not self._step(pending, replies, number):
                time.sleep(self.timeouts.poll)
        return replies

    # -- inside

    def _step(self, requests: Mapping[str, PendingRequest], replies: dict[str, Values], number: int = 0) -> bool:
        """Update the connected nodes, send what is due, and collect replies; returns whether there were any."""
        if self.stopped():
            raise StoppedError("the run was stopped.")
        now = time.monotonic()
        if now - self._refreshed >= REFRESH:
            self._refreshed = now
            self._refresh_nodes()
        due = [(node, request) for node, request in self._introducing.items() if self._due(request, node, now)]
        for name, request in requests.items():
            node = self.known[name].id if name in self.known else None
            if name not in replies and node in self._present and self._due(request, node, now):
                due.append((node, request))
        self._send(due, number, now)
        return self._collect(requests, replies, now)

    def _refresh_nodes(self) -> None:
        """Query the connected nodes; ask new ones to introduce themselves."""
        try:
            self._present = {int(one.node_id): (one.name, one.last_activated_at) for one in self.grid.get_nodes()}
        except Exception as error:  # the SuperLink may be restarting
            log.warning("the SuperLink does not answer: %s", error)
            return
        for node in self._present:
            if node not in self._introduced and node not in self._introducing:
                self._introducing[node] = PendingRequest({"what": HELLO} | self.hello)
        for node in [one for one in self._introducing if one not in self._present]:
            del self._introducing[node]

    def _due(self, request: PendingRequest, node: int, now: float) -> bool:
        if now < request.not_before:
            return False
        # a restarted node has lost its requests
        moved = request.to != (node, self._present[node][1])
        if request.sent is None or moved:
            return True
        patience = max(self.timeouts.resend, SLOWER * self._slowest)
        return now - max(request.sent, self._last_reply) >= patience

    def _send(self, due: list[tuple[int, PendingRequest]], number: int, now: float) -> None:
        if not due:
            return
        time_to_live = max(self.timeouts.timeout, self.timeouts.give_up) + 60
        messages = [
            Message(records.pack(request.values), node, MESSAGE_TYPE, ttl=time_to_live, group_id=str(number))
            for node, request in due
        ]
        try:
            ids = list(self.grid.push_messages(messages))
        except Exception as error:
            log.warning("requests could not be sent, trying again: %s", error)
            ids = []
        for (node, request), id in zip(due, ids or [""] * len(due), strict=True):
            if not id:
                request.not_before = now + RETRY
                continue
            request.sent, request.to = now, (node, self._present[node][1])
            request.ids.add(id)

    def _collect(self, requests: Mapping[str, PendingRequest], replies: dict[str, Values], now: float) -> bool:
        unanswered = (request for name, request in requests.items() if name not in replies)
        wanted = {id: request for request in (*self._introducing.values(), *unanswered) for id in request.ids}
        if not wanted:
            return False
        try:
            messages = list(self.grid.pull_messages(list(wanted)))
        except Exception as error:
            log.warning("replies could not be fetched, trying again: %s", error)
            return False
        for message in messages:
            request = wanted.get(message.metadata.reply_to_message_id)
            if request is not None:
                request.ids.discard(message.metadata.reply_to_message_id)
                self._accept(request, message, replies, now)
        return bool(messages)

    def _accept(self, request: PendingRequest, message: Message, replies: dict[str, Values], now: float) -> None:
        self._last_reply = now
        if message.has_error():  # the node disconnected, or its process died: it is asked again
            request.sent, request.not_before = None, now + RETRY
            return
        self._slowest = max(self._slowest, now - (request.sent or now))
        try:
            values = records.unpack(message.content)
        except records.UnreadableError as error:
            values = {"error": f"its reply cannot be read: {error}", "damaged": True}
        if request.name is None:
            self._register(request, values)
            return
        if "error" in values and not values.get("damaged"):
            log.warning("node %s: %s", request.name, error_of(values))
        replies[request.name] = values

    def _register(self, request: PendingRequest, values: Values) -> None:
        """Register a node that introduces itself. It is rejected if its key belongs to another name."""
        assert request.to is not None
        node = request.to[0]
        self._introducing.pop(node, None)
        self._introduced.add(node)
        registered = self._present.get(node, ("", ""))[0]
        if "error" in values and "node" in values:
            self._cannot_take_part(registered or brief(values["node"]), str(error_of(values)))
            return
        try:
            name, about = read_introduction(values)
        except MalformedError as error:
            self.left_out[registered or f"number {node}"] = f"its introduction is malformed: {brief(error)}"
            log.warning("node %s is left out: its introduction is malformed: %s", registered or node, brief(error))
            return
        self.unable.pop(name, None)
        if registered and registered != name:
            log.warning("a node is left out: it claims to be %r, but its key belongs to %r", name, registered)
            self.left_out[registered] = f"it claims to be {name!r}"
            return
        other = self.known.get(name)
        if other is not None and other.id != node and other.id in self._present:
            log.warning("a second node claims to be %r; it is left out while the first one is connected", name)
            self._introduced.discard(node)
            return
        if other is not None and other.about != about:
            log.warning("node %s returned with other clients or data and is left out", name)
            return
        self.left_out.pop(name, None)
        self.known[name] = NodeInfo(name, node, about)

    def _cannot_take_part(self, name: str, reason: str) -> None:
        log.warning("node %s cannot take part: %s", name, reason)
        self.unable[name] = reason
