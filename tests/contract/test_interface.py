"""Each part of the interface does what it says: shown on the probes."""

import numpy as np
import pytest
import torch

from bespokefl.core import rng
from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.rows import Rows
from tests.contract.probes import (
    Adapting,
    Ending,
    Listening,
    Noting,
    Surveying,
    Tossing,
    Trying,
    TwoPasses,
    Uneven,
)
from tests.federations import NAMES, SIZES, apart, federation, random_rows, run, same_bits, simulation, work_of

DATA = federation(dtype=torch.float64)
EVERYBODY = list(range(6))
BYTES = 8  # of a float64


def drawn(number: int, sampling: str = "uniform") -> list[int]:
    return rng.sample(6, 0.5, 0, "cohort", number, sampling=sampling).tolist()


def test_a_survey_before_training() -> None:
    made, outcome = run(Surveying(), DATA, participation=0.5)
    assert [(line["phase"], line["trained"], line["reported"]) for line in outcome.history] == [
        ("survey", 6, 6),
        ("train", 3, 3),
        ("train", 3, 3),
    ]
    task = simulation(Surveying(), DATA).task
    gradients = task.sweep_gradient(task.start, work_of(DATA).sweep())
    apart_by = gradients.square_distances()
    expected = torch.exp(-apart_by / apart_by.mean())
    torch.testing.assert_close(made.server["closeness"], expected)  # by client, though uploads come by size


def test_a_message_for_each_client() -> None:
    made = simulation(Surveying(), DATA)
    streams = random_rows(made.task, 6)
    made.federations[0].server = made.server | {"streams": streams}
    seen: dict[str, torch.Tensor] = {}
    train = made.side.method.local_update

    class Watching(Surveying):
        def local_update(self, task, message, state, work, round):  # type: ignore[no-untyped-def]
            seen.update(zip(work.names, message["weights"].matrix(), strict=True))
            return train(task, message, state, work, round)

    made.side.method = Watching()
    with made.open():
        made.round(1, made.method.phases(1)[1])
    assert list(seen) != list(NAMES)  # clients are worked on in an order of their own
    for k, name in enumerate(NAMES):
        assert torch.equal(seen[name], streams.matrix()[k])
    width = made.task.layout.width
    line = made.federations[0].history[-1]
    assert line["down_bytes"] == line["up_bytes"] == 6 * width * BYTES


def test_everybody_trains_and_a_sample_reports() -> None:
    made, outcome = run(Listening(), DATA, participation=0.5, rounds=1, chunk=2)
    assert (outcome.history[0]["trained"], outcome.history[0]["reported"]) == (6, 3)
    states = made.store.get(EVERYBODY)
    assert states["rounds"].tolist() == [1] * 6
    assert apart(states["personal"], made.task.start) > 1e-4
    reports = drawn(1)
    sizes = torch.tensor([SIZES[k] for k in reports])
    expected = states["personal"][reports].mean(sizes)  # what they kept is what they sent
    assert apart(made.server["weights"], expected) < 1e-10
    width = made.task.layout.width
    assert outcome.communication.up_bytes == 3 * width * BYTES
    assert outcome.communication.down_bytes == 6 * width * BYTES


def test_step_counts_per_row() -> None:
    made, _ = run(Uneven(), DATA, rounds=1)
    expected = []
    for k, size in enumerate(SIZES):
        alone, steps, lr = work_of(DATA, [k]), 1 + size % 4, 0.05 * (1 + size % 3)
        row = local_sgd(made.task.gradient, made.task.start, alone, lr, steps=steps, momentum=0.5, frozen="head")
        expected.append(local_sgd(made.task.gradient, row, alone, 0.05, epochs=2, frozen="base", purpose="head"))
    mean = Rows.cat(expected).mean(torch.tensor(SIZES))
    assert apart(made.server["weights"], mean) < 1e-7  # rates per row come in float32


def test_several_rows_per_client() -> None:
    method = Trying()
    made, _ = run(method, DATA, rounds=1)
    states = made.store.get(EVERYBODY)
    task, start = made.task, made.task.start
    for k in EVERYBODY:
        work = work_of(DATA, [k])
        tried = [
            local_sgd(lambda v, batch, p=p: task.gradient(v, batch) + p * (v - start), start, work, method.lr)
            for p in method.pulls
        ]
        losses = [task.score(rows, work.sweep("validation"))["loss"].item() for rows in tried]
        best = 0 if np.isnan(losses).all() else int(np.argmin(losses))
        assert states["prox_weight"][k].item() == method.pulls[best]
        assert apart(states["personal"][k : k + 1], tried[best]) < 1e-10
    assert len(set(states["prox_weight"].tolist())) > 1


def test_an_ending_at_home() -> None:
    made, outcome = run(Ending(), DATA, rounds=1, participation=0.5)
    assert [(line["phase"], line["trained"], line["reported"], line["up_bytes"]) for line in outcome.history] == [
        ("train", 3, 3, 3 * made.task.layout.width * BYTES),
        ("ending", 6, 0, 0),
        ("ending", 6, 0, 0),
    ]
    common = made.server["weights"]
    assert same_bits(outcome.personal_rows.block("base"), common.block("base").expand(6))
    heads = made.task.start.block("head")
    own = common.with_block(heads)
    for number in (2, 3):
        own = local_sgd(made.task.gradient, own, work_of(DATA, round=number), 0.05, frozen="base")
    assert apart(outcome.personal_rows, own) < 1e-10


def test_a_second_pass_over_the_uploads() -> None:
    made, outcome = run(TwoPasses(), DATA, rounds=1, chunk=2)
    uploads = local_sgd(made.task.gradient, made.task.start, work_of(DATA), 0.05)
    far = (uploads - uploads.mean()).square_norm()
    assert apart(made.server["weights"], uploads.mean(1 / (1 + far))) < 1e-10
    assert outcome.history[0]["far"] == pytest.approx(far.mean().item())
    assert outcome.history[0]["clients"] == 6


def test_a_model_that_is_adapted_when_it_is_used() -> None:
    made, outcome = run(Adapting(), DATA, rounds=1)
    expected = local_sgd(made.task.gradient, made.server["weights"], work_of(DATA, round=1), 0.1)
    assert apart(outcome.personal_rows, expected) < 1e-10


def test_each_with_a_probability() -> None:
    _, outcome = run(Tossing(), DATA, rounds=12, participation=0.5)
    sizes = [line["reported"] for line in outcome.history]
    assert sizes == [len(drawn(number, "bernoulli")) for number in range(1, 13)]
    assert min(sizes) >= 2 and len(set(sizes)) > 1


def test_notes_of_clients_and_a_running_variance() -> None:
    made, outcome = run(Noting(), DATA, rounds=3, participation=0.5, workers=2)
    notes = outcome.client_notes
    assert sorted((note["round"], note["client"]) for note in notes) == [
        (number, NAMES[k]) for number in (1, 2, 3) for k in drawn(number)
    ]
    assert all(note["examples"] == SIZES[NAMES.index(note["client"])] for note in notes)
    assert all(note["moved"] > 0 for note in notes)
    counts = made.store.get(EVERYBODY)["count"].tolist()
    assert counts == [sum(k in drawn(number) for number in (1, 2, 3)) for k in EVERYBODY]


def test_a_newcomer_spends_what_an_average_client_did() -> None:
    made, _ = run(Ending(), DATA, rounds=4, participation=0.5)
    work = made.side.cohort_data([0, 2], 1)
    assert work.expected_rounds == 2
    served = made.method.newcomer(made.task, made.server, work)
    steps = 2 * torch.tensor([1, 2])  # two rounds of one epoch
    expected = local_sgd(made.task.gradient, made.server["weights"], work, 0.05, steps=steps, frozen="base")
    assert same_bits(served, expected)
