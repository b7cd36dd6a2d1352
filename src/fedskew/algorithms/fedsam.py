"""FedSAM (Qu et al. 2022, arXiv:2206.02618).

    client   w_k <- x;  each step, on one batch b:
             g = grad F_k(w_k; b),   epsilon = rho g / ||g||,   g~ = grad F_k(w_k + epsilon; b),   w_k <- w_k - eta_l g~
    server   x <- x + eta_g mean_S (w_k - x)

The norm is over all parameters together. If g is 0, epsilon is 0. With ``rho=0`` a step costs one gradient.

Departures: weight decay belongs to F_k, so it enters g and g~ alike. Local momentum and AdamW take g~ as the gradient. Gradients
are not clipped; FL-Simulator clips them at norm 10.

Elsewhere: some implementations add up to 1e-7 to the norm, which shortens epsilon if gradients are small. Some add weight decay
after the second gradient, at w_k.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedskew.core.algorithm import Algorithm, GradFn, Weighting
from fedskew.core.limits import NonNegativeFloat
from fedskew.core.records import View
from fedskew.core.trees import Tree, unit


@dataclass(frozen=True, kw_only=True)
class FedSam(Algorithm):
    weighting: Weighting = "uniform"
    rho: NonNegativeFloat = 0.1

    idea: ClassVar[str] = "take each local gradient at the nearby point of highest loss, to find flat regions"
    changes: ClassVar[str] = "update path"
    cites: ClassVar[tuple[str, ...]] = ("fedsam",)
    ranges: ClassVar[Mapping[str, str]] = {"rho": "0.01, 0.05, 0.1, 0.5"}
    reduces_to: ClassVar[Mapping[str, str]] = {"rho=0": "fedavg:weighting=uniform"}

    def direction(self, grad_fn: GradFn, view: View, w: Tensor, scratch: Tree) -> tuple[Tensor, Tree]:
        return sharp_gradient(grad_fn, w, self.rho), scratch


def sharp_gradient(grad_fn: GradFn, w: Tensor, rho: float) -> Tensor:
    """Return g~ (P,): the gradient at the point that is ``rho`` away from w in the direction of the gradient."""
    g = grad_fn(w)[0]
    return grad_fn(w + rho * unit(g))[0] if rho else g
