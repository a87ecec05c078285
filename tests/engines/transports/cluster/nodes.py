"""Ray clusters on this machine for tests: several nodes, bound to the loopback interface."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
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


def processes(nodes: Any) -> set[int]:
    """The processes of a cluster, with their children."""
    started = [process for one in nodes.list_all_nodes() for own in one.all_processes.values() for process in own]
    known = {process.process.pid for process in started}
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    while children := {pid for pid, parent in parents.items() if parent in known} - known:
        known |= children
    return known


def workers(nodes: Any) -> list[int]:
    """The processes of a cluster that are our workers: Ray gives them the name of their class as a title."""
    found = []
    for pid in processes(nodes):
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::Worker"):
                found.append(pid)
    return found


def listening(nodes: Any) -> list[IPv4Address | IPv6Address]:
    """The addresses at which processes of a cluster wait for connections."""
    sockets = {str(link) for pid in processes(nodes) for link in _links(Path(f"/proc/{pid}/fd"))}
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:  # it listens
                found.append(_address(words[1].partition(":")[0]))
    return found


def _links(folder: Path) -> Iterator[Path]:
    with suppress(OSError):
        for file in folder.iterdir():
            with suppress(OSError):
                yield file.readlink()


def _address(text: str) -> IPv4Address | IPv6Address:
    """An address in the kernel's notation: words of four bytes in reversed order; one of IPv4 if it stands for one."""
    packed = b"".join(bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
    found = ip_address(packed)
    return found.ipv4_mapped or found if isinstance(found, IPv6Address) else found
