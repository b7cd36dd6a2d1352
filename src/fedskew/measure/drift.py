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
    p, sums = n / n.sum(), torch.stack([torch.ones_like(n), n])
    zeros = torch.zeros(deltas.shape[0], dtype=torch.float64, device=deltas.device)
    to_uniform, to_weighted, squares = zeros.clone(), zeros.clone(), zeros.clone()
    for part in column_chunks(deltas):
        uniform, weighted = sums @ part / sums.sum(1, keepdim=True)
        squares += vector_norm(part, dim=1).square()
        # centred in place, first at the uniform mean, from there at the weighted one: no further copy of the chunk
        part -= uniform
        to_uniform += vector_norm(part, dim=1).square()
        part -= weighted - uniform
        to_weighted += vector_norm(part, dim=1).square()
    total = p @ squares
    return {
        "divergence": to_uniform.sqrt().mean(),
        "drift": to_weighted.sqrt().mean(),
        "relative_drift": torch.where(total == 0, 0.0, (p @ to_weighted) / total),
        "update_norm": squares.sqrt(),
        "distance": to_weighted.sqrt(),
    }
