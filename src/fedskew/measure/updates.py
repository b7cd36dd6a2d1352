"""Measures of one cohort's updates: distances between local models, cosines by layer, signal-to-noise ratio."""

import torch
from torch import Tensor
from torch.linalg import vector_norm

from fedskew.core.trees import Dispersion, column_chunks


def drift_measures(seen: Dispersion) -> dict[str, Tensor]:
    """Compute the measures from the moments of the updates. The weights are the clients' shares of the examples.

    ``divergence`` ()   mean distance to the *uniform* mean of the local models (Goel, Srivastava, Shah, eq. 4)
    ``drift`` ()        mean distance to the *example-weighted* mean ('Non-IID Data', section 3)
    ``relative_drift``  weighted mean square distance over weighted mean square update, in 0..1; 0 if all updates agree
    ``update_norm``     (C,) length of each update
    ``distance``        (C,) distance of each local model to the example-weighted mean
    ``alignment``       (C,) cosine of each update with the example-weighted mean update, -1..1; 0 if either is 0
    """
    total = seen.weights @ seen.squares
    to_weighted, to_uniform = seen.to_weighted, seen.to_uniform
    # the law of cosines saves another pass over the updates
    product = (seen.squares + seen.of_mean - to_weighted) / 2
    lengths = (seen.squares * seen.of_mean).sqrt()
    return {
        "divergence": to_uniform.sqrt().mean(),
        "drift": to_weighted.sqrt().mean(),
        "relative_drift": torch.where(total == 0, 0.0, (seen.weights @ to_weighted) / total),
        "update_norm": seen.squares.sqrt(),
        "distance": to_weighted.sqrt(),
        "alignment": torch.where(lengths == 0, 0.0, product / lengths).clamp(-1, 1),
    }


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
