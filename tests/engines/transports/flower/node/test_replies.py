"""A node that sends nonsense is left out and named, and the run goes on."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message

from bespokefl.core.rows import Rows
from bespokefl.engines.transports.flower import records
from bespokefl.engines.transports.flower.node.replies import MAX_SENTENCE, brief, read_introduction
from bespokefl.engines.transports.flower.records import UnreadableError
from bespokefl.engines.transports.flower.schema import MalformedError
from bespokefl.methods import Ditto
from tests.engines.transports.flower.grid import NODES, LocalGrid, TestHost, deployment, local_grid, only
from tests.federations import federation, same_bits

DATA, WEST = federation(), 102
HONEST = TestHost("west", only(DATA, NODES["west"]), Ditto()).about()
Change = Callable[[dict[str, Any]], Any]


def changed(change: Change) -> str:
    about = copy.deepcopy(HONEST)
    return json.dumps(change(about) or about)


def client(**sizes: Any) -> Change:
    return lambda about: about["clients"]["dan"].update(sizes)


def top(**values: Any) -> Change:
    return lambda about: about.update(values)


MALFORMED: dict[str, tuple[Any, str]] = {
    "no version": (changed(lambda about: about.pop("version") and None), "has no version"),
    "no clients": (changed(top(clients={})), "clients must be an object of 1 to"),
    "clients in a list": (changed(top(clients=[1])), "clients must be an object"),
    "a negative count": (changed(client(train=-5)), r"clients.dan.train must be a whole number from 1 to .*, got -5"),
    "a huge count": (changed(client(test=2**62)), "got 4611686018427387904"),
    "a count beyond 64 bits": (changed(client(train=2**70)), "must be a whole number"),
    "a count in a text": (changed(client(train="5")), "got '5'"),
    "a fraction": (changed(client(train=5.5)), "got 5.5"),
    "a truth value": (changed(client(train=True)), "got True"),
    "NaN": (changed(client(train=float("nan"))), "NaN is not a number"),
    "another part": (changed(client(more=1)), "a name in its description.clients.dan must be one of"),
    "a name with a line break": (
        changed(lambda about: about["clients"].update({"a\nb": about["clients"]["dan"]})),
        "without control characters",
    ),
    "no features": (changed(lambda about: about.pop("features") and None), "has no features"),
    "features without columns": (changed(top(features=HONEST["features"] | {"columns": []})), "columns must be a list"),
    "a negative shape": (changed(top(features=HONEST["features"] | {"shape": [-1]})), r"shape\[0\] must be"),
    "sums of no table": (changed(top(sums={"count": [], "total": [], "squares": []})), "sums for a table"),
    "no tokens": (changed(top(tokens=5)), "the number of tokens"),
    "classes twice": (changed(top(labels=["a", "a"])), "a list of different values"),
    "deep": ("[" * 100_000 + "]" * 100_000, "cannot be read as JSON"),
    "no JSON": ("{", "cannot be read as JSON"),
    "many digits": ('{"clients": ' + "9" * 5000 + "}", "cannot be read as JSON"),
    "a number": (5, "must be a text"),
    "nothing": (None, "must be a text"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_introductions(name: str) -> None:
    text, sentence = MALFORMED[name]
    with pytest.raises(MalformedError, match=sentence):
        read_introduction({"node": "west", "about": text})
    assert read_introduction({"node": "west", "about": json.dumps(HONEST)}) == ("west", HONEST)


def table(**changes: Any) -> str:
    columns = [{"name": "a", "kind": "number", "values": []}, {"name": "b", "kind": "category", "values": ["x", "y"]}]
    features = {"columns": columns, "shape": [3], "label": "c", "client": None}
    sums = {"count": [1, 1, 1], "total": [0.5, 1, 0], "squares": [1.0, 1, 0]} | changes
    return changed(top(features=features, sums=sums))


@pytest.mark.parametrize(
    "wrong",
    [
        {"count": [1, 1]},
        {"count": [1, 1, -1]},
        {"total": [0, 0, "1"]},
        {"squares": [0, 0, -1e-9]},
        {"total": [10**400] * 3},
    ],
)
def test_sums_of_a_table(wrong: dict[str, Any]) -> None:
    read_introduction({"node": "west", "about": table()})
    with pytest.raises(MalformedError):
        read_introduction({"node": "west", "about": table(**wrong)})


def tampered(grid: LocalGrid, when: str, change: Change) -> None:
    def tamper(reply: Message) -> Message:
        values = records.unpack(reply.content)
        if when in values:
            reply.content = records.pack(change(values))
        return reply

    grid.on_reply[WEST] = tamper


@pytest.mark.parametrize("name", ["no version", "a count beyond 64 bits", "deep", "a number"])
def test_the_run_goes_on_without_the_node(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid = local_grid(Ditto(), DATA, tmp_path)
    tampered(grid, "about", lambda values: values | {"about": MALFORMED[name][0]})
    grid.away = {WEST}  # it is not waited for
    server, _ = deployment(Ditto(), DATA, tmp_path, grid=grid)
    messenger = server.transport.messenger
    grid.away = set()
    messenger._refreshed = -99.0
    while not messenger.left_out:
        messenger._step({}, {})
    assert sorted(messenger.known) == ["north", "south"]
    assert list(messenger.left_out) == ["west"] and "node west is left out: its introduction is malf" in caplog.text
    found = server.run()
    assert found.rounds_done == 2 and not found.lost


@pytest.mark.parametrize(
    "lie",
    [
        lambda values: values | {"broken": values["broken"].float()},
        lambda values: values | {"broken": values["broken"][:1]},
        lambda values: values | {"broken": 5},
        lambda values: values | {"work": values["work"] - 2**40},
        lambda values: values | {"work": values["work"].float()},
        lambda values: values | {"upload/weights": 1.0},
        lambda values: values | {"upload/weights": torch.tensor(1.0)},
        lambda values: {"upload/weights": values["upload/weights"]},
        lambda values: {"refused": "me"},
    ],
)
def test_malformed_replies_cost_nobody_else_the_run(lie: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server, grid = deployment(Ditto(), DATA, tmp_path)
    tampered(grid, "broken", lie)
    found = server.run()
    assert found.lost == {name: {"dropped out": 2} for name in ("dan", "eve", "fay")}
    assert "node west: its reply is rejected because it is malformed: " in caplog.text


@pytest.mark.parametrize(
    "lie",
    [
        {"score/../x": torch.zeros(3)},
        {"score/train_" + "a" * 90: torch.zeros(3)},
        {"score/train_loss": torch.zeros(3, dtype=torch.bool)},
        {"score/train_loss": "0"},
        {"hidden": torch.zeros(3)},
        {"hidden": "all"},
        {f"common/test_{at}": torch.zeros(3) for at in range(600)},
    ],
)
def test_malformed_scores(lie: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server, grid = deployment(Ditto(), DATA, tmp_path)
    tampered(grid, "score/train_loss", lambda values: values | lie)
    found = server.run()
    assert found.unscored == ["dan", "eve", "fay"] and "it is malformed" in caplog.text
    assert set(found.personal) == set(deployment(Ditto(), DATA, tmp_path / "honest")[0].run().personal)


def rows_of(size: Any, names: Any = ()) -> str:
    return json.dumps([[["upload/weights", "rows", [list(names), [[1]] * len(names), [], size]]], []])


@pytest.mark.parametrize(
    "text",
    [
        *(rows_of(size) for size in (-5, "5", 2.5, True, None, 2**70, [1])),
        json.dumps([[["a", "number", {"deep": [1]}]], []]),
        json.dumps([[["a", "number", [1]]], []]),
        json.dumps([[[5, "number", 1]], []]),
        json.dumps([[["a", "number", 1], ["a", "number", 2]], []]),
        json.dumps([[["a", "tensor", None], ["b", "tensor", None]], [[0, "uint8", [64]], [0, "uint8", [64]]]]),
        "[" * 100_000,
    ],
)
def test_values_that_are_none(text: str) -> None:
    with pytest.raises(UnreadableError):
        records.decode(text, bytes(128))


def test_empty_rows_are_values() -> None:
    empty = Rows.cat([torch_rows(4)])
    assert len(records.decode(*records.encode({"rows": empty}))["rows"]) == 4
    both = {"a": torch.arange(3), "b": torch.arange(100.0), "c": torch.zeros(0)}
    assert same_bits(records.decode(*records.encode(both)), both)


def torch_rows(size: int) -> Rows:
    from bespokefl.core.rows import Layout

    return Rows(Layout((), ()), [], size=size)


def test_sentences_of_nodes_are_short_and_on_one_line() -> None:
    assert brief("a\x1b[2J\n\nb\tc") == "a [2J b c"
    assert len(brief("x" * 5000)) == MAX_SENTENCE


def test_a_node_s_error_is_shortened(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server, grid = deployment(Ditto(), DATA, tmp_path)
    tampered(grid, "broken", lambda values: {"node": "west", "error": "x" * 5000 + "\x1b"})
    server.run()
    assert "x" * 200 in caplog.text and "x" * 400 not in caplog.text and "\x1b" not in caplog.text
