"""Ctrl-C, SIGTERM or a closed terminal: what is being done comes to its end first, so that nothing is lost."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger("bespokefl")


@contextmanager
def stop_softly(told: str = "stopping after this round") -> Iterator[Callable[[], bool]]:
    """Ctrl-C, SIGTERM or a closed terminal are kept for later, and that is said; a second one ends it all at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def handle(number: int, frame: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        if told:
            log.warning("%s; press Ctrl-C again to stop at once", told)

    heard = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else by nohup
        heard.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in heard}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
