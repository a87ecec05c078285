"""Modules of all kinds that people bring along."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.federations import CLASSES, WIDTH, mlp


def conv() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, CLASSES))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 6), nn.GroupNorm(2, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, CLASSES))


class Pretrained(nn.Module):
    """A backbone that stays as it is, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Linear(WIDTH, 5).requires_grad_(False)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.backbone(x)))


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH)
        self.down = nn.Linear(WIDTH, WIDTH)
        self.down.weight = self.up.weight
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.down(torch.tanh(self.up(x)))))


class Constant(nn.Module):
    """A buffer that never changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.linspace(0.5, 2.0, WIDTH))
        self.body = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x * self.scale)


class Temperature(nn.Module):
    """A parameter that is a single number, and one that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(WIDTH, CLASSES)
        self.spare = nn.Parameter(torch.ones(4))
        self.temperature = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) / self.temperature


class Tokens(nn.Module):
    """Whole numbers in."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 4)
        self.out = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.table(x).mean(-2))


class Item(nn.Module):
    """Takes a number out of a tensor, which vmap cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) * (1.0 + 0.0 * self.body.weight.sum().item())


class Branch(nn.Module):
    """Decides by its data, which vmap cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) if self.body.weight.abs().sum() > 1e-9 else self.body(2 * x)


class Counting(nn.Module):
    """A buffer that training changes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(WIDTH, CLASSES)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += len(x)
        return self.body(x)


class Noise(nn.Module):
    """Draws normal noise in training; torch fills small and large tensors in different orders."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x + 0.5 * torch.randn_like(x) if self.training else x)


class Dropped(nn.Module):
    """Dropout in training."""

    def __init__(self, share: float = 0.5) -> None:
        super().__init__()
        self.first, self.second, self.share = nn.Linear(WIDTH, 6), nn.Linear(6, CLASSES), share

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.dropout(F.relu(self.first(x)), self.share, self.training))


STACKABLE = {
    "linear": lambda: nn.Linear(WIDTH, CLASSES),
    "mlp": mlp,
    "conv": conv,
    "normed": normed,
    "pretrained": Pretrained,
    "tied": Tied,
    "constant": Constant,
    "temperature": Temperature,
    "tokens": Tokens,
}
PLAIN_ONLY = {"item": Item, "branch": Branch}
RANDOM = {"noise": Noise, "dropout": Dropped}


def inputs(name: str, *shape: int, dtype: torch.dtype) -> Tensor:
    """Examples that the module of this name takes."""
    generator = torch.Generator().manual_seed(1)
    if name == "tokens":
        return torch.randint(11, (*shape, 5), generator=generator)
    size = (1, 4, 4) if name == "conv" else (WIDTH,)
    return torch.randn(*shape, *size, generator=generator, dtype=torch.float64).to(dtype)
