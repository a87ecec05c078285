"""Which uploads are refused, worked out by hand."""

import logging
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bespokefl.core.method import Message, Method, Round, State
from bespokefl.core.rows import Layout, Rows
from bespokefl.core.uploads import Weights
from bespokefl.engines.faults import break_upload
from bespokefl.engines.protection.screening import Entry, Screening
from bespokefl.methods import IFCA, UCFL, FedAvg, FedFOMO, FedPer, Local, PFedVEM, SelfFL, UCFLParallel

LAYOUT = Layout(("w",), ((2,),), ("w",))
START = Rows.from_matrix(LAYOUT, torch.tensor([[1.0, -1.0]]))


class Undeclared(FedAvg):
    """Does not declare what it uploads."""

    def upload(self, message: Message) -> Any:
        return Method.upload(self, message)


def upload(*rows: tuple[float, float], **numbers: list[float]) -> State:
    given = {name: torch.tensor(values) for name, values in numbers.items()}
    return {"weights": Rows.from_matrix(LAYOUT, torch.tensor(rows, dtype=torch.float32))} | given


def in_phase(phase: str) -> Round:
    return Round(number=1, phase=phase, seed=0, names=tuple("abcdefgh"))


def screened(
    method: Method, *entries: Entry, start: Rows = START, server: State | None = None, phase: str = "train"
) -> tuple[list[Entry], dict[int, str]]:
    if server is None:
        server = method.start_server(start, in_phase(phase))
    return Screening(method, start)(entries, server, in_phase(phase))


def of_numbers(method: Method, name: str, numbers: list[float], phase: str = "train") -> dict[int, str]:
    """Who is refused when these clients' rows are fine and their numbers are these."""
    declared = method.upload(Message())
    assert declared is not None
    rows = [key for key, one in declared.items() if isinstance(one, Weights) and one.phase in (None, phase)]
    one: State = {key: START.expand(len(numbers)) for key in rows}
    dtype: Any = declared[name].signature(START)[1]
    one |= {name: torch.tensor(numbers, dtype=dtype)}
    return screened(method, (list(range(len(numbers))), one), phase=phase)[1]


class More(FedAvg):
    """Uploads a number more than its base class declares, and declares nothing itself."""

    def local_update(self, *given: Any) -> Any:
        raise NotImplementedError


def test_a_subclass_with_another_update_does_not_inherit_the_declaration() -> None:
    sound, short = ([4, 7], upload((1, 0), (0, 2), loss=[1, 2])), ([1], upload((1, 1)))
    kept, refused = screened(More(), sound, short)
    assert [clients for clients, _ in kept] == [[4, 7]] and refused == {1: "wrong shape"}
    kept, refused = screened(FedAvg(), sound, short)
    assert [clients for clients, _ in kept] == [[1]] and refused == {4: "wrong shape", 7: "wrong shape"}


def test_rows_by_hand() -> None:
    sound = ([4, 7], upload((1, 0), (0, 2)))
    worse = ([1, 2, 3], upload((math.nan, 0), (3e4, 0), (1, 1)))
    other = ([9], break_upload(upload((1, 1)), "wrong-shape", np.random.default_rng(0)))
    more = ([8], upload((1, 1), loss=[0]))
    whole = ([5], {"weights": Rows(LAYOUT, [torch.ones(1, 2, dtype=torch.int64)])})
    kept, refused = screened(FedAvg(), sound, worse, other, more, whole)
    assert refused == {
        1: "not finite",
        2: "absurdly large",
        9: "wrong shape",
        8: "wrong shape",
        5: "wrong shape",
    }
    assert [clients for clients, _ in kept] == [[4, 7], [3]]
    assert kept[1][1]["weights"].matrix().tolist() == [[1.0, 1.0]]
    assert screened(FedAvg()) == ([], {}) and screened(FedAvg(), whole) == ([], {5: "wrong shape"})


# -- what an upload is to look like

TWO = Layout(("base.w", "head.w"), ((3,), (2,)), ("head.w",))
MODEL = Rows.from_matrix(TWO, torch.ones(1, 5))
HEAD, BASE = MODEL.block("head"), MODEL.block("base")
ANOTHER = Rows(Layout(TWO.names, ((3,), (3,)), TWO.head), [torch.ones(1, 3), torch.ones(1, 3)])
RAGGED = Rows(TWO, [torch.ones(1, 3), torch.ones(2, 2)])  # does not have the shapes that it says
MIXED = Rows(TWO, [torch.ones(1, 3), torch.ones(1, 2, dtype=torch.float64)])
NO_HEAD = Rows(Layout(TWO.names, TWO.shapes), MODEL.blocks)
REAL = torch.ones(1, dtype=torch.float64)
STREAMS = {"surveyed": torch.tensor([0]), "stream": torch.zeros(8, dtype=torch.int64), "weights": MODEL.expand(2)}


@pytest.mark.parametrize(
    ("method", "server", "phase", "right", "wrong"),
    [
        (
            FedAvg(),
            None,
            "train",
            {"weights": MODEL},
            [
                *({"weights": rows} for rows in (HEAD, BASE, ANOTHER, RAGGED, MIXED, NO_HEAD, MODEL.expand(2))),
                *({"weights": other} for other in (MODEL.to(dtype=torch.float64), MODEL.matrix(), 1.0)),
                *({}, {"more": REAL}, {"weights": MODEL, "more": REAL}, {"weights ": MODEL}),
            ],
        ),
        (FedPer(), None, "train", {"base": BASE}, [{"base": MODEL}, {"base": HEAD}, {"weights": BASE}, {}]),
        (Local(), None, "train", {}, [{"weights": MODEL}, {"more": REAL}]),
        (
            SelfFL(),
            None,
            "train",
            {"weights": MODEL, "variance": REAL},
            [
                *({"weights": MODEL, "variance": REAL.to(kind)} for kind in (torch.float32, torch.int64)),
                *({"weights": MODEL, "variance": REAL.reshape(shape)} for shape in ((1, 1), ())),
                *({"weights": MODEL, "variance": other} for other in (REAL.expand(2), MODEL, 1.0)),
                *({"weights": MODEL}, {"variance": REAL}, {"weights": MODEL, "variance": REAL, "optimum": MODEL}),
            ],
        ),
        (
            FedFOMO(downloads=3),
            None,
            "train",
            {"weights": MODEL, "worth": REAL.expand(1, 3)},
            [{"weights": MODEL, "worth": other} for other in (REAL, REAL.expand(1, 2), REAL.expand(1, 4))],
        ),
        (
            IFCA(),
            None,
            "train",
            {"weights": MODEL, "cluster": REAL.long()},
            [{"weights": MODEL, "cluster": other} for other in (REAL, REAL.long().expand(1, 1), REAL.bool())],
        ),
        (UCFL(), None, "survey", {"gradient": MODEL, "variance": REAL}, [{"weights": MODEL}, {"gradient": MODEL}]),
        (UCFL(), None, "train", {"weights": MODEL}, [{"gradient": MODEL, "variance": REAL}]),
        (UCFLParallel(), STREAMS, "train", {"weights0": MODEL, "weights1": MODEL}, [{"weights0": MODEL}]),
        (UCFLParallel(), None, "train", {"weights": MODEL}, [{"weights0": MODEL}]),
    ],
)
def test_what_it_is_to_look_like_is_known_not_voted_on(
    method: Method, server: State | None, phase: str, right: State, wrong: list[State]
) -> None:
    """One broken client alone, against one that is sound in either order, and three of them against one."""
    options: dict[str, Any] = {"start": MODEL, "server": server, "phase": phase}
    assert screened(method, ([0], right), **options)[1] == {}
    for one in wrong:
        assert screened(method, ([0], one), **options) == ([], {0: "wrong shape"})
        for order in ([([0], right), ([1], one)], [([1], one), ([0], right)]):
            kept, refused = screened(method, *order, **options)
            assert [clients for clients, _ in kept] == [[0]] and refused == {1: "wrong shape"}
        many = [([1], one), ([2], one), ([3], one), ([0], right)]
        assert screened(method, *many, **options)[1] == dict.fromkeys((1, 2, 3), "wrong shape")


def test_whoever_wrote_a_method_is_told_what_does_not_fit(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "bespokefl"):
        screened(FedAvg(), ([0], upload((1, 1))), ([1], upload((1, 1), loss=[0])))
        assert not caplog.messages
        screened(FedAvg(), ([0], upload((1, 1), loss=[0])))
    assert caplog.messages == [
        "round 1: all uploads (loss, weights) differ from what fedavg declares in `upload` (weights)",
    ]


@pytest.mark.parametrize(
    "usual",
    [
        {"weights": MODEL},
        {"weights": HEAD},
        {"w": MODEL.block("base.w"), "scores": REAL.expand(1, 4)},
        {"count": REAL.long()},
        {},
    ],
)
def test_where_a_method_does_not_say_most_uploads_do(usual: State) -> None:
    fine = [([0], usual), ([1], usual)]
    assert screened(Undeclared(), *fine, start=MODEL)[1] == {}
    for odd in ({"weights": ANOTHER}, {"weights": RAGGED}, {"more": REAL}, {"weights": MODEL.to(dtype=torch.float64)}):
        kept, refused = screened(Undeclared(), ([2], odd), *fine, start=MODEL)
        if usual or 2 in refused:
            assert [clients for clients, _ in kept] == [[0], [1]] and refused == {2: "wrong shape"}
        else:  # to upload nothing is not what most do if anybody uploads something
            assert [clients for clients, _ in kept] == [[2]] and refused == {0: "wrong shape", 1: "wrong shape"}
    foreign: list[State] = [{"weights": ANOTHER}, {"weights": RAGGED}, {"weights": MODEL.map(Tensor.long)}]
    for one in foreign:  # columns of another model are wrong, whoever agrees
        assert screened(Undeclared(), ([2], one), ([3], one), ([0], usual), start=MODEL)[1].keys() == {2, 3}
    assert screened(Undeclared(), ([2], {}), ([3], {}), ([0], usual), start=MODEL)[1].keys() == (
        {2, 3} if usual else set()
    )


# -- what is in it


def test_where_all_are_absurd_the_first_model_tells() -> None:
    """Its largest entry is 1, so 2e12 is the most."""
    kept, refused = screened(FedAvg(), ([0, 1, 2], upload((1e13, 0), (1e13, 1e13), (0, -3e12))))
    assert not kept and refused == dict.fromkeys(range(3), "absurdly large")
    assert len(screened(FedAvg(), ([0, 1], upload((1e12, 0), (1e12, 1e12))))[0]) == 1


def test_an_upload_with_two_faults_is_refused_once() -> None:
    both = upload((math.nan, 0), (1, 1), confidence=[math.nan, 1.0])
    kept, refused = screened(PFedVEM(), ([3, 6], both))
    assert refused == {3: "not finite"} and kept[0][0] == [6]


@pytest.mark.parametrize(("method", "phase"), [(SelfFL(), "train"), (UCFL(), "survey")])
def test_a_variance_may_be_undefined_but_not_negative(method: Method, phase: str) -> None:
    found = of_numbers(method, "variance", [0.0, math.nan, 1e-30, 1e5, -1e-9, math.inf, 1e13], phase)
    assert found == {4: "impossible", 5: "not finite", 6: "absurdly large"}
    assert of_numbers(method, "variance", [math.nan, math.nan], phase) == {}


def test_a_confidence_must_be_a_positive_number() -> None:
    """It is 1/ρ², and ρ² is kept above 1e-12."""
    found = of_numbers(PFedVEM(), "confidence", [1e12, 1e-11, 100.0, 0.0, -1.0, math.nan, math.inf, 1e13])
    assert found == {3: "impossible", 4: "impossible", 5: "not finite", 6: "not finite", 7: "impossible"}


def test_a_choice_must_be_one_of_those_there_are() -> None:
    assert of_numbers(IFCA(clusters=3), "cluster", [0, 1, 2, 3, -1]) == {3: "impossible", 4: "impossible"}


def test_several_numbers_of_a_client() -> None:
    worth = torch.tensor([[0.1, -0.4], [0.2, math.nan], [0.0, 1e14]], dtype=torch.float64)
    kept, refused = screened(FedFOMO(downloads=2), ([5, 6, 7], upload((1, 1), (1, 1), (1, 1)) | {"worth": worth}))
    assert refused == {6: "not finite", 7: "absurdly large"} and kept[0][0] == [5]


def test_a_wrong_shape_is_simulated_in_rows_and_in_numbers() -> None:
    """One value of an upload at a time, so that each kind is put to the test."""
    sound = upload((1, 1)) | {"variance": torch.ones(1, dtype=torch.float64)}
    assert screened(SelfFL(), ([0], sound))[1] == {}
    seen = []
    for seed in range(9):
        found = break_upload(sound, "wrong-shape", np.random.default_rng(seed))
        assert screened(SelfFL(), ([0], found))[1] == {0: "wrong shape"}
        seen += [name for name in sound if found[name] is not sound[name]]
    assert len(seen) == 9 and set(seen) == {"weights", "variance"}
