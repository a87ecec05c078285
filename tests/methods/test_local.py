"""Local: nobody hears of anybody."""

import pytest
import torch

from bespokefl.core import rng
from bespokefl.methods import Local
from tests.federations import SIZES, apart, federation, run, same_bits, work_of
from tests.methods.plain_sgd import train

DATA = federation(dtype=torch.float64)


@pytest.mark.parametrize("sgd", [{}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"momentum": 0.5, "weight_decay": 0.01}])
def test_every_client_is_plain_sgd(sgd: dict[str, float]) -> None:
    made, outcome = run(Local(lr=0.2, **sgd), DATA, rounds=3, local_epochs=2)
    for k in range(len(DATA)):
        row = made.task.start
        for number in (1, 2, 3):
            row = train(made.task, work_of(DATA, [k], round=number, epochs=2), 0, row, lr=0.2, **sgd)
        assert apart(outcome.personal_rows[k : k + 1], row) < 1e-10


def test_a_client_is_the_same_alone_and_among_others() -> None:
    _, outcome = run(Local(lr=0.2), DATA)
    for k in range(len(DATA)):
        alone = federation(dtype=torch.float64)
        one = type(alone)(
            alone.x, alone.y, (alone.names[k],), alone.train.take([k]), alone.validation.take([k]), alone.test.take([k])
        )
        assert apart(run(Local(lr=0.2), one)[1].personal_rows, outcome.personal_rows[k : k + 1]) < 1e-10


def test_who_was_never_drawn_keeps_the_start() -> None:
    made, outcome = run(Local(lr=0.2), DATA, rounds=2, participation=0.34)
    drawn = {int(k) for number in (1, 2) for k in rng.sample(6, 0.34, 0, "cohort", number)}
    for k in range(len(DATA)):
        assert same_bits(outcome.personal_rows[k : k + 1], made.task.start) == (k not in drawn)
    assert 0 < len(drawn) < 6


def test_nothing_is_sent() -> None:
    _, outcome = run(Local(), DATA)
    assert outcome.communication.up_bytes == outcome.communication.down_bytes == 0


def test_a_newcomer_trains_as_long_as_others_did() -> None:
    method = Local(lr=0.2, momentum=0.5, weight_decay=0.1)
    made, _ = run(method, DATA, rounds=3)
    work = work_of(DATA, expected_rounds=3)
    served = method.newcomer(made.task, made.server, work)
    for k in range(len(SIZES)):
        long = work_of(DATA, [k], epochs=3)
        expected = train(made.task, long, 0, made.task.start, lr=0.2, momentum=0.5, weight_decay=0.1)
        assert apart(served[k : k + 1], expected) < 1e-10
