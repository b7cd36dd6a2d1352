"""SCAFFOLD (Karimireddy et al. 2020, arXiv:1910.06378, Algorithm 1).

    client   y <- x;  y <- y - eta_l (g_k(y) - c_k + c)
             option I    c_k+ <- grad F_k(x), one more pass over the local data
             option II   c_k+ <- c_k - c + (x - y) / (tau_k eta_l)
    server   x <- x + eta_g mean_S (y - x),   c <- c + 1/K sum_S (c_k+ - c_k)

Departures: with momentum, the displacement over tau_k eta_l is no mean of gradients, and option II diverges. Therefore it divides
by ||a||_1 eta_l, where ||a||_1 is the solver's response to a constant gradient, as in FedNova. For plain SGD this equals tau_k
eta_l. ``weighting="samples"`` takes n_k / sum_S n in x and n_k / n in c. Then the fixed point is the optimum of the weighted
objective.

Elsewhere: some implementations start the control variates from a random network. Some use one client's number of steps for all
clients. Some apply the correction after the momentum step. Others make it a linear term of the loss, so that clipping and weight
decay act on it, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.func import grad

from fedskew.core.algorithm import Algorithm, Contract, GradFn, Solver, Weighting
from fedskew.core.contract import linear_solver
from fedskew.core.records import Batch, Carry, Cohort, ServerView, Upload, View
from fedskew.core.task import Task
from fedskew.core.trees import Tree, weighted_sum


@dataclass(frozen=True, kw_only=True)
class Scaffold(Algorithm):
    weighting: Weighting = "uniform"
    option: Literal["I", "II"] = "II"

    weighted: ClassVar[bool] = True
    idea: ClassVar[str] = "control variates correct each local gradient towards the global direction"
    changes: ClassVar[str] = "update path"
    cites: ClassVar[tuple[str, ...]] = ("scaffold",)
    ranges: ClassVar[Mapping[str, str]] = {"option": "II; I costs a pass over the local data in each round"}

    def contract(self) -> Contract:
        return Contract(needs=(linear_solver,))

    def server_init(self, server: ServerView) -> Tree:
        return {"c": torch.zeros_like(server.x)}

    def broadcast(self, server: ServerView) -> Tree:
        return {"c": server.state["c"]}

    def client_init(self, x: Tensor) -> Tree:
        return {"c_k": torch.zeros_like(x)}

    def before(self, task: Task, view: View, batch: Batch) -> Tree:
        if self.option == "II":
            return {}
        return {"g": grad(lambda w: batch.sum(task.loss(task.logits(w, batch.x), batch.y)))(view.x)}

    def local_gradient(self, grad_fn: GradFn, view: View, w: Tensor, scratch: Tree) -> Tensor:
        return grad_fn(w)[0] - view.state["c_k"] + view.extras["c"]

    def local_final(self, solver: Solver, view: View, carry: Carry, after: Tree) -> tuple[Upload, Tree]:
        c, c_k, delta = view.extras["c"], view.state["c_k"], carry.w - view.x
        if self.option == "I":
            c_plus = view.before["g"] / view.info.num_examples + solver.weight_decay * view.x
        else:
            c_plus = c_k - c - delta / (solver.unit_response(carry.steps) * view.lr)
        return Upload(delta, {"c": c_plus - c_k}, {}), {"c_k": c_plus}

    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        dc = weighted_sum(self.shares(server, cohort), cohort.uploads.extras["c"])
        return self.mean_delta(server, cohort), {"c": server.state["c"] + dc}
