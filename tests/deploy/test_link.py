"""Who asks the SuperLink for messages waits until there are some, and never when there are some."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bespokefl.engines.flower import link
from bespokefl.engines.flower.link import Bell

PULL, PUSH = "/v1/fleet/pull-messages", "/v1/runtime/push-messages"
SHORT, LONG = 0.05, 60.0  # seconds that a request is kept


class Mailbox:
    """Stands for Flower: messages for one node, which are fetched one by one."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.looks = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        if scope["path"] == PUSH:
            self.messages.append(b"letter")
        elif scope["path"] == PULL:
            self.looks += 1
            body = self.messages.pop(0) if self.messages else b""
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": body})


Ask = Callable[..., Awaitable[bytes]]


def bell(box: Mailbox) -> Ask:
    made = Bell(box)

    async def ask(path: str, who: bytes = b"north") -> bytes:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        await made({"type": "http", "path": path, "headers": [(b"flwr-public-key", who)]}, None, send)
        return b"".join(message.get("body", b"") for message in sent)

    return ask


def test_a_request_is_kept_until_there_is_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "LONGEST", LONG)

    async def story() -> None:
        box = Mailbox()
        ask = bell(box)
        assert await ask(PULL) == b""  # the first time nothing is known of the node: it is answered at once
        waiting = asyncio.create_task(ask(PULL))
        await asyncio.sleep(SHORT)
        assert not waiting.done() and box.looks == 1
        await ask(PUSH)
        assert await asyncio.wait_for(waiting, LONG / 2) == b"letter"

    asyncio.run(story())


def test_nobody_waits_while_there_are_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two letters at once, and they are fetched one by one."""
    monkeypatch.setattr(link, "LONGEST", LONG)

    async def story() -> None:
        ask = bell(Mailbox())
        assert await ask(PULL) == b""
        await ask(PUSH)
        await ask(PUSH)
        found = [await asyncio.wait_for(ask(PULL), LONG / 2) for _ in range(3)]
        assert found == [b"letter", b"letter", b""]

    asyncio.run(story())


def test_what_another_found_does_not_make_a_node_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "LONGEST", LONG)

    async def story() -> None:
        box = Mailbox()
        ask = bell(box)
        await ask(PULL)
        await ask(PUSH)
        assert await asyncio.wait_for(ask(PULL, b"south"), LONG / 2) == b"letter"
        await asyncio.wait_for(ask(PULL, b"north"), LONG / 2)
        assert box.looks == 3

    asyncio.run(story())


def test_what_comes_without_a_bell_is_found_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "LONGEST", SHORT)

    async def story() -> None:
        box = Mailbox()
        ask = bell(box)
        await ask(PULL)
        box.messages.append(b"by another way")
        began = time.monotonic()
        assert await ask(PULL) == b"by another way" and time.monotonic() - began >= SHORT

    asyncio.run(story())
