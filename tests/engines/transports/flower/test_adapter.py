"""Flower beyond its public API is used in `adapter.py` only, and in the tests in `flower_internals.py` only."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import bespokefl

ADAPTER = "engines/transports/flower/adapter.py"
TEST_ADAPTER = "engines/transports/flower/flower_internals.py"
PUBLIC = ("flwr.app", "flwr.clientapp", "flwr.common", "flwr.serverapp")
SOURCE, TESTS = Path(bespokefl.__file__).parent, Path(__file__).parents[3]


def violations(code: str) -> Iterator[str]:
    """Imports of names that Flower does not export, and assignments to what was imported from Flower."""
    imported: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "flwr":
                    yield f"import {alias.name}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "flwr":
            imported |= {alias.asname or alias.name for alias in node.names}
            exported = importlib.import_module(node.module).__all__ if node.module in PUBLIC else ()
            yield from (f"from {node.module} import {alias.name}" for alias in node.names if alias.name not in exported)
    for node in ast.walk(ast.parse(code)):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "setattr":
            targets = [ast.Attribute(node.args[0], "")] if node.args else []
        for target in targets:
            for one in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
                text = ast.unparse(one)
                if isinstance(one, ast.Attribute) and root(one) in imported:
                    yield f"assigns to {text}"
                if "metadata.__dict__" in text:
                    yield f"assigns to {text}"


def root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize(("folder", "adapter"), [(SOURCE, ADAPTER), (TESTS, TEST_ADAPTER)])
def test_only_the_adapter_uses_flower_beyond_its_public_api(folder: Path, adapter: str) -> None:
    found = {
        str(path.relative_to(folder)): list(violations(path.read_text(encoding="utf-8")))
        for path in sorted(folder.rglob("*.py"))
    }
    assert found[adapter]
    assert {name: what for name, what in found.items() if what} == {adapter: found[adapter]}


@pytest.mark.parametrize(
    ("code", "violation"),
    [
        ("import flwr", "import flwr"),
        ("import flwr.proto.node_pb2 as proto", "import flwr.proto.node_pb2"),
        ("from flwr.app.message import Message", "from flwr.app.message import Message"),
        ("from flwr.app import message", "from flwr.app import message"),
        ("from flwr import app", "from flwr import app"),
        ("def f():\n    from flwr.supercore import error", "from flwr.supercore import error"),
        ("from flwr.serverapp import Grid\nGrid.run, x = 1, 2", "assigns to Grid.run"),
        ("from flwr.serverapp import Grid\nsetattr(Grid, 'run', 1)", "assigns to Grid."),
        ("from flwr.serverapp import Grid\nmonkeypatch.setattr(Grid, 'run', 1)", "assigns to Grid."),
        ("message.metadata.__dict__['_id'] = 1", "assigns to message.metadata.__dict__['_id']"),
    ],
)
def test_each_kind_of_violation_is_found(code: str, violation: str) -> None:
    assert list(violations(code)) == [violation]


def test_the_public_api_may_be_used() -> None:
    assert not list(violations("from flwr.app import Message\nfrom flwr.serverapp import Grid\nmessage = Message()"))
