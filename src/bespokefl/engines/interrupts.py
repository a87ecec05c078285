"""Delay Ctrl-C, SIGTERM and SIGHUP until the current step is complete, so that nothing is lost."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger("bespokefl")


@contextmanager
def delay_interrupts(notice: str = "stopping after this round") -> Iterator[Callable[[], bool]]:
    """Record the first interrupt and log `notice`; a second one raises KeyboardInterrupt.

    Yields a function that returns whether there was an interrupt.
    """
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted.is_set
        return

    def handle(number: int, frame: object) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()
        if notice:
            log.warning("%s; press Ctrl-C again to stop at once", notice)

    handled = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else started by nohup
        handled.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in handled}
    try:
        yield interrupted.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
