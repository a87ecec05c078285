"""What only some methods have to show: who learns from whom, chosen teachers, numbers of steps, confidence."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from bespokefl.report.figures import Figure, choice, rounded, table
from bespokefl.report.maps import collaboration_map, shared
from bespokefl.report.source import Document

MOST_LINES = 40  # clients with a line of their own
EVERYBODY = -1

Series = Mapping[str, Any]  # "round", "values"
TRACKED = {  # a note of each client -> what it is called, and how to read it
    "steps": ("local steps ℓ", "How many steps each client was told to make."),
    "alpha": ("own share α", "How much of the mixed model is the client's own."),
    "own_weight": ("own weight", "How much weight each client gives its own model among those that it mixes."),
}


def sections(document: Document, methods: Sequence[Document]) -> list[tuple[str, str, list[Figure]]]:
    """One for each method that has kept something of its own: heading, words, figures."""
    found = []
    for at, method in enumerate(methods):
        run = next((run for run in method["runs"] if run.get("details")), None)
        if run is None:
            continue
        notes = run["details"]
        figures = [
            figure
            for part in (_collaboration, _silhouette, _grid, _teachers, _tracked, _confidence, _clusters)
            for figure in part(f"m{at}", document, method, notes["rounds"], notes["clients"])
        ]
        if figures:
            seed = f" Seed {run['seed']}." if len(document["seeds"]) > 1 else ""
            name = method["method"] if document["kind"] == "run" else method["name"]
            about = "" if document["kind"] == "run" else str(method["about"])
            found.append((f"Inside {name}", about + seed, figures))
    return found


def _collaboration(key: str, document: Document, method: Document, rounds: Any, clients: Any) -> list[Figure]:
    if "collaboration" not in rounds:
        return []
    weights = table(_last(rounds["collaboration"]))
    streams = np.array(_last(rounds["stream"])) if "stream" in rounds else np.arange(len(weights))
    frames = "Frames: clients that share a model." if shared(streams) else "Each client has a model of its own."
    words = f"Row: a client. Column: how much weight its model gives to another's, in per cent. {frames}"
    return [collaboration_map(f"{key}-map", weights, streams, document["clients"]["groups"], words)]


def _silhouette(key: str, document: Document, method: Document, rounds: Any, clients: Any) -> list[Figure]:
    if "silhouette" not in rounds:
        return []
    curve = rounded(_last(rounds["silhouette"]), False)
    chosen = _last(rounds["streams"]) if "streams" in rounds else None
    words = "The higher, the better the clients fall into so many groups. The large marker is what was used."
    label = "Line: silhouette score against the number of streams."
    data = {"values": curve, "chosen": chosen, "noun": "streams", "taken": "were used"}
    return [Figure("silhouette", f"{key}-silhouette", "How many models", words, label, data=data, half=True)]


def _grid(key: str, document: Document, method: Document, rounds: Any, clients: Any) -> list[Figure]:
    if "grid_accuracy" not in clients:
        return []
    shares, heats = (sorted(map(float, method["hyper"][name])) for name in ("imitations", "temperatures"))
    num = len(shares) * len(heats)
    values = [[None] * num if one is None else one for one in _last(clients["grid_accuracy"])]
    points = list(product(shares, heats))
    taken = [
        None if share is None or heat is None else _place(points, (float(share), float(heat)))
        for share, heat in zip(_last(clients["imitation"]), _last(clients["temperature"]), strict=True)
    ]
    options = {str(EVERYBODY): "all clients, mean"} | {
        str(at): name for at, name in enumerate(document["clients"]["names"])
    }
    controls = f'<div class="controls">{choice("client", "Client", options)}</div>'
    words = (
        "Validation accuracy for each share λ and temperature T of distillation. ★ marks what was chosen: by how many "
        "clients, or by this one."
    )
    data = {"shares": shares, "heats": heats, "values": rounded(values, True), "taken": taken}
    label = "Map of validation accuracy over λ and T."
    return [Figure("grid", f"{key}-grid", "λ × T, per client", words, label, controls, data, half=True)]


def _place(points: list[tuple[float, float]], point: tuple[float, float]) -> int | None:
    return points.index(point) if point in points else None


def _teachers(key: str, document: Document, method: Document, rounds: Any, clients: Any) -> list[Figure]:
    if "teacher_round" not in clients:
        return []
    words = "In which round the global model was best on a client's validation data: that one became its teacher."
    data = {"rounds": _latest(clients["teacher_round"]), "last": max(clients["teacher_round"]["round"])}
    label = "Histogram of the rounds from which clients took their teachers."
    return [Figure("teachers", f"{key}-teachers", "Teachers' rounds", words, label, data=data, half=True)]


def _tracked(key: str, document: Document, method: Document, rounds: Any, clients: Any) -> list[Figure]:
    found = []
    for name, (said, words) in TRACKED.items():
        if name not in clients:
            continue
        series = clients[name]
        values = table(series["values"])
        there = ~np.isnan(values).all(1)
        bands = [np.nanquantile(values[there], share, axis=1) for share in (0.1, 0.5, 0.9)]
        num = values.shape[1]
        drawn = np.unique(np.linspace(0, num - 1, min(num, MOST_LINES)).round().astype(int))
        data = {
            "said": said,
            "round": np.array(series["round"])[there].tolist(),
            "bands": [rounded(band, False) for band in bands],
            "clients": drawn.tolist(),
            "values": rounded(values[there][:, drawn].T, False),
            "latest": rounded(_latest(series), False),
        }
        some = "" if num <= MOST_LINES else f" Thin lines: {len(drawn)} of the {num} clients."
        some = some or " Thin lines: the clients."
        course = f"{words} Thick: the median; band: from the 10th to the 90th percentile.{some}"
        label = f"Lines: {said} of the clients in every round."
        found += [
            Figure(
                "track",
                f"{key}-{name}",
                f"{said[0].upper()}{said[1:]}, round by round",
                course,
                label,
                data=data,
                half=True,
            ),
            Figure(
                "latest",
                f"{key}-{name}-latest",
                f"{said[0].upper()}{said[1:]}, at last",
                "How many clients ended where.",
                f"Histogram of the clients' last {said}.",
                data={"said": said, "values": data["latest"]},
                half=True,
            ),
        ]
    return found


def _confidence(key: str, document: Document, method: Document, rounds: Any, clients: Any) -> list[Figure]:
    if "confidence" not in clients:
        return []
    words = "How much weight the server gives to a client's head, 1/ρ², against how much data it has."
    data = {"values": rounded(_latest(clients["confidence"]), False)}
    label = "Points: confidence of each client against its number of training examples."
    found = [
        Figure("confidence", f"{key}-confidence", "Confidence against local data", words, label, data=data, half=True)
    ]
    if "deviation" in clients and "trace" in clients:
        parts = {name: rounded(_latest(clients[name]), False) for name in ("deviation", "trace")}
        words = "What the confidence is made of: the head's distance from the common one, and its own uncertainty."
        label = "Points: deviation against uncertainty of each client."
        found.append(
            Figure("makeup", f"{key}-makeup", "Deviation and uncertainty", words, label, data=parts, half=True)
        )
    return found


def _clusters(key: str, document: Document, method: Document, rounds: Any, clients: Any) -> list[Figure]:
    members: list[int | None] | None = None
    if "cluster" in rounds:
        members = _last(rounds["cluster"])
    elif "cluster" in clients:
        members = _latest(clients["cluster"])
    elif "stream" in rounds and len(set(_last(rounds["stream"]))) < len(_last(rounds["stream"])):
        members = _last(rounds["stream"])
    if members is None:
        return []
    groups = document["clients"]["groups"]
    known = " Patterns: the true groups, which the method was not told." if groups is not None else ""
    words = f"Which clients ended up together.{known}"
    label = "Bars: number of clients in each cluster."
    data = {"members": members, "groups": groups}
    return [Figure("clusters", f"{key}-clusters", "Clusters", words, label, data=data, half=True)]


def _last(series: Series) -> Any:
    return series["values"][-1]


def _latest(series: Series) -> list[Any]:
    """Each client's last value that is there."""
    found: list[Any] = [None] * len(series["values"][0])
    for values in series["values"]:
        found = [before if now is None else now for before, now in zip(found, values, strict=True)]
    return found
