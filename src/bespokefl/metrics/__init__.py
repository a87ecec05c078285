"""How good a run is, for each client and between clients: arrays in, numbers out."""

from bespokefl.metrics.spread import worst, worst_decile
from bespokefl.metrics.summary import summarize

__all__ = ["summarize", "worst", "worst_decile"]
