"""What a run keeps per client is in the clients' own order, whatever the order of their names."""

import numpy as np

import bespokefl as bf

NAMES = ["2", "10", "1", "30"]  # as text: 1, 10, 2, 30


def test_notes_with_a_place_for_every_client_are_in_the_clients_order() -> None:
    rng = np.random.default_rng(0)
    sets = [(rng.normal(size=(n, 4)).astype(np.float32), rng.integers(0, 3, n)) for n in (9, 12, 15, 18)]

    def survey(order: list[int]) -> bf.Result:
        clients = bf.Clients.from_sets(train=[sets[i] for i in order], names=[NAMES[i] for i in order])
        return bf.run("ucfl", clients, model="logistic", rounds=1, workers=1)

    listed, turned = [0, 1, 2, 3], [2, 1, 0, 3]  # the second is the order of the names
    first, second = survey(listed), survey(turned)
    back = [turned.index(i) for i in listed]
    expected = np.array(second.rounds[0]["collaboration"])[np.ix_(back, back)]
    np.testing.assert_array_equal(np.array(first.rounds[0]["collaboration"]), expected)
    assert first.rounds[0]["stream"] != list(range(4)) and second.rounds[0]["stream"] == list(range(4))


def test_labels_that_are_not_0_1_2_are_said() -> None:
    rng = np.random.default_rng(0)
    clients = bf.Clients.from_arrays(rng.normal(size=(30, 4)), rng.integers(0, 2, 30) + 2, client=np.arange(30) % 3)
    assert bf.run("local", clients, model="logistic", rounds=1, workers=1).notes == [
        "Labels 2, 3 are outputs 0 to 1 of the model, in this order."
    ]
