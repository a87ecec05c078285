"""Convolutional networks for pictures, as PyTorch's CIFAR-10 tutorial and the pFedVEM paper have them.

The tutorial's network is LeNet-5 with the largest of each 2 × 2 pixels instead of their average; pFedVEM's has more
channels (Zhu et al., CVPR 2023, authors' code: 16 and 32). A side of at least 16 pixels is needed, nothing is padded.

The deeper network is the one of pFedVEM's CIFAR-100 experiment: five 3 × 3 convolutions, each pooling padded by 1, and
the average over what is left of the picture; of 32 × 32 pixels 3 × 3 are left.
"""

from itertools import pairwise

from torch import Tensor, nn

from bespokefl.core.errors import InputError
from bespokefl.models.init import begin

KERNEL = 5
DEPTHS = (32, 64, 128, 256, 100)  # channels of the deeper network


class CifarCNN(nn.Module):
    """PyTorch's CIFAR-10 example: two convolutions (6, 16) of 5 × 5, then 120 and 84; pictures from 16 × 16."""

    widths: tuple[int, int] = (6, 16)
    name = "cifar-cnn"

    def __init__(self, shape: tuple[int, ...], classes: int, init: str = "torch") -> None:
        super().__init__()
        channels = _channels(self.name, shape, 16)
        first, second = self.widths
        height, width = (((side - KERNEL + 1) // 2 - KERNEL + 1) // 2 for side in shape[-2:])
        self.base = nn.Sequential(
            *_unflattened(shape),
            nn.Conv2d(channels, first, KERNEL),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, KERNEL),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(second * height * width, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
        )
        self.head = nn.Linear(84, classes)
        begin(self, init)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.base(x))
        return output


class PFedVEMCNN(CifarCNN):
    """pFedVEM's network for CIFAR-10: as cifar-cnn, with 16 and 32 channels."""

    widths = (16, 32)
    name = "pfedvem-cnn"


class DeepCNN(nn.Module):
    """pFedVEM's network for CIFAR-100: five convolutions of 3 × 3 (32, 64, 128, 256, 100), averaged; from 4 × 4."""

    def __init__(self, shape: tuple[int, ...], classes: int, init: str = "torch") -> None:
        super().__init__()
        layers = _unflattened(shape)
        for number, (wide, next_wide) in enumerate(pairwise((_channels("deep-cnn", shape, 4), *DEPTHS))):
            layers += [nn.Conv2d(wide, next_wide, 3, padding=1), nn.ReLU()]
            if number < len(DEPTHS) - 1:
                layers.append(nn.MaxPool2d(2, padding=1))
        self.base = nn.Sequential(*layers)
        self.head = nn.Linear(DEPTHS[-1], classes)
        begin(self, init)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.base(x).mean((-2, -1)))
        return output


def _channels(name: str, shape: tuple[int, ...], least: int) -> int:
    """A picture's channels; refuses what is no picture, or too small a one."""
    if len(shape) not in (2, 3) or min(shape[-2:]) < least:
        raise InputError(
            f"{name} needs pictures of shape (channels, height, width), at least {least} x {least}, "
            f"got {tuple(shape)}; use mlp for other data"
        )
    return shape[0] if len(shape) == 3 else 1


def _unflattened(shape: tuple[int, ...]) -> list[nn.Module]:
    return [nn.Unflatten(1, (1, shape[0]))] if len(shape) == 2 else []
