"""`bespoke export` and `bf.export`: directories, model cards, and one sentence for every mistake."""

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bespokefl as bf
from bespokefl import cli
from bespokefl.core.errors import InputError
from bespokefl.data.clients import Clients
from bespokefl.workflows.export import formats
from bespokefl.workflows.export.api import Exporter, export
from bespokefl.workflows.results.result import Result

NAMES = ["ada", "a/b", "..", "global", "Zoë 1"]
FILES = {"model_card.json", "MODEL_CARD.md", "preprocessing.json"}


def federation(seed: int = 0) -> Clients:
    rng = np.random.default_rng(seed)
    y = np.arange(150) % 3
    x = rng.normal(size=(150, 4)) + 3 * np.eye(4)[y]
    return Clients.from_arrays(x, np.array(["cat", "d|g", "eel"])[y], np.array(NAMES)[np.arange(150) // 3 % 5])


@pytest.fixture(scope="module")
def result() -> Result:
    return bf.run("ditto", federation(), rounds=2, workers=1, model="logistic", newcomers=0.2)


@pytest.fixture
def run(result: Result, tmp_path: Path) -> Path:
    path = tmp_path / "run"
    result.save(path)
    return path


def bespoke(line: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(shlex.split(line))
    return int(ended.value.code or 0)


def content(path: Path) -> dict[str, bytes]:
    return {str(one.relative_to(path)): one.read_bytes() for one in path.rglob("*") if one.is_file()}


def test_all_clients_and_the_global_model(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bespoke(f"export {run} --all --to safetensors") == 0
    assert bespoke(f"export {run} --global --to torchscript,safetensors --quiet") == 0
    printed = capsys.readouterr().out
    assert f"Written to {run}/export: the models of 5 clients (model.safetensors)" in printed
    assert "on random inputs: predictions differ by at most" in printed
    assert printed.endswith(f"\n{run}/export/global\n")
    folders = {one.name for one in (run / "export").iterdir()}
    assert folders == {"ada", "a%2Fb", "%2E.", "%67lobal", "Zoë%201", "global"}
    cards = {one: json.loads((run / "export" / one / "model_card.json").read_text()) for one in folders}
    assert {one["client"] for one in cards.values()} == {*NAMES, None}
    assert cards["global"]["client"] is None and cards["%67lobal"]["client"] == "global"
    assert {one.name for one in (run / "export" / "global").iterdir()} == FILES | {
        "model.pt",
        "model.safetensors",
        "config.json",
    }
    assert bf.load_run(run).names  # the directory of the run is still one


def test_the_model_card(result: Result, tmp_path: Path) -> None:
    name = next(name for name in NAMES if name in result.names)
    row = result.clients[result.names.index(name)]
    found = export(result, name, to=["torchscript", "onnx"], out=tmp_path / "e")
    card = json.loads((tmp_path / "e" / "model_card.json").read_text())
    assert card["data"]["examples"] == {part: row[part] for part in ("train", "validation", "test")}
    assert card["data"]["split_hash"] == result.about["split_hash"]
    assert card["method"]["hyper_parameters"] == result.hyper and card["method"]["took_part"] is True
    assert card["method"]["settings"]["batch_size"] == result.config.batch_size
    for kind in ("personal", "global", "constant"):
        assert card["test_scores"][kind]["accuracy"] == pytest.approx(row[f"{kind}_accuracy"])
        assert not any(score.startswith(("train", "validation")) for score in card["test_scores"][kind])
    assert card["output"] == {"name": "probabilities", "shape": ["batch", 3], "classes": ["cat", "d|g", "eel"]}
    assert card["versions"]["bespokefl"] == version("bespokefl") and card["intended_use"]
    assert card["model"] == {"name": "logistic", "kind": "personal", "parameters": 15, "precision": "float32"}
    assert found.card["files"]["onnx"]["check"]["by"] == "onnxruntime"
    text = (tmp_path / "e" / "MODEL_CARD.md").read_text()
    for part in ("cat, d\\|g, eel", "majority class", "model.onnx", f"{100 * row['personal_accuracy']:.2f}", "- "):
        assert part in text
    assert all(line in text for line in card["limits"])


def test_the_card_of_a_model_that_is_not_better_than_a_constant(result: Result, tmp_path: Path) -> None:
    assert result.constant is not None
    poor = replace(result, personal=result.constant)
    sentence = "Its test accuracy is not better than that of a constant prediction."
    assert sentence in export(poor, result.names[0], to="safetensors", out=tmp_path / "a").card["limits"]
    assert sentence not in export(result, result.names[0], to="safetensors", out=tmp_path / "b").card["limits"]


def test_scores_of_the_global_model_are_means_over_clients(result: Result, tmp_path: Path) -> None:
    card = export(result, to="safetensors", out=tmp_path / "e").card
    assert result.global_ is not None
    assert card["test_scores"].keys() == {"global", "constant"}
    assert card["test_scores"]["global"]["accuracy"] == pytest.approx(result.global_["accuracy"].mean())


def test_newcomers_in_a_run_and_in_their_own_directory(result: Result, tmp_path: Path) -> None:
    held_out = result.newcomers
    assert held_out is not None
    name = held_out.names[0]
    inside = export(result, name, to="safetensors", out=tmp_path / "a").card
    held_out.save(tmp_path / "newcomers")
    own = export(tmp_path / "newcomers", name, to="safetensors").card
    for card in (inside, own):
        assert card["method"]["took_part"] is False
        assert card["test_scores"].keys() == {"personal", "finetune"}
        assert card["data"]["examples"]["train"] == int(held_out.sizes["train"][0])
    with pytest.raises(InputError, match="no global model to export; name a client"):
        export(tmp_path / "newcomers", to="safetensors")


def test_an_earlier_export_is_replaced_only_if_asked(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = Exporter(run, "safetensors").names[0]
    export(run, name, to="torchscript")
    before = content(run)
    for what in (f"--client {shlex.quote(name)}", "--all"):
        assert bespoke(f"export {run} {what} --to safetensors") == 2
        assert "already holds an export; use --overwrite to replace it" in capsys.readouterr().err
        assert content(run) == before
    found = export(run, name, to="safetensors", overwrite=True)
    assert {one.name for one in found.path.iterdir()} == FILES | {"model.safetensors", "config.json"}
    with pytest.raises(InputError, match="holds something that is not an export and is left unchanged"):
        export(run, name, to="safetensors", out=run, overwrite=True)


def test_the_data_that_the_run_was_trained_on_are_found_again(tmp_path: Path) -> None:
    clients = bf.load("digits").split("dirichlet(alpha=0.4)", clients=4, seed=3)
    result = bf.run("fedavg", clients, rounds=1, workers=1, model="logistic")
    checks = {
        "saved": export(result.save(tmp_path / "run"), "2", to="torchscript", out=tmp_path / "a").card,
        "all": export(result, to="torchscript", out=tmp_path / "b").card,
    }
    for card in checks.values():
        check = card["files"]["torchscript"]["check"]
        assert check["examples"] == "test data"
        assert check["number"] == min(256, card["data"]["examples"]["test"])
    split = tmp_path / "run" / "split.json"
    split.write_text(split.read_text().replace(result.about["split_hash"], "0" * 64))
    card = export(tmp_path / "run", "2", to="torchscript").card
    assert card["files"]["torchscript"]["check"]["examples"] == "random inputs"
    assert "Files were checked with random inputs, as the data of the run could not be loaded." in card["limits"]


def without_models(run: Path) -> None:
    (run / "personal.safetensors").unlink()


def interrupted(run: Path) -> None:
    change(run, interrupted=True)


def at_a_node(run: Path) -> None:
    change(run, nodes={"ward": bf.load_run(run).names})


def change(run: Path, **values: Any) -> None:
    about = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps(about | values))


MISTAKES: dict[str, tuple[str, str]] = {
    "unknown client": ("--client adda --to onnx", "there is no client 'adda'"),
    "unknown format": ("--client ada --to onx", "unknown format 'onx'; did you mean 'onnx'?"),
    "no format": ("--client ada --to ,", "to must name a format, got none"),
    "nothing to export": ("--to onnx", "one of --client NAME, --all and --global"),
    "two things to export": ("--all --global --to onnx", "one of --client NAME, --all and --global"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_sentence(case: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags, expected = MISTAKES[case]
    refused(run, flags, expected, capsys)


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (without_models, "cannot read"),
        (interrupted, "exports need a finished run, but the one in"),
        (at_a_node, "is not in the run but at its node, ward"),
        (at_a_node, "--to torchscript; here only the global model can be exported: --global"),
    ],
)
@pytest.mark.parametrize("what", ["--client ada", "--all"])
def test_models_that_are_not_there(
    what: str, spoil: Callable[[Path], None], expected: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(run)
    name = bf.load_run(run).names[0]
    refused(run, f"{what.replace('ada', shlex.quote(name))} --to torchscript", expected, capsys)


def refused(run: Path, flags: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = content(run)
    assert bespoke(f"export {run} {flags}") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and expected in error
    assert content(run) == before


def test_a_method_without_a_global_model(tmp_path: Path) -> None:
    result = bf.run("local", federation(), rounds=1, workers=1, model="logistic")
    with pytest.raises(InputError, match="local has no global model to export; name a client"):
        export(result, to="onnx", out=tmp_path / "e")
    with pytest.raises(InputError, match="give out=, or save the run first"):
        export(result, "ada", to="onnx")


def test_a_model_from_python_is_given_again(tmp_path: Path) -> None:
    def make(shape: tuple[int, ...], classes: int) -> Any:
        from torch import nn

        return nn.Linear(shape[0], classes)

    run = bf.run("fedavg", federation(), rounds=1, workers=1, model=make).save(tmp_path / "run")
    with pytest.raises(InputError, match="was a Python object"):
        export(run, "ada", to="safetensors")
    assert export(run, "ada", to="safetensors", model=make).card["model"]["parameters"] == 15


def test_packages_that_are_not_installed(run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name, found = Exporter(run, "safetensors").names[0], formats.find_spec
    hidden = {"onnxruntime"}
    monkeypatch.setattr(formats, "find_spec", lambda name: None if name in hidden else found(name))
    check = export(run, name, to="onnx", out=tmp_path / "e").card["files"]["onnx"]["check"]
    assert check["by"] is None and check["largest_difference"] is None
    assert "not checked" in (tmp_path / "e" / "MODEL_CARD.md").read_text()
    hidden.add("onnx")
    with pytest.raises(InputError, match=r'onnx needs the package onnx, .* pip install "bespokefl\[onnx\]"'):
        export(run, name, to="onnx")
