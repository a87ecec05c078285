"""The store gives back what was put in, and the start for clients it does not know."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bespokefl.core.method import State
from bespokefl.core.rows import Layout, Rows
from bespokefl.engines import store as module
from bespokefl.engines.store import Store
from tests.federations import same_bits

LAYOUT = Layout(("w", "b"), ((2,), ()))


def rows(values: Sequence[float]) -> Rows:
    return Rows.from_matrix(LAYOUT, torch.tensor(values, dtype=torch.float64)[:, None].expand(-1, 3))


def state(values: Sequence[float]) -> State:
    return {"personal": rows(values), "count": torch.tensor(values, dtype=torch.int64)}


def begin(clients: Sequence[int]) -> State:
    """One row for all, and a number each: minus the client's."""
    return {"personal": rows([-1.0]), "count": torch.tensor([-client for client in clients])}


def values(found: State) -> tuple[list[float], list[int]]:
    assert torch.equal(found["personal"].matrix()[:, 0], found["personal"].matrix()[:, 2])
    return found["personal"].matrix()[:, 0].tolist(), found["count"].tolist()


def test_nobody_is_kept_before_having_been_active() -> None:
    store = Store(begin)
    assert values(store.get([3, 1])) == ([-1.0, -1.0], [-3, -1])
    assert len(store) == 0


def test_known_and_new_clients_together() -> None:
    store = Store(begin)
    store.put([5, 2], state([50, 20]))
    assert values(store.get([2, 7, 5, 1])) == ([20.0, -1.0, 50.0, -1.0], [20, -7, 50, -1])
    assert values(store.get([5])) == ([50.0], [50])
    assert len(store) == 2


def test_replacing_some() -> None:
    store = Store(begin)
    store.put([0, 1, 2], state([0, 10, 20]))
    store.put([2, 3, 0], state([21, 31, 1]))
    assert values(store.get([0, 1, 2, 3])) == ([1.0, 10.0, 21.0, 31.0], [1, 10, 21, 31])


def test_nothing_to_keep() -> None:
    store = Store(lambda clients: {})
    store.put([1, 2], {})
    assert store.get([1, 2, 3]) == {} and len(store) == 0


def test_what_is_kept_is_a_copy() -> None:
    store = Store(begin)
    mine = state([4])
    store.put([4], mine)
    mine["count"].fill_(9)
    mine["personal"].blocks[0].fill_(9)
    out = store.get([4])
    assert values(out) == ([4.0], [4])
    out["count"].fill_(9)
    assert values(store.get([4])) == ([4.0], [4])


@given(st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=8, unique=True), max_size=12))
def test_as_a_dictionary_would(puts: list[list[int]]) -> None:
    store, expected = Store(begin), {}
    for number, clients in enumerate(puts):
        new = [100 * number + client for client in clients]
        store.put(clients, state(new))
        expected |= dict(zip(clients, new, strict=True))
        found = values(store.get(list(range(41))))[1]
        assert found == [expected.get(client, -client) for client in range(41)]
    assert len(store) == len(expected)


def test_what_waits_is_where_the_states_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ASIDE", 64)
    large = Rows(Layout(("w",), ((100,),)), [torch.arange(200.0).reshape(2, 100)])
    sent = {"upload/weights": large, "state/few": rows([1, 2]), "broken": torch.zeros(2)}
    in_memory = Store(begin, 2).aside(state([1, 2]), sent)
    assert all(in_memory[name] is sent[name] for name in sent)
    there = Store(begin, 2, tmp_path).aside(state([1, 2]), sent)
    assert same_bits(there["upload/weights"], large) and same_bits(there["state/few"], sent["state/few"])
    assert there["upload/weights"].blocks[0].data_ptr() != large.blocks[0].data_ptr()
    assert there["state/few"].blocks[0].data_ptr() == sent["state/few"].blocks[0].data_ptr()
    assert not any(path.is_file() for path in tmp_path.rglob("*"))  # the file went when it was mapped


def test_nothing_waits_in_files_where_there_is_no_state(tmp_path: Path) -> None:
    sent = {"upload/weights": rows([1, 2])}
    assert Store(begin, 2, tmp_path).aside({}, sent) is sent
