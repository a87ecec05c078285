"""Which nodes are registered, decided by Flower's own code; only the network is left out."""

import logging
from pathlib import Path

import pytest

from bespokefl.core.errors import TrainingError
from bespokefl.engines.transports.flower.adapter import Control
from bespokefl.workflows.deploy import certificates
from tests.engines.transports.flower.flower_internals import ControlHandlers

pytestmark = pytest.mark.filterwarnings("ignore:No path_separator:DeprecationWarning")  # of Flower's database


@pytest.fixture
def flower(tmp_path: Path) -> ControlHandlers:
    return ControlHandlers(tmp_path / "flower.db")


def pair(folder: Path, name: str) -> Path:
    certificates.write_key_pair(folder / f"{name}.key", folder / f"{name}.pub")
    return folder / f"{name}.pub"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "bespokefl"]


def test_a_changed_key_replaces_the_previous_one(
    flower: ControlHandlers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    control = Control(flower)  # type: ignore[arg-type]
    old, new, other = (pair(tmp_path, name) for name in ("old", "new", "other"))
    there = {"north": "registered", "south": "registered"}
    with caplog.at_level(logging.WARNING, "bespokefl"):
        for _ in range(2):
            control.register("north", old)
            control.register("south", other)
        assert control.nodes() == there and flower.accepts(old) and not warnings(caplog)
        for _ in range(2):
            control.register("north", new)
    assert control.nodes() == there
    assert flower.accepts(new) and flower.accepts(other) and not flower.accepts(old)
    assert warnings(caplog) == ["the key of node north has changed: its previous key is no longer accepted"]


def test_a_key_that_is_or_was_in_use_is_rejected(flower: ControlHandlers, tmp_path: Path) -> None:
    control = Control(flower)  # type: ignore[arg-type]
    old, new = pair(tmp_path, "old"), pair(tmp_path, "new")
    control.register("north", old)
    control.register("north", new)
    for name, key in (("north", old), ("south", new)):
        with pytest.raises(TrainingError, match=f"cannot register node {name}: .*so create a new pair"):
            control.register(name, key)


def test_nodes_without_a_key_at_the_server_are_unregistered(
    flower: ControlHandlers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    control, known = Control(flower), {name: pair(tmp_path, name) for name in ("a", "b")}  # type: ignore[arg-type]
    for name, key in known.items():
        control.register(name, key)
    control.unregister_others(["a"])
    assert flower.accepts(known["a"]) and not flower.accepts(known["b"])
    assert list(control.nodes()) == ["a"]
    assert "the server no longer has a key of node b" in caplog.text
    control.unregister_others(["a"])
    assert caplog.text.count("is unregistered") == 1
