"""Projection onto the probability simplex: vectors with entries of at least 0 that sum to 1."""

import torch
from torch import Tensor


def project_onto_simplex(v: Tensor) -> Tensor:
    """Return the point of the simplex nearest to ``v`` (K,).

    It is max(v - theta, 0) for the one theta that gives the sum 1. The r largest entries stay above 0.
    """
    v = v - v.max()  # does not change the result, but avoids rounding errors of large numbers
    u = v.sort(descending=True).values
    count = torch.arange(1, len(v) + 1, device=v.device)
    theta = (u.cumsum(0) - 1) / count
    r = int((u > theta).sum())
    return (v - theta[r - 1]).clamp(min=0)
