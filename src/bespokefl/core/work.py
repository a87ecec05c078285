"""How much a client computes: gradient steps, and gradients of one example.

`Task.gradient` counts what it computes, whoever calls it, so that methods need not count themselves. Counts do not
depend on chunks, workers or transports.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

SIZE = 3  # numbers in `WorkCounter.take`


@dataclass
class WorkCounter:
    """Gradients computed since the last `take`.

    Attributes
    ----------
    steps : int
        Gradients of one client's batch; a step that needs several gradients counts several times.
    gradients : int
        Gradients of one example with respect to the whole model, or to all of it but the head.
    head_gradients : int
        Gradients of one example with respect to the head alone, which cost much less.
    """

    steps: int = 0
    gradients: int = 0
    head_gradients: int = 0

    def add(self, steps: int, examples: int, *, head_only: bool = False) -> None:
        """Count the gradients of this many batches, which have this many examples together."""
        self.steps += steps
        if head_only:
            self.head_gradients += examples
        else:
            self.gradients += examples

    def take(self) -> Tensor:
        """Return steps, gradients and head gradients, (3,), and start again at zero."""
        found = torch.tensor([self.steps, self.gradients, self.head_gradients])
        self.steps = self.gradients = self.head_gradients = 0
        return found
