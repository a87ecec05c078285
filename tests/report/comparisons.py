"""Synthetic comparisons in the format of compare.json, with known scores."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl.metrics import fairness, improvement, significance, standard_error, verdict
from bespokefl.metrics.communication import SYSTEMS

BASELINES = ("local", "fedavg")


def document(
    methods: tuple[str, ...] = ("local", "fedavg", "selffl", "persfl", "ucfl", "pfedvem", "cfl"),
    seeds: int = 2,
    clients: int = 12,
    rounds: int = 10,
    score: str = "accuracy",
    names: list[str] | None = None,
) -> dict[str, Any]:
    """Return a comparison in which later methods score higher; gains, standings and verdicts follow from the scores."""
    rng = np.random.default_rng(0)
    higher = score == "accuracy"
    sizes = 10 + 7 * np.arange(clients)
    groups = (np.arange(clients) % 3).tolist()
    found: dict[str, np.ndarray] = {}
    for at, name in enumerate(methods):
        good = 0.6 + 0.3 * at / len(methods) + 0.05 * rng.standard_normal((seeds, clients))
        found[name] = np.clip(good if higher else 1 - good, 0, 1)
    gains = {
        name: improvement.quantum(found[name], found["fedavg"], found["local"], higher_is_better=higher)
        for name in methods
        if name not in BASELINES
    }
    place = significance.standing(found, higher_is_better=higher)
    order = sorted(methods, key=lambda name: found[name].mean() * (-1 if higher else 1))
    listed = []
    for name in methods:
        scores, gain = found[name], gains.get(name)
        mean = {
            "mean": scores.mean(),
            "sem": standard_error(scores.mean(1)),
            "interval": significance.bootstrap(scores, resamples=50),
            "std": scores.std(1, ddof=1).mean(),
            "weighted_mean": scores.mean(),
            **dict.fromkeys(("worst", "worst_decile", "largest_decile", "smallest_decile"), scores.min()),
        }
        figures = {
            score: mean,
            "global": None,
            "gain": None if gain is None else _gain(gain),
            "fairness": {
                "score": None,
                "improved": None if gain is None else fairness.of_gains(gain.mean(0))["improved"],
            },
            "up_bytes": 1000 * rounds,
            "down_bytes": 2000 * rounds,
            "streams": 1.0,
            "model_time": {system.name: 5.0 * rounds for system in SYSTEMS},
            "seconds": 2.5,
            "rank": order.index(name) + 1,
            "best": name == place.best,
            "tie": name in place.ties,
            "relation": "best" if name == place.best else place.relations[name],
            "p_value": place.p_values.get(name),
            "adjusted": place.adjusted.get(name),
            "difference": None if name == place.best else [-0.1, -0.01],
        }
        runs = [
            {
                "seed": seed,
                "folder": None,
                "failed": None,
                "interrupted": False,
                "rounds_done": rounds,
                "rounds_planned": rounds,
                "personal": {score: scores[seed]},
                "global": None,
                "gain": None if gain is None else gain[seed],
                "history": _history(score, float(scores[seed].mean()), rounds, free=name == "local"),
                "seconds": 2.5,
                "notes": [],
                "details": _details(name, rounds, sizes, groups) if seed == 0 else None,
            }
            for seed in range(seeds)
        ]
        listed.append(
            {
                "name": name,
                "method": name,
                "about": f"what {name} does",
                "citation": f"@article{{{name},\n  title = {{On {name}}}\n}}",
                "hyper": {"lr": 0.1, "imitations": [0.0, 0.5], "temperatures": [1.0, 5.0]},
                "tuned": None,
                "baseline": name in BASELINES,
                "failed": None,
                "figures": figures,
                "runs": runs,
            }
        )
    made = {
        "format": 1,
        "title": f"{len(methods)} methods on digits, iid",
        "command": "bespoke compare " + " ".join(methods),
        "finished": True,
        "score": score,
        "higher_is_better": higher,
        "level": 0.05,
        "margin": place.margin,
        "planned": len(methods) * seeds,
        "seeds": list(range(seeds)),
        "data": {"name": "digits", "split": "iid", "split_hash": "abc123", "split_seed": 0, "clients": clients},
        "model": "mlp",
        "config": {"rounds": rounds},
        "config_text": 'data = "digits"\n',
        "versions": {"bespokefl": "0.1.0", "torch": "2.13.0"},
        "systems": [vars(system) for system in SYSTEMS],
        "clients": {
            "names": names or [f"client {at}" for at in range(clients)],
            "groups": groups,
            "train": sizes,
            "validation": sizes,
            "test": sizes,
        },
        "methods": listed,
        "left_out": [{"method": "oracle", "reason": "nobody knows the true groups."}],
        "verdicts": {
            "best": _verdict(verdict.best_performing(found, gains, higher_is_better=higher)),
            "fairest": _verdict(verdict.fairest(gains, found, higher_is_better=higher)),
        },
        "notes": ["These figures are made up."],
    }
    return dict(json.loads(json.dumps(made, default=lambda value: value.tolist())))


def save(folder: Path, made: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "compare.json").write_text(json.dumps(made), encoding="utf-8")
    return folder


def _gain(gain: np.ndarray) -> dict[str, Any]:
    return {
        "mean": gain.mean(),
        "interval": [gain.min(), gain.max()],
        "improved_share": improvement.improved_share(gain),
        "decreased_share": improvement.decreased_share(gain),
    }


def _verdict(found: verdict.Verdict) -> dict[str, Any]:
    return {name: getattr(found, name) for name in ("method", "ties", "support", "votes", "sentence", "conclusive")}


def _history(score: str, last: float, rounds: int, free: bool) -> dict[str, Any]:
    number = np.arange(1, rounds + 1)
    sent = number * (0 if free else 1)
    return {
        "round": number,
        "phase": ["train"] * rounds,
        score: [last * at / rounds if at % 2 == 0 else None for at in number.tolist()],
        "up_bytes": 1000 * sent,
        "down_bytes": 2000 * sent,
        "model_time": {system.name: 5.0 * number * (1 + at) for at, system in enumerate(SYSTEMS)},
        "seconds": 0.1 * number,
    }


def _details(name: str, rounds: int, sizes: np.ndarray, groups: list[int]) -> dict[str, Any] | None:
    num = len(sizes)
    number = list(range(1, rounds + 1))

    def once(values: Any) -> dict[str, Any]:
        return {"round": [rounds], "values": [values]}

    def always(values: Any) -> dict[str, Any]:
        return {"round": number, "values": [values] * rounds}

    if name == "ucfl":
        together = np.equal.outer(groups, groups) + 0.01
        weights = together / together.sum(1, keepdims=True)
        curve = [0.0, 0.4, 0.9, *[0.1] * (num - 3)]
        found = {"collaboration": once(weights), "stream": once(groups), "streams": once(3), "silhouette": once(curve)}
        return {"rounds": found, "clients": {}}
    if name == "cfl":
        return {"rounds": {"cluster": always([group % 2 for group in groups])}, "clients": {}}
    if name == "persfl":
        grid = {"grid_accuracy": once([[0.7, 0.8, 0.9, 0.6]] * num)}  # λ = 0, .5 and T = 1, 5
        chosen = {"imitation": once([0.5] * num), "temperature": once([1.0] * num)}
        return {"rounds": {}, "clients": grid | chosen | {"teacher_round": always([rounds // 2] * num)}}
    if name == "selffl":
        return {"rounds": {}, "clients": {"steps": always([1 + at for at in range(num)])}}
    if name == "pfedvem":
        kinds = ("confidence", "deviation", "trace")
        return {"rounds": {}, "clients": {kind: always(np.sqrt(sizes)) for kind in kinds}}
    return None
