"""Client states: an update is read back, and other clients have the initial state."""

import errno
import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bespokefl.core.errors import DiskError
from bespokefl.core.method import State
from bespokefl.core.rows import Layout, Rows
from bespokefl.core.system import memory
from bespokefl.engines.storage import client_states as module
from bespokefl.engines.storage import mapped_files
from bespokefl.engines.storage.client_states import ClientStates
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


def test_clients_that_were_never_active_take_no_space() -> None:
    store = ClientStates(begin)
    assert values(store.get([3, 1])) == ([-1.0, -1.0], [-3, -1])
    assert len(store) == 0


def test_known_and_new_clients_together() -> None:
    store = ClientStates(begin)
    store.update([5, 2], state([50, 20]))
    assert values(store.get([2, 7, 5, 1])) == ([20.0, -1.0, 50.0, -1.0], [20, -7, 50, -1])
    assert values(store.get([5])) == ([50.0], [50])
    assert len(store) == 2


def test_replacing_some() -> None:
    store = ClientStates(begin)
    store.update([0, 1, 2], state([0, 10, 20]))
    store.update([2, 3, 0], state([21, 31, 1]))
    assert values(store.get([0, 1, 2, 3])) == ([1.0, 10.0, 21.0, 31.0], [1, 10, 21, 31])


def test_nothing_to_keep() -> None:
    store = ClientStates(lambda clients: {})
    store.update([1, 2], {})
    assert store.get([1, 2, 3]) == {} and len(store) == 0


def test_what_is_kept_is_a_copy() -> None:
    store = ClientStates(begin)
    mine = state([4])
    store.update([4], mine)
    mine["count"].fill_(9)
    mine["personal"].blocks[0].fill_(9)
    out = store.get([4])
    assert values(out) == ([4.0], [4])
    out["count"].fill_(9)
    assert values(store.get([4])) == ([4.0], [4])


@given(st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=8, unique=True), max_size=12))
def test_as_a_dictionary_would(puts: list[list[int]]) -> None:
    store, expected = ClientStates(begin), {}
    for number, clients in enumerate(puts):
        new = [100 * number + client for client in clients]
        store.update(clients, state(new))
        expected |= dict(zip(clients, new, strict=True))
        found = values(store.get(list(range(41))))[1]
        assert found == [expected.get(client, -client) for client in range(41)]
    assert len(store) == len(expected)


def test_replies_are_spilled_to_where_the_states_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_files, "SPILL_BYTES", 64)
    large = Rows(Layout(("w",), ((100,),)), [torch.arange(200.0).reshape(2, 100)])
    sent = {"upload/weights": large, "state/few": rows([1, 2]), "broken": torch.zeros(2)}
    in_memory = ClientStates(begin, 2).spill(state([1, 2]), sent)
    assert all(in_memory[name] is sent[name] for name in sent)
    there = ClientStates(begin, 2, tmp_path).spill(state([1, 2]), sent)
    assert same_bits(there["upload/weights"], large) and same_bits(there["state/few"], sent["state/few"])
    assert there["upload/weights"].blocks[0].data_ptr() != large.blocks[0].data_ptr()
    assert there["state/few"].blocks[0].data_ptr() == sent["state/few"].blocks[0].data_ptr()
    assert not any(path.is_file() for path in tmp_path.rglob("*"))  # the file went when it was mapped


def test_replies_without_a_state_stay_in_memory(tmp_path: Path) -> None:
    sent = {"upload/weights": rows([1, 2])}
    assert ClientStates(begin, 2, tmp_path).spill({}, sent) is sent


def test_a_killed_process_leaves_no_states(tmp_path: Path) -> None:
    """The files have no names, neither while they are used nor afterwards."""
    child = os.fork()
    if not child:
        store = ClientStates(begin, 100, tmp_path)
        store.update([0], state([1]))
        store.update(range(1, 100), state(range(1, 100)))
        room = store.allocate(rows([0]), 5)
        os._exit(1) if list(tmp_path.iterdir()) or len(room) != 5 else os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=8, unique=True), max_size=8))
def test_in_files_as_in_memory(tmp_path_factory: pytest.TempPathFactory, puts: list[list[int]]) -> None:
    place = tmp_path_factory.mktemp("states")
    stores = ClientStates(begin), ClientStates(begin, 3, place)
    for number, clients in enumerate(puts):
        for store in stores:
            store.update(clients, state([100 * number + client for client in clients]))
    expected, found = (store.get(list(range(41))) for store in stores)
    assert values(found) == values(expected)
    assert [store.mapped for store in stores] == [False, bool(puts)]


def test_a_snapshot_stays_while_files_grow(tmp_path: Path) -> None:
    store = ClientStates(begin, None, tmp_path)
    store.update([0, 1], state([5, 6]))
    snapshot = store.snapshot()
    for number in range(6):
        store.update(range(2**number, 2 ** (number + 1)), state(range(2**number, 2 ** (number + 1))))
        store.update([0, 1], state([-number, -number]))
    for _, block in snapshot.blocks():
        assert block[snapshot.slots].reshape(2, -1)[:, 0].tolist() == [5, 6]
    assert values(store.get([0, 40])) == ([-5.0, 40.0], [-5, 40])


@pytest.mark.parametrize("files", [False, True])
def test_a_snapshot_is_finished_before_it_pins_too_many_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: bool
) -> None:
    monkeypatch.setattr(module, "SPARE_SHARE", 1 / 8)
    monkeypatch.setattr(module, "SPARE_BYTES", 0)
    store = ClientStates(begin, 100, tmp_path if files else None)
    store.update(range(80), state(range(80)))
    snapshot, ended = store.snapshot(), []

    def finish() -> None:
        held = {name: block[snapshot.slots].reshape(80, -1)[:, 0].tolist() for name, block in snapshot.blocks()}
        assert all(values == list(range(80)) for values in held.values())
        ended.append(len(store))
        snapshot.release()

    snapshot.on_slots_needed(finish)
    store.update(range(6), state([-1] * 6))
    store.update([0, 1, 90], state([-2] * 3))  # no row of the snapshot's is in the way
    assert not ended
    store.update(range(6, 11), state([-3] * 5))  # eleven of 81 rows would stand twice, more than an eighth
    assert ended == [81]
    store.update(range(80), state(range(80)))  # no snapshot pins a slot any more
    assert ended == [81] and store._used == 81 + 6
    assert values(store.get([0, 7, 90])) == ([0.0, 7.0, -2.0], [0, 7, -2])


def test_rows_in_memory_are_never_moved() -> None:
    """Space for all clients and for a snapshot is reserved at once and uses no memory until it is written."""
    store = ClientStates(begin, 1000)
    store.update([0], state([1]))
    place = store._tensors["personal"].blocks[0].data_ptr()
    for client in range(1, 1000):
        store.update([client], state([client]))
    snapshot = store.snapshot()
    store.update(range(1000), state(range(1000)))
    assert store._tensors["personal"].blocks[0].data_ptr() == place
    snapshot.release()


def test_rows_do_not_share_a_file(tmp_path: Path) -> None:
    store = ClientStates(begin, 2, tmp_path)
    store.update([0], state([1]))
    first, second = store.allocate(rows([0]), 2), store.allocate(rows([0]), 2)
    for block in first.blocks:
        block.fill_(7)
    assert not second.matrix().any()


@pytest.mark.parametrize(("asked", "level"), [(False, module.NOTICE), (True, logging.INFO)])
def test_an_automatic_choice_of_files_is_logged(
    asked: bool, level: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memory, "limit", lambda: 100.0)  # all states have 3 x 32 bytes
    assert logging.INFO < module.NOTICE < logging.WARNING
    store = ClientStates(begin, 3, tmp_path if asked else None)
    with caplog.at_level(logging.INFO, logger="bespokefl"):
        store.update([0], state([1]))
    assert store.mapped
    (record,) = caplog.records
    assert record.levelno == level and "are kept in memory-mapped files in" in record.getMessage()


def test_states_that_fit_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "limit", lambda: 1000.0)
    store = ClientStates(begin, 3)
    store.update([0], state([1]))
    assert not store.mapped


@pytest.mark.parametrize(
    ("number", "cure"),
    [
        (errno.ENOSPC, "make room or give --state-dir on a larger disk"),
        (errno.EDQUOT, "make room or give --state-dir on a larger disk"),
        (errno.EACCES, "give --state-dir a writable directory"),
    ],
)
def test_disk_errors_say_what_to_do(number: int, cure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(DiskError) as raised:
        ClientStates(begin, 3, tmp_path).update([0], state([1]))
    assert str(raised.value) == (
        f"cannot keep the clients' states in {str(tmp_path)!r}: {os.strerror(number)}; {cure}."
    )


def test_a_place_that_is_a_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match="File exists; give --state-dir a writable directory"):
        ClientStates(begin, 3, tmp_path / "file").update([0], state([1]))
    assert "Exception ignored" not in capfd.readouterr().err
