"""Middleware that lets only known requests through to Flower, each signed by who may make it.

The signature is verified before anything of the body is read; the body must then have the hash that was signed. Routes
that a deployment does not use do not exist.
"""

import asyncio
import hashlib
from collections.abc import Mapping
from typing import Any

from bespokefl.engines.transports.flower import adapter
from bespokefl.engines.transports.flower.security.access import Access
from bespokefl.engines.transports.flower.security.signing import HEADER, SERVER, RejectedError

MAX_BODY = 64 << 20  # bytes: a record has 16 MB at most, with its texts
BODY_TIMEOUT = 30.0  # seconds without any part of a body
ACCEPTED = "bespokefl.accepted"  # in the scope of a request whose signature is valid


class _AnsweredError(Exception):
    """Ends a request with a status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Gate:
    """Rejects requests of strangers, in ASGI."""

    def __init__(self, app: Any, access: Access) -> None:
        self.app, self.access = app, access
        self._verifier = access.verifier()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        try:
            body = await self._checked(scope, receive)
        except _AnsweredError as answer:
            await _reply(send, answer.status, str(answer))
            return
        await self.app(scope, _replay(body, receive), send)

    async def _checked(self, scope: Any, receive: Any) -> bytes:
        """The body of a request that may be made."""
        if scope["type"] != "http":
            raise _AnsweredError(404, "There is nothing here.")
        method, path = scope["method"], scope["path"]
        if method == "GET" and path in adapter.PUBLIC_ROUTES:
            return b""
        signed_by_node = path in adapter.NODE_CALLS
        if method != "POST" or scope.get("query_string") or not (signed_by_node or path in adapter.SERVER_CALLS):
            raise _AnsweredError(404, "There is nothing here.")
        headers = dict(scope["headers"])
        if int(_number(headers.get(b"content-length", b"0"))) > MAX_BODY:
            raise _AnsweredError(413, f"A request may have {MAX_BODY:,} bytes.")
        if signed_by_node and self.access.keys is None:  # no authentication: only this machine can connect
            scope[ACCEPTED] = True
            return await _read(receive)
        try:
            name, expected = self._verifier.verify(headers.get(HEADER.encode(), b"").decode("latin-1"), method, path)
        except RejectedError as error:
            raise _AnsweredError(401, str(error)) from None
        if signed_by_node == (name == SERVER):
            raise _AnsweredError(403, "This key may not do that.")
        scope[ACCEPTED] = True
        body = await _read(receive)
        if hashlib.sha256(body).hexdigest() != expected:
            raise _AnsweredError(401, "The body is not the one that was signed.")
        if path == adapter.START_RUN and adapter.app_of_request(body) != self.access.app:
            raise _AnsweredError(403, "Only the app of this deployment may be started: restart bespoke deploy server.")
        return body


def _number(value: bytes) -> str:
    text = value.decode("latin-1")
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise _AnsweredError(400, "The length of the body must be a number.")
    return text


async def _read(receive: Any) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        try:
            message = await asyncio.wait_for(receive(), BODY_TIMEOUT)
        except TimeoutError:
            raise _AnsweredError(408, "The body did not arrive.") from None
        if message["type"] == "http.disconnect":
            raise _AnsweredError(400, "The body is not complete.")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY:
            raise _AnsweredError(413, f"A request may have {MAX_BODY:,} bytes.")
        if not message.get("more_body", False):
            return b"".join(parts)


def _replay(body: bytes, receive: Any) -> Any:
    messages: list[Mapping[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Any:
        return messages.pop() if messages else await receive()

    return next_message


async def _reply(send: Any, status: int, sentence: str) -> None:
    """Answer and close the connection, because the rest of the body is still to come."""
    body = sentence.encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
