"""What a progress display is told after every round of a run."""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Progress:
    """How far a run has come, and what its models are worth by now."""

    done: int
    total: int
    phase: str
    scores: dict[str, float] = field(default_factory=dict)


Report = Callable[[Progress], None]
