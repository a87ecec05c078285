"""Speed that is promised: a machine that others use, too, has several tries."""

import time
from collections.abc import Callable
from typing import TypeVar

TRIES = 3
T = TypeVar("T")


def within(seconds: float, work: Callable[[], T]) -> T:
    """Return what a function returns; in one of its tries it must need less processor time than given."""
    took = []
    for _ in range(TRIES):
        began = time.process_time()
        value = work()
        took.append(time.process_time() - began)
        if took[-1] < seconds:
            return value
    raise AssertionError(f"{took} seconds, not below {seconds:g}")
