"""How much is sent, up and down: bytes and numbers as they pass, and models where nothing is sent twice."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bespokefl.core.method import Message
from bespokefl.core.rows import Rows


@dataclass(frozen=True)
class Traffic:
    """What went over the wire, counted where it passes."""

    up_bytes: int = 0
    down_bytes: int = 0
    up_floats: int = 0
    down_floats: int = 0

    def plus(self, *, up: tuple[int, int] = (0, 0), down: tuple[int, int] = (0, 0)) -> "Traffic":
        return Traffic(
            self.up_bytes + up[0], self.down_bytes + down[0], self.up_floats + up[1], self.down_floats + down[1]
        )


class DownlinkCounter:
    """What the server has to send in a round, in columns of rows, if nothing is sent twice; numbers ride along."""

    def __init__(self) -> None:
        self._shared = 0
        self._own: dict[int, int] = {}  # of every stream
        self._alone = 0  # of those clients whose messages are for nobody else

    def add(self, message: Message, clients: int) -> None:
        """A message to so many clients of the round."""
        self._shared = max(self._shared, columns(message.shared))  # the same for all parts of the round
        own = columns(message.own)
        if message.stream is None:
            self._alone += own
        else:
            self._own |= dict.fromkeys(message.stream.tolist(), own // clients)

    @property
    def columns(self) -> int:
        return self._shared + sum(self._own.values()) + self._alone


def columns(values: Mapping[str, Any]) -> int:
    """How many columns all rows among these values have together."""
    return sum(len(value) * value.layout.width for value in values.values() if isinstance(value, Rows))
