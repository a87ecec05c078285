"""Cells on a cluster: the results of this machine, and none if the cluster fails."""

import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bespokefl_evidence.studies import runner
from bespokefl_evidence.studies.cells import CellStore, Spec
from bespokefl_evidence.studies.experiment import Experiment, Row
from rich.console import Console

from bespokefl.core.errors import InputError
from bespokefl.engines.transports.processes import MachineError
from bespokefl.methods import FedAvg
from tests.engines.transports.cluster.nodes import cluster
from tests.evidence.studies import toy


@dataclass(frozen=True, kw_only=True)
class Far(FedAvg):
    """FedAvg that trains in workers of Ray only."""

    def local_update(self, *given: Any) -> Any:
        assert Path(sys.argv[0]).name == "default_worker.py", "not on the cluster"
        return super().local_update(*given)


@dataclass(frozen=True, kw_only=True)
class Failing(FedAvg):
    """FedAvg whose machine fails."""

    def local_update(self, *given: Any) -> Any:
        raise MachineError("no worker of the cluster is left.")


def study(method: str) -> Experiment:
    return toy.experiment(seeds=1, rows=[Row("Average", method, published={"two": 90.0})])


@pytest.fixture
def screen() -> Iterator[io.StringIO]:
    with io.StringIO() as written:
        yield written


@pytest.mark.slow
def test_cells_are_trained_on_a_cluster(tmp_path: Path, screen: io.StringIO) -> None:
    one, store = study(f"{__name__}:Far"), CellStore(tmp_path / "cells")
    with cluster(1, 1) as made:
        how: dict[str, Any] = {"scratch": tmp_path / "scratch", "priority": 1, "console": Console(file=screen)}
        assert runner.compute_missing([one], store, processes=1, cluster=made.address, **how)
    (cell,) = store.of("toy")
    here = study("fedavg")
    expected = here.compute(next(iter(here.specs(store))), tmp_path / "alone", None)
    assert expected is not None and cell.results == expected[0]


def test_without_a_cluster_nothing_is_computed(tmp_path: Path, screen: io.StringIO) -> None:
    store = CellStore(tmp_path / "cells")
    with pytest.raises(InputError, match=r"^found no Ray cluster at '127\.0\.0\.1:9' \(connection refused\)"):
        runner.compute_missing(
            [study("fedavg")], store, scratch=tmp_path, cluster="127.0.0.1:9", console=Console(file=screen)
        )
    assert not list(store.of("toy"))


def test_a_machine_that_fails_is_no_result(tmp_path: Path) -> None:
    """Other errors of training are stored, such as a learning rate that is too large."""
    one = study(f"{__name__}:Failing")
    with pytest.raises(MachineError, match="no worker"):
        one.compute(next(iter(one.specs(CellStore(tmp_path)))), tmp_path / "scratch", None)


def test_studies_that_cannot_are_computed_here(screen: io.StringIO) -> None:
    class Alone:
        name = "alone"

        def compute(self, spec: Spec, scratch: Path, files: Path | None) -> None: ...

    alone: Any = Alone()
    assert runner._computation(alone, "auto", Console(file=screen)) == alone.compute
    assert screen.getvalue() == "alone is computed on this machine: its cells are not trained on a cluster.\n"
