"""The time that a round takes, by hand for the three systems."""

import pytest

from bespokefl.core.errors import InputError
from bespokefl.metrics.communication import (
    SYSTEMS,
    System,
    computing_time,
    round_time,
    streams_per_round,
    times,
    total_times,
)

SLOW, FAST, WIRED = SYSTEMS


def line(**given: float) -> dict[str, float]:
    return {"trained": 4, "reported": 4, "down_streams": 1.0, "up_models": 4.0, "workload": 1.0} | given


def test_the_three_systems_of_figure_6() -> None:
    assert [(one.ratio, one.straggling, one.minimum) for one in SYSTEMS] == [(4, 1, 1), (2, 0, 1), (1, 0, 1)]


def test_the_slowest_of_n_clients() -> None:
    assert computing_time(SLOW, 4) == pytest.approx(1 + (1 + 1 / 2 + 1 / 3 + 1 / 4))
    assert computing_time(FAST, 4) == computing_time(WIRED, 1000) == 1.0
    assert computing_time(SLOW, 0) == 0.0
    assert computing_time(System("odd", 1.0, 0.5, 3.0), 2) == pytest.approx(3 + 0.5 * 1.5)


@pytest.mark.parametrize(
    ("method", "streams", "per_client", "workload"),
    [
        ("FedAvg", 1, 1, 1),
        ("SCAFFOLD", 2, 2, 1),  # doubles both directions
        ("IFCA with p = 4", 4, 1, 1),
        ("UCFL with k = 3", 3, 1, 1),
        ("parallel UCFL with m_t = 3", 3, 3, 3),  # ρ N m_t, T_comp m_t
        ("FedFOMO with M = 5", 10 * 5, 1, 1),
        ("UCFL's special round", 1, 1, 0),  # one broadcast and N uploads
    ],
)
def test_a_round_of_ten_clients(method: str, streams: int, per_client: int, workload: int) -> None:
    harmonic = sum(1 / k for k in range(1, 11))
    given = {"streams": streams, "uploads": 10 * per_client, "clients": 10, "workload": workload}
    assert round_time(SLOW, **given) == pytest.approx(streams + 4 * 10 * per_client + workload * (1 + harmonic))
    assert round_time(FAST, **given) == pytest.approx(streams + 2 * 10 * per_client + workload)
    assert round_time(WIRED, **given) == pytest.approx(streams + 10 * per_client + workload)


def test_local_only_computes() -> None:
    alone = line(reported=0, down_streams=0.0, up_models=0.0)
    assert times([alone], SLOW).tolist() == pytest.approx([1 + 25 / 12])
    assert times([alone], WIRED).tolist() == [1.0]


def test_a_round_waits_for_those_that_report() -> None:
    straggled = line(trained=100, reported=2, up_models=2.0)
    assert times([straggled], SLOW).tolist() == pytest.approx([1 + 4 * 2 + 1 + 1.5])


def test_a_whole_run() -> None:
    rounds = [line(workload=0.0), line(down_streams=3.0), line(down_streams=2.0)]
    assert times(rounds, WIRED).tolist() == [1 + 4, 3 + 4 + 1, 2 + 4 + 1]
    assert total_times(rounds) == {
        "slow uplink": pytest.approx(6 + 3 * 16 + 2 * (1 + 25 / 12)),
        "fast uplink": 6 + 3 * 8 + 2,
        "wired": 6 + 3 * 4 + 2,
    }
    assert streams_per_round(rounds) == 2.0
    assert streams_per_round([]) is None and set(total_times([]).values()) == {0.0}


def test_bad_input() -> None:
    with pytest.raises(InputError, match="streams, uploads and workload must be >= 0, got -1, 1 and 1"):
        round_time(SLOW, streams=-1, uploads=1, clients=1)
    with pytest.raises(InputError, match="clients must be >= 0, got -1"):
        computing_time(SLOW, -1)
    with pytest.raises(InputError, match="the rounds do not say what was sent"):
        times([{"trained": 4, "reported": 4}], SLOW)
