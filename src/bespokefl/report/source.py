"""What a page is about: a comparison as `bespoke compare` writes it, or a single run brought into the same form.

Both are read as one document, that of compare.json. In a single run the two "methods" are its own two models: the
personal one, and the global one where there is one.
"""

import csv
import json
import math
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
FORMAT = 1  # of compare.json
MODELS = {"personal": "personal model", "global": "global model"}
SIZES = ("train", "validation", "test")
LINE = frozenset(  # what every line of rounds.jsonl has; the rest is what the method noted
    "round phase trained reported up_bytes down_bytes down_streams up_models workload seconds personal global".split()
)


def read(path: Path) -> Document:
    """The document of a comparison's folder (or of its compare.json), or of a run's folder."""
    folder = path.parent if path.is_file() else path
    if (folder / COMPARISON).is_file():
        return _guarded(folder / COMPARISON, _comparison)
    if all((folder / name).is_file() for name in RUN):
        return _guarded(folder, _run)
    raise InputError(
        f"{str(path)!r} must be the folder of a comparison or of a run, but it has neither {COMPARISON} nor "
        f"{' and '.join(RUN)}; make one with bespoke compare or bespoke run."
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
    rounds = _lines(folder / "rounds.jsonl")
    columns = _columns(folder / "clients.csv")
    names = [str(one) for one in columns["client"]]
    sizes = {part: np.array([int(one) for one in columns[part]]) for part in SIZES}
    score = "loss" if about["personal"]["accuracy"] is None else "accuracy"
    done, planned = about["rounds_done"], about["rounds_planned"]
    notes = list(about["notes"])
    if about["interrupted"]:
        notes.insert(0, f"The run was interrupted after {done} of {planned} rounds: these are its figures so far.")
    notes.append("One seed: there is no standard error over seeds.")
    methods = []
    for kind, name in MODELS.items():
        if about[kind] is None:
            continue
        values = {key: _numbers(columns[f"{kind}_{key}"]) for key in about[kind] if f"{kind}_{key}" in columns}
        run = {
            "seed": about["seed"],
            "failed": None,
            "interrupted": about["interrupted"],
            "rounds_done": done,
            "rounds_planned": planned,
            "personal": {key: [None if math.isnan(one) else one for one in found] for key, found in values.items()},
            "history": _history(rounds, kind, score),
            "details": _details(rounds, folder, names) if kind == "personal" else None,
        }
        methods.append(
            {
                "name": name,
                "method": about["method"],
                "about": "what each client uses" if kind == "personal" else "what they have in common",
                "citation": "",
                "hyper": about["hyper"],
                "tuned": None,
                "baseline": kind == "global",
                "failed": None,
                "figures": _figures(about, values[score], sizes["train"], score, kind),
                "runs": [run],
            }
        )
    return {
        "kind": "run",
        "title": f"{about['method']} on {about['data']}, {about['split']}",
        "command": f"bespoke run --config {folder.name}/config.toml",
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
        "clients": {"names": names, "groups": None} | {part: sizes[part].tolist() for part in SIZES},
        "methods": methods,
        "left_out": [],
        "verdicts": {},
        "notes": notes,
    }


def _figures(about: Mapping[str, Any], values: np.ndarray, train: np.ndarray, score: str, kind: str) -> Document:
    higher = score == "accuracy"
    return {
        score: summarize(values, train, higher_is_better=higher)
        | {
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


def _details(rounds: list[Document], folder: Path, names: list[str]) -> Document:
    """What the method itself noted, by name."""
    found: Document = {"rounds": {}, "clients": {}}
    for line in rounds:
        for name in line.keys() - LINE:
            series = found["rounds"].setdefault(name, {"round": [], "values": []})
            series["round"].append(line["round"])
            series["values"].append(line[name])
    file = folder / "client_rounds.jsonl"
    place = {name: at for at, name in enumerate(names)}
    for line in _lines(file) if file.exists() else []:
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
