"""Tables of one's own, from the file to predictions: what is learnt for them comes from training data alone."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import bespokefl as bf
from bespokefl.core.errors import InputError
from bespokefl.workflows.newcomers.predict import predict
from bespokefl.workflows.run.api import run_config
from bespokefl.workflows.run.settings import Config

OPTIONS = {"label": "ill", "client": "ward", "rounds": 3, "workers": 1, "model": "logistic", "eval_every": 0}


def write(path: Path, rows: list[list[object]], head: tuple[str, ...]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])
    return path


def people(seed: int, wards: tuple[str, ...], count: int = 40) -> list[list[object]]:
    rng = np.random.default_rng(seed)
    rows: list[list[object]] = []
    for at, ward in enumerate(wards):
        for _ in range(count):
            age, dose = 1000 * rng.normal(5 + at), rng.normal()
            rows.append([age, dose, rng.choice(["pill", "drip"]), "yes" if dose + age / 1000 > 5 + at else "no", ward])
    return rows


HEAD = ("age", "dose", "way", "ill", "ward")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write(tmp_path / "people.csv", people(0, ("a", "b", "c", "d")), HEAD)


@pytest.mark.parametrize("scale", ["pooled", "own"])
def test_from_a_table_to_predictions(scale: str, table: Path, tmp_path: Path) -> None:
    config = Config(method="ditto", data=str(table), out=str(tmp_path / "run"), scale=scale, **OPTIONS)
    result = run_config(config)
    assert result.names == ("a", "b", "c", "d")
    said = predict(tmp_path / "run", "b", table)
    split = json.loads((tmp_path / "run" / "split.json").read_text())
    own = split["test"][split["names"].index("b")]
    truth = [row[3] for row in people(0, ("a", "b", "c", "d"))]
    right = np.mean([said.labels[at] == truth[at] for at in own])
    assert right == pytest.approx(result.personal["accuracy"][1])  # what is predicted is what was scored
    again = run_config(Config.of(bf_read(tmp_path / "run") | {"out": str(tmp_path / "again")}))
    assert again.clients == result.clients


def bf_read(run: Path) -> dict[str, object]:
    from bespokefl.workflows.run.settings import read

    return read(run / "config.toml")


@pytest.mark.parametrize("scale", ["pooled", "own"])
def test_a_newcomer_with_a_table(scale: str, table: Path, tmp_path: Path) -> None:
    run_config(Config(method="fedavg", data=str(table), out=str(tmp_path / "run"), scale=scale, **OPTIONS))
    late = write(tmp_path / "late.csv", people(1, ("z",)), HEAD)
    found = bf.personalize(tmp_path / "run", late, workers=1)
    assert found.names == ("z",)
    found.save(tmp_path / "late")
    bare = write(tmp_path / "bare.csv", [row[:3] for row in people(1, ("z",))], HEAD[:3])  # neither label nor ward
    said = predict(tmp_path / "late", "z", bare)
    assert len(said) == 40 and said.probabilities is not None and np.isfinite(said.probabilities).all()


def test_decimal_commas_from_the_file_to_predictions(tmp_path: Path) -> None:
    """A regression, its newcomer and its predictions: whether files have commas or points makes no difference."""
    files = {}
    for name, seed, wards in (("first", 0, ("a", "b")), ("late", 1, ("z",))):
        rows: list[list[object]] = [[row[0], row[1], row[1], row[4]] for row in people(seed, wards)]
        points = write(tmp_path / f"{name}-points.csv", rows, ("age", "dose", "ill", "ward"))
        commas = tmp_path / f"{name}-commas.csv"
        commas.write_text(points.read_text().replace(",", ";").replace(".", ","))
        files[name] = {"points": points, "commas": commas}
    said = {}
    for first, late in (("points", "points"), ("commas", "commas"), ("points", "commas"), ("commas", "points")):
        out = tmp_path / f"{first}-{late}"
        result = run_config(Config(method="fedavg", data=str(files["first"][first]), out=str(out), **OPTIONS))
        found = bf.personalize(out, files["late"][late], workers=1)
        assert "accuracy" not in result.personal
        values = predict(out, "a", files["late"][late]).values
        assert values is not None
        said[first, late] = [*values.tolist(), *result.personal["loss"].tolist(), *found.personal["loss"].tolist()]
    assert len({str(one) for one in said.values()}) == 1


def test_nothing_is_learnt_from_those_held_back_or_from_test_data(table: Path, tmp_path: Path) -> None:
    """Poison what must not be looked at: the statistics stay."""
    first = run_config(Config(method="local", data=str(table), newcomers=0.25, out=str(tmp_path / "one"), **OPTIONS))
    assert first.preparation is not None and first.newcomers is not None
    split = json.loads((tmp_path / "one" / "split.json").read_text())
    seen = {at for name, own in zip(split["names"], split["train"], strict=True) if name in first.names for at in own}
    rows = people(0, ("a", "b", "c", "d"))
    poisoned = [row if at in seen else [1e6, 1e6, *row[2:]] for at, row in enumerate(rows)]
    second = run_config(
        Config(
            method="local",
            data=str(write(tmp_path / "poisoned.csv", poisoned, HEAD)),
            newcomers=0.25,
            out=str(tmp_path / "two"),
            **OPTIONS,
        )
    )
    assert second.preparation is not None
    assert second.preparation.to_json() == first.preparation.to_json()
    raw = torch.tensor([[float(rows[at][0]), float(rows[at][1])] for at in sorted(seen)])  # type: ignore[arg-type]
    scaled = first.preparation.apply(
        np.array([[*rows[at][:2], rows[at][2] == "drip", rows[at][2] == "pill"] for at in sorted(seen)], dtype=float)
    )
    expected = (raw - raw.mean(0)) / raw.std(0, unbiased=False)
    assert torch.allclose(scaled[:, :2], expected, atol=1e-4)


@pytest.mark.parametrize("scale", ["pooled", "own", "none"])
def test_gaps_are_filled_by_training_means(scale: str, tmp_path: Path) -> None:
    rows = people(0, ("a", "b"))
    for row in rows[::5]:
        row[0] = ""
    path = write(tmp_path / "gaps.csv", rows, HEAD)
    given = {**OPTIONS, "data": str(path), "scale": scale}
    with pytest.raises(InputError, match=r"age.*row"):
        run_config(Config(method="fedavg", out=str(tmp_path / "refused"), **given))
    result = run_config(Config(method="fedavg", out=str(tmp_path / "run"), missing="mean", **given))
    assert np.isfinite(result.personal["loss"]).all()
    assert len(predict(tmp_path / "run", "a", path)) == 80


def test_texts(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = {"glad": ["sun", "cake", "cat"], "sad": ["rain", "tax", "flu"]}
    rows: list[list[object]] = []
    for at in range(120):
        mood = ("glad", "sad")[at % 2]
        rows.append([" ".join(rng.choice(words[mood], 4)), mood, f"p{at % 4}"])
    path = write(tmp_path / "said.csv", rows, ("said", "mood", "who"))
    config = Config(
        method="fedavg",
        data=str(path),
        label="mood",
        client="who",
        text="said",
        model="bag",
        rounds=10,
        workers=1,
        vocabulary=5,
        out=str(tmp_path / "run"),
        set={"lr": 1.0},
    )
    result = run_config(config)
    assert result.personal["accuracy"].mean() > 0.9
    assert result.preparation is not None and result.preparation.tokens == 5 + 2
    assert set(predict(tmp_path / "run", "p1", path).labels) == {"glad", "sad"}


def test_files_that_were_cut_by_their_maker(tmp_path: Path) -> None:
    for ward in ("a", "b"):
        (tmp_path / "clients" / ward).mkdir(parents=True)
        for part, count in (("train", 20), ("validation", 5), ("test", 7)):
            rows = [row[:4] for row in people(3, (ward,), count)]
            write(tmp_path / "clients" / ward / f"{part}.csv", rows, HEAD[:4])
    given = {**OPTIONS, "client": None, "data": str(tmp_path / "clients")}
    result = run_config(Config(method="fedavg", out=str(tmp_path / "run"), **given))
    assert result.sizes["train"].tolist() == [20, 20] and result.sizes["test"].tolist() == [7, 7]
    again = run_config(Config.of(bf_read(tmp_path / "run") | {"out": str(tmp_path / "again")}))
    assert again.clients == result.clients


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"label": "il"}, "did you mean 'ill'"),
        ({"client": "wart"}, "did you mean 'ward'"),
        ({"fractions": "0.5,0.5"}, "fractions must be three numbers such as 0.6,0.2,0.2, got '0.5,0.5'"),
        ({"text": "way", "scale": "own"}, "words cannot be scaled"),
    ],
)
def test_mistakes(options: dict[str, str], sentence: str, table: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        run_config(Config(method="ditto", data=str(table), out=str(tmp_path / "run"), **OPTIONS | options))
    assert not (tmp_path / "run").exists()


def test_options_of_tables_are_for_tables() -> None:
    with pytest.raises(InputError, match="label is for tables, but 'digits' is not a table; leave it out"):
        bf.load("digits", label="x")
