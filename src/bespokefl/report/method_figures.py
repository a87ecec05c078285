"""Figures that only some methods have: who learns from whom, chosen teachers, numbers of steps, confidence."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from bespokefl.report.collaboration_map import any_shared, collaboration_map
from bespokefl.report.document import Document
from bespokefl.report.figures import Control, Figure, Section, make_figure, rounded
from bespokefl.report.scores import to_array

MAX_LINES = 40  # clients with a line of their own
ALL_CLIENTS = -1

Series = Mapping[str, Any]  # "round", "values"
TRACKED = {  # a value that a method records for each client -> its name and its meaning
    "steps": ("local steps ℓ", "The number of local steps that each client makes."),
    "alpha": ("own share α", "The share of the client's own model in the mixed model."),
    "own_weight": ("own weight", "The weight that each client gives its own model in its mixture."),
}


def sections(document: Document, methods: Sequence[Document]) -> list[Section]:
    """Return a section for each method that recorded something of its own."""
    single = document["kind"] == "run"
    found = []
    for number, method in enumerate(methods):
        run = next((run for run in method["runs"] if run.get("details")), None)
        if run is None:
            continue
        rounds, clients = run["details"]["rounds"], run["details"]["clients"]
        key = f"m{number}"
        figures = [
            *_collaboration(key, rounds, document["clients"]["groups"]),
            *_silhouette(key, rounds),
            *_grid(key, clients, method["hyper"], document["clients"]["names"]),
            *_teachers(key, clients),
            *_tracked(key, clients),
            *_confidence(key, clients),
            *_clusters(key, rounds, clients, document["clients"]["groups"]),
        ]
        if figures:
            seed = f" Seed {run['seed']}." if len(document["seeds"]) > 1 else ""
            title = f"Inside {method['method'] if single else method['name']}"
            found.append(Section(title, ("" if single else str(method["about"])) + seed, figures))
    return found


def _collaboration(key: str, rounds: Mapping[str, Series], groups: Sequence[Any] | None) -> list[Figure]:
    if "collaboration" not in rounds:
        return []
    weights = to_array(_last(rounds["collaboration"]))
    streams = np.array(_last(rounds["stream"])) if "stream" in rounds else np.arange(len(weights))
    frames = "Frames: clients that share a model." if any_shared(streams) else "Each client has its own model."
    return [collaboration_map(f"{key}-map", weights, streams, groups, frames=frames)]


def _silhouette(key: str, rounds: Mapping[str, Series]) -> list[Figure]:
    if "silhouette" not in rounds:
        return []
    chosen = _last(rounds["streams"]) if "streams" in rounds else None
    values = rounded(_last(rounds["silhouette"]))
    data = {"values": values, "chosen": chosen, "noun": "streams", "verb": "were used"}
    return [make_figure("silhouette", f"{key}-silhouette", data=data)]


def _grid(key: str, clients: Mapping[str, Series], hyper: Mapping[str, Any], names: Sequence[str]) -> list[Figure]:
    if "grid_accuracy" not in clients:
        return []
    shares, temperatures = (sorted(map(float, hyper[name])) for name in ("imitations", "temperatures"))
    points = list(product(shares, temperatures))
    index = {point: at for at, point in enumerate(points)}
    chosen = zip(_last(clients["imitation"]), _last(clients["temperature"]), strict=True)
    values = [[None] * len(points) if one is None else one for one in _last(clients["grid_accuracy"])]
    options = {str(ALL_CLIENTS): "mean of all clients"} | {str(at): name for at, name in enumerate(names)}
    data = {
        "shares": shares,
        "temperatures": temperatures,
        "values": rounded(values, percent=True),
        "chosen": [index.get(point) for point in chosen],
    }
    return [make_figure("grid", f"{key}-grid", controls=[Control("select", "client", "Client", options)], data=data)]


def _teachers(key: str, clients: Mapping[str, Series]) -> list[Figure]:
    if "teacher_round" not in clients:
        return []
    series = clients["teacher_round"]
    data = {"rounds": _latest(series), "last": max(series["round"])}
    return [make_figure("teachers", f"{key}-teachers", data=data)]


def _tracked(key: str, clients: Mapping[str, Series]) -> list[Figure]:
    figures = []
    for name, (quantity, meaning) in TRACKED.items():
        if name not in clients:
            continue
        series = clients[name]
        values = to_array(series["values"])
        recorded = ~np.isnan(values).all(1)
        num = values.shape[1]
        drawn = np.unique(np.linspace(0, num - 1, min(num, MAX_LINES)).round().astype(int))
        words = {
            "quantity": quantity,
            "Quantity": quantity[0].upper() + quantity[1:],
            "meaning": meaning,
            "lines": "the clients" if num <= MAX_LINES else f"{len(drawn)} of the {num} clients",
        }
        data = {
            "name": quantity,
            "round": np.array(series["round"])[recorded].tolist(),
            "bands": [rounded(np.nanquantile(values[recorded], share, axis=1)) for share in (0.1, 0.5, 0.9)],
            "clients": drawn.tolist(),
            "values": rounded(values[recorded][:, drawn].T),
        }
        latest = {"name": quantity, "values": rounded(_latest(series))}
        figures += [
            make_figure("track", f"{key}-{name}", words, data=data),
            make_figure("latest", f"{key}-{name}-latest", words, data=latest),
        ]
    return figures


def _confidence(key: str, clients: Mapping[str, Series]) -> list[Figure]:
    if "confidence" not in clients:
        return []
    data = {"values": rounded(_latest(clients["confidence"]))}
    figures = [make_figure("confidence", f"{key}-confidence", data=data)]
    if "deviation" in clients and "trace" in clients:
        data = {name: rounded(_latest(clients[name])) for name in ("deviation", "trace")}
        figures.append(make_figure("makeup", f"{key}-makeup", data=data))
    return figures


def _clusters(
    key: str, rounds: Mapping[str, Series], clients: Mapping[str, Series], groups: Sequence[Any] | None
) -> list[Figure]:
    if "cluster" in rounds:
        members = _last(rounds["cluster"])
    elif "cluster" in clients:
        members = _latest(clients["cluster"])
    elif "stream" in rounds and any_shared(_last(rounds["stream"])):
        members = _last(rounds["stream"])
    else:
        return []
    patterns = "" if groups is None else " Patterns: the true groups, which the method does not know."
    data = {"members": members, "groups": groups}
    return [make_figure("clusters", f"{key}-clusters", {"patterns": patterns}, data=data)]


def _last(series: Series) -> Any:
    return series["values"][-1]


def _latest(series: Series) -> list[Any]:
    """Return the last value of each client that is not None."""
    latest: list[Any] = [None] * len(series["values"][0])
    for values in series["values"]:
        latest = [before if now is None else now for before, now in zip(latest, values, strict=True)]
    return latest
