"""What docs/methods/README.md says of clients that drop out or come too late is what happens."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bespokefl.core.method import Method
from bespokefl.engines.faults import Faults
from bespokefl.engines.simulation import Simulation
from bespokefl.methods import REGISTRY, UCFL, FedRep, PersFL
from tests.contract.conftest import quick
from tests.federations import federation, same_bits, simulation

PAGE = Path(__file__).parents[2] / "docs" / "methods" / "README.md"
DATA = federation(dtype=torch.float64)


def told() -> dict[str, str]:
    """What becomes of a late client's own training, by method."""
    section = PAGE.read_text(encoding="utf-8").split("## Dropped and late clients")[1]
    rows = re.findall(r"^\| ([a-z, -]+) \| (kept|discarded|none) \| (.+) \|$", section, re.MULTILINE)
    found = [(name, fate) for names, fate, more in rows for name in names.split(", ")]
    assert len(dict(found)) == len(found), "a method has two lines"
    return dict(found)


def test_every_method_has_its_line() -> None:
    assert told().keys() == REGISTRY.keys()


def rounds(method: Method, failing: dict[str, str]) -> Simulation:
    """A round of every phase, in which everybody fails if the phase is named here."""
    made = simulation(method, DATA, rounds=1)
    found = made.federations[0]
    with made.open():
        for number, phase in enumerate(method.phases(1), start=1):
            found.settings = replace(made.settings, faults=Faults.of(failing.get(phase.name, "")))
            made.round(number, phase)
    return made


@pytest.mark.parametrize("name", REGISTRY)
def test_what_a_late_client_has_trained_for_itself(name: str) -> None:
    method = quick(REGISTRY[name])
    only = {"train": "slow:1"} | {phase.name: "drop:1" for phase in method.phases(1) if phase.name != "train"}
    found = rounds(method, only)
    state, start = (one.store.get([0]) for one in (found, simulation(method, DATA)))
    fate = "none" if not state else "discarded" if same_bits(state, start) else "kept"
    assert told()[name] == fate
    before = simulation(method, DATA).federations[0].server
    assert same_bits(found.server, before), "nothing arrived, so nothing may change"


def test_who_misses_the_last_round_where_nothing_is_uploaded() -> None:
    """PersFL's distilling: the common model is used. FedRep's finish: the head that there is."""
    persfl = rounds(quick(PersFL), {"distil": "drop:1"})
    assert not persfl.store.get([0])["distilled"].any()
    assert rounds(quick(PersFL), {"distil": "slow:1"}).store.get([0])["distilled"].all()
    missed, late, whole = (
        rounds(quick(FedRep), {"finish": faults}).store.get([0])["head"] for faults in ("drop:1", "slow:1", "")
    )
    assert same_bits(late, whole) and not same_bits(missed, whole)


def test_who_misses_the_survey_gets_fedavg_s_mixture() -> None:
    """And is nobody's peer."""
    made = simulation(UCFL(), DATA, rounds=1)
    here = made.federations[0]
    fault = here._fault
    here._fault = lambda number, client: "slow" if (number, client) == (1, 2) else fault(number, client)  # type: ignore[method-assign]
    made.run()
    sizes = DATA.train.sizes.double()
    sizes[2] = 0
    mixing = here.server["mixing"][here.server["stream"]]
    assert torch.allclose(mixing[2], sizes / sizes.sum()) and not mixing[:, 2].any()
