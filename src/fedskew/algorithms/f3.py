"""F3 (Kanaparthy et al. 2023, arXiv:2109.02351): aggregate by fairness on the server's own rows of all groups.

    client   w_k as in FedAvg; may hold a single group, so that no local fairness loss is defined
    server   f_k, a_k: fairness gap and accuracy of w_k on the server's rows
             fair-best              x <- w_k with the smallest f_k
             fair-average           x <- mean of the ceil(alpha m) clients with the smallest f_k
             fair-accuracy-average  the same by beta a_k + (1 - beta) (1 - f_k), largest first

Two classes, two groups: the group is a column of the rows that holds 0 and 1. It is the last column unless ``column`` names
another.

Departures: the paper describes the ranking in words. The formula of the third rule is our interpretation. Of equal scores, the
client with the smaller id ranks first. The paper's fourth rule sends a fairness gradient to the clients: it is the method
``f3-gradient``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedskew.core.algorithm import WEIGHT, Algorithm, Contract
from fedskew.core.contract import sensitive_attribute, server_rows
from fedskew.core.limits import PositiveShare, Share
from fedskew.core.records import Cohort, ServerView
from fedskew.core.rows import accuracy, check_groups, counts, odds, opportunity, parity
from fedskew.core.trees import Tree

Gap = Literal["opportunity", "odds", "parity"]
GAPS = {"opportunity": opportunity, "odds": odds, "parity": parity}


def on_server_rows(server: ServerView, w: Tensor, gap: Gap, column: int) -> tuple[float, float]:
    """Return |gap| and accuracy of the model ``w`` (P,) on the server's rows."""
    assert server.data is not None
    x, y, mask = server.data
    cells = counts(server.task.logits(w, x).argmax(-1), y, x[:, column], mask.double())
    return abs(float(GAPS[gap](cells))), float(accuracy(cells))


@dataclass(frozen=True, kw_only=True)
class F3(Algorithm):
    weighting: Literal["uniform"] = "uniform"
    rule: Literal["fair-best", "fair-average", "fair-accuracy-average"] = "fair-average"
    alpha: PositiveShare = 0.5
    beta: Share = 0.5
    gap: Gap = "opportunity"
    column: int = -1

    idea: ClassVar[str] = "average only the clients whose models are fairest on the server's rows"
    changes: ClassVar[str] = "fairness"
    cites: ClassVar[tuple[str, ...]] = ("f3",)
    ranges: ClassVar[Mapping[str, str]] = {"alpha": "0.1 to 0.9", "beta": "0.25, 0.5, 0.75"}
    reduces_to: ClassVar[Mapping[str, str]] = {"alpha=1.0": "fedavg:weighting=uniform"}
    decides: ClassVar[Mapping[str, str]] = WEIGHT

    def contract(self) -> Contract:
        return Contract(needs=(sensitive_attribute, server_rows))

    def server_init(self, server: ServerView) -> Tree:
        check_groups(server.data, self.column)
        return {}

    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        return cohort.sum(self.of_fairest(server, cohort)), server.state

    def decided(self, server: ServerView, cohort: Cohort) -> Tree:
        return {"weight": self.of_fairest(server, cohort)}

    def of_fairest(self, server: ServerView, cohort: Cohort) -> Tensor:
        """The weights (C,): equal for the clients that rank first, else 0."""
        measured = [on_server_rows(server, server.x + d, self.gap, self.column) for d in cohort.uploads.delta]
        beta = self.beta if self.rule == "fair-accuracy-average" else 0.0
        score = [beta * a + (1 - beta) * (1 - f) for f, a in measured]
        size = 1 if self.rule == "fair-best" else math.ceil(self.alpha * cohort.size - 1e-9)
        best = sorted(range(cohort.size), key=lambda k: -score[k])[:size]
        p = torch.zeros_like(cohort.info.num_examples)
        p[best] = 1 / size
        return p
