"""More about one cohort's updates (C, P): agreement by layer, signal to noise."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.linalg import vector_norm

from fedskew.core.vectors import column_chunks


def cosines(deltas: Tensor, layers: dict[str, list[slice]]) -> dict[str, Tensor]:
    """Mean cosine over all pairs of clients, in each layer (From IID to Non-IID, Figure 13), weight and bias as one vector.

    -1..1; NaN where fewer than two clients moved the layer. It is exact at the cost of two passes over the updates, however many
    clients there are: the sum of all cosines is the square length of the sum of the unit vectors.
    """
    result = {}
    for name, places in layers.items():
        parts = [deltas[:, place] for place in places]
        squares = deltas.new_zeros(len(deltas), dtype=torch.float64)
        for part in parts:
            for chunk in column_chunks(part):
                squares += vector_norm(chunk, dim=1).square()
        moved = squares > 0
        inverse = torch.where(moved, squares.rsqrt(), 0.0)
        total = deltas.new_zeros((), dtype=torch.float64)
        for part in parts:
            for chunk in column_chunks(part):
                total += (inverse @ chunk).square().sum()
        count = moved.sum()
        pairs = (count * (count - 1)).double()
        result[name] = torch.where(pairs > 0, (total - count) / pairs, torch.nan)
    return result


def signal_to_noise(relative_drift: Tensor) -> Tensor:
    """Square length of the mean update over the mean square distance to it: (1 - R) / R of the relative drift R.

    0 where the updates cancel, infinite where they agree.
    """
    return (1 - relative_drift) / relative_drift
