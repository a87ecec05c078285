"""What every method owes the laws; a method is tested the moment it is registered."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from bespokefl.core import chance
from bespokefl.core.method import SAMPLE, Message, Method, Phase, Round, State, Uploads
from bespokefl.core.rows import Rows
from bespokefl.core.work import Work
from bespokefl.engines import chunks, wire
from bespokefl.engines.client import Data
from bespokefl.engines.simulation import Outcome, Simulation
from tests.federations import BATCH, CLASSES, apart, federation, run, same_bits, simulation, work_of

SINGLE, DOUBLE = federation(), federation(dtype=torch.float64)
HALF = {"participation": 0.5, "rounds": 2}
EVERYBODY = list(range(len(SINGLE)))
CUTS = {
    "one by one": [[k] for k in EVERYBODY],
    "in threes": [[0, 1, 2], [3, 4, 5]],
    "mixed": [[5, 1], [3, 0, 4, 2]],
    "all": [EVERYBODY],
}


# -- what is compared


def result(made: Simulation, outcome: Outcome) -> dict[str, Any]:
    """All that a run leaves, but for times."""
    return {
        "server": made.server,
        "states": made.store.get(EVERYBODY),
        "personal rows": outcome.personal_rows,
        "personal": outcome.personal,
        "globally": outcome.globally,
        "history": [{k: v for k, v in line.items() if k != "seconds"} for line in outcome.history],
        "client notes": outcome.client_notes,
        "communication": outcome.communication,
    }


def weights(values: dict[str, Any]) -> dict[str, Rows]:
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


def moments(method: Method, data: Data) -> Iterator[tuple[Simulation, Round]]:
    """The run as it stands before the last round of each phase: some clients have trained, others have not."""
    made = simulation(method, data, **HALF)
    rounds = rounds_of(method)
    with made.pool() as pool:
        for number, phase in rounds:
            if number == len(rounds) or rounds[number][1] is not phase:
                yield made, Round(number, phase.name, 0, data.names, HALF["participation"], tuple(EVERYBODY))
            made.round(pool, number, phase)


def send(made: Simulation, part: Sequence[int], round: Round) -> tuple[Message, State]:
    return made.method.message(made.server, part, round), made.store.get(part)


def update(made: Simulation, parts: Sequence[Sequence[int]], round: Round) -> tuple[State, State]:
    """One local update of everybody, cut this way."""
    replies = [made.side.train(part, *send(made, part, round), round) for part in parts]
    return joined(parts, [reply.upload for reply in replies]), joined(parts, [reply.state for reply in replies])


def personal(made: Simulation, parts: Sequence[Sequence[int]], round: Round) -> Rows:
    rows = [made.side.personal(part, *send(made, part, round), round.number).expand(len(part)) for part in parts]
    found: Rows = joined(parts, [{"rows": one} for one in rows])["rows"]
    return found


def newcomers(made: Simulation, parts: Sequence[Sequence[int]]) -> Rows:
    """Personal models for clients with other names than anybody in the federation, and other data."""
    data = replace(federation(seed=7, dtype=made.data.x.dtype), names=tuple(f"new {k}" for k in EVERYBODY))
    works = [work_of(data, part, lifetime=2) for part in parts]
    rows = [made.method.newcomer(made.task, made.server, work).expand(len(work)) for work in works]
    found: Rows = joined(parts, [{"rows": one} for one in rows])["rows"]
    return found


# -- law 2: chunks do not matter


@pytest.mark.parametrize("cut", CUTS)
def test_chunks_do_not_matter_for_a_local_update(method: Method, cut: str) -> None:
    for made, round in moments(method, DOUBLE):
        made.task.stacked = False
        expected = update(made, CUTS["one by one"], round)
        for stacked in (False, True):
            made.task.stacked = False
            if stacked:
                made.task.stack()
            found = update(made, CUTS[cut], round)
            assert_near(found[0], expected[0], 1e-10)
            assert_near(found[1], expected[1], 1e-10)


@pytest.mark.parametrize("cut", CUTS)
def test_chunks_do_not_matter_for_personal_models_and_newcomers(method: Method, cut: str) -> None:
    for made, round in moments(method, DOUBLE):
        made.task.stacked = False
        expected = personal(made, CUTS["one by one"], round), newcomers(made, CUTS["one by one"])
        made.task.stack()
        assert apart(personal(made, CUTS[cut], round), expected[0]) <= 1e-10
        assert apart(newcomers(made, CUTS[cut]), expected[1]) <= 1e-10


@pytest.mark.parametrize("options", [{"chunk": 1}, {"chunk": 3}, {"chunk": 6}, {"reference": True}], ids=str)
def test_any_engine_gives_the_same_round(method: Method, options: dict[str, Any]) -> None:
    found_sim, found = run(method, SINGLE, rounds=1, **options)
    expected_sim, expected = run(method, SINGLE, rounds=1)
    assert apart(found.personal_rows, expected.personal_rows) <= 1e-5
    assert_near(weights(found_sim.server), weights(expected_sim.server), 1e-5)
    assert_near(weights(found_sim.store.get(EVERYBODY)), weights(expected_sim.store.get(EVERYBODY)), 1e-5)
    assert found.communication == expected.communication


# -- law 3: randomness is an input


def test_same_seed_same_bits(method: Method) -> None:
    assert same_bits(result(*run(method, SINGLE, **HALF)), result(*run(method, SINGLE, **HALF)))


def test_another_seed_is_another_run(method: Method) -> None:
    first, second = run(method, SINGLE, **HALF)[1], run(method, SINGLE, seed=1, **HALF)[1]
    assert apart(first.personal_rows, second.personal_rows) > 1e-4


@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize("workers", [2, 3])
def test_the_number_of_workers_changes_no_bit(method: Method, workers: int, chunk: int) -> None:
    """And with it law 4: all but the first run their client half elsewhere, from bytes."""
    alone = run(method, SINGLE, workers=1, chunk=chunk, **HALF)
    assert same_bits(result(*run(method, SINGLE, workers=workers, chunk=chunk, **HALF)), result(*alone))


def test_the_order_in_which_clients_are_drawn_changes_no_bit(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = result(*run(method, SINGLE, chunk=2, **HALF))
    sample = chance.sample
    monkeypatch.setattr(chance, "sample", lambda *key, **options: sample(*key, **options)[::-1].copy())
    assert same_bits(result(*run(method, SINGLE, chunk=2, **HALF)), expected)


def test_the_order_in_which_answers_come_changes_no_bit(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = result(*run(method, SINGLE, chunk=2, **HALF))
    made = simulation(method, SINGLE, chunk=2, **HALF)

    class Backwards:
        """Answers the last job first."""

        def map(self, what: str, jobs: Sequence[Callable[[], Any]], names: Sequence[str]) -> Iterator[tuple[int, Any]]:
            for at in reversed(range(len(jobs))):
                yield at, made.answer(what, jobs[at]())

        def close(self) -> None:
            pass

    monkeypatch.setattr("bespokefl.engines.simulation.Here", lambda answer: Backwards())
    assert same_bits(result(made, made.run()), expected)


def test_the_order_of_rows_in_a_cohort_does_not_matter(method: Method) -> None:
    for made, round in moments(method, DOUBLE):
        expected = update(made, [EVERYBODY], round)
        found = update(made, [[4, 2, 0, 5, 1, 3]], round)
        assert_near(found[0], expected[0], 1e-10)
        assert_near(found[1], expected[1], 1e-10)


def test_cohorts_are_cut_in_canonical_order() -> None:
    sizes = SINGLE.train.sizes.tolist()
    assert chunks.cut([4, 2, 0, 5, 1, 3], sizes, 2) == chunks.cut(EVERYBODY, sizes, 2)


# -- law 4: the wire is honest


def test_a_stranger_computes_the_same_from_bytes(method: Method) -> None:
    """The client half in a simulation that never ran, on nothing but the bytes of a job."""
    for made, round in moments(method, SINGLE):
        stranger = simulation(method, SINGLE, **HALF)
        for part in CUTS["in threes"]:
            job = made._train_job(part, round)
            header, tensors = wire.flatten(job)
            raw = json.dumps(header), [(t.numpy().tobytes(), t.dtype, tuple(t.shape)) for t in tensors]
            read = [
                torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)
                if data
                else torch.zeros(shape, dtype=dtype)
                for data, dtype, shape in raw[1]
            ]
            found = stranger.answer("train", wire.unflatten(json.loads(raw[0]), read))
            assert same_bits(found, made.answer("train", job))


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


def test_who_did_not_train_is_unchanged(method: Method) -> None:
    made = simulation(method, SINGLE, **HALF)
    trained: list[int] = []
    train = made.side.train
    made.side.train = lambda cohort, *rest: trained.extend(cohort) or train(cohort, *rest)  # type: ignore[method-assign,func-returns-value]
    idle = 0
    with made.pool() as pool:
        for number, phase in rounds_of(method):
            trained.clear()
            before = made.store.get(EVERYBODY)
            made.round(pool, number, phase)
            rest = [client for client in EVERYBODY if client not in trained]
            after = made.store.get(EVERYBODY)
            for name, value in before.items():
                assert same_bits(after[name][rest], value[rest])
            idle += len(rest)
    assert idle or all(phase.trains != SAMPLE for _, phase in rounds_of(method))


def test_only_reports_reach_the_server(method: Method) -> None:
    """A client that trains and does not report might as well have trained on anything."""
    made, other = (simulation(method, SINGLE, **HALF) for _ in range(2))
    for number, phase in rounds_of(method):
        with made.pool() as pool, other.pool() as its_pool:
            seen: list[tuple[int, ...]] = []
            aggregate = method.aggregate

            def spoil(cohort: list[int], message: Message, state: State, round: Round) -> Any:
                reply = side(cohort, message, state, round)
                silent = torch.tensor([client not in reporting for client in cohort])
                upload = {
                    name: value * (1 - silent.double()) if isinstance(value, Rows) else value
                    for name, value in reply.upload.items()
                }
                return replace(reply, upload=upload)

            made.round(pool, number, phase)
            drawn = chance.sample(len(SINGLE), 0.5, 0, "cohort", number, sampling=phase.sampling).tolist()
            reporting = {"all": EVERYBODY, "none": []}.get(phase.reports, drawn)
            if phase.trains == SAMPLE:
                reporting = drawn if phase.reports != "none" else []
            side = type(other.side).train.__get__(other.side)
            other.side.train = spoil  # type: ignore[method-assign]
            other.round(its_pool, number, phase)
            assert same_bits(other.server, made.server), (seen, aggregate)


# -- law 8: test data choose nothing


def test_poisoned_test_labels_change_nothing_but_the_test_scores(method: Method) -> None:
    y = SINGLE.y.clone()
    y[SINGLE.test.indices] = (y[SINGLE.test.indices] + 1) % CLASSES
    x = SINGLE.x.clone()
    x[SINGLE.test.indices] *= -1
    clean, poisoned = (result(*run(method, data, eval_every=1, **HALF)) for data in (SINGLE, replace(SINGLE, x=x, y=y)))
    assert not same_bits(poisoned["personal"]["test_loss"], clean["personal"]["test_loss"])
    for name in ("server", "states", "personal rows", "client notes"):
        assert same_bits(poisoned[name], clean[name])
    for name, values in clean["personal"].items():
        assert name.startswith("test") or same_bits(poisoned["personal"][name], values)


# -- pure functions


def snapshot(value: Any) -> Any:
    if isinstance(value, Rows | Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {name: snapshot(one) for name, one in value.items()}
    return value


@pytest.mark.parametrize("stacked", [False, True], ids=["plain", "stacked"])
def test_no_function_changes_its_arguments(method: Method, stacked: bool) -> None:
    for made, round in moments(method, SINGLE):
        task, server = made.task, made.server
        task.stacked = False
        if stacked:
            task.stack()
        message, state = send(made, EVERYBODY, round)
        given = {"server": server, "shared": dict(message.shared), "own": dict(message.own), "state": state}
        data = {"x": SINGLE.x, "y": SINGLE.y, "start": task.start}
        before = snapshot(given), snapshot(data)

        def unchanged(given: Any = given, data: Any = data, before: Any = before) -> bool:
            return same_bits(given, before[0]) and same_bits(data, before[1])

        def work() -> Work:
            return work_of(SINGLE, round=1)

        upload, new = method.local_update(task, message, state, work(), round)
        assert unchanged()
        returned = snapshot([upload, new])
        again = method.local_update(task, message, state, work(), round)
        assert same_bits(list(again), returned)  # nothing is remembered
        method.personal(task, message, state, work())
        method.newcomer(task, server, work())
        assert unchanged()
        uploads = Uploads(EVERYBODY, SINGLE.train.sizes, [upload])
        upload_before = snapshot(upload)
        first = method.aggregate(server, uploads, round)
        kept = snapshot(first)
        assert same_bits(method.aggregate(server, uploads, round), kept)
        assert unchanged() and same_bits(upload, upload_before)
        method.message(first, EVERYBODY, round)
        method.global_model(first)
        assert same_bits(first, kept)


# -- what comes out


def test_models_are_finite_and_of_the_right_shape(method: Method) -> None:
    made, outcome = run(method, SINGLE, **(HALF | {"rounds": 3}))
    rows = [outcome.personal_rows, newcomers(made, [EVERYBODY]), *weights(made.server).values()]
    for one in rows:
        assert one.finite().all()
    for one in rows[:2]:
        assert len(one) == len(SINGLE) and one.layout == made.task.layout
    common = outcome.global_rows
    assert common is None or (len(common) == 1 and common.layout == made.task.layout)


def test_a_newcomer_is_served_alike_every_time(method: Method) -> None:
    made, _ = run(method, SINGLE, **HALF)
    assert same_bits(newcomers(made, [EVERYBODY]), newcomers(made, [EVERYBODY]))


def test_a_single_client_can_be_a_federation(method: Method) -> None:
    alone = federation((7,))
    _, outcome = run(method, alone)
    assert outcome.personal_rows.finite().all() and len(outcome.personal_rows) == 1


def test_a_default_run_learns(method: Method) -> None:
    made = simulation(method, SINGLE, rounds=8)
    with made.pool() as pool:
        before = made._scores(pool, EVERYBODY, lambda part: {"rows": made.task.start})[0]["train_loss"]
    outcome = made.run()
    assert apart(outcome.personal_rows, made.task.start) > 1e-2
    assert outcome.personal["train_loss"].mean() < 0.95 * before.mean()


# -- what a method says of itself


def test_every_hyper_parameter_has_a_default(registered: type[Method]) -> None:
    made = registered()
    assert all(isinstance(value, float | int | str | bool | tuple) for value in made.hyper().values())
    assert made == registered(**made.hyper())
    assert {field.name for field in fields(registered)} == set(made.hyper())


def test_it_is_introduced(registered: type[Method]) -> None:
    assert registered.name == registered.name.lower()
    summary = registered.summary()
    assert 10 < len(summary) <= 100 and summary.endswith(".") and "\n" not in summary
    assert registered.__doc__ is not None and registered.__doc__.strip() == summary or registered.__doc__


def test_it_is_cited(registered: type[Method]) -> None:
    if registered.name == "local":
        assert registered.citation == ""
        return
    assert registered.citation.startswith("@") and registered.citation.endswith("}")
    assert registered.citation.count("{") == registered.citation.count("}")
    for field in ("title=", "author=", "year="):
        assert field in registered.citation


def test_its_file_says_where_it_differs_from_the_paper(registered: type[Method]) -> None:
    module = __import__(registered.__module__, fromlist=["__doc__"])
    assert "Differs from the paper:" in (module.__doc__ or "")


def test_clients_are_ragged() -> None:
    """The normal case of this suite: different sizes, some smaller than a batch, some a part batch over."""
    sizes = SINGLE.train.sizes.tolist()
    assert min(sizes) < BATCH and len(set(sizes)) == len(sizes) and any(size % BATCH for size in sizes)
