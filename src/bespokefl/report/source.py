"""What a page is about: a comparison as `bespoke compare` writes it, or a single run brought into the same form.

Both are read as one document, that of compare.json. In a single run the two "methods" are its own two models: the
personal one, and the global one where there is one.
"""

import csv
import json
import math
import shlex
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl.core.errors import InputError
from bespokefl.metrics import significance, spread, summarize
from bespokefl.metrics.communication import SYSTEMS, times

Document = dict[str, Any]

COMPARISON = "compare.json"
RUN = ("config.toml", "result.json")
CHECKPOINTS = "checkpoints/round-*/record.json"  # of a run that can go on
FORMAT = 1  # of compare.json
MODELS = {"personal": "personal model", "global": "global model"}
SIZES = ("train", "validation", "test")
LINE = {  # what every line of rounds.jsonl has; the rest is what the method noted
    *("round", "phase", "trained", "reported", "up_bytes", "down_bytes", "down_streams", "up_models", "workload"),
    *("seconds", "personal", "global"),
}


def read(path: Path) -> Document:
    """The document of a comparison's folder (or of its compare.json), or of a run's folder."""
    folder = path.parent if path.is_file() else path
    if (folder / COMPARISON).is_file():
        return _guarded(folder / COMPARISON, _comparison)
    if all((folder / name).is_file() for name in RUN):
        return _guarded(folder, _run)
    if (folder / RUN[0]).is_file() and any(folder.glob(CHECKPOINTS)):
        return _guarded(folder, _unfinished)
    raise InputError(
        f"{str(path)!r} must be the folder of a comparison, a run or a diagnosis, but it has neither {COMPARISON} nor "
        f"{' and '.join(RUN)} nor diagnosis.json; make one with bespoke compare, bespoke run or bespoke diagnose."
    )


def _guarded(path: Path, reader: Callable[[Path], Document]) -> Document:
    try:
        return reader(path)
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise InputError(f"{str(path)!r} is damaged and cannot be shown: {error!r}.") from error


def _comparison(path: Path) -> Document:
    document: Document = json.loads(path.read_text(encoding="utf-8"))
    if document.get("format") != FORMAT:
        raise InputError(
            f"{str(path)!r} must be a comparison of format {FORMAT}, got {document.get('format')!r}; write it once "
            "more with this version of bespoke compare."
        )
    return document | {"kind": "comparison"}


def _run(folder: Path) -> Document:
    about = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    columns = _columns(folder / "clients.csv")
    file = folder / "client_rounds.jsonl"
    values = {
        kind: {key: _numbers(columns[f"{kind}_{key}"]) for key in about[kind] if f"{kind}_{key}" in columns}
        for kind in MODELS
        if about[kind] is not None
    }
    return _single(
        folder,
        about,
        names=[str(one) for one in columns["client"]],
        sizes={part: [int(one) for one in columns[part]] for part in SIZES},
        values=values,
        rounds=_lines(folder / "rounds.jsonl"),
        notes=_lines(file) if file.exists() else [],
    )


def _unfinished(folder: Path) -> Document:
    """A run that was killed: what its newest checkpoint knows. Its clients were not tested one by one yet."""
    records = sorted(folder.glob(CHECKPOINTS))
    record = json.loads(records[-1].read_text(encoding="utf-8"))["content"]["record"]
    config = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    split = json.loads((folder / "split.json").read_text(encoding="utf-8"))
    rounds = record["history"]
    tested = [line["personal"] for line in rounds if line.get("personal")]
    score = "accuracy" if any(line.get("test_accuracy") is not None for line in tested) else "loss"
    names = [str(name) for name in split["names"]]
    shared = ("method", "data", "split", "model", "seed", "rounds")
    about = {key: config.get(key) for key in shared} | {
        "hyper": config.get("set", {}),
        "split": split["split"],
        "split_hash": split["hash"],
        "split_seed": split["seed"],
        "rounds_done": len(rounds),
        "rounds_planned": config.get("rounds"),
        "interrupted": True,
        "notes": [],
        "settings": {key: value for key, value in config.items() if key not in (*shared, "set")},
        "communication": record["communication"],
        "timing": {"seconds": sum(record["seconds"])},
        "versions": {},
    }
    last: Document = next((line for line in reversed(rounds) if line.get("personal")), {})
    nobody = np.full(len(names), math.nan)
    return _single(
        folder,
        about,
        names=names,
        sizes={part: [len(own) for own in split[part]] for part in SIZES},
        values={kind: {score: nobody} for kind in MODELS if last.get(kind)},
        rounds=rounds,
        notes=record["client_notes"],
    )


def _single(
    folder: Path,
    about: Mapping[str, Any],
    *,
    names: list[str],
    sizes: Mapping[str, list[int]],
    values: Mapping[str, Mapping[str, np.ndarray]],
    rounds: list[Document],
    notes: list[Document],
) -> Document:
    """A run in the form of a comparison; values: of each model and score, one for each client."""
    score = "accuracy" if any("accuracy" in found for found in values.values()) else "loss"
    listed = []
    for kind, found in values.items():
        run = {
            "seed": about["seed"],
            "failed": None,
            "interrupted": about["interrupted"],
            "rounds_done": about["rounds_done"],
            "rounds_planned": about["rounds_planned"],
            "personal": {key: [None if math.isnan(one) else one for one in column] for key, column in found.items()},
            "history": _history(rounds, kind, score),
            "details": _details(rounds, notes, names) if kind == "personal" else None,
        }
        mean = next((one for one in reversed(run["history"][score]) if one is not None), None)
        listed.append(
            {
                "name": MODELS[kind],
                "method": about["method"],
                "about": "what each client uses" if kind == "personal" else "what they have in common",
                "citation": "",
                "hyper": about["hyper"],
                "tuned": None,
                "baseline": kind == "global",
                "failed": None,
                "figures": _figures(about, found[score], np.array(sizes["train"]), score, kind, mean),
                "runs": [run],
            }
        )
    return {
        "kind": "run",
        "title": f"{about['method']} on {about['data']}, {about['split']}",
        "command": f"bespoke run --config {shlex.quote(str(folder / 'config.toml'))}",
        "finished": not about["interrupted"],
        "score": score,
        "higher_is_better": score == "accuracy",
        "level": 0.05,
        "seeds": [about["seed"]],
        "data": {
            "name": about["data"],
            "split": about["split"],
            "split_hash": about["split_hash"],
            "split_seed": about["split_seed"],
            "clients": len(names),
        },
        "model": about["model"],
        "config": {"rounds": about["rounds"]} | about["settings"],
        "config_text": (folder / "config.toml").read_text(encoding="utf-8"),
        "versions": about["versions"],
        "systems": [{"name": system.name} for system in SYSTEMS],
        "clients": {"names": names, "groups": None, **sizes},
        "methods": listed,
        "left_out": [],
        "verdicts": {},
        "notes": [*about["notes"], "One seed: there is no standard error over seeds."],
    }


def _figures(
    about: Mapping[str, Any], values: np.ndarray, train: np.ndarray, score: str, kind: str, mean: float | None
) -> Document:
    """As in compare.json; the mean of the last test stands in where clients have no figures of their own yet."""
    higher = score == "accuracy"
    found = summarize(values, train, higher_is_better=higher)
    return {
        score: found
        | {
            "mean": mean if found["mean"] is None else found["mean"],
            "sem": None,
            "interval": significance.bootstrap(values),
            "largest_decile": spread.largest_decile(values, train),
            "smallest_decile": spread.smallest_decile(values, train),
        },
        "gain": None,
        "fairness": None,
        "up_bytes": about["communication"]["up_bytes"],
        "down_bytes": about["communication"]["down_bytes"],
        "model_time": about["communication"].get("model_time"),
        "seconds": about["timing"]["seconds"],
        "rank": list(MODELS).index(kind) + 1,
        "best": False,
        "tie": False,
        "p_value": None,
        "adjusted": None,
        "difference": None,
    }


def _history(rounds: list[Document], kind: str, score: str) -> Document:
    """Columns, one entry per round, as in compare.json."""
    try:
        spent = {system.name: np.cumsum(times(rounds, system)).tolist() for system in SYSTEMS}
    except InputError:  # a run of an earlier version
        spent = None
    return {
        "round": [line["round"] for line in rounds],
        score: [(line.get(kind) or {}).get(f"test_{score}") for line in rounds],
        **{
            way: np.cumsum([line.get(way, 0) for line in rounds], dtype=np.float64).tolist()
            for way in ("up_bytes", "down_bytes")
        },
        "model_time": spent,
    }


def _details(rounds: list[Document], notes: list[Document], names: list[str]) -> Document:
    """What the method itself noted, by name."""
    found: Document = {"rounds": {}, "clients": {}}
    for line in rounds:
        for name in line.keys() - LINE:
            series = found["rounds"].setdefault(name, {"round": [], "values": []})
            series["round"].append(line["round"])
            series["values"].append(line[name])
    place = {name: at for at, name in enumerate(names)}
    for line in notes:
        at = place.get(str(line["client"]))
        if at is None:
            continue
        for name in line.keys() - {"round", "client"}:
            series = found["clients"].setdefault(name, {"round": [], "values": []})
            if not series["round"] or series["round"][-1] != line["round"]:
                series["round"].append(line["round"])
                series["values"].append([None] * len(names))
            series["values"][-1][at] = line[name]
    return found


def _lines(path: Path) -> list[Document]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _columns(path: Path) -> dict[str, list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [row[name] for row in rows] for name in rows[0]}


def _numbers(values: list[str]) -> np.ndarray:
    return np.array([float(one or "nan") for one in values])
