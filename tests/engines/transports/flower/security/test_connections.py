"""Limits of the HTTP server, over real sockets."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from bespokefl.engines.transports.flower.security import connections
from bespokefl.workflows.deploy import demo
from bespokefl.workflows.deploy.init import init

REQUEST = b"POST /%s HTTP/1.1\r\nhost: a\r\n%scontent-length: 2\r\n\r\nhi"


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the caller's address; /known is a request with a valid signature."""
    if scope["path"] == "/known":
        scope[connections.ACCEPTED] = True
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["client"][0].encode()})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    monkeypatch.setattr(connections, "HEADER_TIMEOUT", 0.4)
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 4)
    yield from serve()


def serve(**tls: Any) -> Iterator[int]:
    port = demo.free_port()
    options = connections.server_options() | {"lifespan": "off", "log_level": "critical"} | tls
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, **options))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield port
    finally:
        server.should_exit = True
        thread.join(10)


def connect(port: int, data: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), 10)
    made.sendall(data)
    return made


def answer(connection: socket.socket) -> bytes:
    """The response; empty if the connection was closed."""
    found = b""
    try:
        while b"\r\n0\r\n\r\n" not in found and (part := connection.recv(4096)):
            found += part
    except ConnectionResetError:
        return b""
    return found


def test_forwarded_addresses_are_ignored(port: int) -> None:
    with connect(port, REQUEST % (b"", b"x-forwarded-for: 192.0.2.7\r\n")) as one:
        assert b"127.0.0.1" in answer(one)


def test_headers_have_a_limit(port: int) -> None:
    with connect(port, b"POST / HTTP/1.1\r\nhost: a\r\nx: " + b"a" * 2 * connections.MAX_HEADERS) as one:
        assert b"400 Bad Request" in answer(one)


@pytest.mark.parametrize("data", [b"", b"POST / HTTP/1.1\r\nhost:"])
def test_half_open_connections_are_closed(data: bytes, port: int) -> None:
    began = time.monotonic()
    with connect(port, data) as one:
        assert not answer(one) and time.monotonic() - began < 5


def test_a_second_request_has_a_time_limit_too(port: int) -> None:
    with connect(port, REQUEST % (b"known", b"")) as one:
        assert answer(one)
        one.sendall(b"POST / HTTP/1.1\r\n")
        assert not answer(one)


def test_strangers_make_room_for_nodes(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest stranger goes; connections of nodes stay, and if all are theirs the new one goes."""
    monkeypatch.setattr(connections, "HEADER_TIMEOUT", 30.0)
    nodes = []
    for _ in range(2):
        nodes.append(connect(port, REQUEST % (b"known", b"")))
        assert answer(nodes[-1])
    strangers = [connect(port, REQUEST % (b"unknown", b"")) for _ in range(2)]
    assert all(answer(one) for one in strangers)
    for _ in range(2):
        nodes.append(connect(port, REQUEST % (b"known", b"")))
        assert answer(nodes[-1])
    assert not any(answer(one) for one in strangers)
    with connect(port) as late:
        assert not answer(late)
    for one in nodes:
        one.sendall(REQUEST % (b"known", b""))
        assert answer(one)
        one.close()


def test_tls_handshakes_have_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HANDSHAKE_TIMEOUT", 0.4)
    folder = init(tmp_path / "d", ["a"], "127.0.0.1:1").server / "certificates"
    for port in serve(ssl_certfile=folder / "server.crt", ssl_keyfile=folder / "server.key"):
        with connect(port) as one:
            began = time.monotonic()
            assert not answer(one) and time.monotonic() - began < 5


def test_the_loop_is_the_limited_one() -> None:
    loop = connections.new_loop()
    assert isinstance(loop, asyncio.SelectorEventLoop)
    loop.close()
