"""How far the clients' local models part in a round. All norms are Euclidean over the trainable parameters, in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from fedskew.core.vectors import Spread, spread


def drift(deltas: Tensor, num_examples: Tensor) -> dict[str, Tensor]:
    """Measures of one cohort's updates (C, P); local models may stand for updates, since only differences count."""
    n = num_examples.double()
    return of_spread(spread(n / n.sum(), deltas))


def of_spread(seen: Spread) -> dict[str, Tensor]:
    """Measures of updates that were looked at with the clients' shares of the examples as weights.

    ``divergence`` ()   mean distance to the *uniform* mean of the local models (failure-modes study, eq. 4)
    ``drift`` ()        mean distance to the *example-weighted* mean (book section on non-IID data, section 3)
    ``relative_drift``  weighted mean square distance over weighted mean square update, in 0..1; 0 if all updates agree
    ``update_norm``     (C,) length of each update
    ``distance``        (C,) distance of each local model to the example-weighted mean
    ``alignment``       (C,) cosine of each update with the example-weighted mean update, -1..1; 0 if either is 0
    """
    total = seen.weights @ seen.squares
    to_weighted, to_uniform = seen.to_weighted, seen.to_uniform
    # the angle at the origin of a triangle whose three sides are known: no further look at the updates
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
