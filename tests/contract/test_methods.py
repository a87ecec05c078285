"""What every method owes the laws; a method is tested the moment it is registered."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from functools import cache
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bespokefl.core import rng
from bespokefl.core.method import NONE, SAMPLE, Message, Method, Phase, Round, State, Update, Uploads
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.engines.client import Data
from bespokefl.engines.outcome import Outcome
from bespokefl.engines.settings import Settings
from bespokefl.engines.simulation import Simulation
from bespokefl.engines.transports import wire
from bespokefl.methods import FedAvg, FedBN, Local
from bespokefl.workflows.run.settings import RunSettings
from tests.contract.conftest import quick
from tests.federations import (
    BATCH,
    CLASSES,
    WIDTH,
    apart,
    federation,
    mlp,
    planted,
    run,
    same_bits,
    simulation,
    work_of,
)

SINGLE, DOUBLE = federation(), federation(dtype=torch.float64)
GROUPED = planted((0, 1, 1, 0, 0, 1, 0, 1), dtype=torch.float32)
HALF = {"participation": 0.5, "rounds": 2}
EVERYBODY = list(range(len(SINGLE)))
ALONE = [[k] for k in EVERYBODY]
MIXED = [[5, 1], [3, 0, 4, 2]]
NEWCOMERS = tuple(f"new {k}" for k in EVERYBODY)


# -- what is compared


def result(made: Simulation, outcome: Outcome) -> dict[str, Any]:
    """All that a run leaves, but for times."""
    return {
        "server": outcome.server,
        "states": states(made),
        "personal rows": outcome.personal_rows,
        "personal": outcome.personal,
        "globally": outcome.globally,
        "history": [{k: v for k, v in line.items() if k != "seconds"} for line in outcome.history],
        "client notes": outcome.client_notes,
        "communication": outcome.communication,
    }


@cache
def usual(method: Method, chunk: int) -> dict[str, Any]:
    """The run that others have to equal."""
    return result(*run(method, SINGLE, chunk=chunk, **HALF))


def states(made: Simulation) -> State:
    return made.store.get(EVERYBODY)


def rows_of(values: State) -> State:
    return {name: value for name, value in values.items() if isinstance(value, Rows)}


def assert_near(found: State, expected: State, tolerance: float) -> None:
    """Rows relative to their norm, other numbers relative to themselves, whole numbers exactly."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, Rows):
            assert apart(found[name], value) <= tolerance, name
        elif isinstance(value, Tensor) and value.is_floating_point():
            torch.testing.assert_close(found[name], value, rtol=10 * tolerance, atol=10 * tolerance, equal_nan=True)
        else:
            assert same_bits(found[name], value), name


def joined(parts: Sequence[Sequence[int]], answers: Sequence[State]) -> State:
    """Chunks' answers as one, in the order of clients."""
    back = torch.argsort(torch.tensor([client for part in parts for client in part]))
    return {
        name: (Rows.cat if isinstance(value, Rows) else torch.cat)([answer[name] for answer in answers])[back]
        for name, value in answers[0].items()
    }


# -- moments of a run


def rounds_of(method: Method) -> list[tuple[int, Phase]]:
    phases = method.phases(HALF["rounds"])
    return list(enumerate((phase for phase in phases for _ in range(phase.rounds)), start=1))


def silent(method: Method, round: Round) -> bool:
    """Whether nobody reports in this phase."""
    return any(phase.name == round.phase and phase.reports == NONE for _, phase in rounds_of(method))


def moments(method: Method, data: Data, **options: Any) -> Iterator[tuple[Simulation, Round]]:
    """The run as it stands before the last round of each phase: some clients have trained, others have not."""
    made = simulation(method, data, **HALF, **options)
    rounds = rounds_of(method)
    with made.open():
        for number, phase in rounds:
            if number == len(rounds) or rounds[number][1] is not phase:
                yield made, made.federations[0].round(number, phase.name, tuple(EVERYBODY))
            made.task.stack()
            made.round(number, phase)


def send(made: Simulation, part: Sequence[int], round: Round) -> tuple[Message, State]:
    return made.method.message(made.server, part, round), made.store.get(part)


def update(made: Simulation, parts: Sequence[Sequence[int]], round: Round) -> Update:
    """One local update of everybody, cut this way."""
    replies = [made.side.train(part, *send(made, part, round), round) for part in parts]
    return joined(parts, [reply.upload for reply in replies]), joined(parts, [reply.state for reply in replies])


def personal(made: Simulation, parts: Sequence[Sequence[int]], round: Round) -> Rows:
    rows = [made.side.personal(part, *send(made, part, round), round.number).expand(len(part)) for part in parts]
    found: Rows = joined(parts, [{"rows": one} for one in rows])["rows"]
    return found


def newcomers(made: Simulation, parts: Sequence[Sequence[int]]) -> Rows:
    """Personal models for clients with other names than anybody in the federation, and other data."""
    data = replace(federation(seed=7, dtype=made.data.x.dtype), names=NEWCOMERS)
    works = [work_of(data, part, expected_rounds=2) for part in parts]
    rows = [made.method.newcomer(made.task, made.server, work).expand(len(work)) for work in works]
    found: Rows = joined(parts, [{"rows": one} for one in rows])["rows"]
    return found


# -- law 2: chunks do not matter


def assert_chunks_do_not_matter(made: Simulation, round: Round) -> None:
    made.task.stacked = False
    upload, state = update(made, ALONE, round)
    own = personal(made, ALONE, round)
    for stacked, cut in ((False, MIXED), (True, MIXED), (True, [EVERYBODY])):
        made.task.stacked = False
        if stacked:
            made.task.stack()
        found = update(made, cut, round)
        assert_near(found[0], upload, 1e-10)
        assert_near(found[1], state, 1e-10)
        assert apart(personal(made, cut, round), own) <= 1e-10


def test_chunks_do_not_matter(method: Method) -> None:
    for made, round in moments(method, DOUBLE):
        assert_chunks_do_not_matter(made, round)


def test_chunks_do_not_matter_to_newcomers(method: Method) -> None:
    made, _ = run(method, DOUBLE, **HALF)
    found = newcomers(made, MIXED)
    made.task.stacked = False
    assert apart(found, newcomers(made, ALONE)) <= 1e-10


def test_any_engine_gives_the_same_round(method: Method) -> None:
    expected_sim, expected = run(method, SINGLE, rounds=1, chunk=6)
    for options in ({"chunk": 1}, {"chunk": 3}, {"reference": True}):
        found_sim, found = run(method, SINGLE, rounds=1, **options)
        assert apart(found.personal_rows, expected.personal_rows) <= 1e-5
        assert_near(rows_of(found.server), rows_of(expected.server), 1e-5)
        assert_near(rows_of(states(found_sim)), rows_of(states(expected_sim)), 1e-5)
        assert found.communication == expected.communication


# -- law 3: randomness is an input


def test_another_seed_is_another_run(method: Method) -> None:
    other = run(method, SINGLE, seed=1, chunk=2, **HALF)[1]
    assert apart(other.personal_rows, usual(method, 2)["personal rows"]) > 1e-4


@pytest.mark.parametrize(("workers", "chunk"), [(2, 1), (3, 2)])
def test_the_number_of_workers_changes_no_bit(method: Method, workers: int, chunk: int) -> None:
    """And with it law 4: all but the first run their client half elsewhere, from bytes."""
    assert same_bits(result(*run(method, SINGLE, workers=workers, chunk=chunk, **HALF)), usual(method, chunk))


def test_same_seed_same_bits_in_whatever_order(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients are drawn the other way round, and the last chunk answers first."""
    expected = usual(method, 2)
    made = simulation(method, SINGLE, chunk=2, **HALF)

    class Backwards:
        def __init__(self, answer: Callable[[str, Any], Any], size: int) -> None:
            self.answer = answer

        def map(self, what: str, jobs: Sequence[Callable[[], Any]], names: Sequence[str]) -> Iterator[tuple[int, Any]]:
            for at in reversed(range(len(jobs))):
                yield at, made.transport.answer(what, jobs[at]())

        def close(self) -> None:
            """Nothing to end."""

    sample = rng.sample
    monkeypatch.setattr(rng, "sample", lambda *key, **options: sample(*key, **options)[::-1].copy())
    monkeypatch.setattr("bespokefl.engines.transports.local.Pool", Backwards)
    assert same_bits(result(made, made.run()), expected)


def test_seeds_stacked_into_one_cohort_equal_themselves_alone(method: Method) -> None:
    data = [DOUBLE, federation(seed=3, dtype=torch.float64)]
    settings = [Settings(rounds=1, participation=0.5, batch_size=BATCH, workers=1, seed=seed) for seed in (0, 1)]

    def task() -> Task:
        return Task(mlp, dtype=torch.float64)

    together = Simulation(method, task(), data, settings, CLASSES).run_all()
    for own, setting, found in zip(data, settings, together, strict=True):
        alone = Simulation(method, task(), own, setting, CLASSES).run()
        assert apart(found.personal_rows, alone.personal_rows) <= 1e-10
        assert_near(rows_of(found.server), rows_of(alone.server), 1e-10)
        assert found.communication == alone.communication


# -- law 4: the wire is honest


def test_a_stranger_computes_the_same_from_bytes(method: Method) -> None:
    """The client half in a simulation that never ran, on nothing but the bytes of a job."""
    for made, round in moments(method, SINGLE):
        stranger = simulation(method, SINGLE, **HALF)
        part = [5, 1, 3]
        message, state = send(made, part, round)
        job = {"cohort": torch.tensor(part), "number": round.number, "phase": round.phase}
        job |= wire.pack_message(message) | wire.prefixed("state", state)
        header, tensors = wire.flatten(job)
        sent = json.dumps(header), [(t.numpy().tobytes(), t.dtype, tuple(t.shape)) for t in tensors]
        read = [
            torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape) if data else torch.zeros(shape, dtype=dtype)
            for data, dtype, shape in sent[1]
        ]
        found = stranger.transport.answer("train", wire.unflatten(json.loads(sent[0]), read))
        assert same_bits(found, made.transport.answer("train", job))


def test_only_rows_tensors_and_numbers_are_sent_and_kept(method: Method) -> None:
    for made, round in moments(method, SINGLE):
        message, state = send(made, EVERYBODY, round)
        upload, new = method.local_update(made.task, message, state, work_of(SINGLE, round=round.number), round)
        for values in (message.shared, message.own, upload, state, new, made.server):
            wire.flatten(values)
        for values in (message.own, upload, new):
            assert {len(value) for value in values.values()} <= {1, len(SINGLE)}  # a row for each, or one for all
        assert new.keys() == state.keys()


# -- law 5: what stays, stays


def test_who_did_not_train_is_unchanged(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    made = simulation(method, SINGLE, **HALF)
    trained: list[int] = []
    train = made.side.train

    def watched(cohort: Sequence[int], message: Message, state: State, round: Round) -> Any:
        trained.extend(cohort)
        return train(cohort, message, state, round)

    monkeypatch.setattr(made.side, "train", watched)
    idle = 0
    with made.open():
        for number, phase in rounds_of(method):
            trained.clear()
            before = states(made)
            made.round(number, phase)
            rest = [client for client in EVERYBODY if client not in trained]
            after = states(made)
            for name, value in before.items():
                assert same_bits(after[name][rest], value[rest])
            idle += len(rest)
    assert idle or all(phase.trains != SAMPLE for _, phase in rounds_of(method))


def test_only_reports_reach_the_server(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever trains and does not report might as well upload anything."""
    made = simulation(method, SINGLE, chunk=2, **HALF)
    train = made.side.train
    mute: set[int] = set()

    def spoiled(cohort: Sequence[int], message: Message, state: State, round: Round) -> Any:
        reply = train(cohort, message, state, round)
        spoil = torch.tensor([client in mute for client in cohort])
        upload = {
            name: value + spoil.float() if isinstance(value, Rows) else value for name, value in reply.upload.items()
        }
        return replace(reply, upload=upload)

    monkeypatch.setattr(made.side, "train", spoiled)
    with made.open():
        for number, phase in rounds_of(method):
            draw = made.federations[0].draw(number, phase)
            mute = set(draw.trains) - set(draw.reports)
            made.round(number, phase)
    assert same_bits(made.server, usual(method, 2)["server"])
    if all(phase.reports == NONE for _, phase in rounds_of(method)):
        assert made.federations[0].communication.up_bytes == 0


# -- law 8: test data choose nothing


def test_poisoned_test_data_change_nothing_but_the_test_scores(method: Method) -> None:
    x, y = SINGLE.x.clone(), SINGLE.y.clone()
    x[SINGLE.test.indices] *= -1
    y[SINGLE.test.indices] = (y[SINGLE.test.indices] + 1) % CLASSES
    clean, poisoned = usual(method, 2), result(*run(method, replace(SINGLE, x=x, y=y), chunk=2, **HALF))
    assert not same_bits(poisoned["personal"]["test_loss"], clean["personal"]["test_loss"])
    for name in ("server", "states", "personal rows", "client notes"):
        assert same_bits(poisoned[name], clean[name])
    for name, values in clean["personal"].items():
        assert name.startswith("test") or same_bits(poisoned["personal"][name], values)


# -- true groups


def test_true_groups_are_told_only_to_who_asks(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, set[Any]] = {}

    def watch(name: str) -> None:
        function = getattr(type(method), name)

        def watched(self: Method, *given: Any) -> Any:
            told.setdefault(name, set()).update(one.groups for one in given if isinstance(one, Round))
            return function(self, *given)

        monkeypatch.setattr(type(method), name, watched)

    for name in ("start_server", "message", "local_update", "aggregate"):
        watch(name)
    run(method, SINGLE, rounds=1)
    assert SINGLE.groups is not None and {"start_server", "message", "local_update"} <= told.keys()
    expected = {SINGLE.groups if method.needs_groups else None}
    assert all(groups == expected for groups in told.values()), told


# -- pure functions


def snapshot(value: Any) -> Any:
    if isinstance(value, Rows | Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {name: snapshot(one) for name, one in value.items()}
    return [snapshot(one) for one in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("stacked", [False, True], ids=["plain", "stacked"])
def test_no_function_changes_its_arguments_or_remembers_them(method: Method, stacked: bool) -> None:
    for made, round in moments(method, SINGLE):
        task, server, part = made.task, made.server, [3, 0, 4]
        task.stacked = False
        if stacked:
            task.stack()
        message, state = send(made, part, round)
        given = [server, dict(message.shared), dict(message.own), state, SINGLE.x, SINGLE.y, task.start]
        before = snapshot(given)
        upload, new = method.local_update(task, message, state, work_of(SINGLE, part), round)
        assert same_bits(given, before)
        returned = snapshot([upload, new])
        again = method.local_update(task, message, state, work_of(SINGLE, part), round)
        assert same_bits(list(again), returned) and same_bits([upload, new], returned)
        method.personal(task, message, state, work_of(SINGLE, part))
        assert same_bits(given, before)
        if silent(method, round):
            continue
        uploads = Uploads(part, SINGLE.train.sizes[part], [made.side.train(part, message, state, round).upload])
        received = snapshot(uploads.chunks)
        first = method.aggregate(server, uploads, round)
        kept = snapshot(first)
        assert same_bits(method.aggregate(server, uploads, round), kept)
        method.message(first, part, round)
        method.global_model(first)
        assert same_bits(first, kept) and same_bits(given, before) and same_bits(uploads.chunks, received)


# -- what comes out


def test_models_are_finite_and_of_the_right_shape(method: Method) -> None:
    made, outcome = run(method, SINGLE, **(HALF | {"rounds": 3}))
    before = snapshot(made.server)
    served = newcomers(made, [EVERYBODY])
    assert same_bits(newcomers(made, [EVERYBODY]), served) and same_bits(made.server, before)
    for rows in (outcome.personal_rows, served, *rows_of(made.server).values()):
        assert rows.finite().all()
    for rows in (outcome.personal_rows, served):
        assert len(rows) == len(SINGLE) and rows.layout == made.task.layout
    common = outcome.global_rows
    assert common is None or (len(common) == 1 and common.layout == made.task.layout)


def test_a_federation_of_one(method: Method) -> None:
    _, outcome = run(method, federation((7,)))
    assert outcome.personal_rows.finite().all() and len(outcome.personal_rows) == 1


@cache
def trained(method: Method, factory: Callable[[], nn.Module] = mlp) -> tuple[Simulation, Outcome]:
    """Two groups that contradict each other, for as many rounds as a run has by default."""
    return run(method, GROUPED, rounds=RunSettings.rounds, batch_size=10, local_epochs=5, factory=factory)


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, CLASSES))


def test_a_run_with_the_defaults_learns(registered: type[Method]) -> None:
    made, outcome = trained(registered())
    before = made.side.score(range(len(GROUPED)), made.task.start)["train_loss"]
    assert outcome.personal["train_loss"].mean() < 0.9 * before.mean()


@pytest.mark.slow
@pytest.mark.parametrize("plain", [FedAvg, Local])
def test_no_default_switches_the_method_off(registered: type[Method], plain: type[Method]) -> None:
    """With a pull of 0, one cluster or no round in which to split, a method is FedAvg, or Local, of the same rate."""
    if registered is plain:
        return
    shared = {field.name for field in fields(plain)}
    twin = plain(**{name: value for name, value in registered().hyper().items() if name in shared})
    factory = normed if registered is FedBN else mlp
    assert apart(trained(registered(), factory)[1].personal_rows, trained(twin, factory)[1].personal_rows) > 1e-3


# -- what a method says of itself


def signatures(upload: State) -> dict[str, Any]:
    """Of a cohort of one: every value's shapes and dtypes."""
    return {
        name: (value.layout, tuple(block.dtype for block in value.blocks))
        if isinstance(value, Rows)
        else (tuple(value.shape[1:]), value.dtype)
        for name, value in upload.items()
    }


def assert_it_declares_what_it_uploads(method: Method, data: Data) -> None:
    made = simulation(method, data, **HALF)
    with made.open():
        for number, phase in rounds_of(method):
            round = made.federations[0].round(number, phase.name)
            message, state = send(made, [0], round)
            declared = method.upload(message)
            assert declared is not None, f"declare in `upload` what {method.name} uploads"
            expected = {
                name: one.signature(made.task.start)
                for name, one in declared.items()
                if one.phase in (None, phase.name)
            }
            upload = made.side.train([0], message, state, round).upload
            assert signatures(upload) == expected
            for value in upload.values():
                assert len(value) == 1
                if isinstance(value, Rows):
                    shapes = [(1, *shape) for shape in value.layout.shapes]
                    assert [tuple(block.shape) for block in value.blocks] == shapes
            made.round(number, phase)


def test_phases_of_declarations_exist(method: Method) -> None:
    declared = method.upload(Message()) or {}
    assert {one.phase for one in declared.values()} <= {None, *(phase.name for phase in method.phases(1))}


@pytest.mark.parametrize("data", [SINGLE, DOUBLE, federation((7,))], ids=["single", "double", "alone"])
def test_it_declares_what_it_uploads(method: Method, data: Data) -> None:
    """So the server knows what to reject, even if there is no other upload to compare with."""
    assert_it_declares_what_it_uploads(method, data)


def test_so_it_does_with_other_hyper_parameters(registered: type[Method]) -> None:
    made = quick(registered)
    other: dict[str, Any] = {name: not value for name, value in made.hyper().items() if isinstance(value, bool)}
    other |= {name: 2 for name, value in made.hyper().items() if type(value) is int} | {"streams": 2}
    for name in other.keys() & made.hyper().keys():
        assert_it_declares_what_it_uploads(replace(made, **{name: other[name]}), SINGLE)


def test_every_hyper_parameter_has_a_default(registered: type[Method]) -> None:
    made = registered()
    assert all(value is None or isinstance(value, float | int | str | tuple) for value in made.hyper().values())
    assert {field.name for field in fields(registered)} == set(made.hyper())
    assert made == registered(**made.hyper())


def test_it_is_introduced(registered: type[Method]) -> None:
    assert registered.name == registered.name.lower() and " " not in registered.name
    summary = registered.summary()
    assert 10 < len(summary) <= 100 and summary.endswith(".")
    assert "Differs from the paper:" in (import_module(registered.__module__).__doc__ or "")


def test_it_is_cited(registered: type[Method]) -> None:
    if registered.name == "local":
        assert registered.citation == ""
        return
    assert registered.citation.startswith("@") and registered.citation.endswith("}")
    assert registered.citation.count("{") == registered.citation.count("}")
    assert all(field in registered.citation for field in ("title=", "author=", "year="))


def test_clients_are_ragged() -> None:
    """The normal case of this suite: different sizes, some smaller than a batch, some a part batch over."""
    sizes = SINGLE.train.sizes.tolist()
    assert min(sizes) < BATCH and len(set(sizes)) == len(sizes) and any(size % BATCH for size in sizes)
