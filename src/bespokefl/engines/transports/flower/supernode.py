"""A node's connection to the SuperLink: it fetches messages, has them answered and sends the answers back.

It does what Flower's SuperNode does, in the process that holds torch and the data, so that a round costs no new
process. No code comes over the wire: whatever app the server names, the messages are answered by the one given here.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.node_pb2 import Node as NodeId
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from bespokefl.core.errors import InputError, TrainingError

log = logging.getLogger("bespokefl")

HEARTBEAT = 15.0  # seconds between two; a node that misses two of them counts as gone
FLOWER_HEARTBEAT = 30  # what Flower is told: it takes no less
AT_ONCE = 0.1  # seconds: the SuperLink keeps a request for messages until there are some; who answers sooner is paced
PAUSE = 3.0  # seconds until a connection that failed is tried again
PIECES = 20.0  # seconds without a piece of a message after which it counts as lost: whoever sent it was killed
REFUSED = 30.0  # seconds after which a node that is refused gives up: a server that comes up must register it first
UNREACHABLE = (502, 503, 504)
# Seconds until pieces of a message that are still on their way to the SuperLink are looked for again: Flower waits 1.
eager_pull = partial(pull_objects, initial_backoff=0.03, backoff_cap=1.0)

Answer = Callable[[Message], Message]
T = TypeVar("T")
Keys = tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]


@dataclass(frozen=True)
class Endpoint:
    """How to reach the SuperLink, and as whom."""

    address: str  # host:port
    authority: Path | None  # the certificate of whoever vouches for the server; None: no TLS
    key: Path | None  # the node's own; None: a new one, for servers that ask for none
    memory: Path  # where the node's number is kept, to give back what a killed node still holds


def read_key(path: Path) -> Keys:
    try:
        private = load_ssh_private_key(path.read_bytes(), None)
    except OSError as error:
        raise InputError(f"cannot read the node's key {str(path)!r}: {error.strerror or error}.") from None
    except (ValueError, UnsupportedAlgorithm, TypeError) as error:
        raise InputError(
            f"{str(path)!r} must be a private key as deploy init writes it, which it is not: {error}."
        ) from None
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise InputError(f"{str(path)!r} must be a private key of an elliptic curve, as deploy init writes it.")
    return private, private.public_key()


def carry(line: Endpoint, answer: Answer, stopped: threading.Event, ready: Callable[[], None] = lambda: None) -> None:
    """Answer messages until stopped; a server that is away is waited for."""
    keys = read_key(line.key) if line.key is not None else generate_key_pairs()
    authority = None
    if line.authority is not None:
        try:
            authority = line.authority.read_bytes()
        except OSError as error:
            raise InputError(f"cannot read {str(line.authority)!r}: {error.strerror or error}.") from None
    client = FleetHttpClient.from_server_address(
        line.address,
        line.authority is None,
        authority,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperNode"), NodeAuthHttpInterceptor(*keys)],
    )
    with client, _activated(client, line, keys, stopped) as node:
        ready()
        _answer_all(client, node, answer, stopped)


def _answer_all(client: FleetHttpClient, node: NodeId, answer: Answer, stopped: threading.Event) -> None:
    """Answer one message after another; whatever is wrong with one, the next is answered."""
    failures = 0
    while not stopped.is_set():
        began = time.monotonic()
        try:
            came = _one(client, node, answer, stopped)
            failures = 0
        except Exception as error:  # Flower's own errors have no common kind
            log.warning("a message was lost and will come again: %s", _worded(error))
            came, failures = False, failures + 1
        pause = min(PAUSE, AT_ONCE * 2.0**failures)
        if not came and time.monotonic() - began < pause:
            stopped.wait(pause)


def _one(client: FleetHttpClient, node: NodeId, answer: Answer, stopped: threading.Event) -> bool:
    """Fetch one message, answer it, send the answer; whether there was one."""
    call = partial(_patiently, stopped)
    found = call(lambda: client.PullMessages(PullMessagesRequest(node=node)))
    if not found.messages_list:
        return False
    asked, tree = message_from_proto(found.messages_list[0]), found.message_object_trees[0]
    run, id = asked.metadata.run_id, asked.metadata.message_id
    pull = make_pull_object_fn_protobuf(lambda one: call(lambda: client.PullObject(one)), node, run)
    contents = eager_pull([one.object_id for one in iterate_object_tree(tree)], pull_object_fn=_not_for_ever(pull))
    request = ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=id)
    call(lambda: client.ConfirmMessageReceived(request))
    message = cast(Message, inflate_object_from_contents(tree.object_id, contents))
    message.metadata.__dict__["_message_id"] = id
    began = time.monotonic()
    reply = answer(message)
    seconds = time.monotonic() - began
    reply.metadata.__dict__["_message_id"] = reply.object_id
    with no_object_id_recompute():
        letter = PushMessagesRequest(
            node=node,
            messages_list=[message_to_proto(remove_content_from_message(reply))],
            message_object_trees=[get_object_tree(reply)],
            clientapp_runtime_list=[seconds],
        )
        told = call(lambda: client.PushMessages(letter))
        push_objects(
            get_all_nested_objects(reply),
            push_object_fn=make_push_object_fn_protobuf(
                lambda one: call(lambda: client.PushObject(one)), node, run, told.session_id
            ),
            object_ids_to_push=set(told.objects_to_push),
        )
    return True


def _not_for_ever(pull: Callable[[str], bytes]) -> Callable[[str], bytes]:
    """Pieces that are on their way are waited for while some arrive: a sender that was killed sends no more."""
    last = time.monotonic()

    def one(id: str) -> bytes:
        nonlocal last
        asked = time.monotonic()
        try:
            content = pull(id)
        except ObjectUnavailableError:
            now = time.monotonic()
            if now - asked > PAUSE:  # the SuperLink was away, and so was it for the sender
                last = now
            if now - last > PIECES:
                raise ObjectPullError(id, f"nothing of it came for {PIECES:g} seconds") from None
            raise
        last = time.monotonic()
        return content

    return one


@contextmanager
def _activated(client: FleetHttpClient, line: Endpoint, keys: Keys, stopped: threading.Event) -> Iterator[NodeId]:
    """The node's number, for as long as it is there; heartbeats say that it still is."""
    node = NodeId(node_id=_activate(client, line, public_key_to_bytes(keys[1]), stopped))
    try:
        line.memory.parent.mkdir(parents=True, exist_ok=True)
        line.memory.write_text(str(node.node_id), encoding="utf-8")
    except OSError as error:
        folder = str(line.memory.parent)
        raise TrainingError(f"nothing can be kept in {folder!r}: {error.strerror or error}; make room there.") from None
    over = threading.Event()

    def beat() -> None:
        while not over.wait(HEARTBEAT):
            with suppress(httpx.HTTPError):
                client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=node, heartbeat_interval=FLOWER_HEARTBEAT))

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield node
    finally:
        over.set()
        with suppress(httpx.HTTPError, RuntimeError):
            client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))


def _activate(client: FleetHttpClient, line: Endpoint, public: bytes, stopped: threading.Event) -> int:
    refused: float | None = None  # since when
    told = away = False
    while True:
        try:
            if line.key is None:
                with suppress(httpx.HTTPStatusError):  # it is registered already
                    client.RegisterNode(RegisterNodeFleetRequest(public_key=public))
            request = ActivateNodeRequest(public_key=public, heartbeat_interval=FLOWER_HEARTBEAT)
            return int(client.ActivateNode(request).node_id)
        except httpx.HTTPStatusError as error:
            if error.response.status_code not in UNREACHABLE:
                # a node that was killed is still held to be there: give up its place, then take it again
                _give_back(client, line)
                again, refused = refused is not None, refused or time.monotonic()
                if time.monotonic() - refused > REFUSED:
                    raise TrainingError(
                        f"the server at {line.address} refuses this node: its key is not registered there, or a node "
                        "with the same key is running, or was until a minute ago."
                    ) from None
                if again and not told:  # the first one is usual: of a server that comes up, or a node that was killed
                    log.warning("the server at %s refuses this node's key; it is tried again", line.address)
                    told = True
        except httpx.TransportError as error:
            _refuse_bad_certificate(error, line)
            if not away:
                log.warning("the server at %s does not answer yet: %s", line.address, _worded(error))
            away, refused = True, None
        if stopped.wait(PAUSE):
            raise KeyboardInterrupt


def _give_back(client: FleetHttpClient, line: Endpoint) -> None:
    with suppress(OSError, ValueError, httpx.HTTPError):
        client.DeactivateNode(DeactivateNodeRequest(node_id=int(line.memory.read_text(encoding="utf-8"))))


def _patiently(stopped: threading.Event, call: Callable[[], T]) -> T:
    """Try until the server answers."""
    told = False
    while True:
        try:
            return call()
        except httpx.HTTPStatusError as error:
            if error.response.status_code not in UNREACHABLE:
                raise
        except httpx.TransportError as error:
            if not told:
                log.warning("the server does not answer and is tried again: %s", _worded(error))
            told = True
        if stopped.wait(PAUSE):
            raise KeyboardInterrupt


def _refuse_bad_certificate(error: httpx.TransportError, line: Endpoint) -> None:
    text = str(error).lower()
    if "certificate" in text:
        raise TrainingError(
            f"the server at {line.address} cannot be trusted: {_worded(error)}; its certificate must be valid for "
            f"this address, and from the authority in {str(line.authority)!r}."
        )
    if "ssl" in text or "tls" in text:
        raise TrainingError(f"the server at {line.address} does not speak TLS: {_worded(error)}.")


def _worded(error: Any) -> str:
    first = str(error).splitlines()[0] if str(error) else ""
    return f"{type(error).__name__}{': ' if first else ''}{first}"
