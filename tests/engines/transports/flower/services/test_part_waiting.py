"""A request for a part of a message is answered when the part has been delivered, and once."""

import asyncio
from typing import Any

import pytest

from bespokefl.engines.transports.flower.services import superlink
from bespokefl.engines.transports.flower.services.superlink import PartWaiting
from tests.engines.transports.flower.flower_internals import (
    available,
    being_uploaded,
    missing,
    pull_request,
    push_request,
)

PAIRS = [
    ("/v1/fleet/pull-object", "/v1/runtime/push-object"),
    ("/v1/runtime/pull-object", "/v1/fleet/push-object"),
]


class Store:
    """Stands for Flower: parts that are announced, and those that have arrived."""

    def __init__(self) -> None:
        self.parts: dict[str, bytes] = {}
        self.announced = {"a", "b"}
        self.asked = 0
        self.waiting = PartWaiting(self._serve)

    async def ask(self, path: str, part: str) -> bytes:
        sent: list[Any] = []
        body = push_request(part) if "push" in path else pull_request(part)
        pieces = [body[:1], body[1:]]

        async def receive() -> Any:
            return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.waiting({"type": "http", "path": path, "part": part}, receive, send)
        return b"".join(message.get("body", b"") for message in sent)

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        body, part = b"", scope["part"]
        while True:
            message = await receive()
            body += message["body"]
            if not message["more_body"]:
                break
        assert body in (pull_request(part), push_request(part))
        if "push" in scope["path"]:
            self.parts[part] = b"content of " + part.encode()
            answer = b""
        else:
            self.asked += 1
            found = available if part in self.parts else being_uploaded if part in self.announced else missing
            answer = found(self.parts.get(part, b"")).SerializeToString()
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": answer})


async def settle() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("pull", "push"), PAIRS)
def test_a_part_that_is_being_uploaded_is_waited_for(pull: str, push: str) -> None:
    async def story() -> None:
        store = Store()
        first, second = (asyncio.create_task(store.ask(pull, "a")) for _ in range(2))
        await settle()
        assert not first.done() and store.asked == 2
        await store.ask(push, "b")  # another one
        await settle()
        assert not first.done() and store.asked == 2
        await store.ask(push, "a")
        assert b"content of a" in await first and b"content of a" in await second
        assert store.asked == 4 and not store.waiting._awaited
        assert b"content of b" in await store.ask(pull, "b") and store.asked == 5

    asyncio.run(story())


@pytest.mark.parametrize(("pull", "push"), PAIRS)
def test_a_part_that_nobody_announced_is_answered_at_once(pull: str, push: str) -> None:
    store = Store()
    assert asyncio.run(store.ask(pull, "c")) == missing(b"").SerializeToString() and store.asked == 1
    assert not store.waiting._awaited


def test_a_part_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(superlink, "MAX_WAIT", 0.05)
    store = Store()
    assert asyncio.run(store.ask(PAIRS[0][0], "a")) == being_uploaded(b"").SerializeToString()
    assert store.asked == 1 and not store.waiting._awaited
