"""What every run leaves, simulated or deployed: the server's state, scores per client, and what was noted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from bespokefl.core.method import State
from bespokefl.core.rows import Rows
from bespokefl.engines.evaluation import Scores
from bespokefl.engines.federation import Federation
from bespokefl.engines.traffic import Traffic


@dataclass
class Outcome:
    """A run's end. Scores are per client, in the order of `Data.names`."""

    server: State
    global_rows: Rows | None
    kept_rows: Rows | None  # the common model after each round, where that was asked for
    personal: Scores
    globally: Scores | None
    history: list[dict[str, Any]]
    lost: dict[str, dict[str, int]]  # by client: why and how often its upload did not count
    uploaded: dict[str, int]  # by client: uploads that have left it, whether they counted or not
    by_client: set[str]  # names in the history with a place for every client on each axis
    client_notes: list[dict[str, Any]]
    communication: Traffic
    seconds_per_round: float
    rounds_done: int
    rounds_planned: int

    @classmethod
    def of(
        cls,
        federation: Federation,
        personal: Scores,
        globally: Scores | None,
        *,
        seconds: Sequence[float],
        planned: int,
        **own: Any,
    ) -> Self:
        """What this federation has come to. seconds: of every round; own: what only this engine leaves."""
        return cls(
            server=federation.server,
            global_rows=federation.method.global_model(federation.server),
            kept_rows=Rows.cat(federation.kept) if federation.kept else None,
            personal=personal,
            globally=globally,
            history=federation.history,
            lost={client: dict(reasons) for client, reasons in sorted(federation.lost.items())},
            uploaded=dict(sorted(federation.uploaded.items())),
            by_client=federation.by_client,
            client_notes=federation.client_notes,
            communication=federation.communication,
            seconds_per_round=sum(seconds) / max(1, len(seconds)),
            rounds_done=len(seconds),
            rounds_planned=planned,
            **own,
        )
