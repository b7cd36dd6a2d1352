"""Krum and Multi-Krum (Blanchard et al. 2017, arXiv:1703.02757).

    client   as FedAvg
    server   s_k = sum of ||Delta_k - Delta_j||^2 over the m - f - 2 other updates j that are nearest to Delta_k = w_k - x
             x <- x + eta_g times the mean of the c updates of smallest score (c = 1 is Krum); every client counts the same

f clients may send anything. A round needs m >= 2f + 3 updates, and m >= c + f, so that it need not take any of theirs. Krum takes
central updates. Therefore, under label skew, it ignores the clients that differ. Updates that are not finite are left out before
m is counted. Of equal scores, the client with the smaller id comes first.

Elsewhere: some implementations assume that each score's own distance of 0 sorts first, which is wrong for duplicates. Some weight
Multi-Krum's mean by examples.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedskew.core.algorithm import WEIGHT, Algorithm, Contract
from fedskew.core.errors import require
from fedskew.core.limits import NonNegativeInt, PositiveInt
from fedskew.core.records import Cohort, ServerView
from fedskew.core.trees import Tree, square_distances, weighted_sum


@dataclass(frozen=True, kw_only=True)
class Krum(Algorithm):
    weighting: Literal["uniform"] = "uniform"
    f: NonNegativeInt = 1
    c: PositiveInt = 1

    idea: ClassVar[str] = "take the updates that are nearest to their neighbours"
    changes: ClassVar[str] = "aggregation"
    cites: ClassVar[tuple[str, ...]] = ("krum",)
    ranges: ClassVar[Mapping[str, str]] = {"f": "1 to (m - 3) / 2", "c": "1 to m - f"}
    decides: ClassVar[Mapping[str, str]] = WEIGHT

    def contract(self) -> Contract:
        return Contract(fewest=max(2 * self.f + 3, self.c + self.f))

    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        selected = self.selected(cohort)
        p = cohort.uploads.delta.new_full((self.c,), 1 / self.c)
        return weighted_sum(p, cohort.uploads.delta[selected]), server.state

    def decided(self, server: ServerView, cohort: Cohort) -> Tree:
        p = torch.zeros_like(cohort.info.num_examples)
        return {"weight": p.index_fill(0, self.selected(cohort), 1 / self.c)}

    def selected(self, cohort: Cohort) -> Tensor:
        """The positions (c,) of the updates of smallest score, ascending."""
        finite = cohort.uploads.delta.isfinite().all(1).nonzero()[:, 0]
        rows = cohort.uploads.delta[finite]
        m, needed = len(rows), self.contract().updates_needed(cohort.size)
        require(
            m >= needed, f"krum with f={self.f} and c={self.c} needs {needed} updates in a round, got {m}; lower f or c"
        )
        nearest = square_distances(rows).fill_diagonal_(torch.inf).sort(dim=1).values[:, : m - self.f - 2]
        return finite[nearest.sum(1).argsort(stable=True)[: self.c].sort().values]
