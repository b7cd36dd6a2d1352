"""How far local steps can carry clients from where the same steps on the whole objective lead, and how far they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Gradients = Callable[[Tensor], Tensor]


class Bound(NamedTuple):
    """After 1, 2, ... steps; lengths are Euclidean."""

    apart: Tensor  # (E,) mean distance of a client to the same number of steps on the whole objective
    farthest: Tensor  # (E,) the largest
    drift: Tensor  # (E,) mean distance of the clients to their mean
    smooth: Tensor  # (E,) bound on `farthest`: zeta / L ((1 + rate L)^E - 1)
    convex: Tensor  # (E,) its bound for convex objectives and a rate of at most 2 / L: E rate zeta
    zeta: Tensor  # () the largest distance of a client's gradient to the whole one, along all clients' paths


def bound(local: Gradients, whole: Gradients, w: Tensor, clients: int, rate: float, steps: int, smooth: float) -> Bound:
    """Full-batch steps from ``w`` (P,), measured and bounded (book section on non-IID data, exercise 14.4.3).

    ``local`` maps the models (K, P) of K clients to the gradient of each client's objective at its own, ``whole`` any models
    (M, P) to the gradient of the whole objective at each. ``smooth`` is L: the whole gradient is L-Lipschitz.

    With a_e a client's distance after e steps, a_(e+1) <= (1 + rate L) a_e + rate zeta; where the objective is convex and the rate
    at most 2 / L, a gradient step brings no two models apart, and a_(e+1) <= a_e + rate zeta.
    """
    own, reference = w.expand(clients, -1), w[None]
    zeta = w.new_zeros(())
    apart, farthest, drift = [], [], []
    for _ in range(steps):
        gradients = local(own)
        zeta = torch.maximum(zeta, (gradients - whole(own)).norm(dim=1).max())
        own, reference = own - rate * gradients, reference - rate * whole(reference)
        distances = (own - reference).norm(dim=1)
        apart.append(distances.mean())
        farthest.append(distances.max())
        drift.append((own - own.mean(0)).norm(dim=1).mean())
    count = torch.arange(1, steps + 1, dtype=w.dtype, device=w.device)
    return Bound(
        apart=torch.stack(apart),
        farthest=torch.stack(farthest),
        drift=torch.stack(drift),
        smooth=zeta / smooth * torch.expm1(count * torch.log1p(w.new_tensor(rate * smooth))),
        convex=count * rate * zeta,
        zeta=zeta,
    )
