"""The tables of a report as tidy CSV files: methods, clients and hyper-parameters, with scores as fractions."""

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from bespokefl.report.document import finished_runs
from bespokefl.report.export.text_tables import state
from bespokefl.report.page import Contents

Row = dict[str, Any]


def csv_text(rows: Sequence[Row], found: Contents) -> str:
    """Return rows as CSV; those of unfinished and untuned comparisons have a column that says so."""
    note = state(found).strip(" .").lower()
    text = io.StringIO(newline="")
    columns = dict.fromkeys(name for row in rows for name in row) | ({"note": None} if note else {})
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows({**row, **({"note": note} if note else {})} for row in rows)
    return text.getvalue()


def csv_tables(found: Contents) -> dict[str, list[Row]]:
    """Return the rows of each table by its name."""
    return {"methods": _methods(found), "clients": _clients(found), "hyperparameters": _hyper(found)}


def _methods(found: Contents) -> list[Row]:
    document, rows = found.document, []
    score = document["score"]
    for rank, method in enumerate(found.drawn, start=1):
        figures = method["figures"]
        scores, work = figures[score], figures.get("work") or {}
        gain, measures = figures.get("gain") or {}, (figures.get("fairness") or {}).get("improved") or {}
        ends = {"interval": scores["interval"], "difference": figures.get("difference")}
        rows.append(
            {
                "rank": None if method.get("constant") else rank,
                "method": method["name"],
                "score": score,
                **{name: scores.get(name) for name in ("mean", "sem", "std", "worst", "worst_decile")},
                **{
                    f"{name}_{end}": (both or (None, None))[k]
                    for name, both in ends.items()
                    for k, end in enumerate(("low", "high"))
                },
                "p_value": figures.get("p_value"),
                "p_adjusted": figures.get("adjusted"),
                "relation": figures.get("relation"),
                "better_off_percent": gain.get("improved_share"),
                "worse_off_percent": gain.get("decreased_share"),
                **{name: measures.get(name) for name in ("jain", "cosine_similarity", "entropy", "average_variance")},
                **{name: work.get(name) for name in ("steps", "gradients", "head_gradients")},
                **{name: figures.get(name) for name in ("up_bytes", "down_bytes", "seconds")},
                "tuned": None if method.get("constant") else bool(method.get("tuned")),
                "seeds": None if method.get("constant") else len(finished_runs(method)),
            }
        )
    return rows


def _clients(found: Contents) -> list[Row]:
    clients, rows = found.document["clients"], []
    for method in found.drawn:
        for run in finished_runs(method):
            for at, name in enumerate(clients["names"]):
                row = {"method": method["name"], "seed": run.get("seed"), "client": name}
                row |= {f"{part}_examples": clients[part][at] for part in ("train", "validation", "test")}
                row |= {} if clients["groups"] is None else {"group": clients["groups"][at]}
                row |= {score: values[at] for score, values in run["personal"].items()}
                rows.append(row | {"gain": None if run.get("gain") is None else run["gain"][at]})
            if method.get("constant"):
                break  # it is the same with every seed
    return rows


def _hyper(found: Contents) -> list[Row]:
    methods = found.document["methods"][:1] if found.single else found.document["methods"]
    return [
        {
            "method": one["method"] if found.single else one["name"],
            "name": name,
            "value": value if isinstance(value, str) else json.dumps(value),
            "tuned": name in (one["tuned"] or {}).get("chosen", {}),
            "on_edge": name in ((one["tuned"] or {}).get("edge") or ()),
        }
        for one in methods
        for name, value in {**one["hyper"], **(one["tuned"] or {}).get("chosen", {})}.items()
    ]
