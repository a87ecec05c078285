"""IFCA: several common models, each client with the one that fits it best."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from bespokefl.core.errors import InputError
from bespokefl.core.rows import Rows
from bespokefl.core.task import Task
from bespokefl.engines.client import Data
from bespokefl.engines.settings import Settings
from bespokefl.engines.simulation import Simulation
from bespokefl.methods import IFCA, FedAvg
from tests.federations import CLASSES, SIZES, apart, federation, mlp, planted, run, same_bits, simulation, work_of
from tests.methods.plain_sgd import train, weighted

pytestmark = pytest.mark.slow  # `make check` is to stay under two minutes

DATA = federation(dtype=torch.float64)
SGD = {"lr": 0.2, "momentum": 0.5, "weight_decay": 0.1}
GROUPS = (0, 1, 2, 1, 0, 2, 2, 0, 1)


def loss(task: Task, row: Rows, data: Data, k: int) -> float:
    """Of one model on all of a client's training data."""
    own = data.train.of(k)
    with torch.no_grad():
        return F.cross_entropy(torch.func.functional_call(task.module, row.state(), (data.x[own],)), data.y[own]).item()


@pytest.mark.parametrize("weights", ["examples", "equal"])
@pytest.mark.parametrize("participation", [0.5, 1.0])
def test_one_cluster_is_fedavg(participation: float, weights: str) -> None:
    options = {"rounds": 3, "participation": participation}
    _, found = run(IFCA(clusters=1, weights=weights, **SGD), DATA, **options)
    _, expected = run(FedAvg(weights=weights, **SGD), DATA, **options)
    assert apart(found.server["models"], expected.server["weights"]) < 1e-12
    assert apart(found.personal_rows, expected.personal_rows) < 1e-12
    assert found.communication.down_bytes == expected.communication.down_bytes


@pytest.mark.parametrize("clusters", [1, 3])
def test_stacked_seeds_do_not_see_each_others_models(clusters: int) -> None:
    settings = [Settings(rounds=2, batch_size=4, workers=1, seed=seed) for seed in (0, 1)]
    method = IFCA(clusters=clusters)
    task = Task(mlp, dtype=torch.float64)
    found = Simulation(method, task, [DATA, DATA], settings, CLASSES).run_all()
    for outcome, setting in zip(found, settings, strict=True):
        alone = Simulation(method, Task(mlp, dtype=torch.float64), DATA, setting, CLASSES).run()
        assert apart(outcome.server["models"], alone.server["models"]) < 1e-10


def test_three_rounds_by_hand() -> None:
    made = simulation(IFCA(clusters=3, **SGD), DATA, rounds=3)
    models = [made.server["models"][j : j + 1] for j in range(3)]
    outcome, chosen = made.run(), []
    for number in (1, 2, 3):
        work = work_of(DATA, round=number)
        chosen.append([min(range(3), key=lambda j, k=k: loss(made.task, models[j], DATA, k)) for k in range(6)])
        trained = [train(made.task, work, k, models[j], **SGD) for k, j in enumerate(chosen[-1])]
        for j in set(chosen[-1]):
            inside = [k for k in range(6) if chosen[-1][k] == j]
            models[j] = weighted([trained[k] for k in inside], [SIZES[k] for k in inside])
    assert apart(outcome.server["models"], Rows.cat(models)) < 1e-10
    best = [min(range(3), key=lambda j, k=k: loss(made.task, models[j], DATA, k)) for k in range(6)]
    assert apart(outcome.personal_rows, Rows.cat([models[j] for j in best])) < 1e-10
    told = {(note["round"], note["client"]): note["cluster"] for note in outcome.client_notes}
    assert told == {(t + 1, DATA.names[k]): chosen[t][k] for t in range(3) for k in range(6)}
    assert [sum(line["sizes"]) for line in outcome.history] == [6, 6, 6] and len(set(chosen[0])) > 1


def test_a_model_that_nobody_chose_stays() -> None:
    made = simulation(IFCA(clusters=8), DATA, rounds=1)
    before = made.server["models"]
    outcome = made.run()
    chosen = {note["cluster"] for note in outcome.client_notes}
    assert 0 < len(chosen) < 8
    for j in range(8):
        assert same_bits(outcome.server["models"][j : j + 1], before[j : j + 1]) == (j not in chosen)


def test_all_models_down_one_up() -> None:
    made, outcome = run(IFCA(clusters=3), DATA, rounds=1, participation=0.5)
    model = made.task.layout.width * 8
    assert outcome.communication.down_bytes == 3 * (3 * model)
    assert outcome.communication.up_bytes == 3 * (model + 8)  # and the cluster's number


def clusters(data: Data) -> list[int]:
    """What everybody chose in the last of ten rounds; there are spare models, as one start may leave some unused."""
    _, outcome = run(IFCA(clusters=6, lr=0.2), data, rounds=10, batch_size=10)
    last = {note["client"]: note["cluster"] for note in outcome.client_notes if note["round"] == 10}
    return [last[name] for name in data.names]


def test_planted_groups_are_found_by_training_data_alone() -> None:
    data = planted(GROUPS)
    found = clusters(data)
    pairs = [(a, b) for a in range(9) for b in range(9)]
    assert all(found[a] != found[b] for a, b in pairs if GROUPS[a] != GROUPS[b])
    others = torch.cat([data.test.indices, data.validation.indices])
    y = data.y.clone()
    y[others] = (y[others] + 1) % CLASSES
    assert clusters(replace(data, y=y)) == found


def test_models_begin_alike_and_apart() -> None:
    made = simulation(IFCA(clusters=3), DATA)
    models, start = made.server["models"], made.task.start
    assert same_bits(models[:1], start)
    for block, own in zip(models.blocks, start.blocks, strict=True):
        for j in (1, 2):  # the same numbers, so the same scale
            assert torch.equal(block[j].flatten().sort()[0], own.flatten().sort()[0])
    assert apart(models[1:2], start) > 0.5 and apart(models[1:2], models[2:]) > 0.5
    warm = simulation(IFCA(clusters=3), DATA, warm=True).server["models"]
    assert same_bits(warm[:1], start) and 0.05 < apart(warm[1:2], start) < 0.2
    again = simulation(IFCA(clusters=3), DATA, seed=1).server["models"]
    assert apart(again[1:2], models[1:2]) > 0.5


def test_a_newcomer_gets_the_model_that_fits_its_training_data() -> None:
    made, outcome = run(IFCA(clusters=4, lr=0.2), planted(GROUPS), rounds=10, batch_size=10)
    new = planted((2, 1, 0))
    served = made.method.newcomer(made.task, made.server, work_of(new))
    models = outcome.server["models"]
    for k in range(3):
        best = min(range(4), key=lambda j, k=k: loss(made.task, models[j : j + 1], new, k))
        assert same_bits(served[k : k + 1], models[best : best + 1])


def test_senseless_numbers_of_clusters() -> None:
    with pytest.raises(InputError, match=r"^clusters must be >= 1, got 0 \(p of ifca\)\.$"):
        IFCA(clusters=0)
