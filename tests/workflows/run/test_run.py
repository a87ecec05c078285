"""A run from Python: what it returns, what it leaves on disk, and that both say the same."""

import csv
import gc
import json
import os
import re
import signal
import tomllib
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import bespokefl as bf
from bespokefl import methods
from bespokefl.core.errors import InputError
from bespokefl.data.clients import Clients
from bespokefl.engines.outcome import Progress
from bespokefl.workflows.results.result import Result, load_run
from bespokefl.workflows.results.score_tables import dumps, plain
from bespokefl.workflows.run import api
from bespokefl.workflows.run.api import run, run_config
from bespokefl.workflows.run.settings import RunSettings, read
from bespokefl.workflows.run.trainer import BuiltRun

QUICK: dict[str, Any] = {"rounds": 2, "workers": 1, "batch_size": 16}
RUN_FILES = {"config.toml", "result.json", "clients.csv", "rounds.jsonl", "split.json", "personal.safetensors"}
RUN_FILES |= {"server.safetensors", "client_scores.jsonl"}


@pytest.fixture(scope="module")
def digits() -> Clients:
    return bf.load("digits").split("dirichlet(alpha=0.4)", clients=6, seed=0)


@pytest.fixture(scope="module")
def ditto(digits: Clients) -> Result:
    return run(methods.Ditto(lr=0.1, prox_weight=0.5), digits, **QUICK)


def natural(num: int = 12, seed: int = 0) -> Clients:
    """Clients named by numbers, in whose order "10" comes after "9"."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, 40 * num)
    x = rng.normal(size=(40 * num, 5)) + 2 * np.eye(5)[y]
    return Clients.from_arrays(x, y, np.arange(40 * num) % num)


def accuracy(model: nn.Module, clients: Clients, position: int, part: str = "test") -> float:
    own = getattr(clients, part).of(position)
    with torch.no_grad():
        return float((model(clients.x[own]).argmax(1) == clients.y[own]).double().mean())


def same_models(one: Path, other: Path) -> bool:
    return (one / "personal.safetensors").read_bytes() == (other / "personal.safetensors").read_bytes()


# -- what it returns


def test_the_example_of_the_readme(tmp_path: Path) -> None:
    clients = bf.load("digits").split(bf.splits.Dirichlet(alpha=0.4), clients=20, seed=0)
    # fmt: off
    result = bf.run(bf.methods.Ditto(lr=0.1, personal_lr=0.1, prox_weight=1.0), clients, model="mlp",
                    rounds=20, batch_size=32, local_epochs=1, participation=0.5, seed=0)
    # fmt: on
    assert result.personal["accuracy"].mean() == pytest.approx(result.summary()["personal"]["accuracy"]["mean"])
    assert [row["client"] for row in result.clients] == list(clients.names)
    assert {file.name for file in result.save(tmp_path / "runs/ditto").iterdir()} >= RUN_FILES


def test_scores_are_those_of_the_models_in_the_order_of_the_clients() -> None:
    clients = natural()
    assert list(clients.names) != sorted(clients.names)  # else the test would not notice a wrong order
    result = run("ditto", clients, model="logistic", **QUICK)
    assert result.global_ is not None
    common = result.global_model()
    assert common is not None
    for position, row in enumerate(result.clients):
        own = result.model(clients.names[position])
        assert row["client"] == clients.names[position]
        assert row["train"] == int(clients.train.sizes[position])
        assert row["personal_accuracy"] == result.personal["accuracy"][position]
        assert result.personal["accuracy"][position] == pytest.approx(accuracy(own, clients, position))
        assert result.global_["accuracy"][position] == pytest.approx(accuracy(common, clients, position))
        for part in ("train", "validation"):
            found = result.personal[f"{part}_accuracy"][position]
            assert found == pytest.approx(accuracy(own, clients, position, part))


def test_the_order_of_clients_does_not_matter() -> None:
    rng = np.random.default_rng(3)
    sets = {name: (rng.normal(size=(n, 4)), np.arange(n) % 2) for name, n in (("b", 30), ("a", 50), ("c", 20))}
    found = []
    for names in (["a", "b", "c"], ["c", "a", "b"]):
        given = [sets[name] for name in names]
        clients = Clients.from_sets(train=given, test=given, names=names)
        result = run("ditto", clients, model="mlp(hidden=(7,))", participation=0.7, **QUICK)
        found.append({row["client"]: row | dict(result.model(row["client"]).state_dict()) for row in result.clients})
    for name, row in found[0].items():
        for key, value in row.items():
            same = (
                torch.equal(value, found[1][name][key]) if isinstance(value, Tensor) else value == found[1][name][key]
            )
            assert same, (name, key)


def test_workers_do_not_change_the_result(digits: Clients, ditto: Result) -> None:
    again = run(methods.Ditto(lr=0.1, prox_weight=0.5), digits, **(QUICK | {"workers": 2}))
    assert again.clients == ditto.clients


def test_another_seed_is_another_start_and_other_batches(digits: Clients) -> None:
    for lr in (1e-30, 0.1):
        models = [run(methods.Local(lr=lr), digits, seed=seed, **QUICK).model("0") for seed in (0, 0, 1)]
        first, same, other = (dict(model.named_parameters()) for model in models)
        assert all(torch.equal(value, same[name]) for name, value in first.items())
        assert not any(torch.equal(value, other[name]) for name, value in first.items())


def test_a_method_without_a_global_model(digits: Clients, tmp_path: Path) -> None:
    result = run("local", digits, **QUICK)
    assert result.global_ is None and result.global_model() is None
    assert result.summary()["global"] is None
    assert {row["global_accuracy"] for row in result.clients} == {None}
    path = result.save(tmp_path / "local")
    assert not (path / "global.safetensors").exists()
    with pytest.raises(InputError, match="has no global model to start from"):
        run("fedavg", digits, start=path, **QUICK)


def test_regression_has_a_loss_and_no_accuracy(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    clients = Clients.from_arrays(x, x.sum(1), np.arange(60) % 4)
    result = run("ditto", clients, model="logistic", **QUICK)
    own = clients.test.of(0)
    with torch.no_grad():
        outputs = result.model(clients.names[0])(clients.x[own])[:, 0]
    assert result.personal["loss"][0] == pytest.approx(float((outputs - clients.y[own]).square().mean()), rel=1e-5)
    summary = json.loads((result.save(tmp_path / "run") / "result.json").read_text())
    assert summary["personal"]["accuracy"] is None
    assert summary["personal"]["loss"]["mean"] == pytest.approx(result.personal["loss"].mean())
    assert "test loss" in repr(load_run(tmp_path / "run"))


def test_clients_without_test_data_are_left_out_and_said_so(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sets = [(rng.normal(size=(20, 3)), np.arange(20) % 2) for _ in range(3)]
    nothing = (np.zeros((0, 3)), np.zeros(0, dtype=int))
    clients = Clients.from_sets(train=sets, validation=sets, test=[sets[0], nothing, sets[2]])
    result = run("ditto", clients, model="logistic", **QUICK)
    assert np.isnan(result.personal["accuracy"][1])
    assert result.clients[1]["personal_accuracy"] is None
    expected = (result.personal["accuracy"][0] + result.personal["accuracy"][2]) / 2
    assert result.summary()["personal"]["accuracy"]["mean"] == pytest.approx(expected)
    assert result.notes == ["Clients without test data are left out of the test figures: 1."]
    assert "NaN" not in (result.save(tmp_path / "run") / "result.json").read_text()
    again = load_run(tmp_path / "run")
    assert again.clients == result.clients
    assert again.notes == result.notes


def test_float64_is_float64_throughout(digits: Clients) -> None:
    result = run("ditto", digits, precision="float64", **QUICK)
    assert {value.dtype for value in result.model(digits.names[0]).state_dict().values()} == {torch.float64}


def test_the_reference_engine_agrees(digits: Clients) -> None:
    fast, plain_loop = (
        run("ditto", digits, precision="float64", engine=engine, **QUICK) for engine in ("simulation", "reference")
    )
    assert plain_loop.timing["chunk"] == 1
    np.testing.assert_allclose(fast.personal["loss"], plain_loop.personal["loss"], rtol=1e-9)


def test_progress_is_told_every_round(digits: Clients) -> None:
    seen: list[Progress] = []
    run("fedavg", digits, eval_every=1, progress=lambda now: seen.append(Progress(**vars(now))), **QUICK)
    assert [(now.done, now.total) for now in seen] == [(1, 2), (2, 2)]
    assert set(seen[-1].scores) == {"validation_loss", "validation_accuracy"}


@pytest.mark.parametrize(("eval_every", "evaluated"), [(0, [5]), (1, [1, 2, 3, 4, 5]), (2, [2, 4, 5])])
def test_everybody_is_evaluated_every_few_rounds_and_at_the_end(eval_every: int, evaluated: list[int]) -> None:
    result = run("fedavg", natural(4), model="logistic", eval_every=eval_every, **(QUICK | {"rounds": 5}))
    assert [row["round"] for row in result.rounds if "personal" in row] == evaluated
    assert result.rounds[-1]["personal"]["test_accuracy"] == pytest.approx(result.personal["accuracy"].mean())


# -- models of all kinds


class Frozen(nn.Module):
    """A backbone that is not trained, a buffer, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Linear(5, 4)
        self.backbone.requires_grad_(False)
        self.register_buffer("scale", torch.rand(4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(torch.relu(self.backbone(x)) * self.scale)
        return output


def make_frozen(shape: tuple[int, ...], classes: int) -> nn.Module:
    assert (shape, classes) == ((5,), 3)
    return Frozen()


def test_a_function_that_can_be_imported_is_found_again(tmp_path: Path) -> None:
    clients = natural(3)
    result = run("ditto", clients, model=make_frozen, **QUICK)
    assert result.config.model == f"{__name__}:make_frozen"
    result.save(tmp_path / "run")
    assert set(load_file(tmp_path / "run" / "personal.safetensors")) == {"head.weight", "head.bias"}
    assert set(load_file(tmp_path / "run" / "global.safetensors")) == set(Frozen().state_dict())
    again = load_run(tmp_path / "run")
    for name, value in result.model("1").state_dict().items():
        assert torch.equal(again.model("1").state_dict()[name], value), name
    assert accuracy(again.model("1"), clients, 1) == pytest.approx(result.personal["accuracy"][1])


def test_a_model_that_has_no_name_has_to_be_given_again(tmp_path: Path) -> None:
    given = Frozen()
    result = run("ditto", natural(3), model=given, **QUICK)
    path = result.save(tmp_path / "run")
    with pytest.raises(InputError, match=r"was a Python object, <Frozen module>, which only Python can give again"):
        load_run(path).model("1")
    found = load_run(path, model=given).model("1").state_dict()
    assert all(torch.equal(found[name], value) for name, value in result.model("1").state_dict().items())
    with pytest.raises(InputError, match="frozen parameters or buffers are not those of this run"):
        load_run(path, model=Frozen()).model("1")
    with pytest.raises(InputError, match="does not fit the weights"):
        load_run(path, model="logistic").model("1")
    with pytest.raises(InputError, match="was a Python object"):
        run_config(RunSettings.of(read(path / "config.toml")))


def test_a_module_is_where_the_run_begins_and_stays_as_it_is(digits: Clients) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    still = run(methods.Local(lr=1e-30), digits, model=module, **QUICK)
    trained = run("local", digits, model=module, **QUICK)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
        assert torch.equal(still.model(digits.names[0]).state_dict()[name], before[name])
        assert not torch.equal(trained.model(digits.names[0]).state_dict()[name], before[name])


def test_a_models_gradients_can_be_taken(ditto: Result) -> None:
    assert all(parameter.requires_grad for parameter in ditto.model("0").parameters())
    assert not ditto.model("0").training


def test_unknown_client(ditto: Result) -> None:
    with pytest.raises(InputError, match="there is no client '17'; there are 0, 1, 2, 3, 4 and 1 more"):
        ditto.model("17")


# -- where it begins


def test_start_is_where_it_begins(digits: Clients, ditto: Result, tmp_path: Path) -> None:
    path = ditto.save(tmp_path / "run")
    state = load_file(path / "global.safetensors")
    save_file({name: value.double() for name, value in state.items()}, tmp_path / "weights.safetensors")
    for start in (
        state,
        {name: value.numpy() for name, value in state.items()},
        path,
        tmp_path / "weights.safetensors",
    ):
        begun = run(methods.Local(lr=1e-30), digits, start=start, **QUICK)
        found = begun.model("0").state_dict()
        assert all(torch.equal(found[name], value) for name, value in state.items())
    saved = begun.save(tmp_path / "begun")
    again = run_config(RunSettings.of(read(saved / "config.toml") | {"out": str(tmp_path / "again")}))
    assert again.clients == begun.clients


def test_start_takes_frozen_parameters_and_buffers_along(tmp_path: Path) -> None:
    state = {name: value + 1 for name, value in Frozen().state_dict().items()}
    result = run("ditto", natural(3), model=make_frozen, start=state, **QUICK)
    found = load_run(result.save(tmp_path / "run")).model("0").state_dict()
    for name in ("backbone.weight", "backbone.bias", "scale"):
        assert torch.equal(found[name], state[name])
    alone = run("ditto", natural(3), model=make_frozen, start={n: v for n, v in state.items() if "head" in n}, **QUICK)
    assert not torch.equal(alone.model("0").state_dict()["scale"], state["scale"])


W, B = torch.zeros(3, 5), torch.zeros(3)


@pytest.mark.parametrize(
    ("start", "sentence"),
    [
        ({"head.weight": W}, "start must have all trainable parameters of the model, but lacks head.bias."),
        ({"head.weight": W.T, "head.bias": B}, "start has head.weight of shape (5, 3), but the model's is (3, 5)."),
        ({"head.weight": W, "head.bias": B, "tail": B}, "start has tail, which the model has not;"),
        ({"head.weight": W / 0, "head.bias": B}, "start must be finite, but head.weight holds NaN or infinity."),
        ({"head.weight": "x", "head.bias": B}, "start must be a state dict"),
        (5, "start must be a state dict, a module, a .safetensors file or the directory of a run, got 5."),
        ("none.safetensors", "there is no file"),
        ("weights.pt", "start must be a .safetensors file or the directory of a run"),
        (".", "start must be weights or the directory of a run"),
    ],
)
def test_a_start_that_does_not_fit_is_refused(start: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        run("ditto", natural(3), model="logistic", start=start, **QUICK)


# -- on disk


def test_the_folder_of_a_run(digits: Clients, ditto: Result, tmp_path: Path) -> None:
    path = ditto.save(tmp_path / "run")
    assert {file.name for file in path.iterdir()} == RUN_FILES | {"global.safetensors"}

    summary = json.loads((path / "result.json").read_text())
    assert summary["method"] == "ditto"
    assert summary["hyper"] == plain(methods.Ditto(lr=0.1, prox_weight=0.5).hyper())
    assert (summary["data"], summary["split"], summary["split_hash"]) == ("digits", "dirichlet(alpha=0.4)", digits.hash)
    assert (summary["model"], summary["seed"], summary["rounds"], summary["rounds_done"]) == ("mlp", 0, 2, 2)
    for kind in ("personal", "global"):
        for measure in ("accuracy", "loss"):
            assert set(summary[kind][measure]) == {"mean", "weighted_mean", "std", "worst", "worst_decile"}
    assert set(summary["communication"]) == {
        *("up_bytes", "down_bytes", "up_floats", "down_floats"),
        *("streams", "model_time"),
    }
    assert {"seconds_per_round", "chunk", "workers"} <= set(summary["timing"])
    # the global model, 4 bytes a number, goes to and from each of 6 clients in each of 2 rounds
    numbers = 64 * 100 + 100 + 100 * 10 + 10
    assert summary["communication"]["up_floats"] == summary["communication"]["down_floats"] == 2 * 6 * numbers
    assert summary["communication"]["up_bytes"] == 4 * 2 * 6 * numbers

    with (path / "clients.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["client"] for row in rows] == list(digits.names)
    assert [int(row["test"]) for row in rows] == digits.test.sizes.tolist()
    assert [float(row["personal_loss"]) for row in rows] == ditto.personal["loss"].tolist()
    assert ditto.global_ is not None
    assert [float(row["global_accuracy"]) for row in rows] == ditto.global_["accuracy"].tolist()
    assert [json.loads(line)["round"] for line in (path / "rounds.jsonl").read_text().splitlines()] == [1, 2]
    assert bf.load("digits").with_split(path / "split.json").hash == digits.hash

    with safe_open(path / "personal.safetensors", framework="pt") as file:
        about = json.loads(file.metadata()["bespoke"])
        shapes = {name: tuple(file.get_tensor(name).shape) for name in file.keys()}  # noqa: SIM118
    assert shapes["head.weight"] == (6, 10, 100)
    assert (about["clients"], about["model"]) == (list(digits.names), "mlp")
    assert about["head"] == ["head.weight", "head.bias"]


def test_a_loaded_run_is_the_run(ditto: Result, tmp_path: Path) -> None:
    again = load_run(ditto.save(tmp_path / "run"))
    assert again.summary() == plain(ditto.summary())
    assert dumps(again.summary(), indent=2) + "\n" == (tmp_path / "run" / "result.json").read_text()
    assert again.clients == ditto.clients
    assert again.rounds == plain(ditto.rounds)
    assert again.config.set == ditto.config.set
    assert repr(again) == repr(ditto)
    assert "personal" in repr(again) and "test accuracy: mean 0." in repr(again)
    for client in ditto.names:
        found = again.model(client).state_dict()
        assert all(torch.equal(found[name], value) for name, value in ditto.model(client).state_dict().items())
    assert (again.save(tmp_path / "copy") / "clients.csv").read_bytes() == (tmp_path / "run/clients.csv").read_bytes()


def test_a_run_from_python_is_repeated_from_its_file(digits: Clients, ditto: Result, tmp_path: Path) -> None:
    path = ditto.save(tmp_path / "run")
    again = run_config(RunSettings.of(read(path / "config.toml") | {"out": str(tmp_path / "again")}))
    assert again.clients == ditto.clients
    assert same_models(path, tmp_path / "again")
    summaries = [json.loads((folder / "result.json").read_text()) for folder in (path, tmp_path / "again")]
    for summary in summaries:
        del summary["timing"]
    assert summaries[0] == summaries[1]


def test_arrays_from_python_are_repeated_once_they_are_saved(tmp_path: Path) -> None:
    clients = natural(5)
    result = run("ditto", clients, model="logistic", **QUICK)
    text = (result.save(tmp_path / "run") / "config.toml").read_text()
    assert "numpy.savez" in text
    config = read(tmp_path / "run" / "config.toml") | {"out": str(tmp_path / "again")}
    with pytest.raises(InputError, match="unknown data 'arrays'"):
        run_config(RunSettings.of(config))
    np.savez(tmp_path / "data.npz", x=clients.x, y=clients.y, client=clients.client)
    again = run_config(RunSettings.of(config | {"data": str(tmp_path / "data.npz")}))
    assert again.clients == result.clients


@dataclass(frozen=True, kw_only=True)
class Talkative(methods.FedAvg):
    """FedAvg that keeps figures, and is registered nowhere."""

    name: ClassVar[str] = "talkative"
    favourite: Any = None

    def local_update(self, task, message, state, work, round):  # type: ignore[no-untyped-def]
        work.note(examples=work.n, share=work.n / 7)
        return super().local_update(task, message, state, work, round)

    def aggregate(self, server, uploads, round):  # type: ignore[no-untyped-def]
        round.note(heard=torch.tensor([1.0, float("nan")]))
        return super().aggregate(server, uploads, round)


def test_what_a_method_notes_is_kept(tmp_path: Path) -> None:
    result = run(Talkative(favourite=object()), natural(3), model="logistic", **QUICK)
    path = result.save(tmp_path / "run")
    again = load_run(path)
    assert again.client_rounds == plain(result.client_rounds)
    assert [(row["round"], row["client"]) for row in again.client_rounds] == [(r, c) for r in (1, 2) for c in "012"]
    assert again.client_rounds[0]["examples"] == int(result.sizes["train"][0])
    assert again.rounds[0]["heard"] == [1.0, None]
    text = (path / "config.toml").read_text()
    assert "Talkative is not registered" in text and "cannot hold favourite" in text
    assert "favourite" not in tomllib.loads(text)["set"]


def test_saving_replaces_nothing_unasked(ditto: Result, tmp_path: Path) -> None:
    ditto.save(tmp_path / "run")
    with pytest.raises(InputError, match="already holds a run"):
        ditto.save(tmp_path / "run")
    ditto.save(tmp_path / "run", overwrite=True)


@pytest.mark.parametrize("file", ["result.json", "clients.csv", "rounds.jsonl"])
def test_a_damaged_run_is_refused(ditto: Result, tmp_path: Path, file: str) -> None:
    path = ditto.save(tmp_path / "run")
    (path / file).write_text('{"half":')
    with pytest.raises(InputError, match="is damaged"):
        load_run(path)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not the directory of a run"):
        load_run(tmp_path)
    for name in ("ditto-0", "local-0"):
        (tmp_path / "comparison" / "runs" / name).mkdir(parents=True)
        (tmp_path / "comparison" / "runs" / name / "result.json").touch()
    with pytest.raises(InputError, match=r"comparison' holds several runs; name one of them, such as '.*ditto-0'"):
        load_run(tmp_path / "comparison")


def test_an_interrupted_run_keeps_what_it_has(tmp_path: Path) -> None:
    def interrupt(now: Progress) -> None:
        if now.done == 2:
            os.kill(os.getpid(), signal.SIGINT)

    settings = QUICK | {"rounds": 50, "progress": interrupt}
    result = run("ditto", natural(3), model="logistic", **settings)
    assert result.interrupted and result.about["rounds_done"] == 3
    again = load_run(result.save(tmp_path / "run"))
    assert again.interrupted
    assert again.notes == ["Interrupted after round 3 of 50."]
    assert len(again.rounds) == 3
    same = run("ditto", natural(3), model="logistic", **(QUICK | {"rounds": 3}))
    assert same.clients == again.clients


# -- what cannot be run


def test_what_is_no_method_or_no_clients_is_refused(digits: Clients) -> None:
    with pytest.raises(InputError, match="unknown method 'dito'; did you mean 'ditto'"):
        run("dito", digits)
    with pytest.raises(InputError, match="method must be a method such as"):
        run(methods.Ditto, digits)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="clients must be Clients, got Dataset"):
        run("ditto", bf.load("digits"))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="participation must be in"):
        run("ditto", digits, participation=0)


def test_data_that_became_non_finite_are_refused() -> None:
    clients = natural(3)
    clients.x[7, 1] = float("inf")
    with pytest.raises(InputError, match="x must be finite"):
        run("ditto", clients, **QUICK)


def test_a_loss_must_fit_the_labels(digits: Clients) -> None:
    with pytest.raises(InputError, match="the loss 'mse' does not fit the data, which have 10 classes"):
        run("ditto", digits, loss="mse", **QUICK)
    with pytest.raises(InputError, match="unknown loss 'mes'"):
        run("ditto", digits, loss="mes", **QUICK)


def test_a_loss_of_ones_own(digits: Clients, tmp_path: Path) -> None:
    def brier(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.softmax(-1) - nn.functional.one_hot(targets, 10)).square().sum(-1)

    result = run("ditto", digits, loss=brier, **QUICK)
    own = digits.test.of(0)
    with torch.no_grad():
        expected = brier(result.model("0")(digits.x[own]), digits.y[own]).mean()
    assert result.personal["loss"][0] == pytest.approx(float(expected), rel=1e-5)
    assert "its loss was a Python function" in (result.save(tmp_path / "run") / "config.toml").read_text()


def test_a_result_does_not_keep_the_simulation(digits: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    """Client states and worker processes would stay in memory as long as the result."""
    alive: list[weakref.ref[object]] = []
    simulate = api.simulate

    def observed(built: BuiltRun, *given: Any) -> Any:
        alive.append(weakref.ref(built.simulation))
        return simulate(built, *given)

    monkeypatch.setattr(api, "simulate", observed)
    result = run("ditto", digits, rounds=1, workers=1)
    gc.collect()
    assert alive[0]() is None and result.names
