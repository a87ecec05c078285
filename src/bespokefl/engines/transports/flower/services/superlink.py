"""Flower's SuperLink with additions: only signed requests, administration only from this machine, and long polling.

Flower serves nodes and administrators on one port and does not authenticate administrators. Here only processes on
the same machine that have the deployment's secret may start runs, register nodes or fetch tasks. Run as a module, it
takes the arguments of `flower-superlink`.
"""

import asyncio
import ipaddress
import os
from contextlib import suppress
from functools import partial
from typing import Any

from anyio import to_thread

from bespokefl.engines.transports.flower import adapter
from bespokefl.engines.transports.flower.adapter import (
    CALLER_HEADERS,
    DELIVERED_BY,
    NODE_ROUTES,
    PARTS_DELIVERED_BY,
)
from bespokefl.engines.transports.flower.security import connections
from bespokefl.engines.transports.flower.security.access import Access
from bespokefl.engines.transports.flower.security.gate import Gate

MAX_WAIT = 10.0  # seconds that a request is held: then a message that was not signalled is found as well
# Seconds for a server app to start before a second one is started. Flower's 30 are too few on a busy machine, where
# each app that is started in vain slows down all others.
APP_START_TIMEOUT = 180
MAX_WAITED_FOR = 10_000  # parts of messages whose delivery is awaited
NUM_THREADS = 4  # for Flower's handlers: more would wait for each other at the database
PULLED_BY = {push: pull for pull, push in DELIVERED_BY.items()}


class LocalAdministration:
    """Middleware that rejects requests from other machines unless they are on a route for nodes."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and not scope["path"].startswith(NODE_ROUTES) and not _is_local(scope):
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"Only the server's own machine may do that."})
            return
        await self.app(scope, receive, send)


class LongPolling:
    """Middleware that holds a request for messages until there may be some, so that callers need not poll.

    A request is held if the same caller's previous one was answered with nothing and nothing was delivered since.
    """

    def __init__(self, app: Any) -> None:
        self.app = app
        self._delivered = {path: asyncio.Event() for path in DELIVERED_BY}  # a new one after each delivery
        self._found_nothing: dict[tuple[str, bytes], asyncio.Event] = {}  # by path and caller: the one at that time

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"] if scope["type"] == "http" else ""
        if path in DELIVERED_BY:
            await self._pull(path, scope, receive, send)
        else:
            await self.app(scope, receive, send)
        if path in PULLED_BY:
            self._delivered[PULLED_BY[path]].set()
            self._delivered[PULLED_BY[path]] = asyncio.Event()

    async def _pull(self, path: str, scope: Any, receive: Any, send: Any) -> None:
        caller = path, next((value for name, value in scope["headers"] if name in CALLER_HEADERS), b"")
        if self._found_nothing.get(caller) is self._delivered[path]:
            replay = await _hold(self._delivered[path], receive)
            if replay is None:
                return
            receive = replay
        delivered, status, size = self._delivered[path], 0, 0

        async def watch(message: Any) -> None:
            nonlocal status, size
            status = message.get("status", status)
            size += len(message.get("body", b""))
            await send(message)

        await self.app(scope, receive, watch)
        self._found_nothing.pop(caller, None)
        if status == 200 and not size:
            self._found_nothing[caller] = delivered


class PartWaiting:
    """Middleware that holds a request for a part of a message until the part has been delivered.

    Otherwise all nodes would ask again and again for parts that the server app is uploading to one after the other.
    """

    def __init__(self, app: Any) -> None:
        self.app = app
        self._awaited: dict[str, asyncio.Event] = {}  # by id of the part

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"] if scope["type"] == "http" else ""
        if scope["type"] == "lifespan":
            to_thread.current_default_thread_limiter().total_tokens = NUM_THREADS
        if path in PARTS_DELIVERED_BY:
            await self._pull(path, scope, receive, send)
        elif path in PARTS_DELIVERED_BY.values():
            body, replay = await _read(receive)
            await self.app(scope, replay, send)
            delivered = self._awaited.pop(adapter.requested_part(path, body), None)
            if delivered is not None:
                delivered.set()
        else:
            await self.app(scope, receive, send)

    async def _pull(self, path: str, scope: Any, receive: Any, send: Any) -> None:
        body, replay = await _read(receive)
        part = adapter.requested_part(path, body)
        known = len(self._awaited) < MAX_WAITED_FOR or part in self._awaited
        delivered = self._awaited.setdefault(part, asyncio.Event()) if known else asyncio.Event()
        answer = await self._answer(scope, replay)
        if adapter.is_on_its_way(b"".join(message.get("body", b"") for message in answer)):
            with suppress(TimeoutError):
                await asyncio.wait_for(delivered.wait(), MAX_WAIT)
                answer = await self._answer(scope, (await _read(_messages(body)))[1])
        if self._awaited.get(part) is delivered and not delivered.is_set():
            del self._awaited[part]
        for message in answer:
            await send(message)

    async def _answer(self, scope: Any, receive: Any) -> list[Any]:
        answer: list[Any] = []

        async def keep(message: Any) -> None:
            answer.append(message)

        await self.app(dict(scope), receive, keep)
        return answer


async def _read(receive: Any) -> tuple[bytes, Any]:
    """The body of a request, and a `receive` that replays it."""
    parts = [await receive()]
    while parts[-1].get("more_body"):
        parts.append(await receive())
    body = b"".join(part.get("body", b"") for part in parts)

    async def replay() -> Any:
        return parts.pop(0) if parts else await receive()

    return body, replay


def _messages(body: bytes) -> Any:
    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


async def _hold(delivered: asyncio.Event, receive: Any) -> Any:
    """Wait for a delivery, at most `MAX_WAIT` seconds; return a `receive` that replays the request.

    Return None if the caller disconnected. The request must not reach Flower then: Flower hands out each message once,
    and it would be lost.
    """
    _, replay = await _read(receive)
    arrival, disconnect = asyncio.create_task(delivered.wait()), asyncio.create_task(receive())
    try:
        await asyncio.wait({arrival, disconnect}, timeout=MAX_WAIT, return_when=asyncio.FIRST_COMPLETED)
        if disconnect.done():
            return None
    finally:
        arrival.cancel()
        disconnect.cancel()

    return replay


def _is_local(scope: Any) -> bool:
    """Whether a request comes from a loopback address, or from the address at which this machine received it."""
    client, server = ((scope.get(end) or ("",))[0] for end in ("client", "server"))
    try:
        source = ipaddress.ip_address(client)
        return source.is_loopback or source == ipaddress.ip_address(server)
    except ValueError:  # unknown, or a socket that is a file
        return False


if __name__ == "__main__":
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    connections.allow_many_files()
    gate = partial(Gate, access=Access.of_process())
    adapter.run_superlink(
        [LocalAdministration, gate, LongPolling, PartWaiting], APP_START_TIMEOUT, connections.server_options()
    )
