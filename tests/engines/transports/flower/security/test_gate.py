"""What the gate of the SuperLink lets through, and when it reads a body."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from bespokefl.engines.transports.flower import adapter
from bespokefl.engines.transports.flower.security import gate as gates
from bespokefl.engines.transports.flower.security.access import Access
from bespokefl.engines.transports.flower.security.gate import Gate
from bespokefl.engines.transports.flower.security.signing import HEADER, Signer
from bespokefl.workflows.deploy import certificates
from bespokefl.workflows.deploy.init import write_app
from tests.engines.transports.flower.flower_internals import start_run_request

PULL, LIST = "/v1/fleet/pull-messages", "/v1/control/list-nodes"
SECRET = b"s" * 32


class Server:
    """A gate in front of an app that records what reaches it."""

    def __init__(self, folder: Path, *, insecure: bool = False) -> None:
        (folder / "keys").mkdir()
        (folder / "secret").write_bytes(SECRET)
        certificates.write_key_pair(folder / "node.key", folder / "keys" / "a.pub")
        (folder / "keys" / "broken.pub").write_text("no key")
        write_app(folder / "app")
        self.app = folder / "app"
        key = load_ssh_private_key((folder / "node.key").read_bytes(), None)
        self.node = Signer(key)  # type: ignore[arg-type]
        self.server = Signer(SECRET)
        self.reached: list[tuple[str, bytes]] = []
        self.reads = 0
        keys = None if insecure else str(folder / "keys")
        self.gate = Gate(self._serve, Access(str(folder / "secret"), keys, adapter.hash_of_app(self.app)))

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        body = await receive()
        self.reached.append((scope["path"], body["body"]))
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b""})

    def ask(
        self,
        path: str,
        signer: Signer | None = None,
        body: bytes = b"body",
        *,
        method: str = "POST",
        sent: bytes | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> tuple[int, str]:
        """The status and text of the answer. `sent` is the body that arrives instead of the signed one."""
        signature = [] if signer is None else [(HEADER.encode(), signer.sign(method, path, body).encode())]
        arriving = body if sent is None else sent
        parts = [arriving[:2], arriving[2:]]
        answers: list[Any] = []

        async def receive() -> Any:
            self.reads += 1
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

        async def send(message: Any) -> None:
            answers.append(message)

        scope = {"type": "http", "method": method, "path": path, "query_string": b""}
        asyncio.run(self.gate(scope | {"headers": [*headers, *signature]}, receive, send))
        return answers[0]["status"], answers[1]["body"].decode()


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def test_nodes_and_the_server_have_routes_of_their_own(server: Server) -> None:
    assert server.ask(PULL, server.node)[0] == 200
    assert server.ask(LIST, server.server)[0] == 200
    assert server.reached == [(PULL, b"body"), (LIST, b"body")]
    assert server.ask(LIST, server.node) == (403, "This key may not do that.")
    assert server.ask(PULL, server.server)[0] == 403


@pytest.mark.parametrize("path", [PULL, LIST, "/v1/control/start-run", "/v1/runtime/acquire-task"])
def test_no_body_is_read_before_the_signature_is_verified(path: str, server: Server) -> None:
    for signer in (None, Signer(b"another secret")):
        status, _ = server.ask(path, signer)
        assert status == 401 and not server.reads and not server.reached


@pytest.mark.parametrize(
    "path", ["/docs", "/openapi.json", "/v1/control/start-automation", "/v1/control/add-app", "/v1/fleet/get-fab", "/"]
)
def test_routes_that_a_deployment_does_not_use_do_not_exist(path: str, server: Server) -> None:
    for signer in (server.server, server.node):
        assert server.ask(path, signer)[0] == 404
    assert server.ask(path, server.server, method="GET")[0] == 404
    assert not server.reads and server.ask("/health", method="GET")[0] == 200 and not server.reads


def test_another_body_than_the_signed_one_is_rejected(server: Server) -> None:
    assert server.ask(PULL, server.node, b"body", sent=b"BODY") == (401, "The body is not the one that was signed.")
    assert not server.reached


def test_bodies_have_a_limit(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "MAX_BODY", 10)
    for length in (b"11", b"9" * 18):
        assert server.ask(PULL, server.node, headers=((b"content-length", length),))[0] == 413
    for length in (b"-1", b"1e3", b"9" * 19, b""):
        assert server.ask(PULL, server.node, headers=((b"content-length", length),))[0] == 400
    assert not server.reads
    assert server.ask(PULL, server.node, b"b" * 11)[0] == 413  # sent in pieces, without a length
    assert server.ask(PULL, server.node, b"b" * 10)[0] == 200


def test_a_body_that_does_not_arrive(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "BODY_TIMEOUT", 0.05)

    async def ask() -> Any:
        sent: list[Any] = []

        async def never() -> Any:
            await asyncio.sleep(60)

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(HEADER.encode(), server.node.sign("POST", PULL, b"").encode())]
        await server.gate({"type": "http", "method": "POST", "path": PULL, "headers": headers}, never, send)
        return sent[0]

    answer = asyncio.run(ask())
    assert answer["status"] == 408 and (b"connection", b"close") in answer["headers"]


def test_only_the_deployment_s_app_may_be_started(server: Server, tmp_path: Path) -> None:
    start = "/v1/control/start-run"
    assert server.ask(start, server.server, start_run_request(server.app))[0] == 200
    other = tmp_path / "other"
    write_app(other)
    (other / "bespoke_app.py").write_text("import os\nos.system('id')\n")
    for body in (start_run_request(other), start_run_request(server.app, spec="@someone/app"), b"", b"\xff" * 9):
        assert server.ask(start, server.server, body)[0] == 403
    assert len(server.reached) == 1


def test_without_keys_nodes_need_no_signature_but_the_server_does(tmp_path: Path) -> None:
    server = Server(tmp_path, insecure=True)
    assert server.ask(PULL)[0] == 200
    assert server.ask(LIST)[0] == 401 and server.ask(LIST, server.server)[0] == 200


def test_no_websockets(server: Server) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(server.gate({"type": "websocket", "path": PULL, "headers": []}, None, send))
    assert sent[0]["status"] == 404 and not server.reached
