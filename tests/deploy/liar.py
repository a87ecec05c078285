"""A node that sends what it should not: `python -m tests.deploy.liar PLACE`."""

import sys
from pathlib import Path
from typing import Any

from bespokefl.engines.flower.node import Node
from bespokefl.experiments.deployment import machines
from bespokefl.experiments.deployment.place import node_settings

honest = Node.answer


def lies(self: Node, values: dict[str, Any]) -> dict[str, Any]:
    answer = honest(self, values)
    return {name: value * float("nan") if name.startswith("upload/") else value for name, value in answer.items()}


if __name__ == "__main__":
    Node.answer = lies  # type: ignore[method-assign]
    place = Path(sys.argv[1])
    with machines.until_signalled() as stopped:
        machines.run_node(place, node_settings(place), stopped, lambda: print("ready", flush=True))
