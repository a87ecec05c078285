"""Which scores a node gives away: a server that asks for more learns nothing."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bespokefl.core.errors import InputError
from bespokefl.engines.transports.flower import records
from bespokefl.engines.transports.flower.node.node import PERSONAL, SCORE, Node
from bespokefl.engines.transports.flower.node.score_ledger import ScoreLedger
from bespokefl.engines.transports.flower.node.score_policy import ScorePolicy
from bespokefl.methods import Ditto, FedAvg
from bespokefl.workflows.deploy import layout
from bespokefl.workflows.deploy.layout import NodeSettings
from tests.engines.transports.flower.grid import NODES, LocalGrid, TestHost, deployment, only
from tests.federations import federation, same_bits

DATA = federation()


def nodes(method: Any, folder: Path, policy: ScorePolicy) -> LocalGrid:
    made = [Node(TestHost(name, only(DATA, own), method), folder / name, policy) for name, own in NODES.items()]
    return LocalGrid({100 + at: node for at, node in enumerate(made)}, dict(zip((100, 101, 102), NODES, strict=True)))


def requests(grid: LocalGrid, what: str = SCORE) -> list[dict[str, Any]]:
    """What the first node was asked for."""
    found = [records.unpack(message.content) for message in grid.sent if message.metadata.dst_node_id == 100]
    return [one for one in found if one["what"] == what]


@pytest.mark.parametrize("method", [FedAvg(), Ditto()])
def test_one_request_for_each_round_and_no_more(method: Any, tmp_path: Path) -> None:
    """A server cannot probe a node with weights that it chooses, also if the node has restarted since."""
    grid = nodes(method, tmp_path, ScorePolicy())
    server, _ = deployment(method, DATA, tmp_path, grid=grid, eval_every=1, rounds=3)
    assert not server.run().unscored
    asked = requests(grid)
    assert [one["number"] for one in asked] == [0, 1, 2, 3]
    for node in (grid.nodes[100], Node(grid.nodes[100].host, tmp_path / "north")):
        for one in asked:
            chosen = {
                name: value * 1.5 if name in ("common", "shared/weights") else value for name, value in one.items()
            }
            for probe in (chosen, chosen | {"number": 4}, chosen | {"number": 17}):
                reply = node.answer(probe)
                assert reply.keys() == {"node", "refused"}, reply
    sentences = ["these are not the weights that the run starts with", "it has scored other weights at the end already"]
    replies = [grid.nodes[100].answer(one | {"accepted": one["accepted"] * 0})["refused"] for one in asked[1:]]
    assert replies[-1] == sentences[1] and "other weights in round 1 already" in replies[0]
    weights = {"common": server.task.start * 2}
    assert grid.nodes[100].answer(asked[0] | weights)["refused"] == sentences[0]


def test_a_lost_reply_is_sent_again(tmp_path: Path) -> None:
    grid = nodes(FedAvg(), tmp_path, ScorePolicy(score_budget=3))
    server, _ = deployment(FedAvg(), DATA, tmp_path, grid=grid, eval_every=1, rounds=2)
    server.run()
    last = requests(grid)[-1]
    first, second = (Node(grid.nodes[100].host, tmp_path / "north").answer(last) for _ in range(2))
    assert "score/test_loss" in first and same_bits(first["score/test_loss"], second["score/test_loss"])


def test_rounds_without_the_node_are_not_scored(tmp_path: Path) -> None:
    """By default; the final models are, wherever their last round was."""
    found = {}
    for scores in ("trained", "all"):
        grid = nodes(Ditto(), tmp_path / scores, ScorePolicy(scores=scores))
        server, _ = deployment(
            Ditto(), DATA, tmp_path / scores, grid=grid, eval_every=1, rounds=4, participation=0.4, run="run"
        )
        found[scores] = server.run()
        trained = {one["number"] for one in requests(grid, "train")}
        assert trained < {1, 2, 3, 4}
    north = [DATA.names.index(name) for name in only(DATA, NODES["north"]).names]
    by_round = {line["round"]: line["accuracy"] for line in found["trained"].client_scores}
    for number in (1, 2, 3):
        assert all((by_round[number][at] is not None) == (number in trained) for at in north)
    assert not found["trained"].unscored
    assert same_bits(found["trained"].personal, found["all"].personal)
    assert same_bits(found["trained"].server, found["all"].server)


@pytest.mark.parametrize("scores", ["none", "final"])
def test_a_run_whose_nodes_refuse_scores_is_done(scores: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid = nodes(Ditto(), tmp_path, ScorePolicy(scores=scores))
    server, _ = deployment(Ditto(), DATA, tmp_path, grid=grid, eval_every=1, rounds=3)
    with caplog.at_level(logging.WARNING, "bespokefl"):
        found = server.run()
    plain, _ = deployment(Ditto(), DATA, tmp_path / "plain", eval_every=1, rounds=3)
    assert same_bits(found.server, plain.run().server)  # models do not change
    assert found.rounds_done == 3 and not found.lost
    assert (not found.unscored) == (scores == "final")
    assert bool(torch.isnan(found.personal["test_loss"]).all()) == (scores == "none")
    assert found.history[0]["personal"]["test_loss"] is None
    assert caplog.text.count('node north gives no scores: its node.toml says scores = "') == 1
    assert "did not report" not in caplog.text
    assert (tmp_path / "north" / "run" / PERSONAL).is_file()  # the final models are stored all the same


def test_one_node_that_refuses_costs_the_others_nothing(tmp_path: Path) -> None:
    grid = nodes(FedAvg(), tmp_path, ScorePolicy())
    grid.nodes[102].policy = ScorePolicy(scores="none")
    server, _ = deployment(FedAvg(), DATA, tmp_path, grid=grid, eval_every=1)
    found = server.run()
    assert found.unscored == ["dan", "eve", "fay"] and found.history[-1]["personal"]["test_loss"] is not None


def test_the_budget(tmp_path: Path) -> None:
    grid = nodes(FedAvg(), tmp_path, ScorePolicy(score_budget=2))
    server, _ = deployment(FedAvg(), DATA, tmp_path, grid=grid, eval_every=1, rounds=4)
    found = server.run()
    known = [line["accuracy"][0] is not None for line in found.client_scores]
    assert known == [True, True, False, False, False]  # the initial weights and round 1
    assert found.unscored == list(DATA.names)


def test_scores_have_few_digits(tmp_path: Path) -> None:
    grid = nodes(Ditto(), tmp_path, ScorePolicy(score_digits=2))
    server, _ = deployment(Ditto(), DATA, tmp_path, grid=grid, eval_every=1)
    found = server.run()
    for scores in (found.personal, found.globally, found.constant):
        assert scores is not None
        for name, values in scores.items():
            if values.is_floating_point():
                assert all(one == float(f"{one:.2g}") for one in values.nan_to_num().tolist()), name


def test_small_clients_are_not_scored(tmp_path: Path) -> None:
    sizes = torch.stack([DATA.train.sizes, DATA.validation.sizes, DATA.test.sizes])
    sizes = sizes.masked_fill(sizes == 0, 99).amin(0)  # a part without examples is not scored anyway
    limit = int(sizes.sort().values[2])  # two clients are smaller
    grid = nodes(Ditto(), tmp_path, ScorePolicy(smallest_scored=limit))
    server, _ = deployment(Ditto(), DATA, tmp_path, grid=grid, eval_every=1)
    found = server.run()
    small = [name for name, size in zip(DATA.names, sizes.tolist(), strict=True) if size < limit]
    assert small and found.unscored == small
    assert bool(torch.isnan(found.personal["test_loss"])[sizes < limit].all())
    assert not bool(torch.isnan(found.personal["test_loss"])[sizes >= limit].any())


def test_a_node_that_insists_on_noise_gives_no_scores_unless_it_says_so() -> None:
    assert NodeSettings("a", "b:1").score_policy == ScorePolicy("trained", 1000, 4, 1)
    assert NodeSettings("a", "b:1", noise=0.5).score_policy.scores == "none"
    assert NodeSettings("a", "b:1", noise=0.5, scores="final").score_policy.scores == "final"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('scores = "some"', "unknown scores in node.toml: 'some'; known: all, final, none, trained"),
        ("score_budget = -1", "node.toml must have score_budget >= 0"),
        ("score_digits = 0", "score_digits from 1 to 17, got 1000, 1 and 0"),
        ("smallest_scored = 0", "smallest_scored >= 1"),
    ],
)
def test_settings_of_a_node(line: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text(f'name = "a"\nserver = "b:1"\n{line}\n')
    with pytest.raises(InputError, match=sentence):
        layout.read_node_settings(tmp_path)


def test_a_damaged_ledger_is_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "scores.json").write_text("{")
    with pytest.raises(InputError, match="damaged"):
        ScoreLedger(tmp_path, replace(ScorePolicy(), score_budget=2))
