"""FedAvg (McMahan et al. 2017, arXiv:1602.05629, Algorithm 1).

    client   w_k <- x;  E epochs of w_k <- w_k - eta_l grad F_k(w_k; b)
    server   x <- x + eta_g sum_k p_k (w_k - x),   p_k = n_k / sum n  or  1 / m

The class overrides no hook. ``eta_g`` is the rate of the server optimiser.

Departures: the paper's weights over the cohort, n_k / sum n, are biased if clients differ in size and only some take part.
``weighting="unbiased"`` takes (K / m) n_k / n instead, which does not sum to 1. Local epochs keep the last, shorter batch.

Elsewhere: some implementations average models instead of updates, which is the same only at eta_g = 1. Some take E n_k / B steps or
drop the last batch, so that small clients train less.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedskew.core.algorithm import Algorithm


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    idea: ClassVar[str] = "several local epochs, then the weighted mean of the models"
    changes: ClassVar[str] = "nothing (the reference)"
    cites: ClassVar[tuple[str, ...]] = ("fedavg",)
