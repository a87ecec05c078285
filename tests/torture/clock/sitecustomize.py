"""Put the wall clock of a Python process forward by the seconds that $BESPOKE_CLOCK, a file, says.

Python imports this module before any other if its directory is in PYTHONPATH. Monotonic clocks are not changed, as a
clock that is set does not change them. (libfaketime changes also how long system calls sleep.)
"""

import datetime
import os
import time

_FILE = os.environ.get("BESPOKE_CLOCK")
_CACHED = 0.2  # seconds
_time, _real = time.time, datetime.datetime
_known = [-1.0, 0.0]  # when the file was read, and what it said


def _ahead() -> float:
    now = time.monotonic()
    if now - _known[0] > _CACHED:
        try:
            with open(_FILE or "", encoding="ascii") as file:  # noqa: PTH123  # nothing else is imported yet
                _known[1] = float(file.read())
        except (OSError, ValueError):
            pass
        _known[0] = now
    return _known[1]


class _Kind(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _real)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, _real)


class _Datetime(_real, metaclass=_Kind):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> "_Datetime":
        return cls.fromtimestamp(time.time(), tz)

    @classmethod
    def utcnow(cls) -> "_Datetime":
        return cls.fromtimestamp(time.time(), datetime.UTC).replace(tzinfo=None)


if _FILE:
    time.time = lambda: _time() + _ahead()
    time.time_ns = lambda: int(time.time() * 1e9)
    datetime.datetime = _Datetime  # type: ignore[misc]
