"""Read the results that a page shows: a comparison, a run, or an interrupted run.

All are returned as one document, in the format of compare.json. In a run the two "methods" are its own two models: the
personal one, and the global one if there is one.
"""

import csv
import json
import math
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl.core.client_index import PARTS
from bespokefl.core.errors import InputError
from bespokefl.metrics import mixed_model, round_records, spread, summarize
from bespokefl.metrics.communication import SYSTEMS
from bespokefl.metrics.metric import SHARES, metric_of

Document = dict[str, Any]

COMPARISON_FILE = "compare.json"
COMPARISON_FORMAT = 1
RUN_FILES = ("config.toml", "result.json")
CHECKPOINTS = "checkpoints/round-*/record.json"
MODELS = {"personal": "personal model", "global": "global model"}
CONSTANT = "constant"


def read_document(path: Path) -> Document:
    """Return the document of a comparison (its directory or compare.json) or of the directory of a run."""
    directory = path.parent if path.is_file() else path
    reader: Callable[[Path], Document]
    if (directory / COMPARISON_FILE).is_file():
        file, reader = directory / COMPARISON_FILE, _read_comparison
    elif all((directory / name).is_file() for name in RUN_FILES):
        file, reader = directory, _read_run
    elif (directory / RUN_FILES[0]).is_file() and any(directory.glob(CHECKPOINTS)):
        file, reader = directory, _read_interrupted_run
    else:
        raise InputError(
            f"{str(path)!r} must be the directory of a comparison, a run or a diagnosis, but it has neither "
            f"{COMPARISON_FILE} nor {' and '.join(RUN_FILES)} nor diagnosis.json; create one with bespoke compare, "
            "bespoke run or bespoke diagnose."
        )
    try:
        return reader(file)
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise InputError(f"{str(file)!r} is damaged and cannot be shown: {error!r}.") from error


def _read_comparison(path: Path) -> Document:
    document: Document = json.loads(path.read_text(encoding="utf-8"))
    if document.get("format") != COMPARISON_FORMAT:
        raise InputError(
            f"{str(path)!r} must be a comparison of format {COMPARISON_FORMAT}, got {document.get('format')!r}; repeat "
            "bespoke compare with this version."
        )
    return document | {"kind": "comparison"}


def _read_run(directory: Path) -> Document:
    about = json.loads((directory / "result.json").read_text(encoding="utf-8"))
    with (directory / "clients.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    client_rounds, client_scores = directory / "client_rounds.jsonl", directory / "client_scores.jsonl"
    scores = {
        kind: {
            key: np.array([float(row[f"{kind}_{key}"] or "nan") for row in rows])
            for key in about[kind]
            if f"{kind}_{key}" in rows[0]
        }
        for kind in (*MODELS, CONSTANT)
        if about.get(kind) is not None  # runs of earlier versions have no constant predictors
    }
    return _run_document(
        directory,
        about,
        clients={"names": [row["client"] for row in rows]} | {part: [int(row[part]) for row in rows] for part in PARTS},
        scores=scores,
        rounds=_read_lines(directory / "rounds.jsonl"),
        client_rounds=_read_lines(client_rounds) if client_rounds.exists() else [],
        client_scores=_read_lines(client_scores) if client_scores.exists() else [],
    )


def _read_interrupted_run(directory: Path) -> Document:
    """Read a run from its newest checkpoint, which has no test scores of single clients."""
    newest = max(directory.glob(CHECKPOINTS))
    record = json.loads(newest.read_text(encoding="utf-8"))["content"]["record"]
    config = tomllib.loads((directory / "config.toml").read_text(encoding="utf-8"))
    split = json.loads((directory / "split.json").read_text(encoding="utf-8"))
    rounds = record["history"]
    evaluated = [line for line in rounds if line.get("personal")]
    has_accuracy = any(line["personal"].get("test_accuracy") is not None for line in evaluated)
    keys = ("method", "data", "split", "model", "seed", "rounds")
    about = {key: config.get(key) for key in keys} | {
        "hyper": config.get("set", {}),
        "split": split["split"],
        "split_hash": split["hash"],
        "split_seed": split["seed"],
        "rounds_done": len(rounds),
        "rounds_planned": config.get("rounds"),
        "interrupted": True,
        "notes": [],
        "settings": {key: value for key, value in config.items() if key not in (*keys, "set")},
        "communication": record["communication"],
        "timing": {"seconds": sum(record["seconds"])},
        "versions": {},
        "initial": record.get("initial"),
    }
    names = [str(name) for name in split["names"]]
    untested = {"accuracy" if has_accuracy else "loss": np.full(len(names), math.nan)}
    return _run_document(
        directory,
        about,
        clients={"names": names, **{part: [len(indices) for indices in split[part]] for part in PARTS}},
        scores={kind: untested for kind in MODELS if evaluated and evaluated[-1].get(kind)},
        rounds=rounds,
        client_rounds=record["client_notes"],
        client_scores=record.get("client_scores", []),
    )


def _run_document(
    directory: Path,
    about: Mapping[str, Any],
    *,
    clients: Mapping[str, list[Any]],
    scores: Mapping[str, Mapping[str, np.ndarray]],
    rounds: list[Document],
    client_rounds: list[Document],
    client_scores: list[Document],
) -> Document:
    """Return a run in the format of a comparison; `scores` holds the clients' scores by model and score."""
    score = "accuracy" if any("accuracy" in found for found in scores.values()) else "loss"
    details = round_records.method_records(rounds, client_rounds, clients["names"])
    curves = None
    if client_scores and score in client_scores[0]:
        values = [line[score] for line in client_scores]
        curves = {"score": score, "round": [line["round"] for line in client_scores], "values": values}
    return {
        "kind": "run",
        "title": f"{about['method']} on {about['data']}, {about['split']}",
        "command": f"bespoke run --config {shlex.quote(str(directory / 'config.toml'))}",
        "finished": not about["interrupted"],
        "score": score,
        "higher_is_better": metric_of(score).higher_is_better,
        "level": 0.05,
        "seeds": [about["seed"]],
        "data": {"name": about["data"], "clients": len(clients["names"])}
        | {key: about[key] for key in ("split", "split_hash", "split_seed")},
        "model": about["model"],
        "config": {"rounds": about["rounds"]} | about["settings"],
        "config_text": (directory / "config.toml").read_text(encoding="utf-8"),
        "versions": about["versions"],
        "systems": [{"name": system.name} for system in SYSTEMS],
        "clients": {"groups": None, **clients},
        "methods": [
            _model_entry(about, kind, score, scores[kind], clients["train"], rounds, details)
            | {"client_curves": curves if kind == "personal" else None}
            for kind in MODELS
            if kind in scores
        ],
        "constant": _constant_entry(score, scores.get(CONSTANT), clients["train"]),
        "left_out": [],
        "verdicts": {},
        "notes": [*about["notes"], "One seed: there is no standard error over seeds."],
    }


def _model_entry(
    about: Mapping[str, Any],
    kind: str,
    score: str,
    scores: Mapping[str, np.ndarray],
    sizes: list[int],
    rounds: list[Document],
    details: Document,
) -> Document:
    """Return the personal or the global model of a run in the format of a method of a comparison."""
    history = round_records.history(rounds, about.get("initial"))
    if kind == "global":
        history[score] = history[f"global_{score}"]
    run = {key: about[key] for key in ("seed", "interrupted", "rounds_done", "rounds_planned")} | {
        "failed": None,
        "personal": _without_nan(scores),
        "history": history,
        "details": details if kind == "personal" else None,
    }
    interval = mixed_model.estimate(scores[score], bounds=(0.0, 1.0) if score in SHARES else None)
    statistics = _statistics(score, scores[score], sizes)
    statistics |= {"interval": None if interval is None else interval.interval}
    if statistics["mean"] is None:  # no client has a score; its latest evaluation has a mean
        statistics["mean"] = next((value for value in reversed(history[score]) if value is not None), None)
    sent = about["communication"]
    figures = dict.fromkeys(("gain", "fairness", "p_value", "adjusted", "difference")) | {
        score: statistics,
        "up_bytes": sent["up_bytes"],
        "down_bytes": sent["down_bytes"],
        "model_time": sent.get("model_time"),
        "seconds": about["timing"]["seconds"],
        "rank": list(MODELS).index(kind) + 1,
        "best": False,
        "tie": False,
    }
    return {
        "name": MODELS[kind],
        "method": about["method"],
        "about": "the model that each client uses" if kind == "personal" else "the model that all clients share",
        "citation": "",
        "hyper": about["hyper"],
        "tuned": None,
        "failed": None,
        "baseline": kind == "global",
        "figures": figures,
        "runs": [run],
    }


def _statistics(score: str, values: np.ndarray, sizes: list[int]) -> Document:
    train = np.array(sizes)
    return {
        **summarize(values, train, higher_is_better=metric_of(score).higher_is_better),
        "sem": None,
        "interval": None,
        "largest_decile": spread.largest_decile(values, train),
        "smallest_decile": spread.smallest_decile(values, train),
    }


def _constant_entry(score: str, scores: Mapping[str, np.ndarray] | None, sizes: list[int]) -> Document | None:
    """Return the constant predictors of a run as compare.json has them."""
    if scores is None or score not in scores:
        return None
    name = "majority class" if "accuracy" in scores else "mean value"
    return {
        "name": name,
        "figures": {score: _statistics(score, scores[score], sizes)},
        "personal": _without_nan(scores),
    }


def _without_nan(scores: Mapping[str, np.ndarray]) -> Document:
    return {key: [None if math.isnan(one) else one for one in values] for key, values in scores.items()}


def _read_lines(path: Path) -> list[Document]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# -- Scores of single clients, averaged over the seeds of a method


def finished_runs(method: Mapping[str, Any]) -> list[Document]:
    """Return the runs of a method that have not failed."""
    return [run for run in method["runs"] if not run.get("failed")]


def client_scores(method: Mapping[str, Any], score: str) -> np.ndarray:
    """Return each client's score, averaged over seeds; NaN where there is none."""
    return _mean_over_seeds([run["personal"][score] for run in finished_runs(method)])


def client_gains(method: Mapping[str, Any]) -> np.ndarray | None:
    """Return each client's gain, averaged over seeds; None if the method was not compared with a baseline."""
    gains = [run["gain"] for run in finished_runs(method) if run.get("gain") is not None]
    return _mean_over_seeds(gains) if gains else None


def oriented(scores: Sequence[np.ndarray], higher_is_better: bool) -> np.ndarray:
    """Stack scores, (methods, clients), so that higher is better and a missing one is -inf."""
    stacked = np.stack(scores) if higher_is_better else -np.stack(scores)
    return np.where(np.isnan(stacked), -np.inf, stacked)


def _mean_over_seeds(rows: Sequence[Sequence[float | None]]) -> np.ndarray:
    values = np.ma.masked_invalid(np.array(rows, dtype=np.float64))  # None becomes NaN
    return np.asarray(values.mean(0).filled(np.nan))
