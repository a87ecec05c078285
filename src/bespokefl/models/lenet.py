"""LeNet-5, the classic small convolutional network, with ReLU.

Two convolutions (6 and 16 channels of 5 × 5), each followed by average pooling, then 120, 84 and the head; LeCun et
al., Proceedings of the IEEE 86 (1998). As there, a picture of 32 × 32 is not padded and one of 28 × 28 is padded by 2,
so both reach 5 × 5 × 16 = 400 features.
"""

from torch import Tensor, nn

from bespokefl.core.errors import InputError
from bespokefl.models.init import begin

KERNEL = 5


class LeNet(nn.Module):
    """LeNet-5 for pictures of at least 4 × 4.

    The first convolution is padded by 2 where the shorter side is below 32; the second where fewer than 6 pixels
    reach it (sides below 12, such as the 8 × 8 digits). One channel may be left out of the shape.
    """

    def __init__(self, shape: tuple[int, ...], classes: int, init: str = "torch") -> None:
        super().__init__()
        if len(shape) not in (2, 3) or min(shape[-2:]) < 4:
            raise InputError(
                "lenet needs pictures of shape (channels, height, width), at least 4 x 4, "
                f"got {tuple(shape)}; use mlp for other data"
            )
        channels = shape[0] if len(shape) == 3 else 1
        first_padding = 2 if min(shape[-2:]) < 32 else 0
        middle = [_after(side, first_padding) for side in shape[-2:]]
        second_padding = 2 if min(middle) < 6 else 0
        height, width = (_after(side, second_padding) for side in middle)
        self.base = nn.Sequential(
            *([nn.Unflatten(1, (1, shape[0]))] if len(shape) == 2 else []),
            nn.Conv2d(channels, 6, KERNEL, padding=first_padding),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(6, 16, KERNEL, padding=second_padding),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * height * width, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
        )
        self.head = nn.Linear(84, classes)
        begin(self, init)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.base(x))
        return output


def _after(side: int, padding: int) -> int:
    """A side's length after one convolution and one pooling."""
    return (side + 2 * padding - KERNEL + 1) // 2
