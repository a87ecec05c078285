"""The two apps that Flower runs. Each is configured on its own machine, by the folder in BESPOKE_DEPLOYMENT."""

import os
from pathlib import Path

from bespokefl.engines.transports.flower.apps import client_app, server_app
from bespokefl.engines.transports.flower.node import Node
from bespokefl.workflows.deploy.layout import PLACE, node_folder, node_settings
from bespokefl.workflows.deploy.node.host import LocalHost
from bespokefl.workflows.deploy.server.run import serve


def _node() -> Node:
    place = node_folder(Path(os.environ[PLACE]), None)
    settings = node_settings(place)
    return Node(LocalHost(settings, place), place / settings.state)


client = client_app(_node)
server = server_app(serve)
