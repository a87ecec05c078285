"""Newcomers: held back from a run or served by a finished one, in memory and from disk alike, for every method."""

import csv
import json
import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import bespokefl as bf
from bespokefl import methods
from bespokefl.core.errors import InputError
from bespokefl.data.clients import Clients
from bespokefl.engines.outcome import Progress
from bespokefl.workflows.newcomers.personalize import finetuning_rate, personalize
from bespokefl.workflows.newcomers.result import Newcomers, load_newcomers
from bespokefl.workflows.results.result import Result, load_run
from bespokefl.workflows.results.score_tables import plain
from bespokefl.workflows.run.api import run, run_config
from bespokefl.workflows.run.client_loading import hold_back
from bespokefl.workflows.run.convert import select
from bespokefl.workflows.run.settings import RunSettings, read

pytestmark = pytest.mark.slow  # `make check` is to stay under two minutes

QUICK: dict[str, Any] = {"rounds": 2, "workers": 1, "batch_size": 16, "model": "mlp(hidden=(6,))"}


def federation(num: int = 8, seed: int = 0, labels: Any = (0, 1, 2)) -> Clients:
    """Clients of two groups, which see the classes at different places; named by numbers, "10" after "9"."""
    rng = np.random.default_rng(seed)
    client = np.arange(30 * num) % num
    y = rng.integers(0, 3, 30 * num)
    x = rng.normal(size=(30 * num, 5)) + 2 * np.eye(5)[(y + client % 2) % 5]
    made = Clients.from_arrays(x, np.array(labels)[y], client)
    return replace(made, groups=tuple(int(name) % 2 for name in made.names))


@pytest.fixture(scope="module")
def clients() -> Clients:
    return federation()


@pytest.fixture(scope="module")
def ditto(clients: Clients) -> Result:
    return run("ditto", select(clients, range(5)), **QUICK)


@pytest.fixture(scope="module")
def late(clients: Clients) -> Clients:
    return select(clients, [7, 5, 6])


def quick(name: str) -> methods.Ditto:
    """A registered method, its long parts cut short."""
    short = {"distil_epochs": 1, "head_steps": 2, "samples": 2, "finish_epochs": 1}
    own = methods.build(name).hyper()
    built: Any = methods.build(name, {key: value for key, value in short.items() if key in own})
    return built


def same(one: Newcomers, other: Newcomers) -> bool:
    models = [one.model(name).state_dict() for name in one.names]
    others = [other.model(name).state_dict() for name in one.names]
    equal = all(torch.equal(a[key], b[key]) for a, b in zip(models, others, strict=True) for key in a)
    return equal and plain(one.clients) == plain(other.clients)


# -- every method


@pytest.mark.slow
@pytest.mark.parametrize("name", methods.REGISTRY)
def test_every_method_serves_newcomers_from_memory_and_from_disk(name: str, clients: Clients, tmp_path: Path) -> None:
    result = run(quick(name), clients, newcomers=0.25, **QUICK)
    found = result.newcomers
    assert found is not None and len(found.names) == 2 and not set(found.names) & set(result.names)
    assert len(result.names) == len(clients) - 2
    trained, held = hold_back(clients, 0.25, 0)
    assert held is not None and (trained.names, held.names) == (result.names, found.names)
    assert same(personalize(result, held), found)
    path = result.save(tmp_path / "run")
    again = personalize(path, held, workers=2)
    assert same(again, found)
    own = held.test.of(0)
    with torch.no_grad():
        right = (again.model(held.names[0])(held.x[own]).argmax(1) == held.y[own]).double().mean()
    assert found.personal["accuracy"][0] == pytest.approx(float(right))
    for name_ in held.names:
        state = load_run(path).model(name_).state_dict()
        assert all(torch.equal(value, found.model(name_).state_dict()[key]) for key, value in state.items())


def test_a_newcomers_rule_is_the_methods_own(clients: Clients) -> None:
    """FedAvg gives the common model as it is; Ditto(prox_weight=0) trains alone, which is fine-tuning."""
    result = run("fedavg", clients, newcomers=0.25, **QUICK)
    assert result.newcomers is not None
    common = result.global_model()
    assert common is not None
    for key, value in common.state_dict().items():
        assert torch.equal(result.newcomers.model(result.newcomers.names[0]).state_dict()[key], value)
    assert result.newcomers.personal["loss"].tolist() != result.newcomers.finetune["loss"].tolist()
    alone = run(methods.Ditto(prox_weight=0.0), clients, newcomers=0.25, **QUICK).newcomers
    assert alone is not None
    assert all(np.array_equal(alone.personal[key], alone.finetune[key]) for key in alone.personal)


def test_fine_tuning_takes_the_rate_of_the_whole_model() -> None:
    assert finetuning_rate(methods.Ditto(lr=0.3, personal_lr=0.1, momentum=0.5)) == (0.3, 0.5)
    assert finetuning_rate(methods.PFedVEM(base_lr=0.02)) == (0.02, 0.9)


# -- held back from a run


def test_who_is_held_back_is_drawn_by_name_and_seed(clients: Clients) -> None:
    shuffled = select(clients, [3, 1, 7, 0, 2, 6, 5, 4])
    held = {seed: set(hold_back(clients, 0.3, seed)[1].names) for seed in range(6)}  # type: ignore[union-attr]
    assert all(len(names) == 2 for names in held.values())  # ⌊0.3 · 8⌋
    assert len({frozenset(names) for names in held.values()}) > 1
    _, again = hold_back(shuffled, 0.3, 2)
    assert again is not None and set(again.names) == held[2]
    assert again.groups == tuple(int(name) % 2 for name in again.names)
    trained, nobody = hold_back(clients, 0.0, 0)
    assert trained is clients and nobody is None
    trained, one = hold_back(clients, 0.01, 0)
    assert one is not None and (len(one), len(trained)) == (1, 7)


def test_those_held_back_change_nothing_for_the_rest(clients: Clients) -> None:
    result = run("ditto", clients, newcomers=0.25, **QUICK)
    trained, _ = hold_back(clients, 0.25, 0)
    assert run("ditto", trained, **QUICK).clients == result.clients


def test_a_run_with_newcomers_on_disk(clients: Clients, tmp_path: Path) -> None:
    result = run("ditto", clients, newcomers=0.25, **QUICK)
    found = result.newcomers
    assert found is not None
    path = result.save(tmp_path / "run")
    summary = json.loads((path / "result.json").read_text())
    own = summary["newcomers"]
    assert own["personal"]["accuracy"]["mean"] == pytest.approx(found.personal["accuracy"].mean())
    assert own["finetune"]["loss"]["mean"] == pytest.approx(found.finetune["loss"].mean())
    assert (own["clients"], own["names"], own["finetune_from"]) == (2, list(found.names), "global")
    assert summary["clients"] == 6 and summary["split_hash"] == clients.hash
    rows = {file: list(csv.DictReader((path / file).open(newline=""))) for file in ("clients.csv", "newcomers.csv")}
    assert [row["client"] for row in rows["clients.csv"]] == list(result.names)
    assert [row["client"] for row in rows["newcomers.csv"]] == list(found.names)
    assert [float(row["finetune_loss"]) for row in rows["newcomers.csv"]] == found.finetune["loss"].tolist()
    assert json.loads((path / "split.json").read_text())["names"] == list(clients.names)

    again = load_run(path)
    assert again.summary() == plain(result.summary())
    assert again.newcomers is not None and same(again.newcomers, found)
    assert (again.save(tmp_path / "copy") / "newcomers.csv").read_bytes() == (path / "newcomers.csv").read_bytes()

    np.savez(tmp_path / "data.npz", x=clients.x, y=clients.y, client=clients.client)
    settings = read(path / "config.toml") | {"data": str(tmp_path / "data.npz"), "out": str(tmp_path / "again")}
    settings["split"] = str(_without_groups(path, tmp_path, clients))
    repeated = run_config(RunSettings.of(settings))
    assert repeated.newcomers is not None and repeated.newcomers.clients == found.clients


def _without_groups(path: Path, tmp_path: Path, clients: Clients) -> Path:
    """The split's file as it is without the groups that the fixture added, which changed no hash."""
    file = tmp_path / "split.json"
    content = json.loads((path / "split.json").read_text())
    file.write_text(json.dumps(content | {"groups": None}))
    return file


def test_poisoned_test_labels_change_no_newcomers_model(clients: Clients) -> None:
    poisoned = replace(clients, y=clients.y.clone())
    poisoned.y[clients.test.indices] = (poisoned.y[clients.test.indices] + 1) % 3
    for name in ("persfl", "ucfl"):
        first, second = (run(quick(name), one, newcomers=0.25, **QUICK).newcomers for one in (clients, poisoned))
        assert first is not None and second is not None
        assert first.personal["accuracy"].tolist() != second.personal["accuracy"].tolist()
        for who in first.names:
            own = second.model(who).state_dict()
            assert all(torch.equal(value, own[key]) for key, value in first.model(who).state_dict().items())


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (bf.TrainingError("too large a step."), "too large a step"),
        (bf.InputError("too few examples"), "too few examples"),
        (KeyboardInterrupt(), "this was interrupted"),
    ],
)
def test_a_run_survives_newcomers_that_cannot_be_served(
    error: BaseException,
    reason: str,
    clients: Clients,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object, **__: object) -> Newcomers:
        raise error

    monkeypatch.setattr("bespokefl.workflows.run.trainer.serve", fail)
    result = run("ditto", clients, newcomers=0.25, **QUICK)
    assert result.newcomers is None and result.summary()["newcomers"] is None
    assert result.notes == [f"2 clients held back, not personalized: {reason}."]
    assert result.notes[0] in caplog.text


def interrupted(clients: Clients, **settings: Any) -> Result:
    def interrupt(now: Progress) -> None:
        if now.done == 1:
            os.kill(os.getpid(), signal.SIGINT)

    return run("ditto", clients, progress=interrupt, **(QUICK | {"rounds": 50} | settings))


def test_an_interrupted_run_serves_nobody(clients: Clients, late: Clients, tmp_path: Path) -> None:
    result = interrupted(clients, newcomers=0.25)
    assert result.newcomers is None
    assert result.notes[-1] == "2 clients held back, not personalized: the run was interrupted."
    with pytest.raises(
        InputError, match="newcomers need a finished run, but the one was interrupted after round 2 of 50"
    ):
        personalize(result, late)
    with pytest.raises(
        InputError, match=r"the one in '.*run' was interrupted after round 2 of 50; resume it first: bespoke resume"
    ):
        personalize(result.save(tmp_path / "run"), late)


# -- every round's common model


def test_kept_rounds_are_on_disk_and_newcomers_choose_among_them(clients: Clients, tmp_path: Path) -> None:
    method = methods.PersFL(distil_epochs=1, lr=3.0)  # so large that the last model is not the best
    settings = QUICK | {"rounds": 6}
    kept = run(method, clients, newcomers=0.5, keep_rounds=True, **settings)
    plainly = run(method, clients, newcomers=0.5, **settings)
    assert kept.final is not None and kept.final.rounds is not None and len(kept.final.rounds) == 7
    assert kept.newcomers is not None and plainly.newcomers is not None
    assert not same(kept.newcomers, plainly.newcomers)
    path = kept.save(tmp_path / "run")
    stored = load_file(path / "rounds.safetensors")
    last = kept.global_model()
    assert last is not None
    for name, value in last.state_dict().items():
        assert len(stored[name]) == 7 and torch.equal(stored[name][6], value)
    assert not (plainly.save(tmp_path / "plain") / "rounds.safetensors").exists()
    _, held = hold_back(clients, 0.5, 0)
    assert held is not None
    assert same(personalize(path, held), kept.newcomers)
    assert same(personalize(tmp_path / "plain", held), plainly.newcomers)


def test_there_is_nothing_to_keep_without_a_common_model(clients: Clients) -> None:
    with pytest.raises(InputError, match="local has no global model to keep of every round"):
        run("local", clients, keep_rounds=True, **QUICK)


# -- a finished run and new clients


def test_personalize_keeps_the_order_of_the_newcomers(ditto: Result, late: Clients) -> None:
    found = personalize(ditto, late)
    assert found.names == ("7", "5", "6")
    for position, name in enumerate(found.names):
        own, model = late.test.of(position), found.model(name)
        with torch.no_grad():
            right = float((model(late.x[own]).argmax(1) == late.y[own]).double().mean())
        assert found.personal["accuracy"][position] == pytest.approx(right)
    assert "3 newcomers to ditto" in repr(found) and "finetune  test accuracy: mean 0." in repr(found)
    alone = personalize(ditto, late, client="5")
    assert alone.names == ("5",)
    np.testing.assert_allclose(alone.personal["loss"], found.personal["loss"][1:2], rtol=1e-4)


def test_saved_newcomers_are_found_again(ditto: Result, late: Clients, tmp_path: Path) -> None:
    found = personalize(ditto.save(tmp_path / "run"), late)
    path = found.save(tmp_path / "late")
    assert {file.name for file in path.iterdir()} == {"newcomers.json", "newcomers.csv", "newcomers.safetensors"}
    again = load_newcomers(path)
    assert same(again, found) and again.summary() == plain(found.summary())
    assert again.origin["run"] == str(tmp_path / "run") and again.origin["method"] == "ditto"
    assert same(load_newcomers(again.save(tmp_path / "copy")), found)
    with pytest.raises(InputError, match="already holds newcomers' models"):
        found.save(path)
    found.save(path, overwrite=True)
    with pytest.raises(InputError, match="holds something that is not newcomers' models"):
        found.save(tmp_path / "run", overwrite=True)
    with pytest.raises(InputError, match=re.escape("there is no client '77'; there are 7, 5, 6; did you mean '7'?")):
        again.model("77")
    with pytest.raises(InputError, match="holds no newcomers' models"):
        load_newcomers(tmp_path / "run")
    (path / "newcomers.json").write_text("{")
    with pytest.raises(InputError, match="are damaged"):
        load_newcomers(path)


def test_newcomers_from_a_file(ditto: Result, tmp_path: Path) -> None:
    """Cut as any file is; of any of the run's labels, in any number; with or without names."""
    rng = np.random.default_rng(1)
    x, y, client = rng.normal(size=(40, 5)), np.arange(40) % 3, np.array(["north", "south"])[np.arange(40) % 2]
    np.savez(tmp_path / "new.npz", x=x, y=y, client=client)
    found = personalize(ditto, tmp_path / "new.npz")
    assert found.names == ("north", "south")
    assert [int(found.sizes[part][0]) for part in ("train", "validation", "test")] == [12, 4, 4]
    south = personalize(ditto, tmp_path / "new.npz", client="south")
    assert south.names == ("south",)
    np.testing.assert_allclose(south.personal["loss"], found.personal["loss"][1:], rtol=1e-5)
    np.savez(tmp_path / "one.npz", x=x, y=np.full(40, 2))  # one class only, and not the first
    alone = personalize(ditto, tmp_path / "one.npz")
    assert alone.names == ("newcomer",)
    assert personalize(ditto, tmp_path / "one.npz", client="ward").names == ("ward",)
    assert alone.finetune["train_accuracy"][0] > 0.8
    with torch.no_grad():
        counts = alone.model("newcomer")(torch.from_numpy(x).float()).argmax(1).bincount(minlength=3)
    assert counts.argmax() == 2


def test_labels_are_those_of_the_run_whatever_the_newcomers_have(tmp_path: Path) -> None:
    """A newcomer that has only "c" and "b" counts them as the run does, not from zero."""
    trained = federation(4, labels=("a", "b", "c"))
    result = run("fedavg", trained, **QUICK)
    some = (trained.y > 0).numpy()
    x, y = trained.x[some], np.array(["a", "b", "c"])[trained.y[some]]
    own = Clients.from_arrays(x, y, np.zeros(len(y), dtype=int))
    assert own.classes == 2
    found = personalize(result, own)
    own_test = own.test.of(0)
    with torch.no_grad():
        codes = result.global_model()(own.x[own_test]).argmax(1)  # type: ignore[misc]
    assert found.personal["accuracy"][0] == pytest.approx(float((codes == own.y[own_test] + 1).double().mean()))
    np.savez(tmp_path / "new.npz", x=x, y=y, client=np.zeros(len(y), dtype=int))
    assert same(personalize(result.save(tmp_path / "run"), tmp_path / "new.npz"), found)


def test_regression_has_newcomers_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3))
    clients = Clients.from_arrays(x, x.sum(1), np.arange(120) % 6)
    result = run("ditto", clients, newcomers=0.5, **(QUICK | {"model": "logistic", "rounds": 20}))
    found = result.newcomers
    assert found is not None and set(found.personal) >= {"loss", "validation_loss"}
    assert "accuracy" not in found.personal and result.summary()["newcomers"]["personal"]["accuracy"] is None
    assert found.finetune["loss"].mean() < 1
    np.savez(tmp_path / "new.npz", x=x, y=np.round(x.sum(1)).astype(int))  # whole numbers are values here
    path = result.save(tmp_path / "run")
    assert "loss" in personalize(path, tmp_path / "new.npz").personal
    assert "test loss: mean" in repr(personalize(path, tmp_path / "new.npz"))


class Frozen(nn.Module):
    """A backbone that is not trained, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Linear(5, 4)
        self.backbone.requires_grad_(False)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(torch.relu(self.backbone(x)))
        return output


def make_frozen() -> nn.Module:
    return Frozen()


def test_frozen_parameters_and_a_given_start_are_those_of_the_run(clients: Clients, tmp_path: Path) -> None:
    start = {name: value + 0.5 for name, value in Frozen().state_dict().items()}
    settings = QUICK | {"model": make_frozen}
    result = run("fedper", clients, newcomers=0.25, start=start, **settings)
    assert result.newcomers is not None
    _, held = hold_back(clients, 0.25, 0)
    assert held is not None
    again = personalize(result.save(tmp_path / "run"), held)
    assert same(again, result.newcomers)
    stored = load_newcomers(again.save(tmp_path / "late"))
    assert torch.equal(stored.model(held.names[0]).state_dict()["backbone.weight"], start["backbone.weight"])
    assert same(load_newcomers(stored.save(tmp_path / "copy")), again)
    other = run("fedper", clients, newcomers=0.25, start={n: v - 1 for n, v in start.items()}, **settings)
    assert other.newcomers is not None and not same(other.newcomers, result.newcomers)


def test_what_came_from_python_serves_newcomers_in_python(clients: Clients, late: Clients, tmp_path: Path) -> None:
    trained = select(clients, range(5))

    def brier(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.softmax(-1) - nn.functional.one_hot(targets, 3)).square().sum(-1)

    module = Frozen()
    given: dict[str, Callable[[], Result]] = {
        "loss": lambda: run("ditto", trained, loss=brier, **QUICK),
        "method": lambda: run(Unregistered(), trained, **QUICK),
        "model": lambda: run("ditto", trained, **(QUICK | {"model": module})),
    }
    for what, make in given.items():
        result = make()
        assert personalize(result, late).names == late.names
        path = result.save(tmp_path / what)
        with pytest.raises(InputError, match=f"the {what} of (the|this) run .*was a Python object"):
            personalize(path, late)
    assert same(personalize(load_run(path, model=module), late), personalize(result, late))


@dataclass(frozen=True, kw_only=True)
class Unregistered(methods.FedAvg):
    """FedAvg by a name that is registered for another."""

    name: ClassVar[str] = "ditto"


@dataclass(frozen=True, kw_only=True)
class Hoarder(methods.FedAvg):
    """FedAvg whose server keeps something that no file can hold."""

    name: ClassVar[str] = "hoarder"

    def start_server(self, start, round):  # type: ignore[no-untyped-def]
        return {"weights": start, "names": list(round.names)}

    def aggregate(self, server, uploads, round):  # type: ignore[no-untyped-def]
        return server | super().aggregate(server, uploads, round)


def test_a_server_that_cannot_be_written_is_told(
    clients: Clients, late: Clients, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = run(Hoarder(), select(clients, range(5)), **QUICK)
    path = result.save(tmp_path / "run")
    assert "the server's state is not saved" in caplog.text and "'server/names' is a list" in caplog.text
    assert personalize(result, late).names == late.names
    with pytest.raises(InputError, match="cannot personalize newcomers: it has no"):
        personalize(path, late)


def bad(tmp_path: Path, **arrays: Any) -> Path:
    path = tmp_path / "bad.npz"
    np.savez(path, **arrays)
    return path


X, Y = np.zeros((6, 5)), np.arange(6) % 3


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x": X[:, :4], "y": Y}, "must have examples of shape (5,), as the run was trained with, got (4,)."),
        ({"x": X, "y": Y + 1}, "must be among those of the run, 0, 1, 2, got 3."),
        (
            {"x": X, "y": Y.astype(str)[::-1] + np.array("x")},
            "must be among those of the run, 0, 1, 2, got 0x, 1x, 2x.",
        ),
        ({"x": X, "y": Y / 2}, "must be classes, as the run was trained with (0, 1, 2), got real numbers"),
        ({"x": X, "y": np.eye(6, 3)}, "must be one label per example, got shape (6, 3)"),
        ({"x": X, "y": Y[:5]}, "must have one entry per example each, got 6 and 5"),
        ({"x": X[:0], "y": Y[:0]}, "x must hold at least one example, got none"),
        ({"x": X * np.nan, "y": Y}, "x must be finite"),
        ({"x": X, "y": Y, "client": Y[:4]}, "client must be one id for each of the 6 examples"),
        ({"x": X}, "must have an array y"),
    ],
)
def test_data_that_do_not_fit_are_refused(ditto: Result, tmp_path: Path, arrays: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        personalize(ditto, bad(tmp_path, **arrays))


def test_clients_that_do_not_fit_are_refused(ditto: Result, late: Clients, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape("newcomers must have examples of shape (5,), as the run was")):
        personalize(ditto, replace(late, x=late.x[:, :3]))
    with pytest.raises(InputError, match="newcomers must have examples of real numbers"):
        personalize(ditto, replace(late, x=late.x.long()))
    with pytest.raises(InputError, match="newcomers must have classes, as the run was trained with, got real-valued"):
        personalize(ditto, replace(late, y=late.y.float(), classes=None))
    with pytest.raises(InputError, match="the newcomers' data must be among those of the run, 0, 1, 2, got d"):
        personalize(ditto, replace(late, label_names=("0", "d", "2")))
    with pytest.raises(InputError, match=re.escape("there is no client '55'; there are 7, 5, 6; did you mean '5'?")):
        personalize(ditto, late, client="55")
    with pytest.raises(InputError, match=re.escape("clients must be Clients or an .npz file, got int")):
        personalize(ditto, 3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="is not the directory of a run"):
        personalize(tmp_path, late)
    with pytest.raises(InputError, match=re.escape("newcomers=0.5 needs at least 2 clients")):
        run("ditto", select(late, [0]), newcomers=0.5, **QUICK)


def test_a_damaged_server_is_refused(ditto: Result, late: Clients, tmp_path: Path) -> None:
    path = ditto.save(tmp_path / "run")
    (path / "server.safetensors").write_bytes(b"half")
    with pytest.raises(InputError, match="cannot read"):
        personalize(path, late)
    (path / "server.safetensors").unlink()
    with pytest.raises(
        InputError, match=re.escape("cannot personalize newcomers: it has no server.safetensors; run it again")
    ):
        personalize(path, late)
