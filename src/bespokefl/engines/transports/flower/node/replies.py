"""Everything that a node sends is checked here, against one description, before anything else sees it.

A reply that does not fit is left out, and the sentence about it names what was wrong. Whether uploads can be used
(finite, of the declared shape and range) is decided by the screening, which is the same in a simulation.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bespokefl.core.client_index import PARTS
from bespokefl.core.rows import Rows
from bespokefl.core.work import SIZE
from bespokefl.engines.evaluation import Scores
from bespokefl.engines.transports.flower.schema import (
    List,
    MalformedError,
    Map,
    Maybe,
    OneOf,
    Real,
    Record,
    Text,
    Whole,
    parse,
)
from bespokefl.engines.transports.protocol import ScoreReply, ScoreRequest, TrainReply, TrainRequest
from bespokefl.engines.transports.wire import Values, under

MAX_EXAMPLES = 1 << 30  # of one client
MAX_CLIENTS = 100_000  # of one node
MAX_FEATURES = 1_000_000
MAX_TEXT = 64 << 20  # characters of a node's description
MAX_SCORES = 500  # kinds of scores
MAX_SENTENCE = 300  # characters of an error that a node reports
MAX_WORK = 1 << 53
SCORE_NAME = re.compile(r"(train|validation|test)_[A-Za-z0-9_.@-]{1,60}")

NAME = Text(1000, shortest=1, name=True)
COUNT = Whole(0, MAX_EXAMPLES)
SUMS, NOT_NEGATIVE = List(Real(), MAX_FEATURES), List(Real(0), MAX_FEATURES)
COLUMN = Record(
    {
        "name": Text(1000),
        "kind": OneOf(("number", "truth", "category", "array", "text", "tokens")),
        "values": List(Text(10_000), MAX_FEATURES),
    }
)
ABOUT = Record(
    {
        "clients": Map(
            NAME,
            Record(
                {"train": Whole(1, MAX_EXAMPLES), "validation": COUNT, "test": COUNT},
                {"group": Maybe(Whole(0, MAX_EXAMPLES))},
            ),
            MAX_CLIENTS,
            least=1,
        ),
        "features": Record(
            {
                "columns": List(COLUMN, MAX_FEATURES, least=1),
                "shape": List(Whole(0, MAX_EXAMPLES), 8, least=1),
                "label": Maybe(Text(1000)),
                "client": Maybe(Text(1000)),
            },
            {
                "reading": Record(
                    {
                        "missing_values": List(Text(1000), 10_000),
                        "as_number": List(Text(1000), MAX_FEATURES),
                        "dates": List(List(Text(1000), 2, least=2), MAX_FEATURES),
                    }
                )
            },
        ),
        "missing": OneOf(("refuse", "mean", "drop")),
        "tokens": Maybe(Whole(1, MAX_EXAMPLES)),
        "sums": Maybe(
            Record({"count": List(Real(0), MAX_FEATURES), "total": SUMS, "squares": List(Real(0), MAX_FEATURES)})
        ),
        "labels": Maybe(List(Text(1000), 100_000, least=1, different=True)),
        "version": Text(50, shortest=1, name=True),
    }
)


def read_introduction(values: Values) -> tuple[str, dict[str, Any]]:
    """A node's name and description; raise MalformedError."""
    name = values.get("node")
    NAME.check(name, "the node's name")
    about: dict[str, Any] = parse(values.get("about"), ABOUT, "its description", MAX_TEXT)
    features, sums = about["features"], about["sums"]
    is_table = features["columns"][0]["kind"] in ("number", "truth", "category")
    if is_table != (sums is not None):
        raise MalformedError("its description must have sums for a table, and for nothing else")
    if is_table:
        width = sum(len(one["values"]) if one["kind"] == "category" else 1 for one in features["columns"])
        if features["shape"] != [width] or any(len(one) != width for one in sums.values()):
            raise MalformedError(f"its description must have {width} sums of each kind, as many as features")
    if (features["columns"][0]["kind"] == "tokens") != (about["tokens"] is not None):
        raise MalformedError("its description must have the number of tokens for tokens, and for nothing else")
    return str(name), about


def error_of(values: Values) -> str | None:
    """The sentence with which a node reports an error, on one line and not too long; None if it reports none."""
    return brief(values["error"]) if "error" in values else None


def brief(sentence: object) -> str:
    """A sentence of a node on one line, without control characters, and not too long."""
    text = "".join(one if one.isprintable() else " " for one in str(sentence)[: 4 * MAX_SENTENCE])
    line = " ".join(text.split())
    return line if len(line) <= MAX_SENTENCE else line[: MAX_SENTENCE - 1] + "…"


def training_replies(request: TrainRequest, values: Values) -> list[TrainReply]:
    """A node's reply, for clients that report and for those that do not; raise MalformedError."""
    broken, upload, clients = values.get("broken"), under("upload", values), request.clients
    reporting = [client in request.reports for client in clients]
    if not isinstance(broken, Tensor) or broken.shape != (len(clients),) or broken.dtype != torch.bool:
        raise MalformedError(f"broken must be a tensor of {len(clients)} truth values")
    for name, value in upload.items():
        has_rows = isinstance(value, Rows) or (isinstance(value, Tensor) and value.dim() > 0)
        if not has_rows or len(value) != sum(reporting):
            raise MalformedError(f"the upload {brief(name)!r} must have {sum(reporting)} rows")
    found = []
    work = _work(values)
    for wanted in (True, False):
        positions = [at for at, one in enumerate(reporting) if one == wanted]
        if positions:
            # uploads that are not finite are rejected by the screening, like all others that cannot be used
            own = [clients[at] for at in positions]
            found.append(TrainReply(own, upload if wanted else {}, {}, broken[positions], work))
            work = None if work is None else work * 0  # of all clients of the node, counted once
    return found


def score_replies(request: ScoreRequest, values: Values) -> list[ScoreReply]:
    """A node's scores, and the clients whose scores it refuses; raise MalformedError."""
    size = len(request.clients)
    if "refused" in values:
        return [ScoreReply(request.clients, None, None, refused=True)]
    personal, globally = (_scores(values, kind, size) for kind in ("score", "common"))
    if personal is None:
        raise MalformedError("the scores are missing")
    constant = _scores(values, "constant", size)  # None from nodes of earlier versions
    hidden = values.get("hidden", torch.zeros(size, dtype=torch.bool))  # earlier versions hide none
    if not isinstance(hidden, Tensor) or hidden.shape != (size,) or hidden.dtype != torch.bool:
        raise MalformedError(f"hidden must be a tensor of {size} truth values")
    shown = (~hidden).nonzero().flatten().tolist()

    def select(scores: Scores | None) -> Scores | None:
        return None if scores is None else {name: value[shown] for name, value in scores.items()}

    clients = [request.clients[at] for at in shown]
    without = [request.clients[at] for at in hidden.nonzero().flatten().tolist()]
    found = [ScoreReply(without, None, None, refused=True)] if without else []
    if not clients:
        return found
    if request.message is None:  # the node scored one model, everybody's
        return [*found, ScoreReply(clients, None, select(personal), constant=select(constant))]
    return [*found, ScoreReply(clients, select(personal), select(globally), _work(values), select(constant))]


def _scores(values: Values, kind: str, size: int) -> Scores | None:
    """Scores of one kind; None if there are none."""
    scores: Mapping[str, Any] = under(kind, values)
    if not scores:
        return None
    missing = [f"{part}_loss" for part in PARTS if f"{part}_loss" not in scores]
    if missing or len(scores) > MAX_SCORES:
        raise MalformedError(f"the scores must have {', '.join(missing)}" if missing else "there are too many scores")
    for name, value in scores.items():
        fits = isinstance(value, Tensor) and value.shape == (size,) and value.dtype != torch.bool
        if not fits or not SCORE_NAME.fullmatch(name):
            raise MalformedError(f"the score {brief(name)!r} must be a tensor of {size} numbers")
    return {name: value.double() for name, value in scores.items()}


def _work(values: Values) -> Tensor | None:
    """The work that a node reports; None if it does not, as nodes of earlier versions."""
    work: Tensor | None = values.get("work")
    if work is None:
        return None
    fits = isinstance(work, Tensor) and work.shape == (SIZE,) and work.dtype == torch.int64
    if not fits or not bool(((work >= 0) & (work <= MAX_WORK)).all()):
        raise MalformedError(f"work must be a tensor of {SIZE} counts")
    return work
