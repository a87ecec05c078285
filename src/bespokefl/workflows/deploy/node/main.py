"""The work of `bespoke deploy node`: it loads the node's data and answers the server's requests."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import torch

from bespokefl.core.errors import InputError, count
from bespokefl.engines.transports.flower import supernode
from bespokefl.engines.transports.flower.node import Node
from bespokefl.workflows.deploy.addresses import host_of, is_loopback
from bespokefl.workflows.deploy.layout import NODE_ID, NodeSettings
from bespokefl.workflows.deploy.node.host import LocalHost

log = logging.getLogger("bespokefl")


def run_node(directory: Path, settings: NodeSettings, stopped: threading.Event, ready: Callable[[], None]) -> None:
    """Run a node until `stopped` is set; call `ready` when it is connected."""
    torch.set_num_threads(1)
    host = LocalHost(settings, directory)
    log.info("node %s has %s", settings.name, count(len(host.about()["clients"]), "client"))
    certificate, key = directory / "ca.crt", directory / "node.key"
    secure = key.is_file()
    if not secure and not is_loopback(host_of(settings.server)):
        raise InputError(
            f"node {settings.name} has no key, node.key, in {str(directory)!r}: without one it may only connect to "
            "127.0.0.1."
        )
    state = directory / settings.state
    endpoint = supernode.Endpoint(
        settings.server, certificate if secure else None, key if secure else None, state / NODE_ID
    )
    supernode.serve_messages(endpoint, Node(host, state), stopped, ready)
