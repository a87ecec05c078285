"""The numbers of every figure as rows of a CSV file; scores are fractions, as in all files."""

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

from bespokefl.report.figures import FAIRNESS_MEASURES, Figure

Row = dict[str, Any]
Numbers = Mapping[str, Any]  # of `page_numbers`, as fractions
FigureRows = Iterator[Row]


def figure_rows(figure: Figure, numbers: Numbers, curves: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a figure; `curves` are the scores of all clients over the rounds, by method."""
    if figure.kind == "convergence":
        return list(_convergence(curves, numbers["clients"]))
    return list(ROWS_OF[figure.kind](figure.data, numbers))


def _curves(data: Numbers, numbers: Numbers) -> FigureRows:
    score = numbers["followed"]["score"]
    for method in (one for one in numbers["methods"] if one["curve"]):
        curve = method["curve"]
        for at, number in enumerate(curve["round"]):
            row = {"method": method["name"], "round": number, score: curve["mean"][at], "sem": curve["sem"][at]}
            times = zip(numbers["systems"], curve["time"], strict=True)
            row |= {f"model_time, {name}": None if time is None else time[at] for name, time in times}
            yield row | {"bytes": curve["bytes"][at]}


def _convergence(curves: Mapping[str, Any], clients: list[str]) -> FigureRows:
    for method, found in curves.items():
        for number, values in zip(found["round"], found["values"], strict=True):
            for client, value in zip(clients, values, strict=True):
                yield {"method": method, "client": client, "round": number, found["score"]: value}


def _scores(data: Numbers, numbers: Numbers) -> FigureRows:
    reference = numbers["methods"][data["reference"]] if "reference" in data else None
    for method in numbers["methods"]:
        for at, client in enumerate(numbers["clients"]):
            row = {"method": method["name"], "client": client, "training_examples": numbers["sizes"][at]}
            row |= {numbers["score"]: method["scores"][at]}
            yield row if reference is None else row | {"with_" + reference["name"]: reference["scores"][at]}


def _gains(data: Numbers, numbers: Numbers) -> FigureRows:
    for method in (one for one in numbers["methods"] if one["gains"] is not None):
        for client, gain in zip(numbers["clients"], method["gains"], strict=True):
            yield {"method": method["name"], "client": client, "gain": gain}


def _fairness(data: Numbers, numbers: Numbers) -> FigureRows:
    for method in (one for one in numbers["methods"] if one["gains"] is not None):
        for measure, value in zip(FAIRNESS_MEASURES, method["fair"], strict=True):
            yield {"method": method["name"], "measure": measure, "value": value}


def _map(data: Numbers, numbers: Numbers) -> FigureRows:
    names = [numbers["clients"][at] for at in data["order"]]
    for (a, client), (b, other) in product(enumerate(names), repeat=2):
        yield {"client": client, "learns_from": other, "weight": data["weights"][a][b] / 1e4}


def _silhouette(data: Numbers, numbers: Numbers) -> FigureRows:
    for at, value in enumerate(data["values"], start=1):
        yield {data["noun"]: at, "silhouette": value, "chosen": at == data["chosen"]}


def _grid(data: Numbers, numbers: Numbers) -> FigureRows:
    points = list(product(data["shares"], data["temperatures"]))
    for client, values, chosen in zip(numbers["clients"], data["values"], data["chosen"], strict=True):
        for at, (share, temperature) in enumerate(points):
            value = None if values[at] is None else round(values[at] / 100, 6)
            row = {"client": client, "imitation": share, "temperature": temperature}
            yield row | {"validation_accuracy": value, "chosen": at == chosen}


def _track(data: Numbers, numbers: Numbers) -> FigureRows:
    for at, values in zip(data["clients"], data["values"], strict=True):
        for number, value in zip(data["round"], values, strict=True):
            yield {"client": numbers["clients"][at], "round": number, data["name"]: value}


def _per_client(**columns: str) -> Callable[[Numbers, Numbers], FigureRows]:
    """Return the rows of a figure that has one value per client in each of these columns, by their keys."""

    def rows(data: Numbers, numbers: Numbers) -> FigureRows:
        for at, client in enumerate(numbers["clients"]):
            values = {name: data[key][at] for key, name in columns.items() if data.get(key) is not None}
            yield {"client": client, "training_examples": numbers["sizes"][at], **values}

    return rows


def _latest(data: Numbers, numbers: Numbers) -> FigureRows:
    return _per_client(values=data["name"])(data, numbers)


ROWS_OF: dict[str, Callable[[Numbers, Numbers], FigureRows]] = {
    "curves": _curves,
    "scatter": _scores,
    "size": _scores,
    "histogram": _scores,
    "density": _gains,
    "fairness": _fairness,
    "heat": _map,
    "silhouette": _silhouette,
    "grid": _grid,
    "teachers": _per_client(rounds="teacher_round"),
    "track": _track,
    "latest": _latest,
    "confidence": _per_client(values="confidence"),
    "makeup": _per_client(deviation="deviation", trace="uncertainty"),
    "clusters": _per_client(members="cluster", groups="true_group"),
}
