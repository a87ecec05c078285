"""Which worker does which job."""

from bespokefl.engines.transports.cluster.pool import _Waiting


def test_a_worker_takes_its_own_nodes_jobs_first_and_then_the_last_of_the_longest_queue() -> None:
    waiting = _Waiting([0, 1, 1, 1, 2, 2])
    assert [waiting.take(node) for node in (0, 0, 1, 0)] == [0, 3, 1, 5]
    assert sorted(waiting) == [2, 4]
    waiting.plus(5)
    assert waiting.take(2) == 5 and waiting.take(2) == 4 and waiting.take(0) == 2 and not waiting
