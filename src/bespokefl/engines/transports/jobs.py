"""The jobs of a simulation: some clients train, or are scored.

A job and its answer consist of named values only, so that they can be sent to another process, or machine, as bytes.
"""

from collections.abc import Callable, Sequence

import torch

from bespokefl.core.method import Round, State
from bespokefl.engines.client import ClientSide
from bespokefl.engines.transports.protocol import ScoreRequest, TrainRequest
from bespokefl.engines.transports.wire import Values, pack_message, prefixed, under, unpack_message

TRAIN, SCORE = "train", "score"


def make_job(request: TrainRequest | ScoreRequest, states: Callable[[Sequence[int]], State]) -> Values:
    """The values of the job that a request asks for, with the states of its clients."""
    values: Values = {"cohort": torch.tensor(request.clients)}
    if isinstance(request, ScoreRequest):
        values["final"] = request.final
        values |= {} if request.global_model is None else {"global": request.global_model}
    if request.message is not None:
        values |= {"number": request.round.number, "phase": request.round.phase}
        values |= pack_message(request.message()) | prefixed("state", states(request.clients))
    return values


class ClientJobs:
    """Does jobs with nothing but their own values and the clients' side.

    `make_round` makes a round as clients know it, from its number and phase.
    """

    def __init__(self, side: ClientSide, make_round: Callable[[int, str], Round]) -> None:
        self.side, self.make_round = side, make_round

    def answer(self, what: str, values: Values) -> Values:
        """Do a job; returns its answer."""
        cohort = values["cohort"].tolist()
        return self._train(cohort, values) if what == TRAIN else self._score(cohort, values)

    def _train(self, cohort: list[int], values: Values) -> Values:
        round = self.make_round(values["number"], values["phase"])
        result = self.side.train(cohort, unpack_message(values), under("state", values), round)
        return {
            "broken": result.broken,
            "work": result.work,
            **prefixed("upload", result.upload),
            **prefixed("state", result.state),
            **prefixed("note", result.notes),
        }

    def _score(self, cohort: list[int], values: Values) -> Values:
        final, found = values["final"], Values()
        if "global" in values:
            found |= prefixed("global", self.side.score(cohort, values["global"], final=final))
        if "number" in values:
            message, state = unpack_message(values), under("state", values)
            self.side.task.work.take()
            models = self.side.personal(cohort, message, state, values["number"]).expand(len(cohort))
            work = self.side.task.work.take()
            found |= prefixed("personal", self.side.score(cohort, models, final=final))
            found |= {"models": models, "work": work} if final else {}
        return found | (prefixed("constant", self.side.score_constant(cohort)) if final else {})
