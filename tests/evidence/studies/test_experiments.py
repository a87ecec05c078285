"""The experiments of the papers are wired: files, methods, splits, settings; and a small cell of each kind computes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bespokefl_evidence.studies import STUDIES, experiment, find
from bespokefl_evidence.studies.cell_results import results
from bespokefl_evidence.studies.cells import CellStore, Spec
from bespokefl_evidence.studies.experiment import PAPERS, Experiment, Row, Scenario, Tuning
from bespokefl_evidence.studies.files import is_file

from bespokefl import data, methods, models
from bespokefl.core.errors import InputError
from bespokefl.data import splits
from bespokefl.workflows.run.api import run
from bespokefl.workflows.run.settings import RunSettings

NAMES = sorted(path.stem for path in PAPERS.glob("*.toml"))


def all_specs(one: Experiment) -> list[Spec]:
    """Every cell, with the first point of each grid."""
    store = CellStore(Path("nowhere"))
    return [
        spec
        for scenario, row in one.pairs()
        for spec in (*one.tuning_specs(scenario, row), *one.main_specs(scenario, row, store))
    ]


def test_every_file_is_a_study_by_name() -> None:
    assert set(STUDIES) == {*NAMES, "selffl-synthetic", "digits", "fashion", "compare-check", "diagnose-calibration"}
    assert [one.name for one in find([])] == list(STUDIES)
    assert all(one.summary for one in STUDIES.values())
    with pytest.raises(InputError, match="selffl-mnist"):
        find(["selfl-mnist"])


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_is_wired(name: str) -> None:
    one = Experiment.read(name)
    known = {scenario.name for scenario in one.scenarios}
    assert len({spec.file for spec in all_specs(one)}) == len({str(spec) for spec in all_specs(one)})
    for spec in all_specs(one):
        settings = spec.settings
        methods.build(settings["method"], dict(settings["set"]))
        splits.parse(settings["split"])
        models.check(settings["run"]["model"])
        RunSettings(method=settings["method"], **settings["run"])
        assert sum(settings["fractions"]) == pytest.approx(1)
        assert is_file(settings["data"]) or settings["data"] in data.names()
        assert one.how_to_get or not is_file(settings["data"])
        assert 1 <= spec.priority <= 5
    for row in one.rows:
        assert known >= {*row.published, *row.published_global, *(row.scenarios or ())}
        assert set(row.published_false_accepts) <= {"personal", "global"}
        assert not isinstance(row.rounds, dict) or set(row.rounds) == known
    assert len({len(row.points()) for row in one.rows if row.grid}) <= 1
    assert one.tuning is None or one.tuning.scenario is None or one.tuning.scenario in known


@pytest.mark.parametrize("name", NAMES)
def test_tuning_sees_validation_data(name: str) -> None:
    for spec in all_specs(Experiment.read(name)):
        if spec.settings.get("tuning") or spec.settings["method"] in ("persfl", "persfl-gd", "fedfomo"):
            assert spec.settings["fractions"][1] > 0


def small(**changes: Any) -> Experiment:
    made = Experiment(
        name="own",
        title="Two methods",
        source="Table 1",
        data="digits",
        model="logistic",
        rounds=4,
        scenarios=[Scenario("two", "classes(k=2)", clients=5)],
        rows=[
            Row("Local", "local"),
            Row("FedAvg", "fedavg", grid={"lr": [0.1, 1e6]}, options={"batch_size": 20}, set={"momentum": 0.9}),
        ],
        options={"batch_size": 50},
        seeds=2,
        tuning=Tuning(2),
        curve_points=2,
    )
    return replace(made, **changes)


def compute(one: Experiment, store: CellStore, directory: Path, files: Path | None = None) -> list[Spec]:
    """Compute all missing cells; returns them in order."""
    done: list[Spec] = []
    while missing := [spec for spec in one.specs(store) if store.get(spec) is None]:
        for spec in missing:
            found = one.compute(spec, directory / spec.hash / str(spec.seed), files)
            assert found is not None
            store.put(spec, *found, "0")
            done.append(spec)
    return done


def test_a_table_is_tuned_computed_once_and_again_if_its_settings_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[str] = []

    def counting(method: Any, *given: Any, **settings: Any) -> Any:
        trained.append(method.name)
        assert settings["batch_size"] == (20 if method.name == "fedavg" else 50)
        return run(method, *given, **settings)

    monkeypatch.setattr(experiment, "run", counting)
    store, one = CellStore(tmp_path / "cells"), small()
    rows = [spec.row for spec in compute(one, store, tmp_path)]
    assert rows == ["Local"] * 2 + ["FedAvg tuning lr=0.1", "FedAvg tuning lr=1000000.0"] + ["FedAvg"] * 2
    (spec,) = [spec for spec in one.specs(store) if spec.row == "FedAvg" and spec.seed == 1]
    cell = store.get(spec)
    assert cell is not None and cell.settings["set"] == {"momentum": 0.9, "lr": 0.1}
    assert len(cell.results["personal"]) == 5 and [line[0] for line in cell.results["curve"]] == [2, 4]
    assert compute(one, CellStore(tmp_path / "cells"), tmp_path) == []
    changed = replace(one, rows=[replace(one.rows[0], set={"lr": 0.2}), one.rows[1]])
    assert [spec.row for spec in compute(changed, CellStore(tmp_path / "cells"), tmp_path)] == ["Local"] * 2
    assert trained.count("fedavg") == 4


def spoken(directory: Path) -> None:
    """Two speakers, ten digits, twelve takes; the digit decides the loudest frequency."""
    y, speaker, take = (one.ravel().astype(np.uint8) for one in np.meshgrid(range(10), range(2), range(12)))
    x = np.random.default_rng(0).integers(0, 200, (len(y), 10, 8))
    x[np.arange(len(y)), y] += 30
    arrays = {"x": x.astype(np.uint8), "y": y, "speaker": speaker, "take": take}
    names = {"speakers": np.array(["ada", "bob"]), "lo_hi": np.array([-1.0, 1.0], dtype=np.float32)}
    np.savez(directory / "fsdd_logmel_by_speaker.npz", **arrays, **names)


def test_a_warm_start_is_common_to_all_rows_and_the_baseline_of_detection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken(tmp_path)
    wake_word = Experiment.read("selffl-wakeword")
    one = replace(
        wake_word,
        data="fsdd_logmel_by_speaker(keyword=7, test_takes=6)",
        scenarios=wake_word.scenarios[:1],
        rows=[replace(row, grid={}, set={**row.set, "lr": 1e-9}) for row in wake_word.rows[1:3]],
        rounds=1,
        warm={**wake_word.warm, "run": {**wake_word.warm["run"], "rounds": 4}},
        seeds=1,
    )
    scratch = tmp_path / "unfinished"
    store = CellStore(tmp_path / "cells")
    found = []
    for spec in one.specs(store):
        computed = one.compute(spec, scratch / spec.hash, tmp_path)
        assert computed is not None
        found.append(computed[0]["false_accepts"])
        assert 0 <= computed[0]["whole_test"] <= 1
    assert len(list(scratch.glob("warm-*.safetensors"))) == 1
    for accepts in found:  # a learning rate of almost 0 leaves the baseline as it is
        assert accepts["personal_count"] == accepts["global_count"] == accepts["baseline_count"]
        assert accepts["global"] == [1.0 if count else None for count in accepts["baseline_count"]]
        assert any(accepts["baseline_count"])


def test_an_experiment_on_text_computes(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    y = generator.integers(0, 2, 60)
    lines = [" ".join(["good" if one else "bad", *generator.choice(["day", "night", "tea"], 3)]) for one in y]
    text = np.frombuffer("\n".join(lines).encode(), dtype=np.uint8)
    np.savez(tmp_path / "sent140_by_user.npz", text_utf8=text, y=y, user=np.arange(60) % 4)
    one = Experiment.read("selffl-sent140")
    one = replace(one, rounds=1, seeds=1, rows=[replace(one.rows[0], grid={})], model="lstm(4, 4, 2)")
    one = replace(one, warm={**one.warm, "run": {**one.warm["run"], "rounds": 1}})
    (spec,) = one.specs(CellStore(tmp_path / "cells"))
    computed = one.compute(spec, tmp_path / "unfinished" / "one", tmp_path)
    assert computed is not None and len(computed[0]["personal"]) == 4
    with pytest.raises(InputError, match=r"sent140_by_user.npz is not in .* LEAF"):
        one.compute(spec, tmp_path / "unfinished" / "two", tmp_path / "elsewhere")


def test_the_whole_test_set_is_not_scored_if_clients_train_on_it(tmp_path: Path) -> None:
    """Digits have no official test set, so that one is made up here."""
    digits = data.load("digits")
    marked = replace(digits, columns={"test": np.arange(len(digits)) % 5 == 0})
    for split, scored in (("iid + official_test", True), ("iid", False)):
        clients = marked.split(split, clients=3, fractions=(1.0, 0.0, 0.0) if scored else (0.8, 0.0, 0.2))
        result = run("fedavg", clients, rounds=1, model="logistic", workers=1)
        found = results(result, clients, marked)
        assert (found["whole_test"] is not None) == scored
