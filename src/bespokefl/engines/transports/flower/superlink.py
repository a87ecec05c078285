"""Flower's SuperLink, with one more door shut, and a bell: who asks for messages may wait until there are some.

Flower serves nodes and administrators on one port, and the latter without asking who they are: here only this machine
may start runs, register nodes or fetch tasks. `python -m bespokefl.engines.transports.flower.superlink` takes the
arguments of `flower-superlink`.
"""

import asyncio
import ipaddress
import os
from typing import Any

LONGEST = 2.0  # seconds that a request is kept: what comes without a bell is found then, and nobody hangs for long
RINGS = {
    "/v1/runtime/push-messages": "for nodes",
    "/v1/fleet/push-messages": "for the server's app",
    "/v1/control/start-run": "for whoever starts apps",
}
WAITS = {
    "/v1/fleet/pull-messages": "for nodes",
    "/v1/runtime/pull-messages": "for the server's app",
    "/v1/runtime/acquire-task": "for whoever starts apps",
}
WHO = (b"flwr-public-key", b"flwr-task-token")  # the headers that tell who asks
# Seconds for a server's app to come up before another is started in its place. Flower's own 30 are too few on a busy
# machine: each app that is started in vain makes all others slower.
STARTING = 180
OPEN = ("/v1/fleet/", "/health", "/ready")  # what nodes need; they are asked for their keys


class OnlyNodesFromOutside:
    """Refuses whatever is not for nodes, unless it comes from this machine."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and not scope["path"].startswith(OPEN) and not _here(scope):
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"Only the server's own machine may do that."})
            return
        await self.app(scope, receive, send)


class Bell:
    """Answers whoever asks for messages when there may be some, so that nobody has to ask again and again.

    A request that would find nothing, because nothing came since the same one found nothing, is kept for a while.
    """

    def __init__(self, app: Any) -> None:
        self.app = app
        self._rung = dict.fromkeys(WAITS.values(), 0)
        self._bells = {what: asyncio.Event() for what in self._rung}
        self._seen: dict[tuple[str, bytes], int] = {}  # what had been rung when somebody last found nothing

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"] if scope["type"] == "http" else ""
        if path in WAITS:
            await self._wait(path, scope, receive, send)
        else:
            await self.app(scope, receive, send)
        if path in RINGS:
            what = RINGS[path]
            self._rung[what] += 1
            self._bells[what].set()
            self._bells[what] = asyncio.Event()

    async def _wait(self, path: str, scope: Any, receive: Any, send: Any) -> None:
        what = WAITS[path]
        who = what, next((value for name, value in scope["headers"] if name in WHO), b"")
        if self._seen.get(who) == self._rung[what]:
            came = await _keep(self._bells[what], receive)
            if came is None:
                return
            receive = came
        rung, status, found = self._rung[what], 0, 0

        async def watch(message: Any) -> None:
            nonlocal status, found
            status = message.get("status", status)
            found += len(message.get("body", b""))
            await send(message)

        await self.app(scope, receive, watch)
        self._seen.pop(who, None)
        if status == 200 and not found:
            self._seen[who] = rung


async def _keep(bell: asyncio.Event, receive: Any) -> Any:
    """Wait for the bell, not too long; the request, to be received as if nobody had, or None if who asked hung up.

    Nobody may look in the place of one who hung up: Flower hands out each message once, and it would be lost.
    """
    came = [await receive()]
    while came[-1].get("more_body"):
        came.append(await receive())
    rung, gone = asyncio.create_task(bell.wait()), asyncio.create_task(receive())
    try:
        await asyncio.wait({rung, gone}, timeout=LONGEST, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            return None
    finally:
        rung.cancel()
        gone.cancel()

    async def again() -> Any:
        return came.pop(0) if came else await receive()

    return again


def _here(scope: Any) -> bool:
    """Whether who asks is on this machine: it comes from an address that is always one's own, or from the very one that
    it was reached at."""
    client, server = scope.get("client"), scope.get("server")
    try:
        own = ipaddress.ip_address(client[0]) if client else None
        return own is not None and (own.is_loopback or (bool(server) and own == ipaddress.ip_address(server[0])))
    except ValueError:
        return False


def main() -> None:
    from flwr.supercore.corestate import sql_corestate
    from flwr.superlink import extensions
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from starlette.middleware import Middleware

    given = extensions.get_middleware
    extensions.get_middleware = lambda: (Middleware(OnlyNodesFromOutside), Middleware(Bell), *given())
    sql_corestate.HEARTBEAT_DEFAULT_INTERVAL = STARTING  # type: ignore[attr-defined]
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    flower_superlink()


if __name__ == "__main__":
    main()
