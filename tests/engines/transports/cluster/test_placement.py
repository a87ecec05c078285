"""Which node holds the data of which clients: a rule that knows the sizes alone."""

from hypothesis import given
from hypothesis import strategies as st

from bespokefl.engines.transports import wire
from bespokefl.engines.transports.cluster.placement import joined, of_values, place, subset, to_values
from tests.federations import federation, same_bits


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_every_client_is_on_one_node_in_the_order_of_sizes(sizes: list[int], workers: list[int]) -> None:
    parts = place(sizes, workers)
    assert len(parts) == len(workers)
    flat = [client for part in parts for client in part]
    assert flat == sorted(range(len(sizes)), key=lambda client: (-sizes[client], client))


def test_nodes_get_examples_in_proportion_to_their_workers() -> None:
    parts = place([10] * 100, [1, 3, 1])
    assert [len(part) for part in parts] == [20, 60, 20]
    skewed = [1000, *[10] * 100]
    assert [sum(skewed[client] for client in part) for part in place(skewed, [1, 1])] == [1000, 1000]


def test_a_subset_has_the_same_examples() -> None:
    data = federation()
    part = subset(data, [4, 1])
    assert part.names == ("eve", "ben")
    for at, client in enumerate([4, 1]):
        for name in ("train", "validation", "test"):
            here, there = getattr(part, name).of(at), getattr(data, name).of(client)
            assert same_bits(part.x[here], data.x[there]) and same_bits(part.y[here], data.y[there])


def test_data_pass_as_bytes_and_are_joined() -> None:
    data = federation()
    first, second = subset(data, [2, 5]), subset(data, [0])
    passed = of_values(wire.unpack(*wire.pack(to_values(first))), data.names, (7,) * 6, [2, 5])
    both = joined(passed, second)
    assert both.names == ("cleo", "fay", "ada") and passed.seeds == (7, 7)
    for at, client in enumerate([2, 5, 0]):
        assert same_bits(both.x[both.train.of(at)], data.x[data.train.of(client)])
