"""The engine: who takes part, what is sent and counted, what is scored, and how a run ends."""

import os
import signal
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F

from bespokefl.core import rng
from bespokefl.core.cohort_data import CohortData
from bespokefl.core.errors import TrainingError
from bespokefl.core.method import Message, Method, Round, State, Update
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.engines.outcome import Progress
from bespokefl.engines.settings import Settings
from bespokefl.engines.simulation import Simulation
from bespokefl.methods import Ditto, FedAvg, FedPer, Local
from tests.federations import CLASSES, NAMES, SIZES, federation, mlp, run, same_bits, simulation

DATA = federation()
WIDTH = 8 * 6 + 6 + 6 * 3 + 3  # columns of the mlp


class TestCommunication:
    @pytest.mark.parametrize("method", [FedAvg(), Ditto()], ids=["fedavg", "ditto"])
    def test_a_model_down_and_a_model_up(self, method: Method) -> None:
        made, outcome = run(method, DATA, rounds=3, participation=0.5)
        assert made.task.layout.width == WIDTH
        per_round = 3 * WIDTH * 4  # three of six clients, float32
        assert [(line["up_bytes"], line["down_bytes"]) for line in outcome.history] == [(per_round, per_round)] * 3
        total = outcome.communication
        assert (total.up_bytes, total.down_bytes) == (3 * per_round, 3 * per_round)
        assert (total.up_floats, total.down_floats) == (3 * 3 * WIDTH, 3 * 3 * WIDTH)

    def test_local_sends_nothing(self) -> None:
        total = run(Local(), DATA)[1].communication
        assert (total.up_bytes, total.down_bytes, total.up_floats, total.down_floats) == (0, 0, 0, 0)

    @pytest.mark.parametrize("options", [{"chunk": 1}, {"chunk": 3}, {"workers": 2}, {"reference": True}])
    def test_however_it_is_computed(self, options: dict[str, Any]) -> None:
        assert run(FedAvg(), DATA, **options)[1].communication == run(FedAvg(), DATA)[1].communication

    def test_doubles_are_twice_as_large(self) -> None:
        outcome = run(FedAvg(), federation(dtype=torch.float64), rounds=1)[1]
        assert outcome.communication.up_bytes == 6 * WIDTH * 8


class TestCohorts:
    def test_the_drawn_clients_train(self) -> None:
        made = simulation(Local(), DATA, participation=0.5)
        with made.open():
            for number in (1, 2):
                before = made.store.get(range(6))["personal"]
                made.round(number, made.method.phases(2)[0])
                after = made.store.get(range(6))["personal"]
                changed = ((after - before).square_norm() > 0).nonzero().flatten().tolist()
                assert changed == rng.sample(6, 0.5, 0, "cohort", number).tolist()

    def test_stragglers_train_in_every_round_and_report_by_chance(self) -> None:
        """A straggler's state moves on; the server hears of it with probability `participation`."""
        made, outcome = run(FedPer(), DATA, rounds=4, participation=0.5, stragglers=True)
        expected = [len(rng.sample(6, 0.5, 0, "cohort", number, sampling="bernoulli")) for number in range(1, 5)]
        assert [line["reported"] for line in outcome.history] == expected
        assert [line["trained"] for line in outcome.history] == [6] * 4
        assert len(made.store) == 6
        heads = made.store.get(range(6))["head"]
        assert ((heads - made.task.start.block("head")).square_norm() > 0).all()

    def test_stragglers_without_a_state_would_train_in_vain(self) -> None:
        _, outcome = run(FedAvg(), DATA, rounds=4, participation=0.5, stragglers=True)
        assert all(line["trained"] == line["reported"] for line in outcome.history)

    def test_only_the_active_have_a_row(self) -> None:
        made, _ = run(Local(), DATA, rounds=1, participation=0.34)
        assert len(made.store) == 2

    def test_history(self) -> None:
        _, outcome = run(FedAvg(), DATA, rounds=3, participation=0.5, eval_every=2)
        assert [line["round"] for line in outcome.history] == [1, 2, 3]
        assert all(line["trained"] == line["reported"] == 3 for line in outcome.history)
        assert all(line["phase"] == "train" and line["seconds"] > 0 for line in outcome.history)
        assert ["personal" in line for line in outcome.history] == [False, True, True]
        assert (outcome.rounds_done, outcome.rounds_planned) == (3, 3)


class TestScores:
    @pytest.mark.parametrize("chunk", [1, 3])
    def test_everybody_is_scored_on_its_own_data(self, chunk: int) -> None:
        _, outcome = run(Ditto(lr=0.1), DATA, chunk=chunk, participation=0.5)
        assert outcome.global_rows is not None and outcome.globally is not None
        module = mlp()
        for scores, rows in ((outcome.personal, outcome.personal_rows), (outcome.globally, outcome.global_rows)):
            for k in range(len(DATA)):
                module.load_state_dict(rows.expand(6).state(k))
                for part in ("train", "validation", "test"):
                    own = getattr(DATA, part).of(k)
                    if not len(own):
                        assert scores[f"{part}_loss"][k].isnan() and scores[f"{part}_accuracy"][k].isnan()
                        continue
                    outputs = module(DATA.x[own])
                    accuracy = (outputs.argmax(1) == DATA.y[own]).float().mean().item()
                    assert scores[f"{part}_accuracy"][k].item() == pytest.approx(accuracy)
                    loss = F.cross_entropy(outputs, DATA.y[own]).item()
                    assert scores[f"{part}_loss"][k].item() == pytest.approx(loss, rel=1e-5)
        assert not same_bits(outcome.personal["test_loss"], outcome.globally["test_loss"])
        line = outcome.history[-1]["personal"]
        assert line["validation_accuracy"] == pytest.approx(outcome.personal["validation_accuracy"][:5].mean().item())

    def test_the_common_model_is_everybodys(self) -> None:
        _, outcome = run(FedAvg(), DATA)
        assert outcome.globally is not None
        assert same_bits(outcome.personal, outcome.globally)
        assert same_bits(outcome.personal_rows, outcome.server["weights"].expand(6))

    def test_where_there_is_no_common_model(self) -> None:
        _, outcome = run(Local(), DATA)
        assert outcome.global_rows is None and outcome.globally is None and outcome.history[-1]["global"] is None

    def test_numbers_have_no_accuracy(self) -> None:
        data = federation(targets="numbers")
        _, outcome = run(FedAvg(lr=0.01), data, factory=lambda: torch.nn.Linear(8, 1), loss="mse")
        assert {"train_loss", "validation_loss", "test_loss", "test_rmse"} <= outcome.personal.keys()
        assert not any("accuracy" in name or "auc" in name for name in outcome.personal)

    def test_before_the_first_round(self) -> None:
        made, outcome = run(FedAvg(), DATA, rounds=0)
        assert same_bits(outcome.personal_rows, made.task.start.expand(6)) and outcome.history == []


class TestEndings:
    @pytest.mark.parametrize("workers", [1, 2])
    def test_weights_that_diverge(self, workers: int) -> None:
        with pytest.raises(TrainingError, match=r"weights .* non-finite in round 1 for clients .*: use a smaller"):
            run(FedAvg(lr=1e38), DATA, workers=workers)

    def test_a_loss_that_diverges(self) -> None:
        x = DATA.x.clone()
        x[DATA.validation.of(2)] = torch.inf
        with pytest.raises(TrainingError, match=r"the validation loss became non-finite by round 1 for clients cleo: "):
            run(FedAvg(), replace(DATA, x=x), rounds=1)

    def test_weights_that_all_grow_absurdly(self) -> None:
        with pytest.raises(TrainingError, match=r"absurdly large or non-finite in round 1 for clients ada, ben"):
            run(FedAvg(lr=1e14), DATA, rounds=1, local_steps=1)

    def test_only_the_broken_are_named(self) -> None:
        x = DATA.x.clone()
        x[DATA.train.of(2)] = torch.inf
        with pytest.raises(TrainingError, match=r"non-finite in round 1 for clients cleo: "):
            run(Local(), replace(DATA, x=x))

    def test_a_round_that_fails_leaves_no_trace(self) -> None:
        made = simulation(_Failing(), DATA, chunk=2)
        with made.open():
            made.round(1, made.method.phases(2)[0])
            server, states = made.server, made.store.get(range(6))
            with pytest.raises(TrainingError, match="enough"):
                made.round(2, made.method.phases(2)[0])
        assert same_bits(made.server, server) and same_bits(made.store.get(range(6)), states)

    def test_ctrl_c_ends_the_run_after_the_round_in_hand(self) -> None:
        seen: list[Progress] = []

        def interrupt(progress: Progress) -> None:
            seen.append(progress)
            if progress.done == 2:
                os.kill(os.getpid(), signal.SIGINT)

        before = signal.getsignal(signal.SIGINT)
        outcome = simulation(FedAvg(), DATA, rounds=10).run(interrupt)
        assert outcome.rounds_done == 3 and outcome.rounds_planned == 10
        assert [progress.done for progress in seen] == [1, 2, 3] and seen[0].total == 10
        assert "personal" in outcome.history[-1]
        assert signal.getsignal(signal.SIGINT) == before

    def test_a_second_ctrl_c_ends_it_at_once(self) -> None:
        def interrupt(progress: Progress) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            simulation(FedAvg(), DATA, rounds=10, workers=2).run(interrupt)


@dataclass(frozen=True, kw_only=True)
class _Failing(Local):
    """Fails in the second round, at the client with the fewest examples: last."""

    name: ClassVar[str] = "failing"

    def local_update(self, task: Task, message: Message, state: State, work: CohortData, round: Round) -> Update:
        if round.number == 2 and NAMES[SIZES.index(min(SIZES))] in work.names:
            raise TrainingError("enough")
        return super().local_update(task, message, state, work, round)


@dataclass(frozen=True, kw_only=True)
class _Asking(FedAvg):
    """Keeps what a round knows."""

    name: ClassVar[str] = "asking"
    groups: bool = False

    @property
    def needs_groups(self) -> bool:
        return self.groups

    def start_server(self, start: Rows, round: Round) -> State:
        return {"weights": start, "told": -1 if round.groups is None else sum(round.groups), "warm": int(round.warm)}

    def aggregate(self, server: State, uploads: Any, round: Round) -> State:
        known = (round.number, round.phase, round.seed, round.names, round.participation)
        assert known == (1, "train", 5, NAMES, 0.5)
        assert sorted(round.reporting) == sorted(uploads.clients)
        assert uploads.examples.tolist() == [SIZES[client] for client in uploads.clients]
        return server | super().aggregate(server, uploads, round)


class TestRounds:
    def test_what_everybody_knows(self) -> None:
        _, outcome = run(_Asking(), DATA, rounds=1, seed=5, participation=0.5)
        assert outcome.server["told"] == -1 and outcome.server["warm"] == 0

    def test_groups_are_told_to_those_who_ask(self) -> None:
        grouped = replace(DATA, groups=(0, 0, 1, 1, 2, 2))
        options: dict[str, Any] = {"rounds": 1, "seed": 5, "participation": 0.5}
        assert run(_Asking(), grouped, **options)[1].server["told"] == -1
        assert run(_Asking(groups=True), grouped, **options)[1].server["told"] == 6
        assert run(_Asking(), grouped, warm=True, **options)[1].server["warm"] == 1


class TestExecutors:
    def test_a_task_can_serve_several_runs(self) -> None:
        task = Task(mlp)
        for chunk, stacked in ((3, True), (1, False), (None, True)):
            made = Simulation(FedAvg(), task, DATA, Settings(chunk=chunk, workers=1), CLASSES)
            assert task.stacked == made.executor.stacked == stacked
        made = Simulation(FedAvg(), task, DATA, Settings(reference=True), CLASSES)
        assert not task.stacked

    def test_the_choice_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level("INFO", logger="bespokefl"):
            simulation(FedAvg(), DATA, chunk=3)
        assert "chunk 3: chunk 3 was asked for" in caplog.text

    def test_threads_are_given_back(self) -> None:
        before = torch.get_num_threads()
        run(FedAvg(), DATA, workers=2)
        assert torch.get_num_threads() == before

    def test_a_run_draws_from_no_global_generator(self) -> None:
        before = torch.get_rng_state()
        run(Ditto(), DATA)
        run(Ditto(), DATA, reference=True)
        assert torch.equal(before, torch.get_rng_state())
