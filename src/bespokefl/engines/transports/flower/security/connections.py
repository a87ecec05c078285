"""Limits of the HTTP server of the SuperLink, for callers that have not shown yet who they are.

Flower sets none: uvicorn waits for headers without end, reads forwarded addresses, and counts no connections.
"""

import asyncio
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from bespokefl.engines.transports.flower.security.gate import ACCEPTED

MAX_HEADERS = 16 << 10  # bytes of a request's headers
HEADER_TIMEOUT = 10.0  # seconds from the first byte of a request, or from the connection, to the end of the headers
HANDSHAKE_TIMEOUT = 10.0  # seconds for TLS
IDLE_TIMEOUT = 5  # seconds that a connection is kept between two requests
MAX_CONNECTIONS = 1000  # beyond it the oldest is closed that has made no valid request, else the new one
MAX_FILES = 65536  # open files: half-open connections need one each until the handshake times out


class GuardedProtocol(H11Protocol):
    """HTTP with a time limit for headers and a limit for connections."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Wait for a request; close a connection if there are too many."""
        super().connection_made(transport)
        self._start_timer()
        if len(self.connections) > MAX_CONNECTIONS:
            (self._stranger() or self).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Wait no more when the headers are complete."""
        if self._timer is None and self.conn.their_state is h11.IDLE:
            self._start_timer()
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()

    def made_a_valid_request(self) -> bool:
        """Whether a request on this connection was signed by a known key."""
        return bool(self.scope and self.scope.get(ACCEPTED))

    def _stranger(self) -> Any:
        """The oldest connection that has made no valid request."""
        others = [one for one in self.connections if isinstance(one, GuardedProtocol)]
        return min((one for one in others if not one.made_a_valid_request()), key=lambda one: one.since, default=None)

    def _start_timer(self) -> None:
        self.since = self.loop.time()
        self._timer = self.loop.call_later(HEADER_TIMEOUT, self._too_late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_late(self) -> None:
        self._timer = None
        self.transport.abort()


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose servers wait only briefly for TLS handshakes."""

    async def create_server(self, *arguments: Any, **options: Any) -> Any:
        if options.get("ssl") is not None:
            options.setdefault("ssl_handshake_timeout", HANDSHAKE_TIMEOUT)
        return await super().create_server(*arguments, **options)


def new_loop() -> asyncio.AbstractEventLoop:
    """The event loop of the SuperLink."""
    return _Loop()


def server_options() -> dict[str, Any]:
    """The options of uvicorn for the SuperLink."""
    return {
        "http": GuardedProtocol,
        "ws": "none",
        "loop": f"{__name__}:{new_loop.__name__}",
        "h11_max_incomplete_event_size": MAX_HEADERS,
        "timeout_keep_alive": IDLE_TIMEOUT,
        "proxy_headers": False,
        "forwarded_allow_ips": [],
        "server_header": False,
    }


def allow_many_files() -> None:
    """Raise the limit of open files of this process, as far as it may be raised."""
    import resource  # not at the top, as Windows does not have it

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(MAX_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
