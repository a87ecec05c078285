"""Ray clusters on this machine for tests: several nodes, bound to the loopback interface."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bespokefl.engines.transports.cluster import connection

STORE = 80 << 20  # bytes of a node's object store; the least that Ray accepts is 75 MB
QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_failure_threshold": 3}
NODE = {"include_dashboard": False, "object_store_memory": STORE, "node_ip_address": "127.0.0.1"}


@contextmanager
def cluster(*cpus: int) -> Iterator[Any]:
    """A cluster whose nodes have so many CPUs; the first is its head, to which the driver belongs."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={**NODE, "num_cpus": cpus[0], "_system_config": QUICK})
    try:
        for count in cpus[1:]:
            made.add_node(**NODE, num_cpus=count)
        yield made
    finally:
        made.shutdown()


@contextmanager
def warm_cluster(*cpus: int) -> Iterator[str]:
    """The address of a cluster whose workers stay from one run to the next: starting them takes seconds."""
    with cluster(*cpus) as made, connection.connection(made.address) as ray, pytest.MonkeyPatch.context() as patch:
        workers = connection.start_workers(ray, 0)
        patch.setattr(connection, "start_workers", lambda ray, most: workers[: most or None])
        patch.setattr(connection, "stop_workers", lambda ray, workers: None)
        yield made.address
