"""What a progress callback receives after every round."""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Progress:
    """The progress of a run, with the latest mean scores on validation data."""

    done: int
    total: int
    phase: str
    scores: dict[str, float] = field(default_factory=dict)


Report = Callable[[Progress], None]
