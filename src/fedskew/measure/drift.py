"""How far the clients' local models part in a round. All norms are Euclidean over the trainable parameters, in float64."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.linalg import vector_norm

from fedskew.core.vectors import column_chunks


def drift(deltas: Tensor, num_examples: Tensor) -> dict[str, Tensor]:
    """Measures of one cohort's updates (C, P); local models may stand for updates, since only differences count.

    ``divergence`` ()   mean distance to the *uniform* mean of the local models (failure-modes study, eq. 4)
    ``drift`` ()        mean distance to the *example-weighted* mean (book section on non-IID data, section 3)
    ``relative_drift``  weighted mean square distance over weighted mean square update, in 0..1; 0 if all updates agree
    ``update_norm``     (C,) length of each update
    ``distance``        (C,) distance of each local model to the example-weighted mean
    """
    n = num_examples.double()
    p, equal = n / n.sum(), torch.full_like(n, 1 / len(n))
    zeros = torch.zeros(deltas.shape[0], dtype=torch.float64, device=deltas.device)
    to_uniform, to_weighted, squares = zeros.clone(), zeros.clone(), zeros.clone()
    for part in column_chunks(deltas):
        squares += vector_norm(part, dim=1).square()
        # centred in place at the weighted mean: no further copy of the chunk
        part -= p @ part
        here = vector_norm(part, dim=1).square()
        # from there, where numbers are small, to the uniform mean
        between = equal @ part
        to_uniform += here - 2 * (part @ between) + between.square().sum()
        to_weighted += here
    to_uniform = to_uniform.clamp(min=0)
    total = p @ squares
    return {
        "divergence": to_uniform.sqrt().mean(),
        "drift": to_weighted.sqrt().mean(),
        "relative_drift": torch.where(total == 0, 0.0, (p @ to_weighted) / total),
        "update_norm": squares.sqrt(),
        "distance": to_weighted.sqrt(),
    }
