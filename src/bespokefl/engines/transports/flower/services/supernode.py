"""A node's connection to the SuperLink: it fetches messages, has them answered and sends the replies.

It replaces Flower's SuperNode, which starts a process for each message: here the process that holds torch and the data
answers. No code comes over the network: whichever app the server names, the node given here answers the messages.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message

from bespokefl.core.errors import InputError, TrainingError, in_brief, said
from bespokefl.engines.transports.flower import records
from bespokefl.engines.transports.flower.adapter import FleetClient
from bespokefl.engines.transports.flower.node.node import Node

log = logging.getLogger("bespokefl")

HEARTBEAT = 15.0  # seconds between two; a node that misses two of them counts as offline
MIN_POLL = 0.1  # seconds between two requests for messages, should the SuperLink answer an empty one at once
RETRY_DELAY = 3.0  # seconds until a request that failed is made again
REJECTION_TIMEOUT = 30.0  # seconds after which a rejected node ends: a starting server must first register its key
UNAVAILABLE = (502, 503, 504)  # HTTP statuses of a SuperLink that is starting or restarting


@dataclass(frozen=True)
class Endpoint:
    """How a node reaches the SuperLink and authenticates itself."""

    address: str  # host:port
    root_certificate: Path | None  # of the authority that signed the server's certificate; None: no TLS
    private_key: Path | None  # None: a new key, for servers without authentication
    node_id_file: Path  # keeps Flower's id of the node, so that a restarted node can deactivate its predecessor


def serve_messages(
    endpoint: Endpoint, node: Node, stopped: threading.Event, ready: Callable[[], None] = lambda: None
) -> None:
    """Answer messages until `stopped` is set; wait for a server that does not respond."""
    key = None if endpoint.private_key is None else read_private_key(endpoint.private_key)
    certificate = None
    if endpoint.root_certificate is not None:
        try:
            certificate = endpoint.root_certificate.read_bytes()
        except OSError as error:
            raise InputError(f"cannot read {str(endpoint.root_certificate)!r}: {error.strerror or error}.") from None

    with (
        FleetClient(endpoint.address, certificate, key, partial(_retry, stopped)) as client,
        _activated(client, endpoint, stopped) as node_id,
    ):
        ready()
        _answer_messages(client, node_id, node, stopped)


def read_private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a node's private key; raise InputError if the file is unreadable or another kind of key."""
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except OSError as error:
        raise InputError(f"cannot read the node's key {str(path)!r}: {error.strerror or error}.") from None
    except (ValueError, UnsupportedAlgorithm, TypeError) as error:
        raise InputError(f"{str(path)!r} must be a private key as deploy init writes it, got: {error}.") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(f"{str(path)!r} must be an elliptic-curve private key as deploy init writes it.")
    return key


def answer(node: Node, message: Message) -> Message:
    """The node's reply to a message."""
    try:
        values = records.unpack(message.content)
    except records.UnreadableError as error:
        values = {"what": f"a request that cannot be read ({error})"}
    return Message(records.pack(node.answer(values)), reply_to=message)


def _answer_messages(client: FleetClient, node_id: int, node: Node, stopped: threading.Event) -> None:
    """Answer one message after another; a failure costs one message only, which the server sends again."""
    failures = 0
    while not stopped.is_set():
        started = time.monotonic()
        try:
            message = client.pull_message(node_id)
            if message is not None:
                received = time.monotonic()
                reply = answer(node, message)
                client.push_reply(node_id, reply, time.monotonic() - received)
            failures = 0
        except Exception as error:  # Flower's errors have no common base class
            why = _answer_in(error.response) if isinstance(error, httpx.HTTPStatusError) else said(error)
            log.warning("a message was lost; the server will send it again: %s", why)
            message, failures = None, failures + 1
        pause = min(RETRY_DELAY, MIN_POLL * 2.0**failures)
        if message is None and time.monotonic() - started < pause:
            stopped.wait(pause)


@contextmanager
def _activated(client: FleetClient, endpoint: Endpoint, stopped: threading.Event) -> Iterator[int]:
    """Keep the node online with heartbeats; yields Flower's id of it."""
    node_id = _activate(client, endpoint, stopped)
    try:
        endpoint.node_id_file.parent.mkdir(parents=True, exist_ok=True)
        endpoint.node_id_file.write_text(str(node_id), encoding="utf-8")
    except OSError as error:
        raise TrainingError(
            f"cannot write to {str(endpoint.node_id_file.parent)!r}: {error.strerror or error}; free some space there."
        ) from None
    ended = threading.Event()

    def send_heartbeats() -> None:
        while not ended.wait(HEARTBEAT):
            with suppress(httpx.HTTPError):
                client.send_heartbeat(node_id)

    threading.Thread(target=send_heartbeats, name="heartbeat", daemon=True).start()
    try:
        yield node_id
    finally:
        ended.set()
        with suppress(httpx.HTTPError, RuntimeError):
            client.deactivate(node_id)


def _activate(client: FleetClient, endpoint: Endpoint, stopped: threading.Event) -> int:
    """Activate the node, as soon as the server responds and accepts it."""
    rejected_since: float | None = None
    warned = unreachable = False
    while True:
        try:
            if endpoint.private_key is None:
                with suppress(httpx.HTTPStatusError):  # it is registered already
                    client.register()
            return client.activate()
        except httpx.HTTPStatusError as error:
            if error.response.status_code not in UNAVAILABLE:
                # A node that was killed still counts as online: deactivate it, then activate this one.
                with suppress(OSError, ValueError, httpx.HTTPError):
                    client.deactivate(int(endpoint.node_id_file.read_text(encoding="utf-8")))
                answer = _answer_in(error.response)
                rejected_again, rejected_since = rejected_since is not None, rejected_since or time.monotonic()
                if time.monotonic() - rejected_since > REJECTION_TIMEOUT:
                    raise TrainingError(
                        f"the server at {endpoint.address} rejects this node: its key is not registered there, or a "
                        f"node with the same key is running, or was until a minute ago; it says: {answer}"
                    ) from None
                if rejected_again and not warned:  # one rejection is usual while a server starts or a lease ends
                    log.warning("the server at %s rejects this node's key; trying again: %s", endpoint.address, answer)
                    warned = True
        except httpx.TransportError as error:
            _reject_bad_certificate(error, endpoint)
            if not unreachable:
                log.warning("the server at %s does not respond yet: %s", endpoint.address, said(error))
            unreachable = True
            closed = endpoint.root_certificate is None and isinstance(error, httpx.RemoteProtocolError)
            rejected_since = (rejected_since or time.monotonic()) if closed else None
            if rejected_since is not None and time.monotonic() - rejected_since > REJECTION_TIMEOUT:
                raise TrainingError(
                    f"the server at {endpoint.address} closes connections without TLS ({said(error)}): this node has "
                    "no key, node.key, and cannot use TLS without one."
                ) from None
        if stopped.wait(RETRY_DELAY):
            raise KeyboardInterrupt


def _retry(stopped: threading.Event, call: Callable[[], Any]) -> Any:
    """Make a call until the SuperLink responds."""
    warned = False
    while True:
        try:
            return call()
        except httpx.HTTPStatusError as error:
            if error.response.status_code not in UNAVAILABLE:
                raise
        except httpx.TransportError as error:
            if not warned:
                log.warning("the server does not respond; trying again: %s", said(error))
            warned = True
        if stopped.wait(RETRY_DELAY):
            raise KeyboardInterrupt


def _answer_in(response: httpx.Response) -> str:
    """Why the SuperLink rejects a request; Bespoke's gate says so in a sentence, for example that the clocks differ."""
    text = response.text
    return in_brief(text) if text and not text.startswith("{") else f"status {response.status_code}"


def _reject_bad_certificate(error: httpx.TransportError, endpoint: Endpoint) -> None:
    text = str(error).lower()
    if "certificate" in text:
        raise TrainingError(
            f"the server at {endpoint.address} cannot be trusted: {said(error)}; its certificate must be valid for "
            f"this address and signed by the authority in {str(endpoint.root_certificate)!r}."
        )
    if ("ssl" in text or "tls" in text) and "eof" not in text:  # EOF: the connection was cut during the handshake
        raise TrainingError(f"the server at {endpoint.address} does not use TLS: {said(error)}.")
