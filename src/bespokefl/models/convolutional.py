"""Convolutional networks for images of shape (channels, height, width) and series of shape (time, channel).

A single channel may be omitted.

LeNet      LeNet-5 (LeCun et al., Proceedings of the IEEE 86, 1998) with ReLU: two convolutions (6 and 16 channels of
           5 × 5), each followed by average pooling, then 120, 84 and the head. As in the paper, an image of 32 × 32 is
           not padded and one of 28 × 28 is padded by 2, so both give 5 × 5 × 16 = 400 features.
CifarCNN   The network of PyTorch's CIFAR-10 tutorial: LeNet-5 with maximum pooling and no padding.
PFedVEMCNN The same with 16 and 32 channels (Zhu et al., CVPR 2023, authors' code).
DeepCNN    The network of pFedVEM's CIFAR-100 experiment: five 3 × 3 convolutions, each pooling padded by 1, and the
           average over the remaining pixels, which are 3 × 3 for an image of 32 × 32.
CNN1d      Convolutions along time, for series and audio features.
"""

from itertools import pairwise

from torch import Tensor, nn

from bespokefl.core.errors import InputError
from bespokefl.models.dense import BaseAndHead, check_sizes, initialize

KERNEL = 5
DEPTHS = (32, 64, 128, 256, 100)  # channels of the deep network


class LeNet(BaseAndHead):
    """LeNet-5 for images of at least 4 × 4.

    The first convolution is padded by 2 if the shorter side is below 32, the second one if fewer than 6 pixels reach it
    (sides below 12, such as the 8 × 8 digits).
    """

    name, smallest, padded = "lenet", 4, True
    widths, pooling = (6, 16), nn.AvgPool2d

    def __init__(self, shape: tuple[int, ...], classes: int, init: str = "torch") -> None:
        super().__init__()
        channels = check_image(self.name, shape, self.smallest)
        sides, layers = shape[-2:], add_channel(shape)
        for inputs, outputs, unpadded in zip((channels, self.widths[0]), self.widths, (32, 6), strict=True):
            padding = 2 if self.padded and min(sides) < unpadded else 0
            layers += [nn.Conv2d(inputs, outputs, KERNEL, padding=padding), nn.ReLU(), self.pooling(2)]
            sides = tuple((side + 2 * padding - KERNEL + 1) // 2 for side in sides)
        features = self.widths[1] * sides[0] * sides[1]
        layers += [nn.Flatten(), nn.Linear(features, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()]
        self.base = nn.Sequential(*layers)
        self.head = nn.Linear(84, classes)
        initialize(self, init)


class CifarCNN(LeNet):
    """PyTorch's CIFAR-10 example: two convolutions (6, 16) of 5 × 5, then 120 and 84; for images from 16 × 16."""

    name, smallest, padded = "cifar-cnn", 16, False
    pooling = nn.MaxPool2d  # type: ignore[assignment]


class PFedVEMCNN(CifarCNN):
    """pFedVEM's network for CIFAR-10: like cifar-cnn, with 16 and 32 channels."""

    name = "pfedvem-cnn"
    widths = (16, 32)


class DeepCNN(nn.Module):
    """pFedVEM's network for CIFAR-100: five convolutions of 3 × 3 (32, 64, 128, 256, 100), averaged; from 4 × 4."""

    def __init__(self, shape: tuple[int, ...], classes: int, init: str = "torch") -> None:
        super().__init__()
        layers = add_channel(shape)
        for number, (inputs, outputs) in enumerate(pairwise((check_image("deep-cnn", shape, 4), *DEPTHS))):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
            if number < len(DEPTHS) - 1:
                layers.append(nn.MaxPool2d(2, padding=1))
        self.base = nn.Sequential(*layers)
        self.head = nn.Linear(DEPTHS[-1], classes)
        initialize(self, init)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.base(x).mean((-2, -1)))
        return output


class CNN1d(nn.Module):
    """Two convolutions along time (width, 2 × width) and their mean; for series of shape (time, channel)."""

    def __init__(self, shape: tuple[int, ...], classes: int, width: int = 32) -> None:
        super().__init__()
        if len(shape) not in (1, 2) or shape[0] < 2:
            raise InputError(
                f"cnn1d needs series of shape (time, channel), of length 2 or more, got {tuple(shape)}; use lenet for "
                "images"
            )
        check_sizes(width=width)
        self.channels = shape[1] if len(shape) == 2 else 1
        self.base = nn.Sequential(
            nn.Conv1d(self.channels, width, KERNEL, padding=KERNEL // 2),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(width, 2 * width, KERNEL, padding=KERNEL // 2),
            nn.ReLU(),
        )
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        series = x.reshape(x.shape[0], -1, self.channels).transpose(1, 2)
        output: Tensor = self.head(self.base(series).mean(-1))
        return output


def check_image(name: str, shape: tuple[int, ...], least: int) -> int:
    """Return the number of channels; examples that are not images, or too small, are rejected."""
    if len(shape) not in (2, 3) or min(shape[-2:]) < least:
        raise InputError(
            f"{name} needs images of shape (channels, height, width), at least {least} x {least}, "
            f"got {tuple(shape)}; use mlp for other data"
        )
    return shape[0] if len(shape) == 3 else 1


def add_channel(shape: tuple[int, ...]) -> list[nn.Module]:
    """Return the layer that adds the channel of images of shape (height, width), if it is missing."""
    return [nn.Unflatten(1, (1, shape[0]))] if len(shape) == 2 else []
