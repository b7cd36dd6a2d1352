"""F3 with a fairness gradient (Kanaparthy et al. 2023, arXiv:2109.02351).

    server   sends x and g_fair = grad of gap(x)^2 on its own rows of all groups,
             gap: the equal-opportunity difference with probabilities in the place of predictions
    client   w <- w - eta_l (g_k + lam g_fair)
    server   as FedAvg

Two classes, two groups: the group is a column of the rows that holds 0 and 1. It is the last column unless ``column`` names
another.

Departures: the paper does not define a differentiable fairness loss. The square of the soft gap is our choice.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedskew.core.algorithm import Algorithm, Contract, GradFn
from fedskew.core.contract import sensitive_attribute, server_rows
from fedskew.core.limits import NonNegativeFloat
from fedskew.core.records import ServerView, View
from fedskew.core.rows import check_groups
from fedskew.core.trees import Tree


def soft_gap(server: ServerView, w: Tensor, column: int) -> Tensor:
    """Return the equal-opportunity difference () with probabilities in place of predictions."""
    assert server.data is not None
    x, y, mask = server.data
    chance = torch.softmax(server.task.logits(w, x), -1)[:, 1]
    group, positive = x[:, column], mask * y
    first, second = (chance * positive * g for g in (1 - group, group))
    return first.sum() / (positive * (1 - group)).sum() - second.sum() / (positive * group).sum()


@dataclass(frozen=True, kw_only=True)
class F3Gradient(Algorithm):
    lam: NonNegativeFloat = 1.0
    column: int = -1

    idea: ClassVar[str] = "clients add the gradient of the global model's fairness gap on the server's rows"
    changes: ClassVar[str] = "update path"
    cites: ClassVar[tuple[str, ...]] = ("f3",)
    reduces_to: ClassVar[Mapping[str, str]] = {"lam=0": "fedavg"}

    def contract(self) -> Contract:
        return Contract(needs=(sensitive_attribute, server_rows))

    def server_init(self, server: ServerView) -> Tree:
        check_groups(server.data, self.column)
        return {}

    def broadcast(self, server: ServerView) -> Tree:
        return {"g_fair": torch.func.grad(lambda w: soft_gap(server, w, self.column).square())(server.x)}

    def local_gradient(self, grad_fn: GradFn, view: View, w: Tensor, scratch: Tree) -> Tensor:
        return grad_fn(w)[0] + self.lam * view.extras["g_fair"]
