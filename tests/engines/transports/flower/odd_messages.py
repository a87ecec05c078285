"""A node that misbehaves if its directory has a file of one of these names.

    python -m tests.engines.transports.flower.odd_messages DIRECTORY

hold    it holds back its reply to round 2 until the file is gone; meanwhile there is a file "held"
die     it kills itself while it trains in round 2
lie     it sends NaN
other   it builds another model than the requested one
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
from bespokefl.engines.transports.flower.node.node import Node, Prepared
from bespokefl.engines.transports.flower.run_plan import RunPlan
from bespokefl.workflows.deploy.node import LocalHost

answer, train, prepare = Node.answer, ClientSide.train, LocalHost.prepare
DIRECTORY = Path(sys.argv[-1])


def is_asked_to(what: str) -> bool:
    return (DIRECTORY / what).exists()


def odd_answer(self: Node, values: dict[str, Any]) -> dict[str, Any]:
    made = answer(self, values)
    if values.get("what") == "train" and values["number"] == 2 and is_asked_to("hold"):
        (DIRECTORY / "held").touch()
        while is_asked_to("hold"):
            time.sleep(0.02)
        (DIRECTORY / "held").unlink()
    if is_asked_to("lie"):
        return {name: value * float("nan") if name.startswith("upload/") else value for name, value in made.items()}
    return made


def odd_train(self: ClientSide, cohort: Any, message: Any, state: Any, round: Any) -> Any:
    made = train(self, cohort, message, state, round)
    if round.number == 2 and is_asked_to("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    return made


def odd_prepare(self: LocalHost, plan: RunPlan) -> Prepared:
    return prepare(self, replace(plan, recipe={**plan.recipe, "model": "logistic"}) if is_asked_to("other") else plan)


if __name__ == "__main__":
    Node.answer, ClientSide.train, LocalHost.prepare = odd_answer, odd_train, odd_prepare  # type: ignore[method-assign]
    cli.main(["deploy", "node", str(DIRECTORY)])
