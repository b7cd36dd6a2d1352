"""Further measures of one cohort's updates (C, P): cosines by layer, and signal-to-noise ratio."""

import torch
from torch import Tensor
from torch.linalg import vector_norm

from fedskew.core.vectors import column_chunks


def cosines(deltas: Tensor, layers: dict[str, list[slice]]) -> dict[str, Tensor]:
    """Return each layer's mean cosine (-1..1) over all pairs of clients (From IID to Non-IID, Figure 13).

    ``layers`` maps a layer to the slices of its parameters. NaN if fewer than two clients moved the layer. The sum of all
    cosines is the square length of the sum of the unit vectors, so two passes over the updates are enough.
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
    """Return the signal-to-noise ratio (1 - R) / R, where R is the relative drift.

    It is the mean update's squared length over the mean squared distance to it: 0 if the updates cancel, infinite if all agree.
    """
    return (1 - relative_drift) / relative_drift
