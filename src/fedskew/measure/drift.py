"""Distances between the local models of a round. Norms are Euclidean over the trainable parameters, in float64."""

import torch
from torch import Tensor

from fedskew.core.vectors import Dispersion, dispersion


def drift(deltas: Tensor, num_examples: Tensor) -> dict[str, Tensor]:
    """Measure one cohort's updates (C, P), weighted by ``num_examples`` (C,). See `drift_measures`."""
    n = num_examples.double()
    return drift_measures(dispersion(n / n.sum(), deltas))


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
