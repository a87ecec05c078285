"""Lists of different lengths in two flat tensors are still those lists."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bespokefl.core.client_index import ClientIndex

lists_of_indices = st.lists(st.lists(st.integers(0, 99), max_size=6), max_size=6)


@given(lists_of_indices)
def test_what_goes_in_comes_out(lists: list[list[int]]) -> None:
    part = ClientIndex.of_lists(np.array(one, dtype=np.int64) for one in lists)
    assert len(part) == len(lists)
    assert part.sizes.tolist() == [len(one) for one in lists]
    assert [part.of(k).tolist() for k in range(len(part))] == lists


@given(lists_of_indices.filter(bool), st.data())
def test_take(lists: list[list[int]], data: st.DataObject) -> None:
    part = ClientIndex.of_lists(np.array(one, dtype=np.int64) for one in lists)
    clients = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=5))
    taken = part.take(clients)
    assert [taken.of(k).tolist() for k in range(len(taken))] == [lists[client] for client in clients]
