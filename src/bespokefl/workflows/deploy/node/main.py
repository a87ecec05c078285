"""What `bespoke deploy node` does: it loads the node's data and answers the server."""

import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bespokefl.core.errors import InputError, count
from bespokefl.workflows.deploy.addresses import is_loopback, port_of
from bespokefl.workflows.deploy.layout import NodeSettings

log = logging.getLogger("bespokefl")


def run_node(place: Path, settings: NodeSettings, stopped: threading.Event, ready: Callable[[], None]) -> None:
    """A node: it loads its data and answers the server until it is stopped."""
    import torch

    from bespokefl.engines.transports.flower.apps import answer
    from bespokefl.engines.transports.flower.node import Node
    from bespokefl.engines.transports.flower.supernode import Endpoint, carry
    from bespokefl.workflows.deploy.node.host import LocalHost

    torch.set_num_threads(1)
    host = LocalHost(settings, place)
    about = host.about()
    log.info("node %s has %s", settings.name, count(len(about["clients"]), "client"))
    secure = (place / "node.key").is_file()
    if not secure and not is_loopback(settings.server.rpartition(":")[0]):
        raise InputError(
            f"node {settings.name} has no key, node.key, in {str(place)!r}: without one it may only talk to 127.0.0.1."
        )
    port_of(settings.server)
    state = place / settings.state
    line = Endpoint(
        settings.server,
        place / "ca.crt" if secure else None,
        place / "node.key" if secure else None,
        state / "node-id",
    )
    carry(line, partial(answer, Node(host, state)), stopped, ready)
