"""The SuperLink holds requests for messages until there are some, and never while there are some."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Coroutine
from typing import Any

import pytest

from bespokefl.engines.transports.flower.services import superlink
from bespokefl.engines.transports.flower.services.superlink import LongPolling

PULL, PUSH = "/v1/fleet/pull-messages", "/v1/runtime/push-messages"  # a node asks, the server's app sends
LISTEN, ANSWER = "/v1/runtime/pull-messages", "/v1/fleet/push-messages"  # the server's app asks, a node sends
ACQUIRE, START = "/v1/runtime/acquire-task", "/v1/control/start-run"  # who starts apps asks, an administrator sends
PULLS = {PUSH: PULL, ANSWER: LISTEN, START: ACQUIRE}  # where that is asked for which is sent here
NAMES = {PULL: b"flwr-public-key", LISTEN: b"flwr-task-token"}  # the header that tells who asks
SHORT, LONG = 0.05, 60.0  # seconds that a request is kept


class Flower:
    """Stands for Flower behind the middleware: a queue for each caller, whose messages are fetched one by one."""

    def __init__(self) -> None:
        self.queues: dict[tuple[str, bytes], list[bytes]] = defaultdict(list)
        self.looks = 0
        self.status = 200
        self.stores, self.replies = asyncio.Event(), asyncio.Event()  # while one is clear, Flower is busy there
        self.stores.set()
        self.replies.set()
        self.gone = asyncio.Event()  # set when who asks hangs up
        self._polling = LongPolling(self._serve)

    async def ask(self, path: str, who: bytes = b"north") -> bytes:
        """The answer's body. `who` asks, or is sent to."""
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        parts = [b"let", b"ters?"]

        async def receive() -> Any:
            if parts:
                return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}
            await self.gone.wait()
            return {"type": "http.disconnect"}

        headers = [(b"host", b"server"), *([(NAMES[path], who)] if path in NAMES else [])]
        await self._polling({"type": "http", "path": path, "headers": headers, "who": who}, receive, send)
        return b"".join(message.get("body", b"") for message in sent)

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        path, who, body = scope["path"], scope["who"], b""
        assert [(await receive())["body"] for _ in range(2)] == [b"let", b"ters?"]
        if path in PULLS:
            await self.stores.wait()
            self.queues[PULLS[path], who].append(b"message")
        else:
            self.looks += 1
            queue = self.queues[path, who]
            body = queue.pop(0) if queue else b""
            await self.replies.wait()
        await send({"type": "http.response.start", "status": self.status})
        await send({"type": "http.response.body", "body": body})


async def settle() -> None:
    """Everything goes on that needs no time to pass."""
    for _ in range(100):
        await asyncio.sleep(0)


async def kept(asked: Coroutine[Any, Any, bytes]) -> asyncio.Task[bytes]:
    task = asyncio.create_task(asked)
    await settle()
    assert not task.done(), f"answered {task.result()!r} at once"
    return task


async def at_once(asked: Coroutine[Any, Any, bytes] | asyncio.Task[bytes]) -> bytes:
    task = asyncio.ensure_future(asked)
    await settle()
    assert task.done(), "kept"
    return task.result()


@pytest.fixture(autouse=True)
def _long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(superlink, "MAX_WAIT", LONG)


@pytest.mark.parametrize("send", PULLS)
def test_a_request_is_held_until_there_is_a_message(send: str) -> None:
    async def story() -> None:
        flower, look = Flower(), PULLS[send]
        assert await at_once(flower.ask(look)) == b""  # nothing is known of who asks for the first time
        others = [other for other in PULLS if other != send]
        for other in others:
            await at_once(flower.ask(other))
        waiting = await kept(flower.ask(look))
        for other in others:
            await at_once(flower.ask(other))
        assert not waiting.done() and flower.looks == 1
        await at_once(flower.ask(send))
        assert await at_once(waiting) == b"message"

    asyncio.run(story())


def test_no_request_is_held_while_there_are_messages() -> None:
    """Two messages at once, and they are fetched one by one."""

    async def story() -> None:
        flower = Flower()
        assert await at_once(flower.ask(PULL)) == b""
        await at_once(flower.ask(PUSH))
        await at_once(flower.ask(PUSH))
        assert [await at_once(flower.ask(PULL)) for _ in range(3)] == [b"message", b"message", b""]

    asyncio.run(story())


@pytest.mark.parametrize("send", [PUSH, ANSWER])
def test_an_empty_response_to_another_caller_holds_no_request(send: str) -> None:
    """Two nodes, by their keys, and two runs, by their tokens."""

    async def story() -> None:
        flower, look = Flower(), PULLS[send]
        await at_once(flower.ask(send, b"north"))
        assert await at_once(flower.ask(look, b"south")) == b""
        assert await at_once(flower.ask(look, b"north")) == b"message"

    asyncio.run(story())


def test_an_empty_response_on_another_route_holds_no_request() -> None:
    async def story() -> None:
        flower = Flower()
        await at_once(flower.ask(PUSH, b"south"))
        await at_once(flower.ask(ANSWER, b"north"))  # as many as were sent to nodes
        assert await at_once(flower.ask(PULL, b"north")) == b""
        assert await at_once(flower.ask(LISTEN, b"north")) == b"message"

    asyncio.run(story())


def test_one_message_releases_all_requests() -> None:
    async def story() -> None:
        flower = Flower()
        for who in (b"north", b"south"):
            await at_once(flower.ask(PULL, who))
        north, south = await kept(flower.ask(PULL, b"north")), await kept(flower.ask(PULL, b"south"))
        await at_once(flower.ask(PUSH, b"north"))
        assert (await at_once(north), await at_once(south)) == (b"message", b"")

    asyncio.run(story())


def test_a_request_without_a_message_is_held_again() -> None:
    async def story() -> None:
        flower = Flower()
        await at_once(flower.ask(PULL, b"south"))
        for _ in range(2):
            south = await kept(flower.ask(PULL, b"south"))
            await at_once(flower.ask(PUSH, b"north"))
            assert await at_once(south) == b""

    asyncio.run(story())


def test_a_released_request_finds_the_message() -> None:
    """Held requests are released when the message is stored, not when it arrives."""

    async def story() -> None:
        flower = Flower()
        await at_once(flower.ask(PULL))
        waiting = await kept(flower.ask(PULL))
        flower.stores.clear()
        sending = await kept(flower.ask(PUSH))
        assert not waiting.done() and flower.looks == 1
        flower.stores.set()
        await at_once(sending)
        assert await at_once(waiting) == b"message"

    asyncio.run(story())


def test_a_message_that_arrives_during_a_request_is_found_by_the_next() -> None:
    async def story() -> None:
        flower = Flower()
        flower.replies.clear()
        looking = await kept(flower.ask(PULL))
        assert flower.looks == 1  # it has found an empty queue, and not yet answered
        await at_once(flower.ask(PUSH))
        flower.replies.set()
        assert await at_once(looking) == b""
        assert await at_once(flower.ask(PULL)) == b"message"

    asyncio.run(story())


def test_a_message_that_is_stored_during_a_request_is_found_by_the_next() -> None:
    async def story() -> None:
        flower = Flower()
        flower.stores.clear()
        sending = await kept(flower.ask(PUSH))
        assert await at_once(flower.ask(PULL)) == b""
        flower.stores.set()
        await at_once(sending)
        assert await at_once(flower.ask(PULL)) == b"message"

    asyncio.run(story())


def test_the_request_of_a_disconnected_caller_is_dropped() -> None:
    """It would take the message with it."""

    async def story() -> None:
        flower = Flower()
        await at_once(flower.ask(PULL))
        waiting = await kept(flower.ask(PULL))
        flower.gone.set()
        assert await at_once(waiting) == b"" and flower.looks == 1
        flower.gone.clear()
        await at_once(flower.ask(PUSH))
        assert await at_once(flower.ask(PULL)) == b"message"

    asyncio.run(story())


def test_a_rejected_request_is_not_an_empty_one() -> None:
    async def story() -> None:
        flower = Flower()
        flower.status = 401
        for looks in (1, 2):
            assert await at_once(flower.ask(PULL)) == b"" and flower.looks == looks
        flower.status = 200
        await at_once(flower.ask(PULL))
        await kept(flower.ask(PULL))

    asyncio.run(story())


def test_what_comes_without_a_polling_is_found_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        flower = Flower()
        await at_once(flower.ask(PULL))
        flower.queues[PULL, b"north"] += [b"by another way", b"and one more"]
        monkeypatch.setattr(superlink, "MAX_WAIT", SHORT)
        began = time.monotonic()
        assert await flower.ask(PULL) == b"by another way" and time.monotonic() - began >= SHORT
        monkeypatch.setattr(superlink, "MAX_WAIT", LONG)
        assert await at_once(flower.ask(PULL)) == b"and one more"  # where one was there may be others

    asyncio.run(story())
