"""IFCA (Ghosh, Chung, Yin, Ramchandran 2020, arXiv:2006.04088, Algorithm 1).

    client   j_k <- argmin_j F_k(theta_j) over all its rows, the first of equals;  tau_k local steps from theta_{j_k} to w_k
    server   theta_j <- mean of the w_k with j_k = j; without such a client theta_j stays
             gradients:  theta_j <- theta_j + 1/m sum of the w_k - theta_j with j_k = j

The global model is theta_1: test accuracy measures this cluster's model alone. A client uses the model of its best cluster.

Departures: theta_1 starts as the initial model, so that one cluster is FedAvg. The others start at a random distance from it,
about ``spread`` times its norm. If the initial model is 0, the distance is ``spread`` times the root of the number of parameters.
The paper restarts from several random draws. An upload is w_k - theta_{j_k}: drift and update norms show how far clients move,
not how far the clusters are apart. ``weighting="samples"`` weights clients by n_k. ``averaging="gradients"`` is the paper's
gradient averaging if clients take one plain step on all their rows. If they take more steps, their sum replaces the gradient. The
paper's lower layers that all clusters share are left out. ``mu`` is ours: FedProx inside each cluster, F_k(w) + mu/2 ||w -
theta_{j_k}||^2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedskew.core.algorithm import Algorithm, Contract, GradFn, Solver
from fedskew.core.contract import one_global_model, proximal_hazard
from fedskew.core.limits import NonNegativeFloat, PositiveInt
from fedskew.core.records import Batch, Carry, Cohort, ServerView, Upload, View
from fedskew.core.seeding import torch_stream
from fedskew.core.task import Task
from fedskew.core.trees import Tree, weighted_sum


@dataclass(frozen=True, kw_only=True)
class Ifca(Algorithm):
    weighting: Literal["samples", "uniform"] = "uniform"
    k: PositiveInt = 2
    spread: NonNegativeFloat = 0.5
    averaging: Literal["models", "gradients"] = "models"
    mu: NonNegativeFloat | None = None

    weighted: ClassVar[bool] = True
    idea: ClassVar[str] = "several cluster models; each client trains the one that fits its data best"
    changes: ClassVar[str] = "personalisation"
    cites: ClassVar[tuple[str, ...]] = ("ifca",)
    ranges: ClassVar[Mapping[str, str]] = {"k": "2 to 4, several seeds"}
    reduces_to: ClassVar[Mapping[str, str]] = {
        "k=1": "fedavg:weighting=uniform",
        "k=1,weighting=samples": "fedavg",
        "k=1,weighting=samples,mu=0.1": "fedprox:mu=0.1",
    }

    decides: ClassVar[Mapping[str, str]] = {"client/cluster": "the cluster whose model it trained, from 0"}

    def contract(self) -> Contract:
        return Contract(needs=(one_global_model,), hazard=proximal_hazard("mu", self.mu or 0.0))

    def server_init(self, server: ServerView) -> Tree:
        x = server.x
        random = torch.randn(self.k - 1, len(x), generator=torch_stream(server.seed, "clusters"), dtype=torch.float64)
        size = x.double().square().mean().sqrt()
        size = torch.where(size > 0, size, 1.0)
        return {"others": x + (self.spread * size * random.to(x.device)).to(x.dtype)}

    def broadcast(self, server: ServerView) -> Tree:
        return {"others": server.state["others"]}

    def theta(self, view: View) -> Tensor:
        """Return all cluster models, (k, P)."""
        return torch.cat([view.x[None], view.extras["others"]])

    def before(self, task: Task, view: View, batch: Batch) -> Tree:
        losses = [batch.sum(task.loss(task.logits(theta_j, batch.x), batch.y)) for theta_j in self.theta(view)]
        return {"losses": torch.stack(losses)}

    def cluster(self, view: View) -> Tensor:
        """Return j_k (), the client's cluster, counted from 0."""
        best = view.before["losses"] == view.before["losses"].min()
        return (best.long().cumsum(0) == 0).sum().clamp(max=self.k - 1)

    def personal(self, view: View) -> Tensor:
        return self.theta(view).index_select(0, self.cluster(view)[None])[0]

    def local_init(self, task: Task, solver: Solver, view: View) -> tuple[Tensor, Tree]:
        theta_j = self.personal(view)
        return theta_j, {"theta_j": theta_j} if self.mu else {}

    def local_gradient(self, grad_fn: GradFn, view: View, w: Tensor, scratch: Tree) -> Tensor:
        g = grad_fn(w)[0]
        return g + self.mu * (w - scratch["theta_j"]) if self.mu else g

    def local_final(self, solver: Solver, view: View, carry: Carry, after: Tree) -> tuple[Upload, Tree]:
        report = {"cluster": self.cluster(view).to(carry.w.dtype)}
        return Upload(carry.w - self.personal(view), {}, report), view.state

    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        p, cluster = self.weights(server, cohort), cohort.uploads.report["cluster"]
        deltas = []
        for j in range(self.k):
            weights_in_cluster = p * (cluster == j)
            total = weights_in_cluster.sum() if self.averaging == "models" else p.sum()
            deltas.append(weighted_sum(weights_in_cluster / torch.where(total > 0, total, 1.0), cohort.uploads.delta))
        return deltas[0], {"others": server.state["others"] + torch.stack(deltas)[1:]}
