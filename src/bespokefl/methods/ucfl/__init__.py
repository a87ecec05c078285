"""User-Centric FL (Mestoukirdi et al., IEEE TMLCN 2023).

algorithm       the method: a survey of gradients, then training with weights from their similarity
parallel        the variant in which every client trains every stream's model (13)
survey          each client's gradient and its noise (10)
similarity      the collaboration matrix W (9)
streams         fewer models than clients, by k-means on the rows of W (Algorithm 2)
"""

from bespokefl.methods.ucfl.algorithm import UCFL
from bespokefl.methods.ucfl.parallel import UCFLParallel
from bespokefl.methods.ucfl.similarity import collaboration
from bespokefl.methods.ucfl.streams import choose_streams
from bespokefl.methods.ucfl.survey import gradient_noise

__all__ = ["UCFL", "UCFLParallel", "choose_streams", "collaboration", "gradient_noise"]
