"""What holds for the round loop holds for every transport: this process, worker processes, a cluster, Flower."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from bespokefl.core.method import Method
from bespokefl.engines.faults import Faults
from bespokefl.engines.loop import RoundLoop
from bespokefl.engines.outcome import Outcome, Progress
from bespokefl.engines.storage.checkpoints import CheckpointInterval, Checkpoints
from bespokefl.methods import REGISTRY, Ditto, FedAvg, PFedMe, SelfFL
from tests.engines.transports.cluster.nodes import warm_cluster
from tests.engines.transports.flower.grid import deployment
from tests.federations import apart, federation, same_bits, simulation

DATA = federation(dtype=torch.float64)
ALL = set(range(len(DATA)))
Make = Callable[..., RoundLoop]


def in_process(method: Method, folder: Path, **settings: Any) -> RoundLoop:
    return simulation(method, DATA, workers=1, **settings)


def worker_processes(method: Method, folder: Path, **settings: Any) -> RoundLoop:
    return simulation(method, DATA, workers=2, chunk=2, **settings)


def flower(method: Method, folder: Path, **settings: Any) -> RoundLoop:
    return deployment(method, DATA, folder, **settings)[0]


def ray(address: str, method: Method, folder: Path, **settings: Any) -> RoundLoop:
    return simulation(method, DATA, workers=0, chunk=2, cluster=address, **settings)


TRANSPORTS: dict[str, Make] = {
    "in process": in_process,
    "worker processes": worker_processes,
    "cluster": ray,
    "flower": flower,
}


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[str]:
    with warm_cluster(1, 1) as address:
        yield address


@pytest.fixture(params=TRANSPORTS)
def make(request: pytest.FixtureRequest) -> Make:
    if request.param == "cluster":
        return partial(ray, request.getfixturevalue("two_nodes"))
    return TRANSPORTS[request.param]


def assert_close(found: Outcome, expected: Outcome) -> None:
    """Within rounding: transports may cut cohorts into other chunks."""
    if expected.global_rows is not None:
        assert apart(found.global_rows, expected.global_rows) < 1e-10
    for name, values in expected.personal.items():
        assert torch.allclose(found.personal[name].double(), values.double(), rtol=1e-8, atol=1e-10, equal_nan=True)
    assert found.initial == pytest.approx(expected.initial, rel=1e-8)
    assert [line["round"] for line in found.client_scores] == [line["round"] for line in expected.client_scores]
    for ours, theirs in zip(found.client_scores, expected.client_scores, strict=True):
        for name in ("accuracy", "loss"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-6, nan_ok=True)


def without_seconds(outcome: Outcome) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key != "seconds"} for line in outcome.history]


@pytest.mark.parametrize("name", ["fedavg", "ditto", "selffl", "ucfl", "pfedvem", "persfl"])
def test_the_result_is_that_of_one_process(make: Make, name: str, tmp_path: Path) -> None:
    settings = {"rounds": 3, "participation": 0.5, "eval_every": 1}
    expected = in_process(REGISTRY[name](), tmp_path, **settings).run()
    found = make(REGISTRY[name](), tmp_path / "run", **settings).run()
    assert_close(found, expected)
    assert expected.initial and [line["round"] for line in expected.client_scores][:2] == [0, 1]
    assert found.communication == expected.communication
    assert [line["reported"] for line in found.history] == [line["reported"] for line in expected.history]


def test_the_same_seed_gives_the_same_bits(make: Make, tmp_path: Path) -> None:
    first, second = (make(SelfFL(), tmp_path / name, participation=0.5).run() for name in "ab")
    assert same_bits(first.server, second.server) and same_bits(first.personal, second.personal)
    assert without_seconds(first) == without_seconds(second)


def test_every_client_is_in_one_group_whatever_the_order(make: Make, tmp_path: Path) -> None:
    transport = make(FedAvg(), tmp_path).transport
    for scoring in (False, True):
        groups = transport.partition(sorted(ALL), scoring=scoring)
        assert sorted(client for group in groups for client in group) == sorted(ALL)
        assert transport.partition(sorted(ALL, reverse=True), scoring=scoring) == groups


@pytest.mark.parametrize("name", ["ditto", "ucfl", "scaffold"])
@pytest.mark.parametrize("killed_after", [1, 2])
def test_a_resumed_run_gives_the_same_bits(make: Make, name: str, killed_after: int, tmp_path: Path) -> None:
    settings = {"rounds": 3, "participation": 0.7, "eval_every": 2}
    whole = make(REGISTRY[name](), tmp_path / "whole", **settings).run()

    class Killed(BaseException):
        pass

    def kill(progress: Progress) -> None:
        if progress.done == killed_after:
            raise Killed

    def checkpoints() -> Checkpoints:
        return Checkpoints(tmp_path / "checkpoints", CheckpointInterval(rounds=1), {})

    with pytest.raises(Killed):
        make(REGISTRY[name](), tmp_path / "run", **settings).run(kill, checkpoints())
    assert checkpoints().load_latest(4, len(DATA)).number == killed_after  # type: ignore[union-attr]
    resumed = make(REGISTRY[name](), tmp_path / "run", **settings).run(None, checkpoints())
    assert same_bits(resumed.server, whole.server) and same_bits(resumed.personal, whole.personal)
    assert without_seconds(resumed) == without_seconds(whole) and resumed.communication == whole.communication


def test_unusable_uploads_are_rejected_for_the_same_reasons(make: Make, tmp_path: Path) -> None:
    settings = {"rounds": 4, "faults": "nan:0.2, huge:0.1, wrong-shape:0.1, slow:0.2, drop:0.2"}
    chosen = settings | {"faults": Faults.of(str(settings["faults"]))}
    expected = in_process(SelfFL(), tmp_path, **chosen).run()
    found = make(SelfFL(), tmp_path / "run", **chosen).run()
    reasons = {reason for own in expected.lost.values() for reason in own}
    assert reasons >= {"not finite", "too late", "dropped out"} and found.lost == expected.lost
    assert found.uploaded == expected.uploaded
    assert_close(found, expected)


def test_a_client_whose_upload_is_lost_returns_to_its_state(make: Make, tmp_path: Path) -> None:
    before = make(Ditto(), tmp_path / "before", rounds=0).run()
    lost = make(Ditto(), tmp_path / "lost", rounds=2, faults=Faults.of("slow:1")).run()
    assert same_bits(lost.server, before.server) and same_bits(lost.personal, before.personal)
    assert lost.lost == {name: {"too late": 2} for name in DATA.names}


def test_unless_all_clients_train_anyway(make: Make, tmp_path: Path) -> None:
    before = make(PFedMe(), tmp_path / "before", rounds=0).run()
    lost = make(PFedMe(), tmp_path / "lost", rounds=1, faults=Faults.of("slow:1")).run()
    assert same_bits(lost.server, before.server)
    assert not same_bits(lost.personal["train_loss"], before.personal["train_loss"])


@pytest.mark.parametrize("privacy", [{"clip": 0.01}, {"clip": 0.01, "noise": 2.0}], ids=str)
def test_uploads_are_clipped_and_noised(make: Make, privacy: dict[str, float], tmp_path: Path) -> None:
    expected = in_process(FedAvg(), tmp_path, **privacy).run()
    found = make(FedAvg(), tmp_path / "run", **privacy).run()
    assert_close(found, expected)
    plain = in_process(FedAvg(), tmp_path).run()
    assert apart(found.global_rows, plain.global_rows) > 1e-3


def test_scores_cover_all_clients_and_the_last_ones_all_metrics(make: Make, tmp_path: Path) -> None:
    loop = make(Ditto(), tmp_path)
    with loop.open():
        personal, globally, models, unscored = loop.evaluate(0, 0)
        assert personal.keys() == {
            f"{part}_{m}" for part in ("train", "validation", "test") for m in ("loss", "accuracy")
        }
        assert globally is not None and models is None and not unscored
        assert not personal["test_loss"].isnan().any()
        final = loop.evaluate(0, 0, final=True)
    assert {"test_f1", "test_auc", "validation_ece"} <= final[0].keys()
    constant = loop.federations[0].constant
    assert constant.keys() == final[0].keys() and not constant["test_accuracy"].isnan().any()
    assert (final[2] is None) == loop.transport.remote  # a deployment's personal models stay at the nodes


def test_a_round_that_fails_changes_nothing(make: Make, tmp_path: Path) -> None:
    loop = make(Ditto(), tmp_path, rounds=3)
    phase = loop.method.phases(3)[0]
    with loop.open():
        loop.round(1, phase)
        server, scores = loop.server, loop.evaluate(0, 1)[0]
        aggregate = type(loop.method).aggregate

        def fail(*args: Any) -> Any:
            raise RuntimeError("no")

        try:
            type(loop.method).aggregate = fail  # type: ignore[method-assign]
            with pytest.raises(RuntimeError, match="no"):
                loop.round(2, phase)
        finally:
            type(loop.method).aggregate = aggregate  # type: ignore[method-assign]
        assert same_bits(loop.server, server) and same_bits(loop.evaluate(0, 1)[0], scores)


def test_it_describes_itself_and_closes_twice(make: Make, tmp_path: Path) -> None:
    loop = make(FedAvg(), tmp_path)
    with loop.open():
        execution = loop.transport.execution()
    loop.transport.close()
    assert execution.states == ("nodes" if loop.transport.remote else "memory") and execution.workers >= 1
