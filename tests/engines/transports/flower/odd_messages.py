"""A node that misbehaves when a file in its folder says so.

    python -m tests.engines.transports.flower.odd_messages PLACE

hold    its answer to round 2 is kept back until the file is gone; meanwhile there is a file "held"
die     it kills itself while it trains in round 2
lie     it sends what is no number
other   it builds another model than it is asked for
"""

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bespokefl import cli
from bespokefl.engines.client import ClientSide
from bespokefl.engines.transports.flower.node import Node, Prepared
from bespokefl.engines.transports.flower.run_plan import RunPlan
from bespokefl.workflows.deploy.node.host import LocalHost

answer, train, prepare = Node.answer, ClientSide.train, LocalHost.prepare
PLACE = Path(sys.argv[-1])


def told(what: str) -> bool:
    return (PLACE / what).exists()


def odd_answer(self: Node, values: dict[str, Any]) -> dict[str, Any]:
    made = answer(self, values)
    if values.get("what") == "train" and values["number"] == 2 and told("hold"):
        (PLACE / "held").touch()
        while told("hold"):
            time.sleep(0.02)
        (PLACE / "held").unlink()
    if told("lie"):
        return {name: value * float("nan") if name.startswith("upload/") else value for name, value in made.items()}
    return made


def odd_train(self: ClientSide, cohort: Any, message: Any, state: Any, round: Any) -> Any:
    made = train(self, cohort, message, state, round)
    if round.number == 2 and told("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    return made


def odd_prepare(self: LocalHost, plan: RunPlan) -> Prepared:
    return prepare(self, replace(plan, recipe={**plan.recipe, "model": "logistic"}) if told("other") else plan)


if __name__ == "__main__":
    Node.answer, ClientSide.train, LocalHost.prepare = odd_answer, odd_train, odd_prepare  # type: ignore[method-assign]
    cli.main(["deploy", "node", str(PLACE)])
