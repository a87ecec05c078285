"""Long short-term memory: reads a text word by word; Hochreiter and Schmidhuber, Neural Computation 9 (1997)."""

import torch
from torch import Tensor, nn

from bespokefl.models.sizes import documents, whole

PADDING = 0


class LSTM(nn.Module):
    """Text, read word by word; embedding=64, hidden=128 are widths, layers=1. Self-FL's: lstm(300, 256, 2)."""

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        embedding: int = 64,
        hidden: int = 128,
        layers: int = 1,
        tokens: int | None = None,
    ) -> None:
        super().__init__()
        documents("lstm", shape, tokens)
        for name, value in (("embedding", embedding), ("hidden", hidden), ("layers", layers)):
            whole(name, value)
        assert tokens is not None
        self.base = nn.ModuleDict(
            {
                "embedding": nn.Embedding(tokens, embedding),
                "memory": nn.LSTM(embedding, hidden, layers, batch_first=True),
            }
        )
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.base["memory"](self.base["embedding"](x))
        # What it knows at the last word: the filling behind it has been read, too, but is not looked at.
        last = (x != PADDING).sum(-1, keepdim=True).clamp(min=1) - 1
        there = (torch.arange(x.shape[-1], device=x.device) == last).unsqueeze(-1).to(outputs.dtype)
        output: Tensor = self.head((outputs * there).sum(-2))
        return output
