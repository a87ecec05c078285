"""User-Centric FL (Mestoukirdi et al., IEEE TMLCN 2023).

algorithm       the method: a survey of gradients, then training with weights from their similarity
parallel        the variant in which every client trains every stream's model (13)
similarity      gradients and their noise (10), the collaboration matrix W (9), fewer models than clients (Algorithm 2)
"""

from bespokefl.methods.ucfl.algorithm import UCFL
from bespokefl.methods.ucfl.parallel import UCFLParallel
from bespokefl.methods.ucfl.similarity import choose_streams, collaboration, gradient_noise

__all__ = ["UCFL", "UCFLParallel", "choose_streams", "collaboration", "gradient_noise"]
