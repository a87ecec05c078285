"""Which worker does which job, and what is sent once."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from bespokefl.engines.transports import wire
from bespokefl.engines.transports.cluster.pool import ClusterPool, _Waiting


def test_a_worker_takes_its_own_nodes_jobs_first_and_then_the_last_of_the_longest_queue() -> None:
    waiting = _Waiting([0, 1, 1, 1, 2, 2])
    assert [waiting.take(node) for node in (0, 0, 1, 0)] == [0, 3, 1, 5]
    assert sorted(waiting) == [2, 4]
    waiting.plus(5)
    assert waiting.take(2) == 5 and waiting.take(2) == 4 and waiting.take(0) == 2 and not waiting


def test_what_all_jobs_of_a_round_share_is_sent_once() -> None:
    sent: list[np.ndarray] = []
    pool: Any = object.__new__(ClusterPool)
    pool._common, pool._ray = None, SimpleNamespace(put=lambda content: sent.append(content) or len(sent))
    weights = torch.arange(3.0)
    first = pool._shipped({"shared/weights": weights, "shared/lr": 0.1})
    assert pool._shipped({"shared/weights": weights, "shared/lr": 0.1}) == first and len(sent) == 1
    assert pool._shipped({"shared/weights": weights, "shared/lr": 0.2})[1] == 2
    text, reference = pool._shipped({"shared/weights": weights + 1, "shared/lr": 0.2})
    assert reference == 3 and wire.unpack(text, sent[-1])["shared/weights"].tolist() == [1, 2, 3]
