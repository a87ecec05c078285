"""Communication volume: bytes and numbers sent in each direction, and columns the server must send at least."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bespokefl.core.method import Message
from bespokefl.core.rows import Rows


@dataclass(frozen=True)
class Traffic:
    """The bytes and numbers sent up (by clients) and down (by the server)."""

    up_bytes: int = 0
    down_bytes: int = 0
    up_floats: int = 0
    down_floats: int = 0

    def plus(self, *, up: tuple[int, int] = (0, 0), down: tuple[int, int] = (0, 0)) -> "Traffic":
        """Add (bytes, numbers) in either direction."""
        return Traffic(
            self.up_bytes + up[0], self.down_bytes + down[0], self.up_floats + up[1], self.down_floats + down[1]
        )


class DownlinkCounter:
    """Counts the columns that the server sends in a round if identical rows are sent once; numbers are ignored."""

    def __init__(self) -> None:
        self._shared = 0
        self._by_stream: dict[int, int] = {}
        self._own = 0  # rows that only one client receives

    def add(self, message: Message, clients: int) -> None:
        """Count a message to this many clients."""
        self._shared = max(self._shared, columns(message.shared))  # the same in all messages of a round
        own = columns(message.own)
        if message.stream is None:
            self._own += own
        else:
            self._by_stream |= dict.fromkeys(message.stream.tolist(), own // clients)

    @property
    def columns(self) -> int:
        """The number of columns so far."""
        return self._shared + sum(self._by_stream.values()) + self._own


def columns(values: Mapping[str, Any]) -> int:
    """The number of columns of all rows among these values."""
    return sum(len(value) * value.layout.width for value in values.values() if isinstance(value, Rows))
