"""How good a run is, for each client and between clients: arrays in, numbers out."""

from bespokefl.metrics import (
    classification,
    communication,
    detection,
    fairness,
    improvement,
    significance,
    spread,
    verdict,
)
from bespokefl.metrics.spread import worst, worst_decile
from bespokefl.metrics.summary import standard_error, summarize

__all__ = [
    "classification",
    "communication",
    "detection",
    "fairness",
    "improvement",
    "significance",
    "spread",
    "standard_error",
    "summarize",
    "verdict",
    "worst",
    "worst_decile",
]
