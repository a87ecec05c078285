"""Models for text: examples are word ids of shape (length,), and 0 is padding."""

import torch
from torch import Tensor, nn

from bespokefl.core.errors import InputError
from bespokefl.models.module import check_sizes

PADDING = 0


class Bag(nn.Module):
    """Text: the mean of the words' embeddings, one hidden layer; embedding=64 and hidden=64 are their widths."""

    def __init__(
        self, shape: tuple[int, ...], classes: int, embedding: int = 64, hidden: int = 64, tokens: int | None = None
    ) -> None:
        super().__init__()
        vocabulary = _check_text("bag", shape, tokens)
        check_sizes(embedding=embedding, hidden=hidden)
        self.base = nn.ModuleDict(
            {"embedding": nn.Embedding(vocabulary, embedding), "hidden": nn.Linear(embedding, hidden)}
        )
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        vectors = self.base["embedding"](x)
        is_word = (x != PADDING).unsqueeze(-1).to(vectors.dtype)
        mean = (vectors * is_word).sum(-2) / is_word.sum(-2).clamp(min=1)  # 0 for an empty document
        output: Tensor = self.head(self.base["hidden"](mean).relu())
        return output


class LSTM(nn.Module):
    """Text, word by word; embedding=64 and hidden=128 are widths, layers=1. Self-FL uses lstm(300, 256, 2).

    Hochreiter and Schmidhuber, Neural Computation 9 (1997).
    """

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
        vocabulary = _check_text("lstm", shape, tokens)
        check_sizes(embedding=embedding, hidden=hidden, layers=layers)
        self.base = nn.ModuleDict(
            {
                "embedding": nn.Embedding(vocabulary, embedding),
                "memory": nn.LSTM(embedding, hidden, layers, batch_first=True),
            }
        )
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.base["memory"](self.base["embedding"](x))
        # The output at the last word; later outputs belong to padding.
        last = (x != PADDING).sum(-1, keepdim=True).clamp(min=1) - 1
        is_last = (torch.arange(x.shape[-1], device=x.device) == last).unsqueeze(-1).to(outputs.dtype)
        output: Tensor = self.head((outputs * is_last).sum(-2))
        return output


def _check_text(name: str, shape: tuple[int, ...], tokens: int | None) -> int:
    """The size of the vocabulary; examples that are not text are rejected."""
    if tokens is None or len(shape) != 1:
        raise InputError(
            f"{name} needs text, word ids of shape (length,), got examples of shape {tuple(shape)} that are not text; "
            "use mlp"
        )
    check_sizes(tokens=tokens)
    return tokens
