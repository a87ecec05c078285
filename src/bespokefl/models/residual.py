"""Residual networks for images of shape (channels, height, width), or (height, width) with one channel.

He et al., CVPR 2016, section 4.2: a 3 × 3 convolution, three stages of blocks with 16, 32 and 64 channels, the mean
over the remaining pixels, and the head. A block adds its input to the output of two 3 × 3 convolutions; where the
number of channels changes, the input is subsampled and padded with zeros (option A), so that it has no weights.

`norm` is "batch", as in the paper, or "group", with two groups as Hsieh et al., ICML 2020, and Reddi et al., ICLR 2021,
use them in federated learning, where batches of clients differ.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from bespokefl.core.errors import unknown
from bespokefl.models.convolutional import add_channel, check_image
from bespokefl.models.dense import initialize

WIDTHS = (16, 32, 64)  # channels of the stages
GROUPS = 2
SMALLEST = 8  # pixels of a side, of which 2 are left after the stages

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "group": lambda channels: nn.GroupNorm(GROUPS, channels),
}


class Block(nn.Module):
    """Two convolutions, whose output is added to the input."""

    def __init__(self, inputs: int, outputs: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.stride = outputs // inputs
        self.first = nn.Conv2d(inputs, outputs, 3, stride=self.stride, padding=1, bias=False)
        self.norm1 = norm(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = norm(outputs)
        self.missing = outputs - inputs  # channels that the input lacks

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.second(F.relu(self.norm1(self.first(x)))))
        if self.missing:
            x = F.pad(x[..., :: self.stride, :: self.stride], (0, 0, 0, 0, self.missing // 2, self.missing // 2))
        return F.relu(inner + x)


class ResNet8(nn.Module):
    """Residual network of 8 layers, one block a stage; norm="batch" or "group"; for images from 8 × 8."""

    name, blocks = "resnet8", 1

    def __init__(self, shape: tuple[int, ...], classes: int, norm: str = "batch", init: str = "he") -> None:
        super().__init__()
        if norm not in NORMS:
            raise unknown("norm", norm, NORMS)
        make, channels = NORMS[norm], WIDTHS[0]
        layers = add_channel(shape)
        inputs = check_image(self.name, shape, SMALLEST)
        layers += [nn.Conv2d(inputs, channels, 3, padding=1, bias=False), make(channels), nn.ReLU()]
        for width in WIDTHS:
            for _ in range(self.blocks):
                layers.append(Block(channels, width, make))
                channels = width
        self.base = nn.Sequential(*layers)
        self.head = nn.Linear(channels, classes)
        initialize(self, init)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.base(x).mean((-2, -1)))
        return output


class ResNet20(ResNet8):
    """Residual network of 20 layers, three blocks a stage; norm="batch" or "group"; for images from 8 × 8."""

    name, blocks = "resnet20", 3
