"""A bag of words: the mean of what the words mean, whatever their order."""

from torch import Tensor, nn

from bespokefl.models.sizes import documents, whole

PADDING = 0


class Bag(nn.Module):
    """Text: the mean of the words' embeddings, one hidden layer; embedding=64 and hidden=64 are their widths."""

    def __init__(
        self, shape: tuple[int, ...], classes: int, embedding: int = 64, hidden: int = 64, tokens: int | None = None
    ) -> None:
        super().__init__()
        documents("bag", shape, tokens)
        whole("embedding", embedding)
        whole("hidden", hidden)
        assert tokens is not None
        self.base = nn.ModuleDict(
            {"embedding": nn.Embedding(tokens, embedding), "hidden": nn.Linear(embedding, hidden)}
        )
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        vectors = self.base["embedding"](x)
        word = (x != PADDING).unsqueeze(-1).to(vectors.dtype)
        mean = (vectors * word).sum(-2) / word.sum(-2).clamp(min=1)  # of no words: 0
        output: Tensor = self.head(self.base["hidden"](mean).relu())
        return output
