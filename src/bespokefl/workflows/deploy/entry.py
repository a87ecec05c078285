"""The process on each machine: the server, or a node.

`python -m bespokefl.workflows.deploy.entry server DIR` is what `bespoke deploy server DIR` runs, and the same
with `node`. Both stay in the foreground, end what they started when they end, and start again what was killed.
"""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from bespokefl.core.errors import BespokeError
from bespokefl.workflows.deploy.layout import Deployment, node_folder, node_settings
from bespokefl.workflows.deploy.node.main import run_node
from bespokefl.workflows.deploy.processes import until_signalled
from bespokefl.workflows.deploy.server.supervisor import run_server


def main(argv: Sequence[str] | None = None) -> int:
    """server DIR | node DIR: one line on standard output when it is ready."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    for noisy in ("httpx", "flwr"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    what, where = (sys.argv[1:] if argv is None else argv)[:2]
    with until_signalled() as stopped:
        try:
            if what == "server":
                run_server(Deployment.at(Path(where)), stopped, lambda: print("ready", flush=True))
            else:
                place = node_folder(Path(where), None)
                run_node(place, node_settings(place), stopped, lambda: print("ready", flush=True))
        except BespokeError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
