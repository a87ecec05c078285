"""Figures that only some methods have: who learns from whom, chosen teachers, numbers of steps, confidence."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from bespokefl.report.curves import MAX_LINES, rounded
from bespokefl.report.document import Document
from bespokefl.report.figures import Control, Figure, Section, make_figure

MAX_CLIENTS = 400  # more are unreadable on a map and make the page large
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
        figures = (
            [] if run is None else list(_figures(f"m{number}", run["details"], method["hyper"], document["clients"]))
        )
        if run is not None and figures:
            seed = f" Seed {run['seed']}." if len(document["seeds"]) > 1 else ""
            title = f"Inside {method['method'] if single else method['name']}"
            found.append(Section(title, ("" if single else str(method["about"])) + seed, figures))
    return found


def _figures(
    key: str, details: Mapping[str, Mapping[str, Series]], hyper: Mapping[str, Any], about_clients: Mapping[str, Any]
) -> Iterator[Figure]:
    """Yield the figures of what a method recorded in each round and for each client."""
    rounds, clients, groups = details["rounds"], details["clients"], about_clients["groups"]
    if "collaboration" in rounds:
        weights = np.array(_last(rounds["collaboration"]), dtype=np.float64)
        streams = np.array(_last(rounds["stream"])) if "stream" in rounds else np.arange(len(weights))
        frames = "Frames: clients that share a model." if any_shared(streams) else "Each client has its own model."
        yield collaboration_map(f"{key}-map", weights, streams, groups, frames=frames)
    if "silhouette" in rounds:
        chosen = _last(rounds["streams"]) if "streams" in rounds else None
        values = rounded(_last(rounds["silhouette"]))
        data = {"values": values, "chosen": chosen, "noun": "streams", "verb": "were used"}
        yield make_figure("silhouette", f"{key}-silhouette", data=data)
    if "grid_accuracy" in clients:
        yield _grid(f"{key}-grid", clients, hyper, about_clients["names"])
    if "teacher_round" in clients:
        series = clients["teacher_round"]
        data = {"rounds": _latest(series), "last": max(series["round"])}
        yield make_figure("teachers", f"{key}-teachers", data=data)
    for name in (name for name in TRACKED if name in clients):
        yield from _tracked(key, name, clients[name])
    if "confidence" in clients:
        yield make_figure("confidence", f"{key}-confidence", data={"values": rounded(_latest(clients["confidence"]))})
        if "deviation" in clients and "trace" in clients:
            data = {name: rounded(_latest(clients[name])) for name in ("deviation", "trace")}
            yield make_figure("makeup", f"{key}-makeup", data=data)
    members = _clusters(rounds, clients)
    if members is not None:
        patterns = "" if groups is None else " Patterns: the true groups, which the method does not know."
        data = {"members": members, "groups": groups}
        yield make_figure("clusters", f"{key}-clusters", {"patterns": patterns}, data=data)


def _grid(key: str, clients: Mapping[str, Series], hyper: Mapping[str, Any], names: Sequence[str]) -> Figure:
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
    return make_figure("grid", key, controls=[Control("select", "client", "Client", options)], data=data)


def _tracked(key: str, name: str, series: Series) -> list[Figure]:
    quantity, meaning = TRACKED[name]
    values = np.array(series["values"], dtype=np.float64)
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
    return [
        make_figure("track", f"{key}-{name}", words, data=data),
        make_figure("latest", f"{key}-{name}-latest", words, data=latest),
    ]


def _clusters(rounds: Mapping[str, Series], clients: Mapping[str, Series]) -> Any:
    """Return the cluster of each client; None for a method without clusters."""
    if "cluster" in rounds:
        return _last(rounds["cluster"])
    if "cluster" in clients:
        return _latest(clients["cluster"])
    streams = _last(rounds["stream"]) if "stream" in rounds else None
    return streams if streams is not None and any_shared(streams) else None


def _last(series: Series) -> Any:
    return series["values"][-1]


def _latest(series: Series) -> list[Any]:
    """Return the last value of each client that is not None."""
    latest: list[Any] = [None] * len(series["values"][0])
    for values in series["values"]:
        latest = [before if now is None else now for before, now in zip(latest, values, strict=True)]
    return latest


# -- The map of who learns from whom


def collaboration_map(
    key: str, weights: np.ndarray, groups: np.ndarray, true_groups: Any, *, text: str = "heat", frames: str
) -> Figure:
    """Return the figure; row i of `weights`, (clients, clients), belongs to client i, and frames mark `groups`."""
    num = len(weights)
    missing = f"{num} clients are too many for a map." if num > MAX_CLIENTS else ""
    data: dict[str, Any] = {}
    if not missing:
        order = _order(weights, groups)
        ordered = groups[order]
        data = {
            "order": order.tolist(),
            "weights": (weights[np.ix_(order, order)] * 1e4).round().astype(int).tolist(),
            "bounds": [k for k in range(1, num) if ordered[k] != ordered[k - 1]] if any_shared(groups) else [],
            "streams": ordered.tolist(),
            "groups": true_groups,
        }
    return make_figure("heat", key, {"num": str(num), "frames": frames}, text=text, data=data, missing=missing)


def any_shared(groups: np.ndarray) -> bool:
    """Return whether any two clients are in the same group."""
    return len(np.unique(groups)) < len(groups)


def _order(weights: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return the clients ordered by group, and by similarity within a group."""
    order = np.arange(len(weights))
    if len(weights) > 2:
        from scipy.cluster.hierarchy import leaves_list, linkage  # imported here because it is slow

        order = np.array(leaves_list(linkage(np.sqrt(np.nan_to_num(weights)), "average")))
    return order[np.argsort(groups[order], kind="stable")] if any_shared(groups) else order
