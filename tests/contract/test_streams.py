"""What a method sends is counted, so that the time model holds for every method."""

import math
from typing import Any

import pytest
import torch

from bespokefl.core.method import Message, Method
from bespokefl.core.rows import Rows
from bespokefl.engines.federation import DownlinkCounter
from bespokefl.methods import REGISTRY, UCFL, UCFLParallel
from bespokefl.metrics.communication import SYSTEMS, times
from tests.contract.conftest import params, quick
from tests.contract.test_methods import EVERYBODY, HALF, SINGLE, moments
from tests.federations import federation, mlp, planted, run, same_bits, simulation

SENT = ("down_streams", "up_models", "workload")
SMALL = 256  # bytes for each client: numbers that ride along with models, and are not counted as such

WIDTH = sum(p.numel() for p in mlp().parameters())
HIDDEN = mlp()[0].out_features
BASE = sum(p.numel() for p in mlp()[0].parameters()) / WIDTH
COHORT, FEDERATION = 3, 6  # half of six clients

# models down, models up from each client, trainings of each client; in a round of half of the clients
KNOWN: dict[str, tuple[float, float, float]] = {
    "local": (0, 0, 1),
    "scaffold": (2, 2, 1),  # weights and control variates
    "pfedbayes": (2, 2, 1),  # means and deviations
    "fedper": (BASE, BASE, 1),
    "feddbe": (1 + HIDDEN / WIDTH, 1, 1),  # the global model, and the mean of its features
    "fedrep": (BASE, BASE, 1),
    "fedbn": (1, 1, 1),  # of a model without normalization layers
    "fedsa-lora": (BASE, BASE, 1),  # of a model without adapters
    "ifca": (4, 1, 1),  # all clusters to everybody
    "cfl": (1, 1, 1),  # no split yet
    "fedfomo": (COHORT * 4, 1, 1),  # N M
    "ucfl": (COHORT, 1, 1),  # to each its own
    "ucfl-parallel": (FEDERATION, FEDERATION, FEDERATION),
    **dict.fromkeys(("fedavg", "fedavg-ft", "fedprox", "ditto", "apfl", "perfedavg", "pfedme", "fedala"), (1, 1, 1)),
    **dict.fromkeys(("selffl", "persfl", "persfl-gd", "pfedvem"), (1, 1, 1)),
}


def test_what_a_round_costs_is_sound(method: Method) -> None:
    """Whatever is large is counted, and nothing that is sent once is counted twice; chunks do not matter."""
    history = run(method, SINGLE, **HALF)[1].history
    model = WIDTH * SINGLE.x.element_size()
    for line in history:
        up, down = line["up_models"] * model, line["down_streams"] * model
        assert up <= line["up_bytes"] + 1e-6 and line["up_bytes"] <= up + SMALL * line["reported"]
        assert down <= line["down_bytes"] + 1e-6
        assert line["down_bytes"] <= (down + SMALL) * line["trained"]
        assert line["workload"] >= 0
    for system in SYSTEMS:
        spent = times(history, system)
        assert len(spent) == len(history) and all(math.isfinite(one) and one > 0 for one in spent)
    alone = run(method, SINGLE, chunk=1, **HALF)[1].history
    assert [[line[name] for name in SENT] for line in alone] == [[line[name] for name in SENT] for line in history]


def test_one_stream_is_one_model(method: Method) -> None:
    for made, round in moments(method, SINGLE):
        message = method.message(made.server, EVERYBODY, round)
        if message.stream is None:
            continue
        assert message.stream.shape == (len(EVERYBODY),)
        for rows in (value for value in message.own.values() if isinstance(value, Rows)):
            for stream in message.stream.unique():
                inside = rows[message.stream == stream]
                assert same_bits(inside, inside[:1].expand(len(inside)))


@pytest.mark.parametrize("name", params(KNOWN))
def test_what_each_method_sends(name: str) -> None:
    down, up, workload = KNOWN[name]
    history = run(quick(REGISTRY[name]), SINGLE, **HALF)[1].history
    lines = [line for line in history if line["phase"] == "train"]
    assert lines
    for line in lines:
        assert line["down_streams"] == pytest.approx(down)
        assert line["up_models"] == pytest.approx(up * line["reported"])
        assert line["workload"] == workload


@pytest.mark.slow
def test_groups_hear_one_model_each() -> None:
    for line in run(REGISTRY["oracle"](), SINGLE, rounds=2)[1].history:
        assert line["down_streams"] == len(set(SINGLE.groups or ()))


@pytest.mark.slow
def test_clusters_that_split_are_more_streams() -> None:
    data = planted([0, 0, 0, 1, 1, 1])
    method: Any = REGISTRY["cfl"](patience=1, small=10.0, large=0.01, across=1.0)
    history = run(method, data, rounds=4)[1].history
    clusters = [1, *(line["clusters"] for line in history[:-1])]  # a split is heard of in the next round
    assert clusters[-1] > 1
    assert [line["down_streams"] for line in history] == clusters


@pytest.mark.parametrize("streams", [1, 2])
def test_streams_of_user_centric_learning(streams: int) -> None:
    survey, *rounds = run(UCFL(streams=streams), SINGLE, rounds=2)[1].history
    assert [survey[name] for name in SENT] == [1, FEDERATION, 0]  # the special round: one broadcast, N uploads
    assert all([line[name] for name in SENT] == [streams, FEDERATION, 1] for line in rounds)
    survey, *rounds = run(UCFLParallel(streams=streams), SINGLE, rounds=2)[1].history
    assert [survey[name] for name in SENT] == [1, FEDERATION, 0]
    assert all([line[name] for name in SENT] == [streams, FEDERATION * streams, streams] for line in rounds)


def test_an_ending_at_home_is_heard_but_not_answered() -> None:
    *_, last = run(quick(REGISTRY["fedrep"]), SINGLE, rounds=1)[1].history
    assert (last["phase"], last["reported"], last["up_models"]) == ("finish", 0, 0)
    assert last["down_streams"] == pytest.approx(BASE)


def test_parts_of_a_round_add_up() -> None:
    """Two chunks of a cohort, in which a stream occurs in both."""

    rows = simulation(REGISTRY["fedavg"](), federation()).task.start
    width, down = rows.layout.width, DownlinkCounter()
    down.add(Message({"weights": rows}, {"own": rows.expand(3)}, torch.tensor([4, 0, 4])), 3)
    down.add(Message({"weights": rows}, {"own": rows.expand(2)}, torch.tensor([0, 1])), 2)
    assert down.columns == width * (1 + 3)
    down.add(Message({"weights": rows}, {"own": rows.expand(2), "number": 3.0}), 2)
    assert down.columns == width * (1 + 3 + 2)
