"""The two apps that Flower runs. Each is configured on its own machine, by the folder in BESPOKE_DEPLOYMENT."""

import os
from pathlib import Path

from bespokefl.engines.flower.apps import client_app, server_app
from bespokefl.engines.flower.node import Node
from bespokefl.experiments.deployment.host import LocalHost
from bespokefl.experiments.deployment.place import PLACE, node_folder, node_settings
from bespokefl.experiments.deployment.serve import serve


def _node() -> Node:
    place = node_folder(Path(os.environ[PLACE]), None)
    settings = node_settings(place)
    return Node(LocalHost(settings, place), place / settings.state)


client = client_app(_node)
server = server_app(serve)
