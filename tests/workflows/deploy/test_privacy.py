"""Clipped and noised uploads over Flower: the same numbers as in simulation, and nothing beside them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message

from bespokefl.core.errors import InputError
from bespokefl.core.method import Method
from bespokefl.core.rows import Rows
from bespokefl.engines.settings import Settings
from bespokefl.engines.transports.flower import records
from bespokefl.engines.transports.flower.node.node import Node
from bespokefl.engines.transports.flower.run_plan import RunPlan
from bespokefl.methods import FedAvg, Local, PFedVEM
from tests.engines.protection.test_clipping import method as method  # every method that can be protected
from tests.engines.transports.flower.grid import NODES, TestHost, deployment, only
from tests.engines.transports.flower.test_equality import DOUBLE, HALF, LIMIT, SINGLE, personal_models
from tests.engines.transports.flower.test_server import SHORT, WEST
from tests.federations import apart, run, same_bits
from tests.workflows.deploy.test_layout import hosts as real_hosts
from tests.workflows.deploy.test_layout import recipe

LOUD = {"clip": 0.2, "noise": 0.5}


def test_same_numbers_as_in_simulation(method: Method, tmp_path: Path) -> None:
    """With the seed's noise, which both sides can draw; whole rounds of it."""
    _, expected = run(method, DOUBLE, **LOUD, **HALF)
    server, _ = deployment(method, DOUBLE, tmp_path, **LOUD, **HALF)
    found = server.run()
    limit = LIMIT[torch.float64]
    assert apart(personal_models(tmp_path, server.task.start, DOUBLE.names), expected.personal_rows) < limit
    if expected.global_rows is not None:
        assert apart(found.global_rows, expected.global_rows) < limit
    assert found.uploaded == expected.uploaded
    _, plain = run(method, DOUBLE, **HALF)
    if method.name != "local":
        assert found.uploaded and not all(
            same_bits(one, two) for one, two in zip(rows(expected.server), rows(plain.server), strict=True)
        )


def rows(server: dict[str, Any]) -> list[Rows]:
    return [value for value in server.values() if isinstance(value, Rows)]


def secret_hosts(chosen: Method) -> dict[str, TestHost]:
    return {name: TestHost(name, only(SINGLE, own), chosen, secret=True) for name, own in NODES.items()}


def uploads_of(grid: Any) -> list[dict[str, Any]]:
    """What each node answers to the training requests, in order."""
    seen: list[dict[str, Any]] = []

    def watch(reply: Message) -> Message:
        values = records.unpack(reply.content)
        if "broken" in values:
            seen.append(values)
        return reply

    grid.on_reply = dict.fromkeys(grid.nodes, watch)
    return seen


def test_a_request_that_comes_twice_gets_the_same_noise(tmp_path: Path) -> None:
    """Also after the node was started anew: else whoever asks often enough could average the noise away."""
    chosen = FedAvg()
    server, grid = deployment(chosen, SINGLE, tmp_path, hosts=secret_hosts(chosen), **LOUD)
    seen = uploads_of(grid)
    server.run()
    request = next(one for one in grid.sent if records.unpack(one.content).get("number") == 2 and one_of(one) == WEST)
    values = records.unpack(request.content)
    again = [Node(secret_hosts(chosen)["west"], tmp_path / "west").answer(values) for _ in range(2)]
    kept = [one for one in seen if one["node"] == "west"][-1]
    assert all(same_bits(one["upload/weights"], kept["upload/weights"]) for one in again)
    fresh = Node(secret_hosts(chosen)["west"], tmp_path / "other").answer(values | {"accepted": torch.zeros(3).long()})
    assert not same_bits(fresh["upload/weights"], kept["upload/weights"])  # nobody can draw it again


def one_of(message: Message) -> int:
    return int(message.metadata.dst_node_id)


def test_figures_that_a_method_keeps_stay_at_the_node(tmp_path: Path) -> None:
    """With noise and without: what a method notes of a client is no upload."""
    for options in ({}, LOUD):
        server, grid = deployment(PFedVEM(head_steps=2), SINGLE, tmp_path / str(len(options)), **options)
        seen = uploads_of(grid)
        found = server.run()
        assert seen and not any(name.startswith("note/") for values in seen for name in values)
        assert not found.client_notes


def test_an_answer_that_never_came_counts_as_an_upload(tmp_path: Path) -> None:
    server, grid = deployment(FedAvg(), SINGLE, tmp_path, timeouts=SHORT, **LOUD)
    grid.on_reply[WEST] = lambda reply: None if "upload/weights" in records.unpack(reply.content) else reply
    found = server.run()
    assert found.lost == {name: {"dropped out": 2} for name in ("dan", "eve", "fay")}
    assert found.uploaded == dict.fromkeys(SINGLE.names, 2)


def test_who_uploads_nothing_is_not_counted(tmp_path: Path) -> None:
    server, _ = deployment(Local(), SINGLE, tmp_path, **LOUD)
    assert server.run().uploaded == {}


def test_a_real_node_s_noise_is_not_of_the_seed(tmp_path: Path) -> None:
    host = real_hosts(tmp_path)["hospital-a"]
    plan = RunPlan.of("run", ("0", "1", "2"), None, Settings(clip=1.0, noise=2.0), recipe())
    assert RunPlan.read(plan.text()) == plan
    privacy = host.prepare(plan).side.privacy
    assert (privacy.clip, privacy.noise, privacy.secret) == (1.0, 2.0, True)


@pytest.mark.parametrize("offered", [{}, {"clip": 1.0}, {"clip": 1.0, "noise": 0.9}])
def test_a_node_can_insist_on_noise(offered: dict[str, float], tmp_path: Path) -> None:
    host = real_hosts(tmp_path)["hospital-a"]
    host.settings = replace(host.settings, noise=1.0)
    plan = RunPlan.of("run", ("0", "1", "2"), None, Settings(**offered), recipe())
    with pytest.raises(InputError, match="node hospital-a insists on noise of at least 1 on its uploads"):
        host.prepare(plan)
    host.prepare(replace(plan, clip=1.0, noise=1.0))
