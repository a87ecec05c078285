"""Self-FL (Chen et al., NeurIPS 2022).

algorithm       the method: Algorithm 1, with Algorithm 2 (`augmented`) and clusters (G.4) as options
uncertainty     what follows from the variances within and between clients: steps (8) and weights (10), (11)
convergence     local training until convergence, for Algorithm 2
clusters        models and variances of clusters of clients (G.4)
"""

from bespokefl.methods.selffl.algorithm import SelfFL
from bespokefl.methods.selffl.clusters import ranked
from bespokefl.methods.selffl.uncertainty import local_steps, sums_of_others, wanted_steps

__all__ = ["SelfFL", "local_steps", "ranked", "sums_of_others", "wanted_steps"]
