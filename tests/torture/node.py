"""A node whose clients lie: python -m tests.torture.node DIRECTORY KIND.

liar      its replies are unusable, in another way in every round
stranger  its introduction is malformed, in another way each time that it is asked
"""

import json
import sys
from collections.abc import Mapping
from itertools import count
from typing import Any

import torch

from bespokefl import cli
from bespokefl.core.rows import Rows
from bespokefl.engines.transports.flower.node.node import HELLO, TRAIN, Node

answer = Node.answer
asked = count()


def _changed(values: Mapping[str, Any], change: Any) -> dict[str, Any]:
    return {name: change(value) if name.startswith("upload/") else value for name, value in values.items()}


def _rows(value: Any, blocks: Any, size: int | None = None) -> Any:
    made = Rows(value.layout, blocks)
    made.size = made.size if size is None else size
    return made


LIES: list[Any] = [
    lambda values: _changed(values, lambda value: value * float("nan")),
    lambda values: _changed(values, lambda value: value * 1e30),
    lambda values: _changed(values, lambda value: value[torch.tensor([0, 0, 0, 0])]),
    lambda values: _changed(values, lambda value: torch.zeros(3, 2**10)),
    lambda values: _changed(values, lambda value: "a text"),
    lambda values: {name: value for name, value in values.items() if not name.startswith("upload/")},
    lambda values: values | {"upload/other": torch.zeros(1)},
    lambda values: values | {"broken": torch.zeros(7)},
    lambda values: {"node": "somebody-else", "error": "no. " * 5000},
    lambda values: {"nothing": 2**62},
]
ABOUTS: list[Any] = [
    {},
    [],
    None,
    {"clients": {"x": {"train": float("nan"), "validation": 1, "test": 1}}},
    {"clients": {"x": {"train": 2**70, "validation": 1, "test": 1}}},
    {"clients": {"x": {"train": -5, "validation": 1, "test": 1}}, "version": 3},
]


def lie(self: Node, values: dict[str, Any]) -> dict[str, Any]:
    """Work as an honest node, and send something else."""
    honest = answer(self, values)
    if sys.argv[-1] == "stranger" and values.get("what") == HELLO:
        number = next(asked)
        text = "[" * 100_000 if number % 7 == 6 else json.dumps(ABOUTS[number % 7])
        return {"node": self.host.name, "about": text}
    if sys.argv[-1] == "liar" and values.get("what") == TRAIN:
        return LIES[int(values["number"]) % len(LIES)](honest)
    return honest


if __name__ == "__main__":
    Node.answer = lie  # type: ignore[method-assign]
    cli.main(["deploy", "node", sys.argv[1]])
