"""Projection onto the probability simplex, the set of all mixtures of clients."""

import torch
from torch import Tensor


def project_onto_simplex(v: Tensor) -> Tensor:
    """The nearest point to ``v`` (K,) with entries of at least 0 that sum to 1.

    It is max(v - theta, 0). Only one theta gives the sum 1. The r largest entries stay above 0.
    """
    v = v - v.max()  # the projection does not change, and large numbers keep their digits
    u = v.sort(descending=True).values
    count = torch.arange(1, len(v) + 1, device=v.device)
    theta = (u.cumsum(0) - 1) / count
    r = int((u > theta).sum())
    return (v - theta[r - 1]).clamp(min=0)
