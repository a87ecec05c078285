"""A proxy between a node and the server, which can cut or hold connections as a broken network does."""

import socket
import threading
from contextlib import suppress

OPEN, CUT, HOLD = "open", "cut", "hold"
RESET = b"\1\0\0\0\0\0\0\0"  # struct linger: closing a connection resets it


class Proxy:
    """Forwards connections to a port of this machine.

    CUT   connections are reset, and new ones are refused
    HOLD  nothing passes, and nobody is told; afterwards it goes on where it was
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self._open = threading.Event()
        self._open.set()
        self._mode = OPEN
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def set(self, mode: str) -> None:
        """Change how connections are treated."""
        self._mode = mode
        (self._open.clear if mode == HOLD else self._open.set)()
        if mode == CUT:
            self._reset()

    def close(self) -> None:
        """End the proxy."""
        with suppress(OSError):
            self._listener.close()
        self.set(CUT)

    def _reset(self) -> None:
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for one in sockets:
            _close(one)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._mode == CUT:
                _close(client)
                continue
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        self._open.wait()
        try:
            server = socket.create_connection(("127.0.0.1", self.target), timeout=30)
        except OSError:  # the server is down
            _close(client)
            return
        server.settimeout(None)
        with self._lock:
            self._sockets |= {client, server}
        for source, sink in ((client, server), (server, client)):
            threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 14):
                self._open.wait()
                sink.sendall(data)
        with self._lock:
            self._sockets -= {source, sink}
        _close(source)
        _close(sink)


def _close(one: socket.socket) -> None:
    with suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    with suppress(OSError):
        one.close()
