"""Convolutions along time, for series and audio features: examples of shape (time, channel)."""

from torch import Tensor, nn

from bespokefl.core.errors import InputError
from bespokefl.models.module import check_sizes

KERNEL = 5


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
        series = x.reshape(len(x), -1, self.channels).transpose(1, 2)
        output: Tensor = self.head(self.base(series).mean(-1))
        return output
