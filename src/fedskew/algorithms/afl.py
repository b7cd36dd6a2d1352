"""AFL, agnostic federated learning (Mohri, Sivek, Suresh 2019, arXiv:1902.00146): min_w max_lambda sum_k lambda_k F_k(w).

    client   g_k <- grad F_k(x),  F_k(x) on all local data
    server   x <- x - gamma_w sum_k lambda_k g_k,   lambda <- Pi( lambda + gamma (F_1(x), ..., F_K(x)) )

Pi projects onto the simplex. Both lines use the old x and lambda. gamma_w is the client's rate times the server's. lambda starts
at n_k / n, or at 1 / K with ``weighting="uniform"``. The last iterate circles around the saddle point and may not converge. The
theory covers the means of x and lambda over the rounds. The state keeps them as mean_x and mean_lambda.

Departures: the paper takes one local step a round (``local steps = 1``). With more steps, sum_k lambda_k (w_k - x) replaces the
gradient step. The paper asks every client. With a cohort of m clients this method takes the paper's stochastic form: it
multiplies lambda_k and F_k by K / m for the cohort, and sets them to 0 for all others. This is unbiased. The evaluation measures
the last x, from which training continues, and not mean_x.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedskew.core.algorithm import Algorithm, Solver
from fedskew.core.limits import NonNegativeFloat
from fedskew.core.records import Batch, Carry, Cohort, ServerView, Upload, View
from fedskew.core.task import Task
from fedskew.core.trees import Tree, project_onto_simplex


@dataclass(frozen=True, kw_only=True)
class Afl(Algorithm):
    weighting: Literal["samples", "uniform"] = "samples"
    gamma: NonNegativeFloat = 0.1

    weighted: ClassVar[bool] = True
    idea: ClassVar[str] = "train for the worst mixture of the clients: those with large losses gain weight"
    changes: ClassVar[str] = "fairness"
    cites: ClassVar[tuple[str, ...]] = ("afl",)
    ranges: ClassVar[dict[str, str]] = {"gamma": "0.0001 to 1"}
    reduces_to: ClassVar[dict[str, str]] = {
        "gamma=0": "fedavg:weighting=unbiased",
        "gamma=0,weighting=uniform": "fedavg:weighting=uniform",
    }

    decides: ClassVar[dict[str, str]] = {"client/weight": "lambda: the client's weight in the mixture, which sums to 1"}

    def server_init(self, server: ServerView) -> Tree:
        n = server.clients.num_examples.double()
        mixture = n / n.sum() if self.weighting == "samples" else torch.full_like(n, 1 / len(n))
        zero = torch.zeros_like
        return {"lambda": mixture, "mean_lambda": zero(mixture), "mean_x": zero(server.x), "steps": zero(mixture[0])}

    def before(self, task: Task, view: View, batch: Batch) -> Tree:
        return {"loss": batch.sum(task.loss(task.logits(view.x, batch.x), batch.y))}

    def local_final(self, solver: Solver, view: View, carry: Carry, after: Tree) -> tuple[Upload, Tree]:
        return Upload(carry.w - view.x, {}, {"F": view.before["loss"] / view.info.num_examples}), view.state

    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        state, members, scale = server.state, cohort.info.index, server.num_clients / cohort.size
        t = state["steps"] + 1  # rounds without clients take no step and do not count in the means
        f = torch.zeros_like(state["lambda"])
        f[members] = cohort.uploads.report["F"].double() * scale
        return cohort.sum(state["lambda"][members] * scale), {
            "lambda": project_onto_simplex(state["lambda"] + self.gamma * f),
            "mean_lambda": state["mean_lambda"] + (state["lambda"] - state["mean_lambda"]) / t,
            "mean_x": state["mean_x"] + (server.x - state["mean_x"]) / t,
            "steps": t,
        }

    def decided(self, server: ServerView, cohort: Cohort) -> Tree:
        return {"weight": server.state["lambda"][cohort.info.index]}
