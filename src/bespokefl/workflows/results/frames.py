"""Tidy tables of runs: one row per round, or per evaluated round and client; as pandas data frames."""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from bespokefl.core.errors import InputError
from bespokefl.metrics import round_records
from bespokefl.metrics.round_records import Lines

if TYPE_CHECKING:
    from pandas import DataFrame

    from bespokefl.workflows.results.result import Result


def frame(rows: Lines) -> "DataFrame":
    """Return rows as a data frame; raise InputError if pandas is not installed."""
    if find_spec("pandas") is None:
        raise InputError('data frames need pandas, which is not installed; pip install "bespokefl[pandas]".')
    import pandas  # optional, and slow to import

    return pandas.DataFrame(list(rows))


def round_lines(run: "Result") -> list[dict[str, Any]]:
    """Return one dict per round of a run, from round 0: mean scores, and bytes and seconds up to this round."""
    columns = round_records.history(run.rounds, run.about.get("initial"))
    times = columns.pop("model_time") or {}
    columns |= {f"model_time, {system}": values for system, values in times.items()}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def client_round_lines(run: "Result") -> list[dict[str, Any]]:
    """Return one dict per evaluated round and client of a run, with the client's test scores."""
    return [
        {"round": line["round"], "client": client} | {name: line[name][at] for name in line if name != "round"}
        for line in run.client_scores
        for at, client in enumerate(run.names)
    ]


def of_run(key: Mapping[str, Any], lines: Lines) -> Iterator[dict[str, Any]]:
    """Yield lines with the columns that identify their run."""
    yield from ({**key, **line} for line in lines)
