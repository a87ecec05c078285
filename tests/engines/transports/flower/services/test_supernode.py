"""A node's connection: a failure costs one message only, and a rejected node logs it once and ends."""

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bespokefl.core.errors import TrainingError
from bespokefl.engines.transports.flower import adapter
from bespokefl.engines.transports.flower.services import superlink, supernode
from tests.engines.transports.flower.flower_internals import (
    Fetch,
    FleetStub,
    ObjectPullError,
    ObjectPushError,
    ObjectUnavailableError,
    available,
    being_uploaded,
    missing,
)


def breaks(content: bytes) -> Any:
    raise KeyError("nobody thought of this")


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Iterator[FleetStub]:
    made = FleetStub()
    monkeypatch.setattr(adapter.FleetHttpClient, "from_server_address", lambda *_, **__: made)
    monkeypatch.setattr(supernode, "RETRY_DELAY", 0.05)
    yield made


class Listener:
    """A node that records what it was asked."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def answer(self, values: dict[str, Any]) -> dict[str, Any]:
        self.heard.append(str(values["what"]))
        return {}


def answers(link: FleetStub, tmp_path: Path) -> list[str]:
    """What a node was asked and could read, until there are no messages any more."""
    endpoint = supernode.Endpoint("127.0.0.1:1", None, None, tmp_path / "node-id")
    node = Listener()
    supernode.serve_messages(endpoint, node, link.stopped)  # type: ignore[arg-type]
    return node.heard


@pytest.mark.parametrize("lost", [missing, breaks])
def test_a_message_whose_pieces_are_lost_costs_only_itself(
    lost: Fetch, link: FleetStub, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for what, fetch in (("first", available), ("second", lost), ("third", available)):
        link.send(what, fetch)
    assert answers(link, tmp_path) == ["first", "third"] and link.answered == 2
    assert "a message was lost; the server will send it again" in caplog.text


def test_an_answer_that_cannot_be_sent_costs_only_itself(link: FleetStub, tmp_path: Path) -> None:
    link.pushes = [ObjectPushError("a", 1, "b"), ObjectPullError("a", "b"), None]
    for what in ("first", "second", "third"):
        link.send(what, available)
    assert answers(link, tmp_path) == ["first", "second", "third"] and link.answered == 1


def test_pieces_that_never_come_are_not_waited_for_long(
    link: FleetStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(adapter, "STALL_TIMEOUT", 0.3)
    link.send("first", being_uploaded)
    link.send("second", available)
    began = time.monotonic()
    assert answers(link, tmp_path) == ["second"]
    assert time.monotonic() - began < 60 and "no part of it arrived for 0.3 seconds" in caplog.text


def test_pieces_that_come_one_by_one_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several parts, each as late as allowed, and the SuperLink down in between."""
    clock = [0.0]
    monkeypatch.setattr(adapter.time, "monotonic", lambda: clock[0])
    late = ObjectUnavailableError
    came = iter([late("a"), b"1", late("a"), b"2", late("a"), late("a"), b"3", late("a"), late("a")])
    seconds = iter([1, 1, 1, 1, 100, 1, 1, 1, 1])

    def pull(id: str) -> bytes:
        clock[0] += next(seconds)
        found = next(came)
        if isinstance(found, Exception):
            raise found
        return found

    one = adapter.fail_when_stalled(pull)
    found: list[bytes] = []
    for _ in range(8):
        clock[0] += 0.9 * adapter.STALL_TIMEOUT / 2
        try:
            found.append(one("a"))
        except late:
            found.append(b"")
    assert found == [b"", b"1", b"", b"2", b"", b"", b"3", b""]
    clock[0] += adapter.STALL_TIMEOUT
    with pytest.raises(ObjectPullError, match=f"no part of it arrived for {adapter.STALL_TIMEOUT:g} seconds"):
        one("a")


def test_a_reply_whose_node_was_killed_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SuperLink holds each request for a part until its own limit, which is no outage."""
    clock = [0.0]
    monkeypatch.setattr(adapter.time, "monotonic", lambda: clock[0])
    held = superlink.MAX_WAIT + 1
    assert held < adapter.OUTAGE

    def pull(id: str) -> bytes:
        clock[0] += held
        if id == "sent":
            return b"1"
        raise ObjectUnavailableError(id)

    with pytest.raises(ObjectPullError, match=f"no part of it arrived for {adapter.REPLY_STALL_TIMEOUT:g} seconds"):
        adapter._pull_reply(["sent", "never sent"], pull)
    assert clock[0] < 2 * adapter.REPLY_STALL_TIMEOUT
    assert adapter._pull_reply(["sent"], pull) == {"sent": b"1"}


class Rejecting(FleetStub):
    """Does not respond at first, then rejects every key, but is down again after the first time.

    Every request takes a second of a clock of its own.
    """

    def __init__(self, away: int) -> None:
        super().__init__()
        self.away, self.asked = away, 0

    def clock(self) -> float:
        return float(self.asked)

    def ActivateNode(self, request: Any) -> Any:  # noqa: N802
        self.asked += 1
        if self.asked <= 2 * self.away + 1 and self.asked != self.away + 1:
            raise httpx.ConnectError("refused")
        answer = httpx.Response(401, text="The clocks differ by 400 seconds: set them.")
        raise httpx.HTTPStatusError("no", request=httpx.Request("POST", "http://a"), response=answer)


def test_a_rejected_node_logs_it_once_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However long the server was down before it rejected the node."""
    made = Rejecting(away=20)
    monkeypatch.setattr(adapter.FleetHttpClient, "from_server_address", lambda *_, **__: made)
    monkeypatch.setattr(supernode.time, "monotonic", made.clock)
    monkeypatch.setattr(supernode, "RETRY_DELAY", 0.001)
    monkeypatch.setattr(supernode, "REJECTION_TIMEOUT", 5.5)
    endpoint = supernode.Endpoint("127.0.0.1:1", None, tmp_path / "key", tmp_path / "node-id")
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(TrainingError, match=r"rejects this node: its key is not .*; it says: The clocks differ by 400"),
    ):
        client = adapter.FleetClient("127.0.0.1:1", None, None, lambda call: call())
        supernode._activate(client, endpoint, threading.Event())
    assert made.asked == 42 + 6  # it was tried again after it was refused for the second time
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and "does not respond yet" in said[0]
    assert "rejects this node's key; trying again: The clocks differ" in said[1]


def test_a_handshake_that_is_cut_does_not_end_a_node(tmp_path: Path) -> None:
    endpoint = supernode.Endpoint("127.0.0.1:1", tmp_path / "ca.crt", tmp_path / "key", tmp_path / "node-id")
    cut = "[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol (_ssl.c:1006)"
    supernode._reject_bad_certificate(httpx.ConnectError(cut), endpoint)
    with pytest.raises(TrainingError, match="does not use TLS"):
        supernode._reject_bad_certificate(httpx.ConnectError("[SSL] record layer failure (_ssl.c:1006)"), endpoint)


def test_a_node_without_a_key_does_not_retry_for_ever_at_a_server_with_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class ServerWithTls(FleetStub):
        asked = 0

        def ActivateNode(self, request: Any) -> Any:  # noqa: N802
            self.asked += 1
            if self.asked == 3:
                raise httpx.ConnectError("it restarts")
            raise httpx.RemoteProtocolError("Server disconnected without sending a response.")

        def clock(self) -> float:
            return float(self.asked)

    made = ServerWithTls()
    monkeypatch.setattr(adapter.FleetHttpClient, "from_server_address", lambda *_, **__: made)
    monkeypatch.setattr(supernode.time, "monotonic", made.clock)
    monkeypatch.setattr(supernode, "RETRY_DELAY", 0.001)
    monkeypatch.setattr(supernode, "REJECTION_TIMEOUT", 5.5)
    endpoint = supernode.Endpoint("127.0.0.1:1", None, None, tmp_path / "node-id")
    client = adapter.FleetClient("127.0.0.1:1", None, None, lambda call: call())
    with pytest.raises(TrainingError, match=r"closes connections without TLS .*this node has no key, node.key"):
        supernode._activate(client, endpoint, threading.Event())
    assert made.asked == 4 + 6
