"""The torture of deployments: its checks find what is wrong, and a short one finds nothing."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.requirements import require_mount_namespace
from tests.torture import faults, history
from tests.torture.history import History
from tests.torture.proxy import CUT, HOLD, OPEN, Proxy

ROOT = Path(__file__).parents[2]
LOST = {"b": {"dropped out": 1}}


def trained(client: str, number: int, before: str, after: str, upload: str = "") -> dict[str, Any]:
    """A client's training."""
    return {"client": client, "round": number, "from": before, "to": after, "upload": upload or f"{client}{number}"}


def aggregated(number: int, clients: str, before: str, after: str) -> dict[str, Any]:
    """An aggregation of the uploads of these clients."""
    uploads = [[client, f"{client}{number}"] for client in clients]
    return {"round": number, "uploads": uploads, "before": before, "after": after}


def sound() -> History:
    """Two rounds: b is lost in the first, trains it anyway, and goes back; a round is repeated after a kill."""
    server = [aggregated(1, "a", "w0", "w1"), aggregated(1, "a", "w0", "w1"), aggregated(2, "ab", "w1", "w2")]
    clients = [
        trained("a", 1, "s0", "a1"),
        trained("b", 1, "s0", "b1"),
        trained("a", 2, "a1", "a2"),
        trained("b", 2, "s0", "b2"),
    ]
    return History(server, clients)


def test_a_sound_history_has_no_violations() -> None:
    assert history.violations(sound(), 2, LOST, ["a", "b"]) == []
    assert history.differences(sound(), sound()) == []


@pytest.mark.parametrize(
    ("break_it", "found"),
    [
        (lambda one: one.server[2]["uploads"].append(["a", "a2"]), "client a counts 2 times in round 2"),
        (lambda one: one.server[2]["uploads"].pop(0), "client a counts in 1 of 2 rounds, and 0 are reported lost"),
        (lambda one: one.server[2].update(before="w9"), "round 2 does not start where round 1 ended"),
        (lambda one: one.server[1].update(before="w9"), "round 1 was repeated from another state"),
        (lambda one: one.server.append(one.server[0]), "round 1 was computed after round 2 had been committed"),
        (lambda one: one.server.append(aggregated(3, "", "w2", "w3")), "round 3 of 2 was computed"),
        (lambda one: one.clients[2].update({"from": "s0"}), "client a did not continue in round 2 where it was"),
        (lambda one: one.clients[3].update({"from": "b1"}), "client b did not continue in round 2 where it was"),
        (lambda one: one.clients[3].update(round=1), "round 2 counts an upload of client b that it did not compute"),
    ],
)
def test_violations_are_found(break_it: Callable[[History], Any], found: str) -> None:
    broken = sound()
    broken = History([dict(entry, uploads=list(entry["uploads"])) for entry in broken.server], broken.clients)
    break_it(broken)
    assert any(found in one for one in history.violations(broken, 2, LOST, ["a", "b"]))


def test_another_bit_is_a_difference() -> None:
    other = sound()
    other.server[2]["after"] = "w3"  # type: ignore[index]
    assert history.differences(sound(), other) == ["round 2 differs from the undisturbed run in its after"]


def test_the_same_seed_draws_the_same_faults() -> None:
    kinds = [*faults.of_server(), *faults.of_nodes(full_disks=True)]
    drawn = faults.draw("1", kinds)
    assert drawn == faults.draw("1", kinds) != faults.draw("2", kinds)
    assert {one.kind for one in drawn} == {kind for kind, _ in kinds}


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that sends back what it gets."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    threading.Thread(target=repeat, args=(connection,), daemon=True).start()

        def repeat(connection: socket.socket) -> None:
            with suppress(OSError), connection:
                while data := connection.recv(100):
                    connection.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def test_the_proxy_cuts_and_holds(echo: int) -> None:
    proxy = Proxy(echo)
    address = ("127.0.0.1", proxy.port)
    with socket.create_connection(address, timeout=30) as one:
        one.sendall(b"1")
        assert one.recv(1) == b"1"
        proxy.set(HOLD)
        one.sendall(b"2")
        one.settimeout(0.2)
        with pytest.raises(TimeoutError):
            one.recv(1)
        proxy.set(OPEN)
        one.settimeout(30)
        assert one.recv(1) == b"2"
        proxy.set(CUT)
        with suppress(ConnectionError):
            assert one.recv(1) == b""
    with suppress(ConnectionError), socket.create_connection(address, timeout=30) as two:
        assert two.recv(1) == b""
    proxy.set(OPEN)
    with socket.create_connection(address, timeout=30) as three:
        three.sendall(b"3")
        assert three.recv(1) == b"3"
    proxy.close()


def test_clocks_jump(tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    clock.write_text("90000")
    code = (
        "import time, datetime, json; now = datetime.datetime.now(datetime.UTC)\n"
        "print(json.dumps([time.time(), time.time_ns() / 1e9, now.timestamp(), isinstance(now, datetime.datetime)]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests/torture/clock"), "BESPOKE_CLOCK": str(clock)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    *clocks, is_datetime = json.loads(done.stdout)
    assert is_datetime and all(89_000 < one - time.time() < 91_000 for one in clocks)


@pytest.mark.slow
def test_a_short_torture() -> None:
    """One run that must equal the undisturbed one, whatever breaks."""
    require_mount_namespace()
    options = ["--seconds", "1", "--seed", "7", "--rounds", "3", "--methods", "ditto"]
    command = [sys.executable, "-m", "tests.torture", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 problems" in done.stdout and "equal to the bit" in done.stdout
