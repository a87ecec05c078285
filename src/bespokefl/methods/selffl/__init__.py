"""Self-FL (Chen et al., NeurIPS 2022).

algorithm       the method: Algorithm 1, with Algorithm 2 (`augmented`) and clusters (G.4) as options
uncertainty     what follows from the variances within and between clients: steps (8), weights (10), (11), clusters
"""

from bespokefl.methods.selffl.algorithm import SelfFL
from bespokefl.methods.selffl.uncertainty import local_steps, ranked, sums_of_others, wanted_steps

__all__ = ["SelfFL", "local_steps", "ranked", "sums_of_others", "wanted_steps"]
