"""FedDyn (Acar et al. 2021, arXiv:2111.04263, Algorithm 1).

    client   theta_k ~ argmin F_k(theta) - <g_k, theta> + alpha/2 ||theta - x||^2
             g_k <- g_k - alpha (theta_k - x)
    server   h <- h - alpha sum_S (theta_k - x) / K,   x <- mean_S theta_k - h / alpha

Departures: the paper's objective weights clients uniformly. With ``weighting="samples"`` the server takes n_k / n in h and n_k /
sum_S n in x, with one alpha for all clients. The local work, a few epochs, replaces the exact minimisation. Under a codec, g_k
uses the theta_k that the server decodes, so that h stays the mean of the g_k. Gradients are not clipped. The authors' code clips
them at norm 10, including the linear term. The default alpha of 0.1 is the paper's largest: it keeps local models nearest to x.
On CIFAR the paper takes 0.01.

Elsewhere: the authors' code scales alpha by each client's rows and keeps the means uniform. This has the same fixed
point; doing both has not. The code stores the sum of the displacements, -g_k / alpha, and reports the mean of the local models
besides x.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedskew.core.algorithm import Algorithm, Contract, Solver, Weighting, local_loss
from fedskew.core.contract import proximal_hazard
from fedskew.core.limits import PositiveFloat
from fedskew.core.records import Batch, Carry, Cohort, ServerView, Upload, View
from fedskew.core.task import Task
from fedskew.core.trees import Tree, weighted_sum


@dataclass(frozen=True, kw_only=True)
class FedDyn(Algorithm):
    weighting: Weighting = "uniform"
    alpha: PositiveFloat = 0.1

    weighted: ClassVar[bool] = True
    idea: ClassVar[str] = "a linear term per client makes local and global stationary points agree"
    changes: ClassVar[str] = "loss landscape and update path"
    cites: ClassVar[tuple[str, ...]] = ("feddyn",)
    ranges: ClassVar[Mapping[str, str]] = {"alpha": "0.001, 0.01, 0.1"}

    def contract(self) -> Contract:
        return Contract(hazard=proximal_hazard("alpha", self.alpha), codec_loss={"g_k": self.alpha})

    def server_init(self, server: ServerView) -> Tree:
        return {"h": torch.zeros_like(server.x)}

    def client_init(self, x: Tensor) -> Tree:
        return {"g_k": torch.zeros_like(x)}

    def objective(self, task: Task, view: View, w: Tensor, batch: Batch) -> Tensor:
        f_k = local_loss(task, w, batch)
        return f_k - (view.state["g_k"] * w).sum() + self.alpha / 2 * (w - view.x).square().sum()

    def local_final(self, solver: Solver, view: View, carry: Carry, after: Tree) -> tuple[Upload, Tree]:
        delta = carry.w - view.x
        return Upload(delta, {}, {}), {"g_k": view.state["g_k"] - self.alpha * delta}

    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        h = server.state["h"] - self.alpha * weighted_sum(self.shares(server, cohort), cohort.uploads.delta)
        return self.mean_delta(server, cohort) - h / self.alpha, {"h": h}
