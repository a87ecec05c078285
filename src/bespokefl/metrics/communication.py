"""The cost of a round: models sent down and up, and the time this takes in a wireless or a wired network.

Mestoukirdi et al. (User-Centric FL), section V-D. All times are in units of T_dl, the time to send one model down::

    T_round = streams + ρ · uploads + T_comp,   T_comp = T_min + H_N / μ

The server sends a model that several clients share only once: `streams` is the number of models it sends. Clients
upload one after the other, each ρ times as slowly. T_comp is the expected computing time of the slowest of N clients,
with the harmonic number H_N = 1 + 1/2 + … + 1/N.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.metrics.client_values import Array


@dataclass(frozen=True)
class System:
    """A network and the computing times of its clients, in units of T_dl."""

    name: str
    ratio: float  # ρ = T_ul / T_dl, how many times slower uploads are than downloads
    straggling: float  # 1/μ, the mean computing time above `minimum`
    minimum: float = 1.0  # T_min, the shortest computing time


SYSTEMS = (System("slow uplink", 4.0, 1.0), System("fast uplink", 2.0, 0.0), System("wired", 1.0, 0.0))  # Fig. 6


def computing_time(system: System, clients: int) -> float:
    """Return T_comp = T_min + H_N / μ of N clients; 0 without clients."""
    if clients < 0:
        raise InputError(f"clients must be >= 0, got {clients}.")
    harmonic = float((1.0 / np.arange(1, clients + 1)).sum())
    return system.minimum + system.straggling * harmonic if clients else 0.0


def round_time(system: System, *, streams: float, uploads: float, clients: int, workload: float = 1.0) -> float:
    """Return T_round in units of T_dl.

    Parameters
    ----------
    streams : float
        Models that the server sends; a model for several clients counts once.
    uploads : float
        Models that all clients upload together.
    clients : int
        N, the number of clients that the round waits for.
    workload : float
        Local trainings of each client: m_t in parallel User-Centric FL, 0 if nothing is trained.
    """
    if not (streams >= 0 and uploads >= 0 and workload >= 0):
        raise InputError(f"streams, uploads and workload must be >= 0, got {streams}, {uploads} and {workload}.")
    return float(streams + system.ratio * uploads + workload * computing_time(system, clients))


def times(rounds: Sequence[Mapping[str, Any]], system: System) -> Array:
    """Return T_round of every round of a run, from `Result.rounds` (the lines of rounds.jsonl).

    A round waits for the clients that upload or, if none does, for those that train.
    """
    if any("down_streams" not in line for line in rounds):
        raise InputError("the rounds do not say what was sent, because an earlier version wrote them; repeat the run.")
    found = []
    for line in rounds:
        sent = {"streams": line["down_streams"], "uploads": line["up_models"]}
        waits_for = line["reported"] or line["trained"]
        found.append(round_time(system, **sent, clients=waits_for, workload=line["workload"]))
    return np.array(found)


def total_times(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the time of a whole run in each of the three systems, by name."""
    return {system.name: float(times(rounds, system).sum()) for system in SYSTEMS}


def streams_per_round(rounds: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the mean number of models that the server sends per round; None without rounds."""
    return float(np.mean([line["down_streams"] for line in rounds])) if rounds else None
