"""FedProc (Mu et al. 2023, arXiv:2109.12273).

    client   minimise  alpha_t L_gpc + (1 - alpha_t) CE,   alpha_t = 1 - t / T
             L_gpc = -log [ exp(z . c_y / ||c_y||) / sum_j exp(z . c_j / ||c_j||) ],   z the features at w
             then send, for each class, the sum of z at the local model and the number of rows
    server   as FedAvg;  c_j <- sum_k sums_kj / sum_k rows_kj

Prototypes are normalised, features are not. There is no temperature. A class that no client of the cohort has keeps its
prototype. ``alpha`` fixes the weight of L_gpc. By default it falls to 0 over the planned rounds.

Departures: a class without a prototype is left out of the sum over j, and its rows train on CE alone. The same holds for a
prototype at 0, which has no direction. In round 0 this covers every row, as in the paper.

Elsewhere: the authors' code keeps classes without a prototype in the sum, with z . c_j = 0. Under partial
participation it divides the aggregation weights by the rows of all clients, so that they sum to less than 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedskew.core.algorithm import Algorithm, Contract, Solver
from fedskew.core.contract import classes, features
from fedskew.core.limits import Share
from fedskew.core.records import Batch, Carry, Cohort, ServerView, Upload, View
from fedskew.core.task import Task, one_hot
from fedskew.core.trees import Tree


@dataclass(frozen=True, kw_only=True)
class FedProc(Algorithm):
    alpha: Share | None = None

    weighted: ClassVar[bool] = True
    idea: ClassVar[str] = "pull local features towards the class means of all clients, most in early rounds"
    changes: ClassVar[str] = "loss landscape"
    cites: ClassVar[tuple[str, ...]] = ("fedproc",)
    ranges: ClassVar[Mapping[str, str]] = {"alpha": "1 - t / T (by default); 0 to 1"}
    reduces_to: ClassVar[Mapping[str, str]] = {"alpha=0": "fedavg"}

    def contract(self) -> Contract:
        return Contract(needs=(features, classes), planned=self.alpha is None)

    def server_init(self, server: ServerView) -> Tree:
        return {"c": server.x.new_zeros(server.task.num_classes, server.task.num_features)}

    def broadcast(self, server: ServerView) -> Tree:
        alpha = max(0.0, 1 - server.round / server.rounds) if self.alpha is None else self.alpha
        return {"c": server.state["c"], "alpha": server.x.new_tensor(alpha)}

    def objective(self, task: Task, view: View, w: Tensor, batch: Batch) -> Tensor:
        z, logits = task.outputs(w, batch.x)
        c = view.extras["c"]
        seen = c.any(dim=1)
        to_prototypes = torch.where(seen, z @ F.normalize(c, dim=1).T, torch.finfo(z.dtype).min)
        true = one_hot(batch.y, task.num_classes, torch.bool)
        l_gpc = -torch.where(true, to_prototypes.log_softmax(-1), 0).sum(-1)
        alpha = torch.where((true & seen).any(-1), view.extras["alpha"], 0)
        return batch.mean(alpha * l_gpc + (1 - alpha) * task.loss(logits, batch.y))

    def after(self, task: Task, view: View, w: Tensor, batch: Batch) -> Tree:
        z, _ = task.outputs(w, batch.x)
        members = batch.mask[:, None] * one_hot(batch.y, task.num_classes, z.dtype)
        return {"sums": members.T @ z, "rows": members.sum(0)}

    def local_final(self, solver: Solver, view: View, carry: Carry, after: Tree) -> tuple[Upload, Tree]:
        return Upload(carry.w - view.x, after, {}), view.state

    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        sums, rows = (cohort.uploads.extras[name].double().sum(0) for name in ("sums", "rows"))
        mean = (sums / rows.clamp(min=1)[:, None]).to(server.x.dtype)
        c = torch.where(rows[:, None] > 0, mean, server.state["c"])
        return self.mean_delta(server, cohort), {"c": c}
