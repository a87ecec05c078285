"""Uploads that are broken, absurd or late are refused before they are aggregated, and the round goes on."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from bespokefl.core.errors import InputError
from bespokefl.core.method import Method, State
from bespokefl.core.rows import Rows
from bespokefl.engines.faults import KINDS, Faults
from bespokefl.experiments.run import run
from bespokefl.methods import REGISTRY, FedAvg
from tests.contract.conftest import params, quick
from tests.faults.test_resume import SMALL, clients
from tests.federations import apart, federation, same_bits
from tests.federations import run as simulate

pytestmark = pytest.mark.slow  # `make check` is to stay under two minutes

DATA = federation(dtype=torch.float64)
OPTIONS: dict[str, Any] = {"rounds": 4, "participation": 0.67}


@pytest.fixture(params=params(REGISTRY))
def method(request: pytest.FixtureRequest) -> Method:
    return quick(REGISTRY[request.param])


def test_every_method_goes_on_and_ends_as_if_they_had_not_reported(method: Method) -> None:
    """However an upload is lost, the same clients are lost: all else must be the same, to the last bit."""
    runs = {
        kind: simulate(method, DATA, faults=Faults.of(f"{kind}:0.3"), **OPTIONS)[1]
        for kind in ("slow", "nan", "huge", "wrong-shape")
    }
    expected = runs.pop("slow")
    assert expected.personal_rows.finite().all()
    for kind, outcome in runs.items():
        assert same_bits(outcome.personal_rows, expected.personal_rows), kind
        assert outcome.lost.keys() == expected.lost.keys()
        for one, other in zip(outcome.history, expected.history, strict=True):
            assert one["reported"] == other["reported"] and one.get("lost", {}).keys() == other.get("lost", {}).keys()


def test_every_method_takes_dropouts_of_all_kinds(method: Method) -> None:
    faults = Faults.of("drop:0.3, slow:0.1, nan:0.1, huge:0.1, wrong-shape:0.1")
    outcome = simulate(method, DATA, faults=faults, rounds=5)[1]
    assert outcome.personal_rows.finite().all()
    assert outcome.lost


@pytest.mark.parametrize("kind", KINDS)
def test_every_method_goes_on_when_nobodys_upload_ever_counts(method: Method, kind: str) -> None:
    outcome = simulate(method, DATA, faults=Faults.of(f"{kind}:1"), rounds=2)[1]
    assert outcome.personal_rows.finite().all()
    assert not sent(method) or all(line["reported"] == 0 for line in outcome.history)


class AtFirst(Faults):
    """Everybody's first upload comes too late, and no other."""

    def of_client(self, seed: int, number: int, client: str) -> str | None:
        return "slow" if number == 1 else None


def test_every_method_goes_on_when_nobodys_first_upload_counts(method: Method) -> None:
    made, outcome = simulate(method, DATA, faults=AtFirst(), rounds=3)
    assert outcome.personal_rows.finite().all()
    assert method.newcomer(made.task, made.server, made.side.work([0, 1], 0)).finite().all()


@pytest.mark.parametrize("name", ["ucfl", "ucfl-parallel"])
def test_without_a_survey_it_is_fedavg(name: str) -> None:
    method = REGISTRY[name](lr=0.05, momentum=0.0)
    found = simulate(method, DATA, faults=AtFirst(), rounds=3)[0].server["weights"]
    assert apart(found, simulate(FedAvg(lr=0.05), DATA, faults=AtFirst(), rounds=4)[0].server["weights"]) < 1e-12


def test_nobody_is_left() -> None:
    made, outcome = simulate(FedAvg(), DATA, faults=Faults.of("drop:1"), **OPTIONS)
    assert same_bits(made.server["weights"], made.task.start)
    assert all(line["trained"] == line["reported"] == 0 for line in outcome.history)


def test_who_drops_out_is_as_if_never_asked() -> None:
    """FedAvg by hand: the mean of those who are left."""
    faults = Faults.of("drop:0.5")
    gone = {name for name in DATA.names if faults.of_client(0, 1, name) == "drop"}
    assert 0 < len(gone) < len(DATA)
    dropped = simulate(FedAvg(), DATA, faults=faults, rounds=1)[0].server["weights"]
    late = simulate(FedAvg(), DATA, faults=Faults.of("slow:0.5"), rounds=1)[0].server["weights"]
    assert apart(dropped, late) < 1e-12
    assert apart(dropped, simulate(FedAvg(), DATA, rounds=1)[0].server["weights"]) > 1e-4


# What an upload's numbers are, and values for them that break the aggregation.
NUMBERS: dict[str, list[float]] = {
    "confidence": [math.nan, math.inf, -math.inf, 0, -1, 1e30, 1e-30],  # of pFedVEM
    "variance": [math.inf, -math.inf, -1, 1e30],  # of Self-FL and UCFL, where NaN is "undefined"
    "worth": [math.nan, math.inf, -math.inf, 1e30],  # of FedFOMO
    "cluster": [-1, 99],  # of IFCA
}
FAILING = Faults.of("slow:0.3")


def poisoned(method: Method, value: float) -> Method:
    """The same method, whose clients send this instead of their numbers where they would be late.

    What has no numbers, as UCFL's later rounds, comes with huge rows.
    """

    def local_update(self: Method, *given: Any) -> tuple[State, State]:
        upload, state = super(type(self), self).local_update(*given)
        work, round = given[-2:]
        late = torch.tensor([FAILING.of_client(round.seed, round.number, name) == "slow" for name in work.names])
        rows_only = all(isinstance(value, Rows) for value in upload.values())
        for name, numbers in upload.items():
            if isinstance(numbers, Rows):
                upload[name] = numbers.replace(late, numbers[late] * 1e9) if rows_only else numbers
            else:
                assert name in NUMBERS, f"say above what is impossible for {name}"
                upload[name] = numbers.clone()
                upload[name][late] = int(value) if name == "cluster" else value
        return upload, state

    kind = type("Poisoned", (type(method),), {"local_update": local_update})
    return kind(**method.hyper())  # type: ignore[no-any-return]


def sent(method: Method) -> set[str]:
    """The names of all that a method uploads."""
    seen: set[str] = set()

    def local_update(self: Method, *given: Any) -> tuple[State, State]:
        upload, state = super(type(self), self).local_update(*given)
        seen.update(upload)
        return upload, state

    kind = type("Seen", (type(method),), {"local_update": local_update})
    simulate(kind(**method.hyper()), DATA, rounds=1)
    return seen


def test_no_number_of_an_upload_poisons_the_others(method: Method) -> None:
    expected = simulate(method, DATA, faults=FAILING, **OPTIONS)[1]
    for value in {value for name in sent(method) & NUMBERS.keys() for value in NUMBERS[name]}:
        outcome = simulate(poisoned(method, value), DATA, **OPTIONS)[1]
        assert same_bits(outcome.personal_rows, expected.personal_rows), value
        assert outcome.lost.keys() == expected.lost.keys() != set()


def test_rates_are_what_was_asked_for() -> None:
    faults = Faults.of("nan:0.05, huge:0.01, drop:0.1, slow:0.1, wrong-shape:0.01")
    drawn = [faults.of_client(3, number, f"c{client}") for number in range(100) for client in range(100)]
    for kind, rate in {"nan": 0.05, "huge": 0.01, "drop": 0.1, "slow": 0.1, "wrong-shape": 0.01}.items():
        assert drawn.count(kind) / 1e4 == pytest.approx(rate, abs=4 * math.sqrt(rate * (1 - rate) / 1e4))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nam:0.1", "unknown fault 'nam'; did you mean 'nan'"),
        ("nan", "a fault must be written kind:share, as in drop:0.1, got 'nan'."),
        ("drop:2", "the share of clients that fail by drop must be in [0, 1], got 2."),
        ("nan:0.1, nan:0.9", "each fault must be given once, got nan twice in 'nan:0.1, nan:0.9'; leave one out."),
        ("drop:0.6, nan:0.6", "the shares of all faults must add up to at most 1, got 1.2."),
    ],
)
def test_faults_that_cannot_be(text: str, sentence: str) -> None:
    with pytest.raises(InputError) as raised:
        Faults.of(text)
    assert sentence in str(raised.value)


def test_they_are_counted_and_reported(tmp_path: Path) -> None:
    result = run("ditto", clients(), faults="nan:0.5", **SMALL)
    written = json.loads((result.save(tmp_path / "run") / "result.json").read_text())
    lost = [line.get("lost", {}) for line in result.rounds]
    assert sum(map(len, lost)) > 0
    for name, reasons in written["lost"].items():
        assert reasons == {"not finite": sum(name in line for line in lost)}
    assert any("Uploads that did not count" in note for note in result.notes)
    assert set(KINDS) == {"nan", "huge", "wrong-shape", "slow", "drop"}
