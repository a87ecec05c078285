"""Tensors in memory-mapped files."""

from pathlib import Path
from typing import Any

import pytest
import torch

from bespokefl.core.errors import DiskError
from bespokefl.core.rows import Layout, Rows
from bespokefl.engines import evaluation
from bespokefl.engines.storage import client_states, mapped_files
from bespokefl.engines.storage.client_states import ClientStates
from bespokefl.engines.storage.mapped_files import MappedFiles, vacant


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of tensors that are made in files."""
    sizes: list[int] = []
    new = MappedFiles.new

    def counted(self: MappedFiles, like: torch.Tensor, size: int) -> torch.Tensor:
        sizes.append(size)
        return new(self, like, size)

    monkeypatch.setattr(MappedFiles, "new", counted)
    return sizes


def fail(*_: Any) -> None:
    raise DiskError("the disk is full")


def test_scores_of_many_clients_are_in_files(made: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_files, "MANY", 4)
    scores: evaluation.Scores = {}
    evaluation.scatter(scores, [3, 1], {"loss": torch.tensor([3.0, 1.0]).double()}, 5)
    assert made == [5] and torch.equal(scores["loss"].nan_to_num(-1.0), torch.tensor([-1.0, 1, -1, 3, -1]).double())
    assert len(vacant(3, torch.int64)) == 3 and made == [5]


def test_without_room_on_the_disk_they_are_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_files, "MANY", 4)
    monkeypatch.setattr(MappedFiles, "new", fail)
    assert vacant(5, torch.int64).fill_(2).tolist() == [2] * 5


@pytest.mark.parametrize("room", [True, False])
def test_models_of_clients_that_were_never_active_are_in_files(
    made: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, room: bool
) -> None:
    """More than 256 MB, of which the active clients' states are a small part."""
    monkeypatch.setattr(client_states, "ALL_IN_MEMORY", 1000)
    if not room:
        monkeypatch.setattr(MappedFiles, "new", fail)
    like = Rows(Layout(("w",), ((10,),)), [torch.arange(20.0).reshape(2, 10)])
    store = ClientStates(lambda clients: {"personal": like[: len(clients)]}, 100)
    store.update([4, 7], {"personal": like})
    assert len(store.allocate(like, 3)) == 3 and not made  # little
    assert len(store.allocate(like, 100)) == 100 and made == ([100] if room else [])
    store.update(list(range(60)), {"personal": like[[0] * 60]})
    made.clear()
    assert len(store.allocate(like, 100)) == 100 and not made  # hardly more than the states
