"""Tables at nodes that differ in what does not matter: the same numbers as if all of them had been in one place."""

import json
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors import safe_open

import bespokefl
from bespokefl import cli
from bespokefl.core.errors import InputError
from bespokefl.data import load
from bespokefl.data.preprocessing.fit import prepare
from bespokefl.engines.transports.flower.messenger import NodeInfo, NodeMessenger
from bespokefl.engines.transports.flower.node.node import PERSONAL, Node
from bespokefl.workflows.deploy import node_models as home
from bespokefl.workflows.deploy.layout import NodeSettings
from bespokefl.workflows.deploy.node import LocalHost
from bespokefl.workflows.deploy.server.run import run
from bespokefl.workflows.deploy.shared_features import agree_on_features
from bespokefl.workflows.newcomers.predict import predict
from bespokefl.workflows.results.result import Result, load_run
from bespokefl.workflows.run.settings import RunSettings
from tests.engines.transports.flower.grid import QUICK, LocalGrid
from tests.trackers.readers import read_mlflow, read_tensorboard, read_wandb

COLUMNS = ["age", "smoker", "town", "ill", "client"]
TOWNS = {"north": ["Oslo", "Rome"], "south": ["Bern", "Rome"], "west": ["Rome"]}
WARDS = {"north": ["n1", "n2"], "south": ["s1"], "west": ["w1", "w2"]}


def rows(node: str, count: int = 40) -> list[dict[str, Any]]:
    rng = np.random.default_rng(len(node) * 7 + len(TOWNS[node]))
    return [
        {
            "age": int(rng.integers(20, 90)),
            "smoker": bool(rng.random() < 0.4),
            "town": str(rng.choice(TOWNS[node])),
            "ill": ("no", "yes")[at % 2],
            "client": WARDS[node][at % len(WARDS[node])],
        }
        for at in range(count)
    ]


def write(path: Path, lines: list[dict[str, Any]], columns: list[str] = COLUMNS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = [",".join(columns), *(",".join(str(line[one]) for one in columns) for line in lines)]
    path.write_text("\n".join(text) + "\n")
    return path


def host(name: str, data: Path, **settings: Any) -> LocalHost:
    settings = {"score_digits": 9} | settings  # losses are compared with the simulation's
    return LocalHost(NodeSettings(name, "a:1", data=str(data), label="ill", **settings), data.parent)


def hosts(tmp_path: Path) -> dict[str, LocalHost]:
    """One node with its columns in another order, one with its clients' column under another name."""
    north = write(tmp_path / "north.csv", rows("north"))
    south = write(tmp_path / "south.csv", rows("south"), ["town", "age", "ill", "client", "smoker"])
    west = write(
        tmp_path / "west.csv", [line | {"ward": line["client"]} for line in rows("west")], [*COLUMNS[:4], "ward"]
    )
    return {
        "north": host("north", north),
        "south": host("south", south),
        "west": host("west", west, client="ward"),
    }


def known(nodes: dict[str, LocalHost]) -> dict[str, NodeInfo]:
    return {
        name: NodeInfo(name, at, json.loads(json.dumps(one.about()))) for at, (name, one) in enumerate(nodes.items())
    }


def deployed(
    nodes: dict[str, LocalHost], place: Path, method: str = "ditto", *, strict: bool = True, **config: Any
) -> Result:
    """A run in this process, of the server and nodes as they are."""
    ids = {100 + at: one for at, one in enumerate(nodes.values())}
    made = {id: Node(one, place / one.name, one.settings.score_policy) for id, one in ids.items()}
    grid = LocalGrid(made, {id: one.name for id, one in ids.items()})
    (place / "run").mkdir(parents=True)
    settings = RunSettings(method=method, data="deployment", **config)
    return run(NodeMessenger(grid, QUICK), settings, place / "run", set(nodes), strict=strict)


@pytest.mark.parametrize("scale", ["pooled", "own"])
def test_the_same_models_as_in_one_place(scale: str, tmp_path: Path) -> None:
    """Categories with other texts at each node, among them."""
    torch.set_num_threads(1)
    nodes = hosts(tmp_path)
    how = {"rounds": 2, "scale": scale, "precision": "float64", "eval_every": 0, "model": "logistic"}
    found = deployed(nodes, tmp_path / "place", **how)
    whole = write(tmp_path / "all.csv", [line for node in TOWNS for line in rows(node)])
    clients = load(str(whole), label="ill").split("by_column")
    expected = bespokefl.run("ditto", clients, workers=1, **how)
    assert expected.preparation is not None and found.preparation is not None
    assert found.preparation.features.names == ("age", "smoker", "town=Bern", "town=Oslo", "town=Rome")
    assert found.preparation.features.names == expected.preparation.features.names
    assert found.preparation.pooled is not None and expected.preparation.pooled is not None
    np.testing.assert_allclose(found.preparation.pooled.mean, expected.preparation.pooled.mean, rtol=1e-12)
    np.testing.assert_allclose(found.preparation.pooled.std, expected.preparation.pooled.std, rtol=1e-9)
    models = {}
    for node in nodes:
        with safe_open(tmp_path / "place" / node / "run" / PERSONAL, framework="pt") as file:
            for at, client in enumerate(json.loads(file.metadata()["bespoke"])["clients"]):
                models[client] = {name: file.get_tensor(name)[at] for name in file.keys()}  # noqa: SIM118
    assert set(models) == set(expected.names) == {"n1", "n2", "s1", "w1", "w2"}
    for client in expected.names:
        for name, value in expected.model(client).state_dict().items():
            torch.testing.assert_close(models[client][name], value, rtol=1e-9, atol=1e-10)


def test_a_node_with_decimal_commas_and_one_with_points(tmp_path: Path) -> None:
    """A regression: features and labels are the same numbers, however they are written."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    lines = {
        ward: [{"dose": value, "age": at, "ill": 2 * value, "client": ward} for at, value in enumerate(rng.random(30))]
        for ward in ("n1", "s1")
    }
    columns = ["dose", "age", "ill", "client"]
    points = {ward: write(tmp_path / f"{ward}.csv", own, columns) for ward, own in lines.items()}
    commas = tmp_path / "commas.csv"
    commas.write_text(points["s1"].read_text().replace(",", ";").replace(".", ","))
    how = {"rounds": 2, "eval_every": 0, "model": "logistic"}
    results = {
        name: deployed({"north": host("north", points["n1"]), "south": host("south", south)}, tmp_path / name, **how)
        for name, south in {"points": points["s1"], "commas": commas}.items()
    }
    assert results["commas"].preparation == results["points"].preparation
    assert results["commas"].clients == results["points"].clients
    assert results["commas"].about["examples"]["labels"] is None


def test_a_gap_in_a_category_stays_one(tmp_path: Path) -> None:
    """Where one owner has a gap, all places of the column are a gap: filled by the shares of all texts."""
    from bespokefl.data.preprocessing.feature_sums import FeatureSums
    from bespokefl.data.tables.features import merge_features

    tables = {}
    for name, towns in {"a": ["Oslo", "", "Rome"], "b": ["Bern", "Bern", "Rome"]}.items():
        lines = [{"town": town, "age": at, "ill": at % 2} for at, town in enumerate(towns)]
        path = write(tmp_path / f"{name}.csv", lines, ["town", "age", "ill"])
        tables[name] = load(str(path), label="ill", missing="mean")
    own = {name: table.features for name, table in tables.items()}
    whole = merge_features(own)
    nan = np.nan
    wide = own["a"].widen(tables["a"].x.numpy(), whole)
    np.testing.assert_array_equal(wide, [[0, 1, 0, 0], [nan, nan, nan, 1], [0, 0, 1, 2]])
    parts = {name: FeatureSums.of(table.x.numpy(), own[name]).widen(own[name], whole) for name, table in tables.items()}
    stacked = np.concatenate([own[name].widen(table.x.numpy(), whole) for name, table in tables.items()])
    for one in ("count", "total", "squares"):
        found = getattr(parts["a"] + parts["b"], one)
        np.testing.assert_array_equal(found, getattr(FeatureSums.of(stacked, whole), one))


def test_a_node_with_clients_and_one_without(tmp_path: Path) -> None:
    """What the columns of label and client are called does not matter."""
    north = host("north", write(tmp_path / "north.csv", rows("north")))
    lines = [line | {"sick": line["ill"]} for line in rows("south")]
    south = LocalHost(
        NodeSettings("south", "a:1", data=str(write(tmp_path / "s.csv", lines, [*COLUMNS[:3], "sick"])), label="sick"),
        tmp_path,
    )
    folder = tmp_path / "west"
    for ward in WARDS["west"]:
        write(folder / ward / "all.csv", [line for line in rows("west") if line["client"] == ward], COLUMNS[:4])
    nodes = {"north": north, "south": south, "west": host("west", folder)}
    preparation, labels = agree_on_features(known(nodes), RunSettings(method="ditto"))
    assert labels == ["no", "yes"] and preparation.features.client == "client"
    assert set().union(*(one.about()["clients"] for one in nodes.values())) == {"n1", "n2", "south", "w1", "w2"}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"city": "Bern"}, "'city' is at south and not at north"),
        ({"town": 3}, r"'town' has numbers at south and texts \(Oslo, Rome\) at north; use one kind"),
        ({"smoker": "often"}, r"'smoker' has texts \(often\) at south and true and false at north"),
    ],
)
def test_the_first_column_that_differs_is_named(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    north = host("north", write(tmp_path / "north.csv", rows("north")))
    columns = [*COLUMNS, *(key for key in change if key not in COLUMNS)]
    south = host("south", write(tmp_path / "south.csv", [line | change for line in rows("south")], columns))
    with pytest.raises(InputError, match=f"must be the same everywhere, but {sentence}"):
        agree_on_features(known({"north": north, "south": south}), RunSettings(method="ditto"))


def test_too_many_texts_together(tmp_path: Path) -> None:
    nodes = {}
    for name in ("north", "south"):
        lines = [line | {"town": f"{name}-{at}"} for at, line in enumerate(rows("north", 60))]
        nodes[name] = host(name, write(tmp_path / f"{name}.csv", lines))
    with pytest.raises(InputError, match="'town' has 120 different texts at north, south together, and at most 100"):
        agree_on_features(known(nodes), RunSettings(method="ditto"))


def test_files_that_are_cut_already_stay_so(tmp_path: Path) -> None:
    """Rows are told apart by their age: nothing of the test files is ever trained on."""
    ages = {"train": range(80), "validation": range(100, 120), "test": range(200, 230)}
    for ward in ("w1", "w2"):
        for part, own in ages.items():
            lines = [{"age": age, "ill": age % 2} for age in own]
            write(tmp_path / "wards" / ward / f"{part}.csv", lines, ["age", "ill"])
    one = host("west", tmp_path / "wards")
    sizes = {"train": 80, "validation": 20, "test": 30}
    assert one.about()["clients"] == {"w1": sizes, "w2": sizes}
    for part, own in ages.items():
        for at in range(2):
            found = one.clients.x[getattr(one.clients, part).of(at)].flatten().tolist()
            assert sorted(found) == [float(age) for age in own]


def test_classes_that_differ_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = [line | {"ill": "sick" if line["ill"] == "yes" else "well"} for line in rows("south")]
    nodes = {
        "north": host("north", write(tmp_path / "north.csv", rows("north"))),
        "south": host("south", write(tmp_path / "south.csv", lines)),
    }
    with caplog.at_level(logging.WARNING, "bespokefl"):
        agree_on_features(known({"north": nodes["north"]}), RunSettings(method="ditto"))
        assert not caplog.messages
        agree_on_features(known(nodes), RunSettings(method="ditto"))
    assert caplog.messages == [
        "the nodes' classes differ (north: no, yes; south: sick, well): the model has all 4 of them"
    ]


def test_prepared_as_in_one_place(tmp_path: Path) -> None:
    """Every node's examples, and not only what is trained with them."""
    nodes = hosts(tmp_path)
    preparation, _ = agree_on_features(known(nodes), RunSettings(method="ditto"))
    whole = write(tmp_path / "all.csv", [line for node in TOWNS for line in rows(node)])
    clients, _ = prepare(load(str(whole), label="ill").split("by_column"))
    for one in nodes.values():
        fitted, _ = preparation.prepare_clients(one._widened(one.clients, preparation.features))
        for at, name in enumerate(fitted.names):
            there = clients.names.index(name)
            for part in ("train", "validation", "test"):
                mine, its = getattr(fitted, part).of(at), getattr(clients, part).of(there)
                torch.testing.assert_close(fitted.x[mine], clients.x[its], rtol=1e-6, atol=1e-6)


def test_a_client_s_model_is_used_at_its_node(tmp_path: Path) -> None:
    """As `predict` would with all models in one place; what was fetched says where they are."""
    torch.set_num_threads(1)
    nodes = hosts(tmp_path)
    how = {"rounds": 2, "scale": "own", "eval_every": 0, "model": "logistic"}
    found = deployed(nodes, tmp_path / "place", **how)
    whole = write(tmp_path / "all.csv", [line for node in TOWNS for line in rows(node)])
    expected = bespokefl.run("ditto", load(str(whole), label="ill").split("by_column"), workers=1, **how)
    new = write(tmp_path / "new.csv", [line | {"town": "Nowhere"} for line in rows("west")], COLUMNS[:3])
    who, said = home.predict(tmp_path / "place" / "west", new, client="w2")
    assert who == "w2" and said.classes == ("no", "yes")
    np.testing.assert_allclose(said.probabilities, predict(expected, "w2", new).probabilities, rtol=1e-4)
    assert home.predict(tmp_path / "place" / "south", new, run="run")[0] == "s1"  # the only one
    fetched = load_run(found.save(tmp_path / "fetched"))
    sentence = "of client w2 is not in the run but at its node, west; on that machine: bespoke deploy predict west"
    for source in (found, fetched):
        with pytest.raises(InputError, match=f"{sentence} --client w2 --data FILE"):
            predict(source, "w2", new)


def test_a_client_s_model_is_exported_at_its_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the command line: its file predicts what the node predicts, and its card has the scores of the run."""
    nodes = hosts(tmp_path)
    found = deployed(nodes, tmp_path / "place", rounds=2, eval_every=0, model="logistic", batch_size=7)
    west = tmp_path / "place" / "west"
    (west / "node.toml").write_text('name = "west"\nserver = "127.0.0.1:9092"\nstate = "."\n')
    monkeypatch.chdir(tmp_path / "place")
    with pytest.raises(SystemExit) as ended:
        cli.main(["deploy", "export", "west", "--client", "w2", "--to", "onnx"])
    assert ended.value.code == 0 and "the model of client w2 (model.onnx)" in capsys.readouterr().out
    into = west / "run" / "export" / "w2"
    card = json.loads((into / "model_card.json").read_text())
    assert card["client"] == "w2" and card["method"]["name"] == "ditto" and card["method"]["rounds"] == 2
    assert card["method"]["settings"]["batch_size"] == 7 and card["data"]["clients"] == 2
    at = found.names.index("w2")
    assert card["data"]["examples"] == {part: int(sizes[at]) for part, sizes in found.sizes.items()}
    for kind, scores in (("personal", found.personal), ("global", found.global_), ("constant", found.constant)):
        assert scores is not None and card["test_scores"][kind].keys() >= {"accuracy", "loss", "auc"}
        for name, value in card["test_scores"][kind].items():
            assert (np.nan if value is None else value) == pytest.approx(scores[name][at], rel=1e-6, nan_ok=True)
    new = write(tmp_path / "new.csv", rows("west"), COLUMNS[:3])
    towns = {"Bern": 0, "Oslo": 1, "Rome": 2}
    x = [[line["age"], line["smoker"], towns.get(line["town"], -1)] for line in rows("west")]
    session = onnxruntime.InferenceSession(into / "model.onnx")
    (probabilities,) = session.run(None, {"x": np.array(x, dtype=np.float32)})
    np.testing.assert_allclose(probabilities, home.predict(west, new, client="w2")[1].probabilities, rtol=1e-4)
    with pytest.raises(SystemExit) as ended:
        cli.main(["deploy", "export", "west", "--to", "onnx"])
    assert ended.value.code == 2 and "this node has 2 clients: name one, as in --client w1." in capsys.readouterr().err


def test_the_model_card_of_a_node_that_insists_on_noise(tmp_path: Path) -> None:
    nodes = hosts(tmp_path)
    nodes["west"].settings = replace(nodes["west"].settings, noise=1.0)
    how = {"rounds": 1, "eval_every": 0, "model": "logistic", "clip": 1.0, "noise": 2.0}
    deployed(nodes, tmp_path / "place", **how)
    card = bespokefl.export(home.node_result(tmp_path / "place" / "west"), "w1", to="safetensors").card
    assert card["test_scores"] == {}
    limits = " ".join(card["limits"])
    assert "(clip 1, noise 2); the server's result.json has" in limits and "keeps no test scores" in limits
    card = bespokefl.export(home.node_result(tmp_path / "place" / "south"), "s1", to="safetensors").card
    assert card["test_scores"]["personal"]["accuracy"] >= 0 and "no test scores" not in " ".join(card["limits"])


@pytest.mark.parametrize("method", ["ditto", "pfedvem", "fedper", "fedfomo"])
def test_what_was_fetched_serves_newcomers(method: str, tmp_path: Path) -> None:
    """As a run in one place does, though everybody's own model is elsewhere; two of the methods have no common one."""
    torch.set_num_threads(1)
    how = {"rounds": 2, "precision": "float64", "eval_every": 0, "model": "mlp(hidden=(4,))"}
    found = deployed(hosts(tmp_path), tmp_path / "place", method, **how)
    fetched = found.save(tmp_path / "fetched")
    again = load_run(fetched).save(tmp_path / "again")
    whole = write(tmp_path / "all.csv", [line for node in TOWNS for line in rows(node)])
    expected = bespokefl.run(method, load(str(whole), label="ill").split("by_column"), workers=1, **how)
    common, x = expected.global_model(), torch.randn(7, 5, dtype=torch.float64, generator=torch.manual_seed(0))
    assert (common is None) == (method in ("fedper", "fedfomo"))
    for place in (fetched, again):
        own = load_run(place).global_model()
        assert (own is None) == (common is None)
        if own is not None and common is not None:
            torch.testing.assert_close(own(x), common(x), rtol=1e-9, atol=1e-10)
    new = write(tmp_path / "new.csv", rows("west", 60), COLUMNS[:4])
    served, wanted = bespokefl.personalize(fetched, new), bespokefl.personalize(expected, new)
    assert served.names == wanted.names == ("newcomer",)
    for name, value in wanted.model("newcomer").state_dict().items():
        torch.testing.assert_close(served.model("newcomer").state_dict()[name], value, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(served.personal["loss"], wanted.personal["loss"], rtol=1e-9)


def test_a_damaged_blueprint(tmp_path: Path) -> None:
    found = deployed(hosts(tmp_path), tmp_path / "place", rounds=1, eval_every=0, model="logistic")
    fetched = found.save(tmp_path / "fetched")
    for text in ("{", "[]", '{"model": "logistic"}'):
        (fetched / "blueprint.json").write_text(text)
        with pytest.raises(InputError, match=r"cannot read '.*blueprint\.json'"):
            load_run(fetched).global_model()


def test_what_a_node_cannot_say(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no model in .* yet"):
        home.predict(tmp_path, "x.csv")
    nodes = hosts(tmp_path)
    deployed(nodes, tmp_path / "place", rounds=1, eval_every=0, model="logistic")
    west = tmp_path / "place" / "west"
    with pytest.raises(InputError, match=r"this node has 2 clients: name one, as in --client w1\."):
        home.predict(west, "x.csv")
    with pytest.raises(InputError, match="there is no client 'n1'; there are w1, w2"):
        home.predict(west, "x.csv", client="n1")
    with pytest.raises(InputError, match="unknown run 'runn'; did you mean 'run'"):
        home.predict(west, "x.csv", client="w1", run="runn")


GAPS = ["age", "smoker", "town", "ill", "client", "dose", "seen"]


def with_gaps(node: str) -> list[dict[str, Any]]:
    """A dose that is not always a number, and days with one that is missing."""
    doses = ["unknown", "<0.1", ""]
    return [
        line | {"dose": doses[at] if at < 3 else at / 10, "seen": "" if at == 4 else f"2024-03-{1 + at % 28:02}"}
        for at, line in enumerate(rows(node))
    ]


OPTIONS: dict[str, Any] = {"missing_values": "unknown", "as_number": "dose", "dates": True}


@pytest.mark.parametrize("missing", ["mean", "drop"])
@pytest.mark.parametrize("decided_by", ["node", "run"])
def test_gaps_dates_and_texts_among_numbers(missing: str, decided_by: str, tmp_path: Path) -> None:
    """The same models as in one place, whether the run or the nodes say what happens to gaps."""
    torch.set_num_threads(1)
    own, run_wide = ({"missing": missing}, {}) if decided_by == "node" else ({}, {"missing": missing})
    nodes = {
        node: host(node, write(tmp_path / f"{node}.csv", with_gaps(node), GAPS), **OPTIONS, **own) for node in TOWNS
    }
    for one in nodes.values():
        one.check()
    how = {"rounds": 1, "precision": "float64", "eval_every": 0, "model": "logistic"}
    found = deployed(nodes, tmp_path / "place", **how, **run_wide)
    whole = write(tmp_path / "all.csv", [line for node in TOWNS for line in with_gaps(node)], GAPS)
    options = {"missing_values": ["unknown"], "as_number": ["dose"], "dates": True}
    clients = load(str(whole), label="ill", missing=missing, **options).split("by_column")
    expected = bespokefl.run("ditto", clients, workers=1, missing=missing, **how)
    assert found.preparation is not None and expected.preparation is not None
    names = found.preparation.features.names
    assert names == expected.preparation.features.names
    assert names[-5:] == ("dose", "seen.year", "seen.month", "seen.day", "seen.weekday")
    for mine, theirs in zip(found.clients, expected.clients, strict=True):
        assert mine["personal_loss"] == pytest.approx(theirs["personal_loss"], rel=1e-6)
    who, said = home.predict(tmp_path / "place" / "south", tmp_path / "south.csv") if missing == "mean" else ("s1", [0])
    assert who == "s1" and len(said) in (1, 40)  # new examples are read in the same way


def test_a_node_that_cannot_take_part_ends_the_run(tmp_path: Path) -> None:
    nodes = {
        "north": host("north", write(tmp_path / "north.csv", with_gaps("north"), GAPS), **OPTIONS),
        "south": host("south", write(tmp_path / "south.csv", rows("south"))),
    }
    sentence = (
        r"1 node cannot take part: north: column 'dose' lacks 3 of 40 values, the first in row 1; fill them, or use "
        r"missing = \"mean\" in node\.toml\."
    )
    with pytest.raises(InputError, match=sentence):
        deployed(nodes, tmp_path / "place", rounds=1)


def test_code_that_a_node_has_not_agreed_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A method of another module runs at a node only if node.toml names that module."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "plug_nodes.py").write_text(
        "from bespokefl.methods import Ditto\n\nclass Mine(Ditto):\n    '''Ditto.'''\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    paths = {node: write(tmp_path / f"{node}.csv", rows(node)) for node in TOWNS}
    how = {"method": "plug_nodes:Mine", "rounds": 1, "eval_every": 0, "model": "logistic"}
    with pytest.raises(
        InputError, match=r'has not agreed to; to agree, write modules = \["plug_nodes"\] into its node'
    ):
        deployed({name: host(name, path) for name, path in paths.items()}, tmp_path / "a", **how)
    nodes = {name: host(name, path, modules=("plug_nodes",)) for name, path in paths.items()}
    assert deployed(nodes, tmp_path / "b", **how).method == "plug_nodes:Mine"


@pytest.mark.slow
@pytest.mark.parametrize("log", ["tensorboard", "wandb", "mlflow"])
def test_trackers_log_at_the_server(log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "WANDB_MODE", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    found = deployed(
        hosts(tmp_path), tmp_path / "place", rounds=2, eval_every=0, model="logistic", set={"prox_weight": 1.0}, log=log
    )
    run = tmp_path / "place" / "run"
    read = {
        "tensorboard": lambda: read_tensorboard(run / "tensorboard" / "run"),
        "wandb": lambda: read_wandb(run / "wandb"),
        "mlflow": lambda: read_mlflow(run),
    }
    logged = read[log]()
    for _ in range(100):
        if "final/personal/test_accuracy" in logged:
            break
        time.sleep(0.3)  # W&B writes its file in another process, which may end later
        logged = read[log]()
    assert [step for step, _ in logged["round/seconds"]] == [1, 2]
    accuracy = float(np.mean(found.personal["accuracy"]))
    assert logged["final/personal/test_accuracy"] == [(2, pytest.approx(accuracy))]


def test_a_run_without_scores_has_a_result(tmp_path: Path) -> None:
    """All nodes refuse them: the result can be saved, read and reported."""
    from bespokefl.report import write as report

    nodes = hosts(tmp_path)
    for one in nodes.values():
        one.settings = replace(one.settings, scores="none")
    found = deployed(nodes, tmp_path / "place", rounds=2, model="logistic")
    found.save(tmp_path / "result")
    again = load_run(tmp_path / "result")
    assert again.about["rounds_done"] == 2 and np.isnan(again.personal["accuracy"]).all()
    assert "could not be scored" in " ".join(again.notes)
    assert report(tmp_path / "result", None, citations={}).is_file()


@pytest.mark.parametrize("fault", ["columns", "client", "unable", "malformed"])
def test_one_node_does_not_end_a_run_that_is_not_strict(
    fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = hosts(tmp_path)
    lines = rows("west")
    if fault == "columns":
        west = write(tmp_path / "other.csv", [line | {"more": 1} for line in lines], [*COLUMNS, "more"])
    else:
        west = write(tmp_path / "other.csv", [line | {"client": "n1"} for line in lines])
    nodes["west"] = host("west", west)
    if fault in ("unable", "malformed"):

        def about(missing: str = "refuse") -> dict[str, Any]:
            if fault == "unable":
                raise InputError("the data are on strike.")
            return {"clients": {"a": {"train": 2**70}}}

        monkeypatch.setattr(nodes["west"], "about", about)
    how = {"rounds": 1, "eval_every": 0, "model": "logistic"}
    if fault != "malformed":  # which is left out always
        with pytest.raises(InputError):
            deployed(nodes, tmp_path / "strict", **how)
    caplog.clear()
    found = deployed(nodes, tmp_path / "place", strict=fault == "malformed", **how)
    reason = {
        "columns": "its columns or labels are not those of most nodes",
        "client": "its client 'n1' is that of node north",
        "unable": "the data are on strike.",
        "malformed": "its introduction is malformed: its description has no features",
    }[fault]
    assert found.about["nodes"].keys() == {"north", "south"} and found.about["left_out"]["west"].startswith(reason[:29])
    assert "node west is left out: " in caplog.text
