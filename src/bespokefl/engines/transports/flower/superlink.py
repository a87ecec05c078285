"""Flower's SuperLink with additions: only signed requests, administration only from this machine, and long polling.

Flower serves nodes and administrators on one port and does not authenticate administrators. Here only processes on
the same machine that have the deployment's secret may start runs, register nodes or fetch tasks. Run as a module, it
takes the arguments of `flower-superlink`.
"""

import asyncio
import ipaddress
import os
from functools import partial
from typing import Any

from bespokefl.engines.transports.flower import adapter
from bespokefl.engines.transports.flower.adapter import CALLER_HEADERS, DELIVERED_BY, NODE_ROUTES
from bespokefl.engines.transports.flower.security import connections
from bespokefl.engines.transports.flower.security.access import Access
from bespokefl.engines.transports.flower.security.gate import Gate

MAX_WAIT = 2.0  # seconds that a request is held: then a message that was not signalled is found as well
# Seconds for a server app to start before a second one is started. Flower's 30 are too few on a busy machine, where
# each app that is started in vain slows down all others.
APP_START_TIMEOUT = 180
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


async def _hold(delivered: asyncio.Event, receive: Any) -> Any:
    """Wait for a delivery, at most `MAX_WAIT` seconds; return a `receive` that replays the request.

    Return None if the caller disconnected. The request must not reach Flower then: Flower hands out each message once,
    and it would be lost.
    """
    parts = [await receive()]
    while parts[-1].get("more_body"):
        parts.append(await receive())
    arrival, disconnect = asyncio.create_task(delivered.wait()), asyncio.create_task(receive())
    try:
        await asyncio.wait({arrival, disconnect}, timeout=MAX_WAIT, return_when=asyncio.FIRST_COMPLETED)
        if disconnect.done():
            return None
    finally:
        arrival.cancel()
        disconnect.cancel()

    async def replay() -> Any:
        return parts.pop(0) if parts else await receive()

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
    adapter.run_superlink([LocalAdministration, gate, LongPolling], APP_START_TIMEOUT, connections.server_options())
