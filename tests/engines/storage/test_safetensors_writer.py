"""What is written piece by piece is an ordinary safetensors file."""

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from bespokefl.engines.storage import safetensors_writer


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4),
        torch.arange(12, dtype=torch.int64).reshape(3, 4).T,
        torch.zeros(1, 2)[:, 0],
        torch.tensor(3.5, dtype=torch.float64),
        torch.tensor([True, False]),
        torch.zeros(0, 3),
        torch.arange(4.0).bfloat16(),
        torch.arange(10.0)[3:7],
    ],
    ids=["matrix", "turned", "stride", "number", "truth", "empty", "bfloat16", "part"],
)
def test_what_is_written_is_read(tensor: Tensor, tmp_path: Path) -> None:
    digest = safetensors_writer.write_tensors(tmp_path / "t", [("one", tensor, None)], {"about": "ä"})
    assert torch.equal(load_file(tmp_path / "t")["one"], tensor)
    assert digest == hashlib.sha256((tmp_path / "t").read_bytes()).hexdigest()
    with safe_open(tmp_path / "t", framework="pt") as file:
        assert file.metadata() == {"about": "ä"}


def test_some_rows_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_writer, "PIECE", 20)  # two rows of two numbers, and a bit
    whole = torch.arange(20.0).reshape(10, 2)
    safetensors_writer.write_tensors(tmp_path / "t", [("some", whole, [7, 0, 3, 3, 9]), ("none", whole, [])])
    found = load_file(tmp_path / "t")
    assert torch.equal(found["some"], whole[[7, 0, 3, 3, 9]]) and found["none"].shape == (0, 2)


def test_whole_tensors_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_writer, "PIECE", 20)
    whole, one = torch.arange(20.0).reshape(10, 2), torch.arange(3.0).expand(7, 3)
    safetensors_writer.write_tensors(tmp_path / "t", [("whole", whole, None), ("same", one, None)])
    found = load_file(tmp_path / "t")
    assert torch.equal(found["whole"], whole) and torch.equal(found["same"], one)


@pytest.mark.parametrize("rows", [None, list(range(10))], ids=["whole", "rows"])
def test_a_piece_is_written_before_the_next_is_made(
    rows: list[int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a file of any size takes the memory of one piece."""
    monkeypatch.setattr(safetensors_writer, "PIECE", 20)
    steps: list[str] = []
    made, sha = safetensors_writer.tensor_bytes, hashlib.sha256()

    class Hash:
        def update(self, piece: bytes) -> None:
            steps.append("written")
            sha.update(piece)

        def hexdigest(self) -> str:
            return sha.hexdigest()

    def spied(tensor: Tensor) -> memoryview:
        steps.append("made")
        assert tensor.numel() * tensor.element_size() <= 20
        return made(tensor)

    monkeypatch.setattr(safetensors_writer.hashlib, "sha256", Hash)
    monkeypatch.setattr(safetensors_writer, "tensor_bytes", spied)
    safetensors_writer.write_tensors(tmp_path / "t", [("one", torch.arange(20.0).reshape(10, 2), rows)])
    assert steps == ["written", "written", *["made", "written"] * 5]
