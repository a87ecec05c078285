"""Figures that only some methods have: who learns from whom, chosen teachers, numbers of steps, confidence."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from bespokefl.report.collaboration_map import any_shared, collaboration_map
from bespokefl.report.document import Document
from bespokefl.report.figures import Control, Figure, Section, rounded
from bespokefl.report.scores import to_array

MAX_LINES = 40  # clients with a line of their own
ALL_CLIENTS = -1

Series = Mapping[str, Any]  # "round", "values"
TRACKED = {  # a value that a method records for each client -> its name, and how to read it
    "steps": ("local steps ℓ", "How many steps each client was told to make."),
    "alpha": ("own share α", "How much of the mixed model is the client's own."),
    "own_weight": ("own weight", "How much weight each client gives its own model among those that it mixes."),
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
    frames = "Frames: clients that share a model." if any_shared(streams) else "Each client has a model of its own."
    caption = f"Row: a client. Column: how much weight its model gives to another's, in per cent. {frames}"
    return [collaboration_map(f"{key}-map", weights, streams, groups, caption)]


def _silhouette(key: str, rounds: Mapping[str, Series]) -> list[Figure]:
    if "silhouette" not in rounds:
        return []
    chosen = _last(rounds["streams"]) if "streams" in rounds else None
    return [
        Figure(
            "silhouette",
            f"{key}-silhouette",
            "How many models",
            "The higher, the better the clients fall into so many groups. The large marker is what was used.",
            "Line: silhouette score against the number of streams.",
            data={
                "values": rounded(_last(rounds["silhouette"])),
                "chosen": chosen,
                "noun": "streams",
                "taken": "were used",
            },
            half=True,
        )
    ]


def _grid(key: str, clients: Mapping[str, Series], hyper: Mapping[str, Any], names: Sequence[str]) -> list[Figure]:
    if "grid_accuracy" not in clients:
        return []
    shares, temperatures = (sorted(map(float, hyper[name])) for name in ("imitations", "temperatures"))
    points = list(product(shares, temperatures))
    index = {point: at for at, point in enumerate(points)}
    chosen = zip(_last(clients["imitation"]), _last(clients["temperature"]), strict=True)
    values = [[None] * len(points) if one is None else one for one in _last(clients["grid_accuracy"])]
    options = {str(ALL_CLIENTS): "all clients, mean"} | {str(at): name for at, name in enumerate(names)}
    return [
        Figure(
            "grid",
            f"{key}-grid",
            "λ × T, per client",
            "Validation accuracy for each share λ and temperature T of distillation. ★ marks what was chosen: by how "
            "many clients, or by this one.",
            "Map of validation accuracy over λ and T.",
            [Control("select", "client", "Client", options)],
            {
                "shares": shares,
                "heats": temperatures,
                "values": rounded(values, percent=True),
                "taken": [index.get(point) for point in chosen],
            },
            half=True,
        )
    ]


def _teachers(key: str, clients: Mapping[str, Series]) -> list[Figure]:
    if "teacher_round" not in clients:
        return []
    series = clients["teacher_round"]
    return [
        Figure(
            "teachers",
            f"{key}-teachers",
            "Teachers' rounds",
            "In which round the global model was best on a client's validation data: that one became its teacher.",
            "Histogram of the rounds from which clients took their teachers.",
            data={"rounds": _latest(series), "last": max(series["round"])},
            half=True,
        )
    ]


def _tracked(key: str, clients: Mapping[str, Series]) -> list[Figure]:
    figures = []
    for quantity, (name, meaning) in TRACKED.items():
        if quantity not in clients:
            continue
        series = clients[quantity]
        values = to_array(series["values"])
        recorded = ~np.isnan(values).all(1)
        num = values.shape[1]
        drawn = np.unique(np.linspace(0, num - 1, min(num, MAX_LINES)).round().astype(int))
        lines = "the clients" if num <= MAX_LINES else f"{len(drawn)} of the {num} clients"
        title = f"{name[0].upper()}{name[1:]}"
        data = {
            "said": name,
            "round": np.array(series["round"])[recorded].tolist(),
            "bands": [rounded(np.nanquantile(values[recorded], share, axis=1)) for share in (0.1, 0.5, 0.9)],
            "clients": drawn.tolist(),
            "values": rounded(values[recorded][:, drawn].T),
            "latest": rounded(_latest(series)),
        }
        figures += [
            Figure(
                "track",
                f"{key}-{quantity}",
                f"{title}, round by round",
                f"{meaning} Thick: the median; band: from the 10th to the 90th percentile. Thin lines: {lines}.",
                f"Lines: {name} of the clients in every round.",
                data=data,
                half=True,
            ),
            Figure(
                "latest",
                f"{key}-{quantity}-latest",
                f"{title}, at last",
                "How many clients ended where.",
                f"Histogram of the clients' last {name}.",
                data={"said": name, "values": data["latest"]},
                half=True,
            ),
        ]
    return figures


def _confidence(key: str, clients: Mapping[str, Series]) -> list[Figure]:
    if "confidence" not in clients:
        return []
    figures = [
        Figure(
            "confidence",
            f"{key}-confidence",
            "Confidence against local data",
            "How much weight the server gives to a client's head, 1/ρ², against how much data it has.",
            "Points: confidence of each client against its number of training examples.",
            data={"values": rounded(_latest(clients["confidence"]))},
            half=True,
        )
    ]
    if "deviation" in clients and "trace" in clients:
        figures.append(
            Figure(
                "makeup",
                f"{key}-makeup",
                "Deviation and uncertainty",
                "What the confidence is made of: the head's distance from the common one, and its own uncertainty.",
                "Points: deviation against uncertainty of each client.",
                data={name: rounded(_latest(clients[name])) for name in ("deviation", "trace")},
                half=True,
            )
        )
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
    patterns = "" if groups is None else " Patterns: the true groups, which the method was not told."
    return [
        Figure(
            "clusters",
            f"{key}-clusters",
            "Clusters",
            f"Which clients ended up together.{patterns}",
            "Bars: number of clients in each cluster.",
            data={"members": members, "groups": groups},
            half=True,
        )
    ]


def _last(series: Series) -> Any:
    return series["values"][-1]


def _latest(series: Series) -> list[Any]:
    """Return the last value of each client that is not None."""
    latest: list[Any] = [None] * len(series["values"][0])
    for values in series["values"]:
        latest = [before if now is None else now for before, now in zip(latest, values, strict=True)]
    return latest
