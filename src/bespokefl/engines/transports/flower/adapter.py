"""The only module that uses Flower beyond its public API, so that a new Flower version breaks one file.

Public are the names that `flwr.app`, `flwr.clientapp`, `flwr.serverapp` and `flwr.common` export. Everything else of
Flower that Bespoke calls, replaces or relies on (HTTP routes, headers, states) is here; a test enforces it.
"""

import hashlib
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import fab_to_proto, message_from_proto, message_to_proto, user_config_to_proto
from flwr.proto import control_pb2 as control_proto
from flwr.proto import fleet_pb2 as fleet_proto
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse, PushObjectRequest
from flwr.proto.node_pb2 import Node, NodeInfo
from flwr.supercore.cli.flower_superexec import flower_superexec
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable import inflatable_object, inflatable_utils
from flwr.supercore.inflatable import inflatable_protobuf_utils as protobuf_utils
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufClient
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from bespokefl.core.errors import InputError, TrainingError, in_brief
from bespokefl.engines.transports.flower.security.signing import HEADER, Signer

log = logging.getLogger("bespokefl")

HEARTBEAT_LEASE = 30  # seconds that a heartbeat is valid: Flower accepts no less
# Seconds without a new part of a message until it counts as lost. A server app that is killed is found out sooner: its
# run is stopped, and then the SuperLink answers with an error. With many nodes the parts of a message take their time.
STALL_TIMEOUT = 120.0
CLEANUP_INTERVAL = 1.0  # seconds between two searches for expired tasks, which Flower makes for every request
# Seconds without a new part of a reply until its node counts as killed and is asked again. The server app does nothing
# else meanwhile; Flower would wait for three minutes.
REPLY_STALL_TIMEOUT = 60.0
# Seconds: a request that took longer met a SuperLink that was away, for the sender as well. The SuperLink itself holds
# requests for ten seconds.
OUTAGE = 15.0
UNREGISTERED = "unregistered"  # the status of a node whose registration was withdrawn
ACTIVE_RUN = ("pending", "starting", "running")  # statuses of a run that has not finished

# The SuperLink's HTTP API: by request that waits for something, the request that delivers it.
DELIVERED_BY = {
    "/v1/fleet/pull-messages": "/v1/runtime/push-messages",  # a node waits for the server app
    "/v1/runtime/pull-messages": "/v1/fleet/push-messages",  # the server app waits for nodes
    "/v1/runtime/acquire-task": "/v1/control/start-run",  # the SuperExec waits for a run to start
}
# By request for a part of a message, the request that delivers it: the caller waits for parts that are on their way.
PARTS_DELIVERED_BY = {
    "/v1/fleet/pull-object": "/v1/runtime/push-object",
    "/v1/runtime/pull-object": "/v1/fleet/push-object",
}
NODE_ROUTES = ("/v1/fleet/", "/health", "/ready")  # prefixes of what nodes call; they authenticate with their keys
NODE_CALLS = frozenset(
    f"/v1/fleet/{call}"
    for call in (
        *("register-node", "activate-node", "deactivate-node", "send-node-heartbeat"),
        *("pull-messages", "push-messages", "push-object", "pull-object", "confirm-message-received"),
    )
)
START_RUN = "/v1/control/start-run"
SERVER_CALLS = frozenset(  # what the server's own processes and `bespoke deploy` call
    (
        *(START_RUN, "/v1/control/stop-run", "/v1/control/list-runs"),
        *("/v1/control/register-node", "/v1/control/unregister-node", "/v1/control/list-nodes"),
        *("/v1/runtime/acquire-task", "/v1/runtime/send-task-heartbeat", "/v1/runtime/push-logs"),
        *("/v1/runtime/pull-task-input", "/v1/runtime/push-task-output", "/v1/runtime/push-task-events"),
        *("/v1/runtime/push-object", "/v1/runtime/pull-object", "/v1/runtime/confirm-message-received"),
        *("/v1/runtime/push-messages", "/v1/runtime/pull-messages", "/v1/runtime/get-nodes"),
    )
)
# What of Flower's middleware does nothing here: there are no licences, traces and event logs. Each costs every request
# a third of a millisecond.
IDLE_MIDDLEWARE = frozenset(
    {
        *("ControlSensitiveResponseMiddleware", "ControlLicenseMiddleware", "ControlEventLogMiddleware"),
        *("RuntimeTracingMiddleware", "FleetEventLogMiddleware"),
    }
)
PUBLIC_ROUTES = ("/health",)  # of GET requests
CALLER_HEADERS = (b"flwr-public-key", b"flwr-task-token")  # they identify the node or the server app

# Flower waits a second before it asks again for the parts of a message that is still being uploaded.
_pull_objects = partial(inflatable_utils.pull_objects, initial_backoff=0.03, backoff_cap=1.0)
_pull_message = partial(inflatable_utils.pull_and_inflate_object_from_tree, initial_backoff=0.03, backoff_cap=1.0)

Retry = Callable[[Callable[[], Any]], Any]  # makes a call until the SuperLink answers it


class UnconfirmedError(TrainingError):
    """The SuperLink ended while it had a request, which it may have carried out."""


class Signing:
    """Signs the requests of one of Flower's HTTP clients, which calls this an interceptor."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        """Sign a request and send it."""
        request: httpx.Request = context.request
        request.headers[HEADER] = self._signer.sign(request.method, request.url.path, request.content)
        return call_next(context)


class FleetClient:
    """A node's connection to the SuperLink."""

    def __init__(
        self, address: str, root_certificate: bytes | None, private_key: ec.EllipticCurvePrivateKey | None, retry: Retry
    ) -> None:
        """Connect with TLS if there is a root certificate, and with a new key if none is given."""
        private = private_key or generate_key_pairs()[0]
        signing = [] if private_key is None else [Signing(Signer(private_key))]
        self._public_key = public_key_to_bytes(private.public_key())
        self._retry = retry
        self._http = FleetHttpClient.from_server_address(
            address,
            root_certificate is None,
            root_certificate,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(private, private.public_key()),
                *signing,
            ],
        )

    def __enter__(self) -> Self:
        self._http.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._http.__exit__(*error)

    def register(self) -> None:
        """Register the node's key; only a SuperLink without authentication accepts this."""
        self._http.RegisterNode(fleet_proto.RegisterNodeFleetRequest(public_key=self._public_key))

    def activate(self) -> int:
        """Announce that the node is online; return Flower's id of it."""
        request = fleet_proto.ActivateNodeRequest(public_key=self._public_key, heartbeat_interval=HEARTBEAT_LEASE)
        return int(self._http.ActivateNode(request).node_id)

    def deactivate(self, node_id: int) -> None:
        """Tell the SuperLink that a node goes offline."""
        self._http.DeactivateNode(fleet_proto.DeactivateNodeRequest(node_id=node_id))

    def send_heartbeat(self, node_id: int) -> None:
        """Tell the SuperLink that a node is online."""
        request = SendNodeHeartbeatRequest(node=Node(node_id=node_id), heartbeat_interval=HEARTBEAT_LEASE)
        self._http.SendNodeHeartbeat(request)

    def pull_message(self, node_id: int) -> Message | None:
        """Fetch the next message for a node with all its parts, if there is one."""
        node = Node(node_id=node_id)
        response = self._call("PullMessages", fleet_proto.PullMessagesRequest(node=node))
        if not response.messages_list:
            return None
        metadata, tree = message_from_proto(response.messages_list[0]).metadata, response.message_object_trees[0]
        pull = protobuf_utils.make_pull_object_fn_protobuf(partial(self._call, "PullObject"), node, metadata.run_id)
        confirm = protobuf_utils.make_confirm_message_received_fn_protobuf(
            partial(self._call, "ConfirmMessageReceived"), node, metadata.run_id
        )
        message: Message = _pull_message(tree, fail_when_stalled(pull), confirm, return_type=Message)
        message.metadata.__dict__["_message_id"] = metadata.message_id
        return message

    def push_reply(self, node_id: int, reply: Message, seconds: float) -> None:
        """Send the reply to a message; `seconds` is how long the node worked on it."""
        node = Node(node_id=node_id)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with inflatable_object.no_object_id_recompute():
            request = fleet_proto.PushMessagesRequest(
                node=node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[inflatable_object.get_object_tree(reply)],
                clientapp_runtime_list=[seconds],
            )
            response = self._call("PushMessages", request)
            push = protobuf_utils.make_push_object_fn_protobuf(
                partial(self._call, "PushObject"), node, reply.metadata.run_id, response.session_id
            )
            inflatable_utils.push_objects(
                inflatable_object.get_all_nested_objects(reply),
                push_object_fn=push,
                object_ids_to_push=set(response.objects_to_push),
            )

    def _call(self, method: str, request: Any) -> Any:
        return self._retry(lambda: getattr(self._http, method)(request))


def fail_when_stalled(pull: Callable[[str], bytes], timeout: float | None = None) -> Callable[[str], bytes]:
    """Give up on a message of which no part has arrived for a while: a sender that was killed sends no more."""
    limit = STALL_TIMEOUT if timeout is None else timeout
    last_arrival = time.monotonic()

    def pull_part(object_id: str) -> bytes:
        nonlocal last_arrival
        started = time.monotonic()
        try:
            content = pull(object_id)
        except inflatable_utils.ObjectUnavailableError:
            now = time.monotonic()
            if now - started > OUTAGE:
                last_arrival = now
            if now - last_arrival > limit:
                reason = f"no part of it arrived for {limit:g} seconds"
                raise inflatable_utils.ObjectPullError(object_id, reason) from None
            raise
        last_arrival = time.monotonic()
        return content

    return pull_part


class Control:
    """An administrator's connection to the SuperLink: registers nodes, starts and stops runs."""

    def __init__(self, http: ControlHttpClient) -> None:
        self._http = http

    def register(self, name: str, key: Path) -> None:
        """Accept the node with this public key and no longer with another; has no effect if it is registered."""
        try:
            public = load_ssh_public_key(key.read_bytes())
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read the public key {str(key)!r}: {error}.") from None
        if not isinstance(public, ec.EllipticCurvePublicKey):
            raise InputError(f"{str(key)!r} must be an elliptic-curve public key as deploy init writes it.")
        data = public_key_to_bytes(public)
        registered = [node for node in self._registered() if node.name == name]
        if any(node.public_key == data for node in registered):
            return
        with _explained(f"cannot register node {name}", "; a key can be registered once only, so create a new pair."):
            for node in registered:
                self._http.UnregisterNode(control_proto.UnregisterNodeRequest(node_id=node.node_id))
                log.warning("the key of node %s has changed: its previous key is no longer accepted", name)
            self._http.RegisterNode(control_proto.RegisterNodeRequest(public_key=data, name=name))

    def unregister_others(self, names: Collection[str]) -> None:
        """Unregister all nodes but these, for good: Flower accepts each key once only."""
        for node in self._registered():
            if node.name not in names:
                self._http.UnregisterNode(control_proto.UnregisterNodeRequest(node_id=node.node_id))
                log.warning("the server no longer has a key of node %s: the node is unregistered", node.name)

    def nodes(self) -> dict[str, str]:
        """The status of each registered node by name: "online", "offline" or "registered"."""
        return dict(sorted((node.name, node.status) for node in self._registered()))

    def start(self, app: Path, run: str) -> int:
        """Start the app in a directory for a run; return Flower's id of the run.

        Raises UnconfirmedError if it is unknown whether the run was started.
        """
        bundle = build_fab_from_disk(app)
        fab = fab_to_proto(Fab(_hash(bundle), bundle, {}))
        request = control_proto.StartRunRequest(fab=fab, override_config=user_config_to_proto({"run": run}))
        try:
            with _explained("cannot start the run"):
                return int(self._http.StartRun(request).run_id)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            raise
        except httpx.TransportError as error:
            raise UnconfirmedError(f"the server ended while it started the run ({type(error).__name__}).") from None

    def stop(self, run_id: int) -> None:
        """Stop a run."""
        with _explained("cannot stop the run"):
            self._http.StopRun(control_proto.StopRunRequest(run_id=run_id))

    def is_active(self, run_id: int) -> bool:
        """Whether a run is known and has not finished."""
        with suppress(httpx.HTTPStatusError):
            run = self._http.ListRuns(control_proto.ListRunsRequest(run_id=run_id)).run_dict.get(run_id)
            return run is not None and run.status.status in ACTIVE_RUN
        return False

    def _registered(self) -> list[NodeInfo]:
        nodes = self._http.ListNodes(control_proto.ListNodesRequest()).nodes_info
        return [node for node in nodes if node.status != UNREGISTERED]


def _hash(bundle: bytes) -> str:
    return hashlib.sha256(bundle).hexdigest()


def hash_of_app(app: Path) -> str:
    """The hash of the app in a directory, as `Control.start` sends it."""
    return _hash(build_fab_from_disk(app))


def app_of_request(body: bytes) -> str | None:
    """The hash of the app that a request wants to start; None if it names one that it does not contain."""
    try:
        request = control_proto.StartRunRequest.FromString(body)
    except DecodeError:
        return None
    return None if request.app_spec or not request.fab.content else _hash(request.fab.content)


@contextmanager
def connect_control(address: str, root_certificate: Path | None, signer: Signer | None) -> Iterator[Control]:
    """Connect to the SuperLink on this machine, with TLS if the authority's certificate is given.

    Without a signer, which signs with the deployment's secret, the SuperLink rejects every request.
    """
    signing = [] if signer is None else [Signing(signer)]
    http = ControlHttpClient.from_server_address(
        server_address=address,
        insecure=root_certificate is None,
        root_certificates=None if root_certificate is None else root_certificate.read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI"), *signing],
    )
    try:
        yield Control(http)
    except httpx.TransportError as error:
        raise TrainingError(
            f"the server at {address} does not respond ({type(error).__name__}): start it with bespoke deploy server."
        ) from None
    except httpx.HTTPStatusError as error:
        said = in_brief(error.response.text) or f"status {error.response.status_code}"
        raise TrainingError(f"the server at {address} rejects the request: {said}") from None
    finally:
        http.close()


@contextmanager
def _explained(problem: str, advice: str = ".") -> Iterator[None]:
    try:
        yield
    except httpx.HTTPStatusError as error:
        raise TrainingError(f"{problem}: {error.response.text[:200]}{advice}") from None


def requested_part(path: str, body: bytes) -> str:
    """The id of the part of a message that a request fetches or delivers; empty if it names none."""
    kind: Any = PullObjectRequest if path in PARTS_DELIVERED_BY else PushObjectRequest
    with suppress(DecodeError):
        return str(kind.FromString(body).object_id)
    return ""


def is_on_its_way(response: bytes) -> bool:
    """Whether a response to a request for a part says that it has yet to be delivered."""
    with suppress(DecodeError):
        found = PullObjectResponse.FromString(response)
        return bool(found.object_found and not found.object_available)
    return False


def pull_replies_sooner() -> None:
    """Make the server app ask for the parts of a reply without the second that Flower waits in between, and give up on
    a reply whose node was killed while it sent it."""
    from flwr.superlink.grid import http_grid

    http_grid.pull_objects = _pull_reply  # type: ignore[attr-defined,assignment]


def _pull_reply(object_ids: list[str], pull_object_fn: Callable[[str], bytes]) -> dict[str, bytes]:
    """The parts of a reply."""
    pull = fail_when_stalled(pull_object_fn, REPLY_STALL_TIMEOUT)
    return _pull_objects(object_ids, pull)


def run_superlink(middleware: Sequence[Any], app_start_timeout: int, server_options: dict[str, Any]) -> None:
    """Run Flower's SuperLink with the arguments on the command line and ASGI middleware in front of Flower's own.

    A server app that has not reported within `app_start_timeout` seconds is started a second time. `server_options` are
    for uvicorn, which Flower starts.
    """
    import uvicorn
    from flwr.supercore.corestate import sql_corestate
    from flwr.superlink import main
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from starlette.middleware import Middleware

    flower_middleware = main._get_middleware
    main._get_middleware = lambda: [
        *(Middleware(one) for one in middleware),
        *(one for one in flower_middleware() if getattr(one.cls, "__name__", "") not in IDLE_MIDDLEWARE),
    ]
    sql_corestate.HEARTBEAT_DEFAULT_INTERVAL = app_start_timeout  # type: ignore[attr-defined]
    _write_less()
    uvicorn.run = partial(uvicorn.run, **server_options)
    flower_superlink()


def _write_less() -> None:
    """Spare Flower's database two transactions for every request: they would wait for each other.

    Expired tasks are looked for once in `CLEANUP_INTERVAL`, and bytes are not counted for each run.
    """
    from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState

    clean_up, last = SqlLinkState._cleanup_expired_task_tokens, [-CLEANUP_INTERVAL]

    def clean_up_sometimes(self: SqlLinkState) -> None:
        now = time.monotonic()
        if now - last[0] >= CLEANUP_INTERVAL:
            last[0] = now
            clean_up(self)

    SqlLinkState._cleanup_expired_task_tokens = clean_up_sometimes  # type: ignore[method-assign,assignment]
    SqlLinkState.store_traffic = lambda *_, **__: None  # type: ignore[method-assign]


def sign_all_requests(signer: Signer) -> None:
    """Make all of Flower's HTTP clients in this process sign their requests."""
    create = ProtobufClient.__init__

    def create_signing(self: ProtobufClient, *arguments: Any, interceptors: Sequence[Any] = (), **options: Any) -> None:
        create(self, *arguments, interceptors=(*interceptors, Signing(signer)), **options)

    ProtobufClient.__init__ = create_signing  # type: ignore[method-assign]


def run_superexec(app_module: str) -> None:
    """Run Flower's SuperExec with the arguments on the command line.

    It starts server apps as `python -m app_module`, and writes the token of an app to its standard input, because
    other accounts can read command lines.
    """

    def launch(self: SubprocessExecutor, spec: ExecutionSpec) -> LaunchResult:
        if spec.task_type != TaskType.SERVER_APP:
            return LaunchResult.failed(f"a deployment has no {spec.task_type}")
        tls = ["--insecure"] if spec.insecure else ["--root-certificates", str(spec.root_certificates_path)]
        parent = [] if spec.parent_pid is None else ["--parent-pid", str(spec.parent_pid)]
        address = ["--runtime-api-address", spec.runtime_api_address]
        command = [sys.executable, "-m", app_module, *address, *tls, *parent]
        process = subprocess.Popen(command, stdin=subprocess.PIPE)
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(spec.token.encode() + b"\n")
        return LaunchResult.accepted()

    SubprocessExecutor.launch = launch  # type: ignore[method-assign]
    flower_superexec()


def run_server_app() -> None:
    """Run a server app with the arguments on the command line, and the token on standard input."""
    from flwr.superlink.cli.flwr_serverapp import flwr_serverapp

    sys.argv += ["--token", sys.stdin.readline().strip()]  # other processes see the arguments it was started with
    flwr_serverapp()
