"""Which uploads are refused, worked out by hand."""

import math

import pytest
import torch

from bespokefl.core.method import Method, State
from bespokefl.core.rows import Layout, Rows
from bespokefl.engines.faults import spoil
from bespokefl.engines.screening import Screening
from bespokefl.methods import IFCA, UCFL, FedAvg, PFedVEM, SelfFL

LAYOUT = Layout(("w",), ((2,),))
START = Rows.from_matrix(LAYOUT, torch.tensor([[1.0, -1.0]]))


def upload(*rows: tuple[float, float], **numbers: list[float]) -> State:
    given = {name: torch.tensor(values) for name, values in numbers.items()}
    return {"weights": Rows.from_matrix(LAYOUT, torch.tensor(rows, dtype=torch.float32))} | given


def of_numbers(method: Method, name: str, numbers: list[float]) -> dict[int, str]:
    """Who is refused when these clients' rows are fine and their numbers are these."""
    one = upload(*[(1, 1)] * len(numbers)) | {name: torch.tensor(numbers)}
    return Screening(method, START)([(list(range(len(numbers))), one)])[1]


def test_rows_by_hand() -> None:
    sound = ([4, 7], upload((1, 0), (0, 2), loss=[0, 0]))
    worse = ([1, 2, 3], upload((math.nan, 0), (3e4, 0), (1, 1), loss=[0, 0, 0]))
    other = ([9], spoil(upload((1, 1), loss=[0]), "wrong-shape"))
    more = ([8], upload((1, 1), loss=[0]) | {"extra": torch.zeros(1)})
    whole = ([5], {"weights": Rows(LAYOUT, [torch.ones(1, 2, dtype=torch.int64)]), "loss": torch.zeros(1)})
    screening = Screening(FedAvg(), START)
    kept, refused = screening([sound, worse, other, more, whole])
    assert refused == {
        1: "not finite",
        2: "absurdly large",
        9: "wrong shape",
        8: "wrong shape",
        5: "wrong shape",
    }
    assert [clients for clients, _ in kept] == [[4, 7], [3]]
    assert kept[1][1]["weights"].matrix().tolist() == [[1.0, 1.0]] and kept[1][1]["loss"].tolist() == [0.0]
    assert screening([]) == ([], {}) and screening([whole]) == ([], {5: "wrong shape"})


def test_where_all_are_absurd_the_first_model_tells() -> None:
    """Its largest entry is 1, so 2e12 is the most."""
    kept, refused = Screening(FedAvg(), START)([([0, 1, 2], upload((1e13, 0), (1e13, 1e13), (0, -3e12)))])
    assert not kept and refused == dict.fromkeys(range(3), "absurdly large")
    assert len(Screening(FedAvg(), START)([([0, 1], upload((1e12, 0), (1e12, 1e12)))])[0]) == 1


def test_an_upload_with_two_faults_is_refused_once() -> None:
    both = upload((math.nan, 0), (1, 1), confidence=[math.nan, 1.0])
    kept, refused = Screening(PFedVEM(), START)([([3, 6], both)])
    assert refused == {3: "not finite"} and kept[0][0] == [6]


@pytest.mark.parametrize("method", [SelfFL(), UCFL()])
def test_a_variance_may_be_undefined_but_not_negative(method: Method) -> None:
    found = of_numbers(method, "variance", [0.0, math.nan, 1e-30, 1e5, -1e-9, math.inf, 1e13])
    assert found == {4: "impossible", 5: "not finite", 6: "absurdly large"}
    assert of_numbers(method, "variance", [math.nan, math.nan]) == {}


def test_a_confidence_must_be_a_positive_number() -> None:
    """It is 1/ρ², and ρ² is kept above 1e-12."""
    found = of_numbers(PFedVEM(), "confidence", [1e12, 1e-11, 100.0, 0.0, -1.0, math.nan, math.inf, 1e13])
    assert found == {3: "impossible", 4: "impossible", 5: "not finite", 6: "not finite", 7: "impossible"}


def test_a_choice_must_be_one_of_those_there_are() -> None:
    assert of_numbers(IFCA(clusters=3), "cluster", [0, 1, 2, 3, -1]) == {3: "impossible", 4: "impossible"}


def test_several_numbers_of_a_client() -> None:
    worth = torch.tensor([[0.1, -0.4], [0.2, math.nan], [0.0, 1e14]])
    kept, refused = Screening(FedAvg(), START)([([5, 6, 7], upload((1, 1), (1, 1), (1, 1)) | {"worth": worth})])
    assert refused == {6: "not finite", 7: "absurdly large"} and kept[0][0] == [5]
