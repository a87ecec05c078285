"""Administration of the SuperLink from the server's machine: register nodes, start and stop runs, list both."""

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from bespokefl.core.errors import InputError, TrainingError
from bespokefl.engines.transports.flower.adapter import ACTIVE_RUN, ControlClient, public_key_bytes

log = logging.getLogger("bespokefl")


@dataclass(frozen=True)
class NodeStatus:
    """A registered node."""

    name: str
    status: str  # "online", "offline", "registered"


class Control:
    """Requests to the SuperLink on this machine."""

    def __init__(self, client: ControlClient) -> None:
        self._client = client

    def register(self, name: str, key: Path) -> None:
        """Accept the node with this public key and no longer with another; has no effect if it is registered."""
        try:
            public = load_ssh_public_key(key.read_bytes())
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read the public key {str(key)!r}: {error}.") from None
        if not isinstance(public, ec.EllipticCurvePublicKey):
            raise InputError(f"{str(key)!r} must be an elliptic-curve public key as deploy init writes it.")
        registered = [node for node in self._client.registered_nodes() if node.name == name]
        if any(node.public_key == public_key_bytes(public) for node in registered):
            return
        with _explained(f"cannot register node {name}", "; a key can be registered once only, so create a new pair."):
            for node in registered:
                self._client.unregister_node(node.node_id)
                log.warning("the key of node %s has changed: its previous key is no longer accepted", name)
            self._client.register_node(name, public_key_bytes(public))

    def unregister_others(self, names: Collection[str]) -> None:
        """Unregister all nodes but these, for good: Flower accepts each key once only."""
        for node in self._client.registered_nodes():
            if node.name not in names:
                self._client.unregister_node(node.node_id)
                log.warning("the server no longer has a key of node %s: the node is unregistered", node.name)

    def nodes(self) -> list[NodeStatus]:
        """The registered nodes, sorted by name."""
        nodes = [NodeStatus(node.name, node.status) for node in self._client.registered_nodes()]
        return sorted(nodes, key=lambda node: node.name)

    def start(self, app: Path, run: str) -> int:
        """Start a run with the app in a directory; return Flower's id of the run."""
        with _explained("cannot start the run"):
            return self._client.start_run(app, run=run)

    def stop(self, run_id: int) -> None:
        with _explained("cannot stop the run"):
            self._client.stop_run(run_id)

    def is_active(self, run_id: int) -> bool:
        """Whether a run has not finished yet."""
        return self._client.run_status(run_id).partition(":")[0] in ACTIVE_RUN

    def status(self, run_id: int) -> str:
        return self._client.run_status(run_id)


@contextmanager
def connect(address: str, root_certificate: Path | None) -> Iterator[Control]:
    """Connect to the SuperLink, with TLS if the authority's certificate is given."""
    client = ControlClient.connect(address, None if root_certificate is None else root_certificate.read_bytes())
    try:
        yield Control(client)
    except httpx.TransportError as error:
        raise TrainingError(
            f"the server at {address} does not respond ({type(error).__name__}): start it with bespoke deploy server."
        ) from None
    finally:
        client.close()


@contextmanager
def _explained(problem: str, advice: str = ".") -> Iterator[None]:
    try:
        yield
    except httpx.HTTPStatusError as error:
        raise TrainingError(f"{problem}: {error.response.text[:200]}{advice}") from None
