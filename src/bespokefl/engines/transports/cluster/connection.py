"""Ray: connect to a cluster, start workers on its nodes, compare versions. The only module that imports it.

Ray is imported when a cluster is used, and every way in which a cluster can be missing or unsuitable ends in one
sentence here.
"""

import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bespokefl.core.errors import BespokeError, InputError, in_brief, said
from bespokefl.engines.transports.cluster.worker import Worker, versions
from bespokefl.engines.transports.processes import MachineError

log = logging.getLogger("bespokefl")

AUTO = "auto"  # the cluster of this machine
REACH_SECONDS = 5  # to reach an address
START_SECONDS = 60  # until workers are ready: each imports torch
HANDLED = (signal.SIGINT, signal.SIGTERM)  # signals whose handlers Ray replaces


@dataclass
class Handle:
    """A worker of the cluster."""

    actor: Any  # its methods return references to answers
    node: str  # its id
    address: str  # of the node, for messages
    store: float  # bytes of the node's object store


def library() -> Any:
    """The package ray."""
    try:
        import ray
        import ray.cloudpickle
    except ImportError:
        raise InputError(
            'a cluster needs Ray, which is not installed: pip install "bespokefl[cluster]", on every machine.'
        ) from None
    return ray


@contextmanager
def connection(address: str) -> Iterator[Any]:
    """Connect to a cluster, for as long as a run lasts; a connection that the program has made itself stays open."""
    ray = library()
    if ray.is_initialized():
        yield ray
        return
    _check_reachable(address)
    with _last_words(address):
        _connect(ray, address)
        try:
            yield ray
        finally:
            ray.shutdown()  # ends all workers of this run


@contextmanager
def _last_words(address: str) -> Iterator[None]:
    """Say what happened if Ray ends this process, as it does without an error when the node of this machine is lost."""
    if not hasattr(os, "fork"):
        yield
        return
    read, write = os.pipe()
    watcher = os.fork()
    if not watcher:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.close(write)
        if not os.read(read, 1):  # the process has ended without a word
            what = f"the node of this machine was lost from the Ray cluster at {address!r}, or this process was killed"
            os.write(2, f"error: {what}; checkpoints are kept, and the run can be resumed.\n".encode())
        os._exit(0)
    os.close(read)
    try:
        yield
    finally:
        os.write(write, b"-")
        os.close(write)
        os.waitpid(watcher, 0)


def _connect(ray: Any, address: str) -> None:
    """Connect without giving up our own handlers of signals."""
    before = {number: signal.getsignal(number) for number in HANDLED}
    try:
        _init(ray, address)
    finally:
        with suppress(ValueError):  # not in the main thread, where Ray replaces none either
            for number, handler in before.items():
                signal.signal(number, handler)


def _init(ray: Any, address: str) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, namespace="bespoke")
    except (ConnectionError, SystemExit) as error:
        reason = "none was started on this machine" if address == AUTO else in_brief(error)
        raise _none(address, reason) from None
    except Exception as error:  # RuntimeError for another version of Ray or Python, among others
        raise InputError(f"cannot use the Ray cluster at {address!r} ({said(error)}).") from None


def _check_reachable(address: str) -> None:
    """Raise an InputError if nothing listens: Ray itself would try for minutes, and then end the process."""
    known = os.environ.get("RAY_ADDRESS", "") if address == AUTO else address
    if not known:
        with suppress(OSError):  # where ray start notes the cluster of this machine, which may be gone
            known = (Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster").read_text().strip()
    host, _, port = known.rpartition(":")
    if not host or not port.isdecimal():
        return  # Ray searches for a cluster on this machine
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _none(known, str(getattr(error, "strerror", None) or error).lower()) from None


def _none(address: str, reason: str) -> InputError:
    return InputError(
        f"found no Ray cluster at {address!r} ({reason}): start one with ray start --head, and run this command on a "
        "machine that belongs to it."
    )


def num_cores(address: str) -> int:
    """The number of CPUs of the nodes of a cluster."""
    with connection(address) as ray:
        return _num_cores(ray)


def _num_cores(ray: Any) -> int:
    return sum(int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"])


def start_workers(ray: Any, most: int) -> list[Handle]:
    """Start a worker on every core of the cluster, but at most so many (0: any number), spread over the nodes."""
    number = min(_num_cores(ray), most or sys.maxsize)
    if not number:
        raise InputError("the Ray cluster has no node with a CPU: start one with ray start --num-cpus=N.")
    Remote = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD")(Worker)
    actors = [Remote.remote() for _ in range(number)]
    try:
        return _ready(ray, actors)
    except BaseException:
        stop_workers(ray, actors)
        raise


def _ready(ray: Any, actors: list[Any]) -> list[Handle]:
    """The workers that answer, sorted by node. Raises an InputError for one with other versions than ours."""
    asked = [actor.describe.remote() for actor in actors]
    done = set(ray.wait(asked, num_returns=len(asked), timeout=START_SECONDS)[0])
    nodes, ours, found = {node["NodeID"]: node for node in ray.nodes()}, versions(), []
    for actor, reference in zip(actors, asked, strict=True):
        if reference not in done:
            stop_workers(ray, [actor])
            continue
        try:
            node, theirs = ray.get(reference)
        except ray.exceptions.RayError as error:
            raise InputError(
                f"cannot start a worker on a node of the cluster ({_cause(error)}): install "
                f"bespokefl[cluster]=={ours['Bespoke']} on all of them."
            ) from None
        address = nodes[node]["NodeManagerAddress"]
        for name, own in ours.items():
            if theirs[name] != own:
                raise InputError(
                    f"the node {address} has {name} {theirs[name]}, and this machine {own}: install the same versions "
                    "on all machines."
                )
        store = float(nodes[node]["Resources"].get("object_store_memory", 0))
        found.append(Handle(actor, node, address, store))
    if not found:
        raise MachineError(
            f"no core of the cluster became free within {START_SECONDS} s: wait until other runs have finished."
        )
    if len(found) < len(actors):
        log.warning("%d of the cluster's %d cores are not free", len(actors) - len(found), len(actors))
    return sorted(found, key=lambda worker: (worker.address, worker.node))


def _cause(error: Exception) -> str:
    """The end of Ray's long messages: the error itself."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return in_brief(lines[-1]) if lines else type(error).__name__


def stop_workers(ray: Any, actors: list[Any]) -> None:
    """End workers; those that are lost already are ignored."""
    for actor in actors:
        with suppress(Exception):
            ray.kill(actor)


def check_stores(workers: list[Handle], needed: dict[str, int]) -> None:
    """Raise an InputError if the data of a node's clients, by the node's id, do not fit into its object store."""
    for worker in workers:
        size = needed.get(worker.node, 0)
        if worker.store and size > worker.store:
            raise InputError(
                f"the data of the clients on the node {worker.address} need {size:,} bytes, and its object store has "
                f"{int(worker.store):,}: start it with a larger --object-store-memory, or use more nodes."
            )


class Lost(Exception):  # noqa: N818 (it is not an error of the user's)
    """A worker, its node or its answer is lost."""


def fetch(ray: Any, reference: Any) -> Any:
    """The answer of a worker; raises `Lost`."""
    try:
        return ray.get(reference)
    except BespokeError:
        raise
    except ray.exceptions.RayError as error:
        raise Lost(_cause(error)) from None
