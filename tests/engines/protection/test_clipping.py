"""Clipping and noise on uploads: for every method, whatever it uploads, and the same to the last bit when repeated."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from bespokefl.core import rng
from bespokefl.core.cohort_data import CohortData
from bespokefl.core.errors import InputError
from bespokefl.core.method import Message, Method, Round, State, Update
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.engines.faults import Faults
from bespokefl.engines.protection.clipping import Privacy, reference_of
from bespokefl.engines.storage.checkpoints import CheckpointInterval, Checkpoints
from bespokefl.methods import (
    IFCA,
    REGISTRY,
    UCFL,
    FedAvg,
    FedFOMO,
    Local,
    PersFL,
    PFedVEM,
    Scaffold,
    SelfFL,
    UCFLParallel,
)
from tests.contract.conftest import VARIANTS, params, quick
from tests.contract.probes import PROBES, Listening
from tests.contract.test_methods import assert_near, result, rows_of, states
from tests.federations import apart, federation, mlp, random_rows, run, same_bits, simulation, work_of

SINGLE, DOUBLE = federation(), federation(dtype=torch.float64)
HALF = {"participation": 0.5, "rounds": 3}
HUGE, CLIP, NOISE = 1e9, 0.01, 2.0
POSITIVE = {"variance": 1.0, "confidence": 1 / PFedVEM().initial_variance}  # released as logarithms of ratios to these
KINDS = {name: kind for name, kind in {**REGISTRY, **PROBES}.items() if kind is not IFCA}  # whose choices it rejects


@pytest.fixture(params=params([*KINDS, *VARIANTS]))
def method(request: pytest.FixtureRequest) -> Method:
    """Every method that can be protected."""
    return VARIANTS[request.param] if request.param in VARIANTS else quick(KINDS[request.param])


@dataclass
class Release:
    """One call of Privacy.release: what went in and what came out."""

    task: Task
    message: Message
    before: State
    after: State


@contextmanager
def releases(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Release]]:
    seen: list[Release] = []
    whole = Privacy.release

    def watched(self: Privacy, method: Method, task: Task, message: Message, upload: State, work: CohortData) -> State:
        found = whole(self, method, task, message, upload, work)
        seen.append(Release(task, message, upload, found))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Privacy, "release", watched)
        yield seen


def reference_in(method: Method, release: Release, name: str) -> Rows | None:
    declared = (method.upload(release.message) or {}).get(name)
    return reference_of(declared, name, release.task, release.message)


def vector(method: Method, release: Release, upload: State) -> np.ndarray:
    """An upload as the one vector that is released, worked out once more: (K, everything), in double precision."""
    parts = []
    for name, value in upload.items():
        if isinstance(value, Rows):
            numbers = value.to(dtype=torch.float64).matrix()
            reference = reference_in(method, release, name)
            if reference is not None:
                numbers = numbers - reference.to(dtype=torch.float64).matrix()
        else:
            numbers = value.double().reshape(len(value), -1)
            if name in POSITIVE:
                numbers = torch.log(numbers) - np.log(POSITIVE[name])
        parts.append(numbers.nan_to_num(0.0).numpy())
    return np.concatenate(parts, axis=1)


def telling(method: Method, seen: list[Release]) -> list[Release]:
    """Those in which there is something to protect."""
    return [one for one in seen if one.before]


# -- clipping


def test_a_clip_that_cuts_nothing_changes_nothing(method: Method) -> None:
    plain, clipped = run(method, DOUBLE, **HALF), run(method, DOUBLE, clip=HUGE, **HALF)
    assert apart(clipped[1].personal_rows, plain[1].personal_rows) < 1e-10
    assert_near(rows_of(clipped[1].server), rows_of(plain[1].server), 1e-10)
    assert_near(rows_of(states(clipped[0])), rows_of(states(plain[0])), 1e-10)


def test_every_upload_is_cut_to_its_length(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and numbers together, as one vector, which keeps its direction."""
    with releases(monkeypatch) as seen:
        run(method, DOUBLE, clip=CLIP, **HALF)
    lengths = []
    for one in telling(method, seen):
        assert one.after.keys() == one.before.keys()
        before, after = vector(method, one, one.before), vector(method, one, one.after)
        length = np.linalg.norm(before, axis=1, keepdims=True)
        lengths += length.ravel().tolist()
        assert np.linalg.norm(after, axis=1).max() <= CLIP * (1 + 1e-9)
        np.testing.assert_allclose(after, before * np.minimum(1, CLIP / length.clip(1e-300)), atol=1e-12)
        for name, value in one.before.items():
            new = one.after[name]
            assert new.dtype == value.dtype and len(new) == len(value)
            if isinstance(value, Tensor):
                assert torch.equal(new.isnan(), value.isnan())
    assert (max(lengths, default=0) > CLIP) == (method.name != "local")  # something was cut, if there was anything


def test_where_an_upload_begins_is_known_to_the_server(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is worked out from the message and the start alone: the same for a client with other data."""
    other = replace(DOUBLE, x=DOUBLE.x.flip(0), y=DOUBLE.y.flip(0))
    found = []
    for data in (DOUBLE, other):
        with releases(monkeypatch) as seen:
            run(method, data, clip=1e-12, rounds=1)  # nobody gets far, so that messages do not differ by the data
        found.append([reference_in(method, one, name) for one in seen for name in one.before])
    for one, two in zip(*found, strict=True):
        if isinstance(one, Rows):
            assert apart(one, two) < 1e-9
        else:
            assert one == two


def test_who_may_not_move_stays_where_the_server_thinks(method: Method) -> None:
    """Not at zero: a model that is cut, instead of its change, would be destroyed."""
    before = simulation(method, DOUBLE).server
    after = run(method, DOUBLE, clip=1e-12, rounds=2)[1].server
    for name, rows in rows_of(before).items():
        if apart(rows, rows * 0.0) > 0 and name in after:
            assert apart(after[name], rows) < 1e-9, name


def test_what_is_a_change_already_begins_at_zero() -> None:
    task = Task(mlp, "cross_entropy")
    rows = random_rows(task, 3)
    sent = Message(shared={"weights": rows[:1], "control": rows[1:2]})

    def reference(method: Method, message: Message, name: str) -> Any:
        return reference_in(method, Release(task, message, {}, {}), name)

    assert reference(Scaffold(), sent, "change") is None and reference(Scaffold(), sent, "control") is None
    assert reference(UCFL(), Message(shared={"weights": rows[:1]}), "gradient") is None
    streams = Message(shared={"streams": rows}, own={"stream": torch.tensor([0])})
    for i in range(3):
        assert same_bits(reference(UCFLParallel(), streams, f"weights{i}"), rows[i : i + 1])
    assert same_bits(reference(FedFOMO(), Message(own={"model 0": rows}), "weights"), task.start)
    assert same_bits(reference(SelfFL(augmented=True), sent, "optimum"), rows[:1])


# -- noise


def noised(data: Any = DOUBLE, *, seed: int = 0, number: int = 1, cohort: Any = None, secret: bool = False) -> Rows:
    """What comes out for clients that all upload where they began: noise alone."""
    task = Task(mlp, "cross_entropy", dtype=data.x.dtype)
    work = work_of(data, cohort, round=number, seed=seed)
    rows = task.start.expand(len(work))
    message = Message(shared={"weights": task.start})
    out = Privacy(0.5, NOISE, secret).release(FedAvg(), task, message, {"weights": rows}, work)["weights"]
    return (out - rows) / (0.5 * NOISE)


@pytest.mark.parametrize("secret", [False, True])
def test_noise_is_standard_normal_in_units_of_noise_times_clip(secret: bool) -> None:
    many = federation([4] * 200, dtype=torch.float64)
    flat = noised(many, secret=secret).matrix().numpy()
    assert flat.size > 10_000
    assert stats.kstest(flat.ravel(), "norm").pvalue > 1e-4
    assert abs(flat.mean()) < 5 / np.sqrt(flat.size) and abs(flat.var() - 1) < 5 * np.sqrt(2 / flat.size)
    between = np.corrcoef(flat)[np.triu_indices(len(flat), 1)] * np.sqrt(flat.shape[1])
    assert abs(between.mean()) < 0.05 and abs(between.std() - 1) < 0.05  # no client's noise tells another's


def test_noise_of_the_seed_is_each_client_s_own() -> None:
    together = noised()
    for k in range(len(DOUBLE)):
        assert same_bits(noised(cohort=[k]), together[k : k + 1])
    assert same_bits(noised(), together)
    assert not same_bits(noised(seed=1), together) and not same_bits(noised(number=2), together)


def test_noise_of_a_real_node_cannot_be_repeated() -> None:
    assert not same_bits(noised(secret=True), noised(secret=True))
    drawn = [rng.secret_normal(5) for _ in range(2)]
    assert all(len(one) == 5 and np.isfinite(one).all() for one in drawn) and not (drawn[0] == drawn[1]).any()


def test_every_method_runs_with_noise(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads differ from the clipped ones by noise of the right size; the server can use what it gets."""
    with releases(monkeypatch) as seen:
        _, outcome = run(method, SINGLE, clip=CLIP, noise=NOISE, **HALF)
    assert outcome.rounds_done == outcome.rounds_planned
    noise = []
    for one in telling(method, seen):
        before, after = vector(method, one, one.before), vector(method, one, one.after)
        cut = before * np.minimum(1, CLIP / np.linalg.norm(before, axis=1, keepdims=True).clip(1e-300))
        undefined = [value for value in one.before.values() if isinstance(value, Tensor) and value.isnan().any()]
        noise.append((after - cut)[:, : after.shape[1] - len(undefined)])
        for name in POSITIVE:
            if name in one.after:
                assert (one.after[name][~one.after[name].isnan()] > 0).all()
    if method.name != "local":
        found = np.concatenate([one.ravel() for one in noise]) / (CLIP * NOISE)
        assert abs(found.mean()) < 5 / np.sqrt(found.size) and abs(found.var() - 1) < 6 * np.sqrt(2 / found.size)


@pytest.mark.parametrize("kind", [UCFL, PFedVEM, SelfFL])
def test_positive_numbers_stay_positive_and_finite_under_any_noise(kind: type[Method]) -> None:
    task = Task(mlp, "cross_entropy", dtype=torch.float64)
    name = "confidence" if kind is PFedVEM else "variance"
    value = torch.tensor([0.0, 1e-300, 0.3, 5.0, 1e300, torch.nan], dtype=torch.float64)
    for noise in (0.0, 1.0, 1e6):
        privacy = Privacy(1e3, noise)
        out = privacy.release(kind(), task, Message(), {name: value}, work_of(DOUBLE))[name]
        assert torch.isnan(out).tolist() == [False] * 5 + [True]
        assert (out[:5] > 0).all() and torch.isfinite(out[:5]).all()
        if not noise:
            torch.testing.assert_close(out[2:4], value[2:4], rtol=1e-12, atol=0)


# -- the same again


@pytest.mark.parametrize("chosen", [SelfFL(max_steps=3), PFedVEM(head_steps=3)], ids=lambda one: one.name)
def test_workers_and_resuming_change_no_bit(chosen: Method, tmp_path: Path) -> None:
    options = {"clip": 0.1, "noise": 0.5, "rounds": 4, "participation": 0.5, "chunk": 2}
    made, outcome = run(chosen, SINGLE, **options)
    expected = result(made, outcome)
    assert same_bits(result(*run(chosen, SINGLE, workers=2, **options)), expected)
    first = simulation(chosen, SINGLE, **options)
    kept = Checkpoints(tmp_path, CheckpointInterval(rounds=1), {})
    with first.open():
        for number in (1, 2):
            first.round(number, chosen.phases(4)[0])
        kept.save(first.snapshot(2))
        kept.wait()
    second = simulation(chosen, SINGLE, **options)
    resumed = second.run(checkpoints=Checkpoints(tmp_path, CheckpointInterval(rounds=1), {}))
    assert same_bits(result(second, resumed), expected)
    assert resumed.uploaded == outcome.uploaded and sum(resumed.uploaded.values()) > 0


# -- how many uploads


def counts(method: Method, **options: Any) -> dict[str, int]:
    return run(method, SINGLE, **options)[1].uploaded


def test_surveys_are_uploads_and_endings_at_home_are_none() -> None:
    everybody = dict.fromkeys(SINGLE.names, 3)
    assert counts(UCFL(), rounds=2) == everybody  # and the survey
    assert counts(FedAvg(), rounds=3) == everybody
    assert counts(PersFL(distil_epochs=1), rounds=3) == everybody  # the distilling is done at home
    assert counts(Local(), rounds=3) == {}


def test_who_trains_but_does_not_report_uploads_nothing() -> None:
    _, outcome = run(Listening(), SINGLE, participation=0.5, rounds=4)
    assert sum(outcome.uploaded.values()) == sum(line["reported"] for line in outcome.history) == 12
    assert sum(line["trained"] for line in outcome.history) == 24


def test_uploads_that_did_not_count_have_left_all_the_same() -> None:
    faults, many = Faults.of("nan:0.15, huge:0.05, wrong-shape:0.05, slow:0.15, drop:0.15"), federation([5] * 20)
    _, outcome = run(FedAvg(), many, clip=1.0, noise=0.1, rounds=5, faults=faults)
    reasons = {why for lost in outcome.lost.values() for why in lost}
    assert reasons == {"dropped out", "too late", "not finite", "absurdly large", "wrong shape"}
    for name in many.names:
        assert outcome.uploaded[name] == 5 - outcome.lost.get(name, {}).get("dropped out", 0)


# -- what cannot be protected


def test_choices_are_refused() -> None:
    for options in ({"clip": 1.0}, {"clip": 1.0, "noise": 1.0}):
        with pytest.raises(InputError, match=r"ifca uploads each client's choice \(cluster\)"):
            simulation(IFCA(), SINGLE, **options)


def test_noise_needs_a_clip() -> None:
    with pytest.raises(InputError, match="noise needs a clip"):
        simulation(FedAvg(), SINGLE, noise=1.0)


@dataclass(frozen=True, kw_only=True)
class Counting(FedAvg):
    """Uploads a whole number that nobody declared."""

    name: ClassVar[str] = "counting"

    def local_update(self, task: Task, message: Message, state: State, work: CohortData, round: Round) -> Update:
        upload, state = super().local_update(task, message, state, work, round)
        return upload | {"labels": work.n}, state


def test_whole_numbers_that_nobody_declared_are_refused() -> None:
    run(Counting(), SINGLE, rounds=1)
    with pytest.raises(InputError, match="counting uploads labels, integers, to which noise cannot be added"):
        run(Counting(), SINGLE, rounds=1, clip=1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_of_other_columns_and_dtypes_come_back_as_they_were(dtype: torch.dtype) -> None:
    task = Task(mlp, "cross_entropy", dtype=dtype)
    rows = random_rows(task, len(SINGLE)).block("base")
    out = Privacy(1e6).release(FedAvg(), task, Message(), {"base": rows}, work_of(SINGLE))["base"]
    assert out.layout == rows.layout and out.dtype == dtype and apart(out, rows) < 1e-6
    assert all(block.is_contiguous() for block in out.blocks)
