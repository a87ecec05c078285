"""Limits the share of one client in means that are weighted by numbers of examples, which clients state themselves."""

import torch
from torch import Tensor


def limit_shares(examples: Tensor, most: float) -> Tensor:
    """Numbers of examples of which none is more than a share of their sum: the largest are lowered to a common number.

    If there are too few clients for that share, all numbers are equal.
    """
    numbers = examples.double()
    descending = numbers.sort(descending=True).values
    if descending[0] <= most * descending.sum():
        return numbers
    for count in range(1, len(numbers)):
        if count * most >= 1:
            break
        limit = most * descending[count:].sum() / (1 - most * count)  # = most · (count · limit + the others)
        if limit >= descending[count]:
            return numbers.clamp(max=float(limit))
    return torch.full_like(numbers, float(descending[-1]))
