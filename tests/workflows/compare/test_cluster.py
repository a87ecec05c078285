"""A comparison on a cluster: whole trainings side by side, with the results of this machine."""

from pathlib import Path

import pytest

import bespokefl as bf
from bespokefl.workflows.run import jobs
from tests.engines.transports.cluster.nodes import cluster

pytestmark = pytest.mark.slow


def test_trainings_run_side_by_side_on_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = bf.load("digits").split("dirichlet(alpha=0.4)", clients=6, seed=0)
    settings = {"methods": ["fedavg", "local"], "seeds": 1, "tune": False, "rounds": 2, "model": "logistic"}
    here = bf.compare(clients=clients, out=tmp_path / "here", workers=1, **settings)
    started: list[int] = []
    whole = jobs._run_forked
    monkeypatch.setattr(jobs, "_run_forked", lambda *args: started.append(args[1]) or whole(*args))
    with cluster(1, 1) as made:
        there = bf.compare(clients=clients, out=tmp_path / "there", cluster=made.address, **settings)
    assert started == [2, 2]  # to count the cluster's cores, and to train
    for name in ("fedavg", "local"):
        ours, theirs = (next((tmp_path / one).rglob(f"*{name}*/clients.csv"), None) for one in ("here", "there"))
        assert ours is not None and theirs is not None and ours.read_bytes() == theirs.read_bytes()
    assert here.table() == there.table()
