"""A node's connection: whatever becomes of one message, the next is answered; who is refused is told so, once."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.app import Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeResponse, PullMessagesResponse, PushMessagesResponse
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError
from flwr.supercore.task_identity import TaskIdentity

from bespokefl.core.errors import TrainingError
from bespokefl.engines.transports.flower import records, supernode

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
Fetch = Callable[[bytes], PullObjectResponse]


class SuperLink:
    """Stands for Flower's, as a client of it: letters, each with what becomes of a request for its pieces."""

    def __init__(self) -> None:
        self.letters: list[tuple[Message, Fetch]] = []
        self.pushes: list[Exception | None] = []  # what becomes of the next answers
        self.answered = 0
        self.stopped = threading.Event()
        self._pieces: dict[str, tuple[bytes, Fetch]] = {}

    def send(self, what: str, fetch: Fetch) -> None:
        message = Message(records.pack({"what": what}), 7, "train")
        message.metadata.__dict__["_message_id"] = message.object_id
        self.letters.append((message, fetch))

    def __enter__(self) -> "SuperLink":
        return self

    def __exit__(self, *_: object) -> None: ...

    def ActivateNode(self, request: Any) -> ActivateNodeResponse:  # noqa: N802
        return ActivateNodeResponse(node_id=7)

    def PullMessages(self, request: Any) -> PullMessagesResponse:  # noqa: N802
        if not self.letters:
            self.stopped.set()
            return PullMessagesResponse()
        message, fetch = self.letters.pop(0)
        self._pieces |= {id: (one.deflate(), fetch) for id, one in get_all_nested_objects(message).items()}
        tree = get_object_tree(message)
        return PullMessagesResponse(
            messages_list=[message_to_proto(remove_content_from_message(message))], message_object_trees=[tree]
        )

    def PullObject(self, request: Any) -> PullObjectResponse:  # noqa: N802
        content, fetch = self._pieces[request.object_id]
        return fetch(content)

    def PushMessages(self, request: Any) -> PushMessagesResponse:  # noqa: N802
        error = self.pushes.pop(0) if self.pushes else None
        if error is not None:
            raise error
        self.answered += 1
        return PushMessagesResponse()

    def __getattr__(self, name: str) -> Any:
        return lambda request: None


def there(content: bytes) -> PullObjectResponse:
    return PullObjectResponse(object_found=True, object_available=True, object_content=content)


def on_its_way(content: bytes) -> PullObjectResponse:
    return PullObjectResponse(object_found=True, object_available=False)


def gone(content: bytes) -> PullObjectResponse:
    return PullObjectResponse(object_found=False)


def breaks(content: bytes) -> PullObjectResponse:
    raise KeyError("nobody thought of this")


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Iterator[SuperLink]:
    made = SuperLink()
    monkeypatch.setattr(supernode.FleetHttpClient, "from_server_address", lambda *_, **__: made)
    monkeypatch.setattr(supernode, "PAUSE", 0.05)
    yield made


def answers(link: SuperLink, tmp_path: Path) -> list[str]:
    """What a node was asked and could read, until there are no letters any more."""
    heard: list[str] = []

    def answer(message: Message) -> Message:
        heard.append(str(records.unpack(message.content)["what"]))
        return Message(RecordDict(), reply_to=message)

    line = supernode.Endpoint("127.0.0.1:1", None, None, tmp_path / "node-id")
    supernode.carry(line, answer, link.stopped)
    return heard


@pytest.mark.parametrize("lost", [gone, breaks])
def test_a_message_whose_pieces_are_lost_costs_only_itself(
    lost: Fetch, link: SuperLink, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for what, fetch in (("first", there), ("second", lost), ("third", there)):
        link.send(what, fetch)
    assert answers(link, tmp_path) == ["first", "third"] and link.answered == 2
    assert "a message was lost and will come again" in caplog.text


def test_an_answer_that_cannot_be_sent_costs_only_itself(link: SuperLink, tmp_path: Path) -> None:
    link.pushes = [ObjectPushError("a", 1, "b"), ObjectPullError("a", "b"), None]
    for what in ("first", "second", "third"):
        link.send(what, there)
    assert answers(link, tmp_path) == ["first", "second", "third"] and link.answered == 1


def test_pieces_that_never_come_are_not_waited_for_long(
    link: SuperLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supernode, "PIECES", 0.3)
    monkeypatch.setattr(supernode, "PAUSE", 3.0)
    link.send("first", on_its_way)
    link.send("second", there)
    began = time.monotonic()
    assert answers(link, tmp_path) == ["second"]
    assert time.monotonic() - began < 60 and "nothing of it came for 0.3 seconds" in caplog.text


def test_pieces_that_come_one_by_one_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten of them, each as late as may be, and the SuperLink away in between."""
    clock = [0.0]
    monkeypatch.setattr(supernode.time, "monotonic", lambda: clock[0])
    late = supernode.ObjectUnavailableError
    came = iter([late("a"), b"1", late("a"), b"2", late("a"), late("a"), b"3", late("a"), late("a")])
    seconds = iter([1, 1, 1, 1, 100, 1, 1, 1, 1])

    def pull(id: str) -> bytes:
        clock[0] += next(seconds)
        found = next(came)
        if isinstance(found, Exception):
            raise found
        return found

    one = supernode._not_for_ever(pull)
    found: list[bytes] = []
    for _ in range(8):
        clock[0] += 0.9 * supernode.PIECES / 2
        try:
            found.append(one("a"))
        except late:
            found.append(b"")
    assert found == [b"", b"1", b"", b"2", b"", b"", b"3", b""]
    clock[0] += supernode.PIECES
    with pytest.raises(ObjectPullError, match="nothing of it came for 20 seconds"):
        one("a")


class Refusing(SuperLink):
    """Does not answer at first, then refuses every key, but is away again after the first time."""

    def __init__(self, away: int) -> None:
        super().__init__()
        self.away, self.asked = away, 0

    def ActivateNode(self, request: Any) -> ActivateNodeResponse:  # noqa: N802
        self.asked += 1
        if self.asked <= 2 * self.away + 1 and self.asked != self.away + 1:
            raise httpx.ConnectError("refused")
        raise httpx.HTTPStatusError("no", request=httpx.Request("POST", "http://a"), response=httpx.Response(400))


def test_a_node_that_is_refused_is_told_once_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However long the server was away before it refused."""
    made = Refusing(away=20)
    monkeypatch.setattr(supernode, "PAUSE", 0.01)
    monkeypatch.setattr(supernode, "REFUSED", 0.15)
    line = supernode.Endpoint("127.0.0.1:1", None, tmp_path / "key", tmp_path / "node-id")
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(TrainingError, match="refuses this node: its key is not registered there"),
    ):
        supernode._activate(made, line, b"key", threading.Event())  # type: ignore[arg-type]
    assert made.asked >= 43  # it was tried again after it was refused for the second time
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and "does not answer yet" in said[0] and "refuses this node's key" in said[1]
