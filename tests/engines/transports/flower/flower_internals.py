"""The only module of the tests that uses Flower beyond its public API: stand-ins for its network and SuperLink."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import message_to_proto
from flwr.proto.control_pb2 import StartRunRequest
from flwr.proto.fleet_pb2 import ActivateNodeResponse, PullMessagesResponse, PushMessagesResponse
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse, PushObjectRequest
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.auth.typing import AccountInfo
from flwr.supercore.error import FlowerError
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.servicer.control import control_handlers

from bespokefl.engines.transports.flower import records

__all__ = ["ControlHandlers", "FleetStub", "ObjectPullError", "ObjectPushError", "ObjectUnavailableError"]

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # Flower sets them when it starts an app
ACCOUNT = AccountInfo(flwr_aid="a", account_name="a")
CONTROL_HANDLERS = {
    "RegisterNode": control_handlers.register_node,
    "UnregisterNode": control_handlers.unregister_node,
    "ListNodes": control_handlers.list_nodes,
}
Fetch = Callable[[bytes], PullObjectResponse]


def message_parts(content: Any) -> dict[str, bytes]:
    """What Flower sends of a message or record, by hash: it sends no part twice."""
    return {name: part.deflate() for name, part in get_all_nested_objects(content).items()}


def through_bytes(message: Message) -> Message:
    """The message as it arrives: built again from the bytes of all its parts."""
    top = get_object_tree(message).object_id
    received = inflate_object_from_contents(top, message_parts(message))
    assert isinstance(received, Message)
    received.metadata.__dict__["_message_id"] = top
    return received


def start_run_request(app: Path, spec: str = "") -> bytes:
    """What is sent to start the app in a directory."""
    request = StartRunRequest(app_spec=spec)
    request.fab.content = build_fab_from_disk(app)
    request.fab.hash_str = "0" * 64  # what the sender claims
    return bytes(request.SerializeToString())


class ControlHandlers:
    """Flower's own database and handlers of administrators' requests, without the network."""

    def __init__(self, database: Path) -> None:
        self.state = LinkStateFactory(str(database), NoOpFederationManager(), ObjectStoreFactory(str(database))).state()

    def __getattr__(self, name: str) -> Any:
        def ask(request: Any) -> Any:
            try:
                return CONTROL_HANDLERS[name](request, ACCOUNT, self.state)
            except FlowerError as error:
                response = httpx.Response(409, text=str(error))
                raise httpx.HTTPStatusError("", request=httpx.Request("POST", "http://a"), response=response) from None

        return ask

    def accepts(self, public: Path) -> bool:
        key: Any = load_ssh_public_key(public.read_bytes())
        return self.state.get_node_id_by_public_key(public_key_to_bytes(key)) is not None


class FleetStub:
    """Stands for Flower's HTTP client of a node: messages, each with the response to requests for its parts."""

    def __init__(self) -> None:
        self.messages: list[tuple[Message, Fetch]] = []
        self.pushes: list[Exception | None] = []  # what happens to the next replies
        self.answered = 0
        self.stopped = threading.Event()
        self._parts: dict[str, tuple[bytes, Fetch]] = {}

    def send(self, what: str, fetch: Fetch) -> None:
        message = Message(records.pack({"what": what}), 7, "train")
        message.metadata.__dict__["_message_id"] = message.object_id
        self.messages.append((message, fetch))

    def __enter__(self) -> "FleetStub":
        return self

    def __exit__(self, *_: object) -> None: ...

    def ActivateNode(self, request: Any) -> ActivateNodeResponse:  # noqa: N802
        return ActivateNodeResponse(node_id=7)

    def PullMessages(self, request: Any) -> PullMessagesResponse:  # noqa: N802
        if not self.messages:
            self.stopped.set()
            return PullMessagesResponse()
        message, fetch = self.messages.pop(0)
        self._parts |= {name: (content, fetch) for name, content in message_parts(message).items()}
        return PullMessagesResponse(
            messages_list=[message_to_proto(remove_content_from_message(message))],
            message_object_trees=[get_object_tree(message)],
        )

    def PullObject(self, request: Any) -> PullObjectResponse:  # noqa: N802
        content, fetch = self._parts[request.object_id]
        return fetch(content)

    def PushMessages(self, request: Any) -> PushMessagesResponse:  # noqa: N802
        error = self.pushes.pop(0) if self.pushes else None
        if error is not None:
            raise error
        self.answered += 1
        return PushMessagesResponse()

    def __getattr__(self, name: str) -> Any:
        return lambda request: None


def available(content: bytes) -> PullObjectResponse:
    return PullObjectResponse(object_found=True, object_available=True, object_content=content)


def being_uploaded(content: bytes) -> PullObjectResponse:
    return PullObjectResponse(object_found=True, object_available=False)


def pull_request(part: str) -> bytes:
    return bytes(PullObjectRequest(object_id=part).SerializeToString())


def push_request(part: str) -> bytes:
    return bytes(PushObjectRequest(object_id=part, object_content=b"content").SerializeToString())


def missing(content: bytes) -> PullObjectResponse:
    return PullObjectResponse(object_found=False)
