"""How good a run is, for each client and between clients: arrays in, numbers out.

Values are lists, NumPy arrays or torch tensors with one value per client, (M,), or per seed and client, (S, M). A
client without a value has NaN and is left out. A figure that is undefined is None.

classification          macro F1, precision and recall
client_values           values of clients as arrays
communication           models sent per round, and the time this takes in three network systems
detection               false accepts relative to a baseline at the same rate of misses
differential_privacy    the privacy loss ε of clipped and noised uploads
fairness                how evenly values or gains are spread over clients
fairness_choice         which of several methods is fairest
improvement             gain of each client over the better of FedAvg and Local
mixed_model             the mean over seeds and clients, with an error that counts both as random
metric                  scores by name: their titles, and whether higher is better
round_records           the rounds of a run in columns
significance            how methods compare with the best; paired tests and bootstrap intervals
spread                  mean, deviation, worst client and means over a tenth of the clients
verdict                 the best and the fairest of several methods, with a sentence
work                    how much each run computes
"""

from bespokefl.metrics import (
    classification,
    communication,
    detection,
    differential_privacy,
    fairness,
    improvement,
    mixed_model,
    significance,
    spread,
    verdict,
)
from bespokefl.metrics.spread import standard_error, summarize, worst, worst_decile

__all__ = [
    "classification",
    "communication",
    "detection",
    "differential_privacy",
    "fairness",
    "improvement",
    "mixed_model",
    "significance",
    "spread",
    "standard_error",
    "summarize",
    "verdict",
    "worst",
    "worst_decile",
]
