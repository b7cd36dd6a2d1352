"""MoFedSAM (Qu et al. 2022, arXiv:2206.02618); without the perturbation, ``rho=0``, FedCM (Xu et al. 2021, arXiv:2106.10874).

    client   w_k <- x;  each step, with FedSAM's gradient g~ at the perturbed model:
             v = beta g~ + (1 - beta) D,   w_k <- w_k - eta_l v
    server   D <- -mean_S (w_k - x) / (tau_k eta_l),   D = 0 in round 0
             x <- x + eta_g mean_S (w_k - x)

D is the mean direction of a step, in the units of a gradient. It uses the rate and the number of steps of the round that computes
it.

Departures: tau_k is each client's own number of steps. With local momentum it is the solver's response ||a||_1 to a constant
gradient, as in FedNova, so that D stays a mean of gradients. In round 0 D is 0, so that the steps are beta times as long.

Elsewhere: some implementations use the first client's number of steps for all clients. In some the sign of D differs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedskew.algorithms.fedsam import FedSam, sharp_gradient
from fedskew.core.algorithm import Algorithm, Contract, GradFn, Solver, Weighting
from fedskew.core.contract import linear_solver
from fedskew.core.limits import NonNegativeFloat, PositiveShare
from fedskew.core.records import Carry, Cohort, ServerView, Upload, View
from fedskew.core.trees import Tree, weighted_sum


@dataclass(frozen=True, kw_only=True)
class MoFedSam(Algorithm):
    weighting: Weighting = "uniform"
    rho: NonNegativeFloat = 0.1
    beta: PositiveShare = 0.1

    weighted: ClassVar[bool] = True
    idea: ClassVar[str] = "FedSAM's gradient, mixed with the previous round's mean direction"
    changes: ClassVar[str] = FedSam.changes
    cites: ClassVar[tuple[str, ...]] = ("fedsam", "fedcm")
    ranges: ClassVar[Mapping[str, str]] = {**FedSam.ranges, "beta": "0.05, 0.1, 0.5"}
    reduces_to: ClassVar[Mapping[str, str]] = {"beta=1": "fedsam", "beta=1,rho=0": "fedavg:weighting=uniform"}

    def contract(self) -> Contract:
        return Contract(needs=(linear_solver,))

    def server_init(self, server: ServerView) -> Tree:
        return {"D": torch.zeros_like(server.x)}

    def broadcast(self, server: ServerView) -> Tree:
        return {"D": server.state["D"]}

    def direction(self, grad_fn: GradFn, view: View, w: Tensor, scratch: Tree) -> tuple[Tensor, Tree]:
        return self.beta * sharp_gradient(grad_fn, w, self.rho) + (1 - self.beta) * view.extras["D"], scratch

    def local_final(self, solver: Solver, view: View, carry: Carry, after: Tree) -> tuple[Upload, Tree]:
        length = solver.unit_response(carry.steps) * view.lr
        return Upload(carry.w - view.x, {}, {"length": length}), view.state

    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        per_step = self.weights(server, cohort) / cohort.uploads.report["length"]
        return self.mean_delta(server, cohort), {"D": -weighted_sum(per_step, cohort.uploads.delta)}
