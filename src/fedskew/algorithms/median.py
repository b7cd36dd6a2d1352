"""Median by coordinates (Yin et al. 2018, arXiv:1803.01498).

    client   as FedAvg
    server   x <- x + eta_g med_S (w_k - x), each coordinate by itself; of an even number, the mean of the two middle values

Fewer than half of the clients may send arbitrary updates. Under label skew the median removes what only a minority of the clients
contributes, such as a class that only they hold. Updates that are not finite are left out.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedskew.core.algorithm import Algorithm, Contract
from fedskew.core.records import Cohort, ServerView
from fedskew.core.trees import Tree, finite_rows, trimmed_mean


@dataclass(frozen=True, kw_only=True)
class Median(Algorithm):
    weighting: Literal["uniform"] = "uniform"

    idea: ClassVar[str] = "the middle value of each coordinate"
    changes: ClassVar[str] = "aggregation"
    cites: ClassVar[tuple[str, ...]] = ("trimmed-mean",)

    def contract(self) -> Contract:
        return Contract(fewest=1)

    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        rows = finite_rows(cohort.uploads.delta)
        return trimmed_mean(rows, (len(rows) - 1) // 2), server.state
