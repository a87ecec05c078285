"""What the server's own machine asks of the SuperLink: register nodes, start and stop runs, see who is there."""

import hashlib
import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from bespokefl.core.errors import InputError, TrainingError

log = logging.getLogger("bespokefl")

GONE = "unregistered"  # the status of a node that was let in once and is not any more


@dataclass(frozen=True)
class Present:
    """A node as the SuperLink knows it."""

    name: str
    status: str  # "online", "offline", "registered"


class Control:
    """Calls to the SuperLink on this machine."""

    def __init__(self, client: ControlHttpClient) -> None:
        self._client = client

    def register(self, name: str, key: Path) -> None:
        """Let the node in with this public key, and with no other any more; once is enough."""
        try:
            public = load_ssh_public_key(key.read_bytes())
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read the public key {str(key)!r}: {error}.") from None
        if not isinstance(public, ec.EllipticCurvePublicKey):
            raise InputError(f"{str(key)!r} must be a public key of an elliptic curve, as deploy init writes it.")
        own = public_key_to_bytes(public)
        before = [one for one in self._let_in() if one.name == name]
        if any(one.public_key == own for one in before):
            return
        try:
            for one in before:
                self._client.UnregisterNode(UnregisterNodeRequest(node_id=one.node_id))
                log.warning("node %s has another key now: the one that it had is not let in any more", name)
            self._client.RegisterNode(RegisterNodeRequest(public_key=own, name=name))
        except httpx.HTTPStatusError as error:
            raise TrainingError(
                f"node {name} could not be registered: {error.response.text[:200]}; a key that a node has or had is "
                "not let in again, so give it a new pair."
            ) from None

    def shut_out_others(self, names: Collection[str]) -> None:
        """Let in no nodes but these: for good, as Flower takes a key once only."""
        for one in self._let_in():
            if one.name not in names:
                self._client.UnregisterNode(UnregisterNodeRequest(node_id=one.node_id))
                log.warning("node %s has no key here any more, and is shut out", one.name)

    def nodes(self) -> list[Present]:
        return sorted((Present(one.name, one.status) for one in self._let_in()), key=lambda one: one.name)

    def _let_in(self) -> list[NodeInfo]:
        return [one for one in self._client.ListNodes(ListNodesRequest()).nodes_info if one.status != GONE]

    def start(self, app: Path, run: str) -> int:
        """Flower's own number of the run."""
        bundle = build_fab_from_disk(app)
        fab = Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})
        request = StartRunRequest(fab=fab_to_proto(fab), override_config=user_config_to_proto({"run": run}))
        try:
            return int(self._client.StartRun(request).run_id)
        except httpx.HTTPStatusError as error:
            raise TrainingError(f"the run could not be started: {error.response.text[:200]}.") from None

    def stop(self, number: int) -> None:
        try:
            self._client.StopRun(StopRunRequest(run_id=number))
        except httpx.HTTPStatusError as error:
            raise TrainingError(f"the run could not be stopped: {error.response.text[:200]}.") from None

    def status(self, number: int) -> str:
        """ "pending", "starting", "running", "finished:completed", "finished:failed", …"""
        try:
            run = self._client.ListRuns(ListRunsRequest(run_id=number)).run_dict.get(number)
        except httpx.HTTPStatusError:
            return "unknown"
        if run is None:
            return "unknown"
        return f"{run.status.status}:{run.status.sub_status}" if run.status.sub_status else str(run.status.status)


@contextmanager
def control(address: str, authority: Path | None) -> Iterator[Control]:
    """authority: the certificate of whoever vouches for the server; None: no TLS"""
    client = ControlHttpClient.from_server_address(
        server_address=address,
        insecure=authority is None,
        root_certificates=None if authority is None else authority.read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )
    try:
        yield Control(client)
    except httpx.TransportError as error:
        raise TrainingError(
            f"the server at {address} does not answer ({type(error).__name__}): start it with bespoke deploy server."
        ) from None
    finally:
        client.close()
