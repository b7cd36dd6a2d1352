"""Trimmed mean by coordinates (Yin et al. 2018, arXiv:1803.01498).

    client   as FedAvg
    server   x <- x + eta_g trim_S (w_k - x):  of the m values of each coordinate, the b = floor(beta m) smallest and the b
             largest are dropped, and the others averaged; every client counts the same

Up to b clients may send anything: each coordinate stays within the range of the others' values. Updates that are not finite are
left out before m is counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from msgspec import Meta
from torch import Tensor

from fedskew.core.algorithm import Algorithm, Contract
from fedskew.core.records import Cohort, ServerView
from fedskew.core.trees import Tree, finite_rows, trimmed_mean


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(Algorithm):
    weighting: Literal["uniform"] = "uniform"
    beta: Annotated[float, Meta(ge=0, lt=0.5)] = 0.1

    idea: ClassVar[str] = "average each coordinate without its extreme values"
    changes: ClassVar[str] = "aggregation"
    cites: ClassVar[tuple[str, ...]] = ("trimmed-mean",)
    ranges: ClassVar[Mapping[str, str]] = {"beta": "0.1, 0.2, 0.3: at least the share of clients that may be broken"}
    reduces_to: ClassVar[Mapping[str, str]] = {"beta=0": "fedavg:weighting=uniform"}

    def contract(self) -> Contract:
        return Contract(fewest=1)

    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        rows = finite_rows(cohort.uploads.delta)
        # 0.29 * 100 is 28.999... in floating point; the intended floor is 29
        return trimmed_mean(rows, int(self.beta * len(rows) + 1e-9)), server.state
