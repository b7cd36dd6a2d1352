"""FedSMOO (Sun et al. 2023, arXiv:2305.11584).

    client   w_k <- x;  each step, on one batch b:
             g = grad F_k(w_k; b),   s^ = rho (g - mu_k - s) / ||g - mu_k - s||,   mu_k <- mu_k + (s^ - s)
             g~ = grad F_k(w_k + s^; b),   w_k <- w_k - eta_l (g~ - lambda_k + (w_k - x) / beta)
             s~_k = mu_k - s^ of the last step,   lambda_k <- lambda_k - (w_k - x) / beta
    server   s <- rho mean_S s~_k / ||mean_S s~_k||
             lambda <- lambda - sum_S (w_k - x) / (beta K),   x <- mean_S w_k - beta lambda

The model takes FedDyn's steps with alpha = 1 / beta. A second dual variable pulls all clients' perturbations towards a common
one, s. mu_k, lambda_k, s and lambda start at 0, and persist over the rounds. mu_k may grow far beyond rho, to about the norm of
grad F_k.

Departures: a vector of norm 0 has the direction 0. Hence s stays 0 if all s~_k are 0. ``weighting="samples"`` weights the three
server means by n_k, as in FedDyn. Weight decay belongs to F_k. Under a codec, lambda_k uses the w_k that the server decodes.

Elsewhere: some implementations send mu_k in place of s~_k, and clip gradients after the corrections. Here nothing is clipped.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedskew.core.algorithm import Algorithm, Contract, GradFn, Solver, Weighting
from fedskew.core.contract import proximal_hazard
from fedskew.core.limits import NonNegativeFloat, PositiveFloat
from fedskew.core.records import Carry, Cohort, ServerView, Upload, View
from fedskew.core.task import Task
from fedskew.core.trees import Tree, unit, weighted_sum


@dataclass(frozen=True, kw_only=True)
class FedSmoo(Algorithm):
    weighting: Weighting = "uniform"
    rho: NonNegativeFloat = 0.1
    beta: PositiveFloat = 10.0

    weighted: ClassVar[bool] = True
    idea: ClassVar[str] = "FedDyn on the model and on its perturbation, so that clients find common flat regions"
    changes: ClassVar[str] = "loss landscape and update path"
    cites: ClassVar[tuple[str, ...]] = ("fedsmoo",)
    ranges: ClassVar[Mapping[str, str]] = {"rho": "0.01, 0.05, 0.1, 0.5", "beta": "10, 100"}
    reduces_to: ClassVar[Mapping[str, str]] = {"rho=0,beta=10": "feddyn:alpha=0.1"}

    def contract(self) -> Contract:
        return Contract(hazard=proximal_hazard("1/beta", 1 / self.beta), codec_loss={"lambda_k": 1 / self.beta})

    def server_init(self, server: ServerView) -> Tree:
        return {"s": torch.zeros_like(server.x), "lambda": torch.zeros_like(server.x)}

    def broadcast(self, server: ServerView) -> Tree:
        return {"s": server.state["s"]}

    def client_init(self, x: Tensor) -> Tree:
        return {"mu_k": torch.zeros_like(x), "lambda_k": torch.zeros_like(x)}

    def local_init(self, task: Task, solver: Solver, view: View) -> tuple[Tensor, Tree]:
        return view.x, {"mu_k": view.state["mu_k"], "s_hat": torch.zeros_like(view.x)}

    def pull(self, view: View, w: Tensor) -> Tensor:
        """Return the correction (P,) that the local problem adds to the gradient: -lambda_k + (w - x) / beta."""
        return (w - view.x) / self.beta - view.state["lambda_k"]

    def local_gradient(self, grad_fn: GradFn, view: View, w: Tensor, scratch: Tree) -> Tensor:
        return grad_fn(w)[0] + self.pull(view, w)

    def direction(self, grad_fn: GradFn, view: View, w: Tensor, scratch: Tree) -> tuple[Tensor, Tree]:
        mu_k, s = scratch["mu_k"], view.extras["s"]
        s_hat = self.rho * unit(grad_fn(w)[0] - mu_k - s)
        g = grad_fn(w + s_hat)[0] + self.pull(view, w)
        return g, {"mu_k": mu_k + (s_hat - s), "s_hat": s_hat}

    def local_final(self, solver: Solver, view: View, carry: Carry, after: Tree) -> tuple[Upload, Tree]:
        delta, mu_k = carry.w - view.x, carry.scratch["mu_k"]
        lambda_k = view.state["lambda_k"] - delta / self.beta
        return Upload(delta, {"s": mu_k - carry.scratch["s_hat"]}, {}), {"mu_k": mu_k, "lambda_k": lambda_k}

    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        s = self.rho * unit(weighted_sum(self.weights(server, cohort), cohort.uploads.extras["s"]))
        moved = weighted_sum(self.shares(server, cohort), cohort.uploads.delta)
        dual = server.state["lambda"] - moved / self.beta
        return self.mean_delta(server, cohort) - self.beta * dual, {"s": s, "lambda": dual}
