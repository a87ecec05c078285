"""Clusters that are not there: one sentence each, without waiting for Ray's own attempts."""

import builtins
import socket
from pathlib import Path
from typing import Any

import pytest

from bespokefl.core.errors import InputError
from bespokefl.engines.transports.cluster.transport import ClusterTransport
from bespokefl.methods import FedAvg
from tests.federations import federation, simulation


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_ray_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name.split(".")[0] == "ray":
            raise ImportError(name)
        return whole(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match=r'needs Ray, which is not installed: pip install "bespokefl\[cluster\]"'):
        simulation(FedAvg(), federation(), cluster="auto").run()


def test_no_cluster_at_the_address() -> None:
    with pytest.raises(InputError, match=r"found no Ray cluster at '127.0.0.1:\d+' \(.*refused\): start one with ray"):
        simulation(FedAvg(), federation(), cluster=f"127.0.0.1:{free_port()}").run()


def test_no_cluster_on_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free_port()}")
    with pytest.raises(InputError, match="found no Ray cluster"):
        simulation(FedAvg(), federation(), cluster="auto").run()
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    noted = tmp_path / "ray" / "ray_current_cluster"
    noted.parent.mkdir()
    noted.write_text(f"127.0.0.1:{free_port()}")
    with pytest.raises(InputError, match="found no Ray cluster"):
        simulation(FedAvg(), federation(), cluster="auto").run()


def test_a_cluster_has_no_accelerators() -> None:
    made = simulation(FedAvg(), federation())
    made.task.start = made.task.start.to(device="meta")
    with pytest.raises(InputError, match="a cluster computes on its nodes' CPUs, got the device 'meta'"):
        ClusterTransport(made.side, made.executor, made.federations[0].round, lambda clients: {})
