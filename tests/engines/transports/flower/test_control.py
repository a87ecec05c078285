"""Who is let in, as Flower's own code has it; only the way there is left out."""

import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.auth.typing import AccountInfo
from flwr.supercore.error import FlowerError
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.servicer.control import control_handlers

from bespokefl.core.errors import TrainingError
from bespokefl.engines.transports.flower.control import Control, Present
from bespokefl.workflows.deploy import certificates

pytestmark = pytest.mark.filterwarnings("ignore:No path_separator:DeprecationWarning")  # of Flower's database
ACCOUNT = AccountInfo(flwr_aid="a", account_name="a")
HANDLERS = {
    "RegisterNode": control_handlers.register_node,
    "UnregisterNode": control_handlers.unregister_node,
    "ListNodes": control_handlers.list_nodes,
}


class Flower:
    """A SuperLink's database and its handlers of what administrators ask."""

    def __init__(self, database: Path) -> None:
        self.state = LinkStateFactory(str(database), NoOpFederationManager(), ObjectStoreFactory(str(database))).state()

    def __getattr__(self, name: str) -> Any:
        def ask(request: Any) -> Any:
            try:
                return HANDLERS[name](request, ACCOUNT, self.state)
            except FlowerError as error:
                response = httpx.Response(409, text=str(error))
                raise httpx.HTTPStatusError("", request=httpx.Request("POST", "http://a"), response=response) from None

        return ask

    def lets_in(self, public: Path) -> bool:
        key: Any = load_ssh_public_key(public.read_bytes())
        return self.state.get_node_id_by_public_key(public_key_to_bytes(key)) is not None


@pytest.fixture
def flower(tmp_path: Path) -> Flower:
    return Flower(tmp_path / "flower.db")


def pair(folder: Path, name: str) -> Path:
    certificates.write_pair(folder / f"{name}.key", folder / f"{name}.pub")
    return folder / f"{name}.pub"


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "bespokefl"]


def test_a_changed_key_takes_the_place_of_the_old_one(
    flower: Flower, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    control = Control(flower)  # type: ignore[arg-type]
    old, new, other = (pair(tmp_path, name) for name in ("old", "new", "other"))
    there = [Present("north", "registered"), Present("south", "registered")]
    with caplog.at_level(logging.WARNING, "bespokefl"):
        for _ in range(2):
            control.register("north", old)
            control.register("south", other)
        assert control.nodes() == there and flower.lets_in(old) and not said(caplog)
        for _ in range(2):
            control.register("north", new)
    assert control.nodes() == there
    assert flower.lets_in(new) and flower.lets_in(other) and not flower.lets_in(old)
    assert said(caplog) == ["node north has another key now: the one that it had is not let in any more"]


def test_a_key_that_is_or_was_somebody_s_is_refused(flower: Flower, tmp_path: Path) -> None:
    control = Control(flower)  # type: ignore[arg-type]
    old, new = pair(tmp_path, "old"), pair(tmp_path, "new")
    control.register("north", old)
    control.register("north", new)
    for name, key in (("north", old), ("south", new)):
        with pytest.raises(TrainingError, match=f"node {name} could not be registered: .*so give it a new pair"):
            control.register(name, key)


def test_who_has_no_key_here_any_more_is_shut_out(
    flower: Flower, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    control, known = Control(flower), {name: pair(tmp_path, name) for name in ("a", "b")}  # type: ignore[arg-type]
    for name, key in known.items():
        control.register(name, key)
    control.shut_out_others(["a"])
    assert flower.lets_in(known["a"]) and not flower.lets_in(known["b"])
    assert [one.name for one in control.nodes()] == ["a"]
    assert "node b has no key here any more" in caplog.text
    control.shut_out_others(["a"])
    assert caplog.text.count("shut out") == 1
