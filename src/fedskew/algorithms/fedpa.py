"""FedPA (Al-Shedivat et al. 2021, arXiv:2010.05273).

    client   SGD from x; after a burn-in, l samples x_1 ... x_l, each the mean of a window of iterates, with the mean x_bar
             Sigma = rho_l I + (1 - rho_l) S,   rho_l = 1 / (1 + (l - 1) rho),   S the samples' covariance
             send  Delta = Sigma^-1 (x_bar - x)
    server   x <- x + eta_g sum_k p_k Delta_k;   FedAvg during the first ``burn_in_rounds``

Let the centred samples be the rows of X (l, P). Then Sigma = rho_l (I + rho X'X), and the inverse needs l x l numbers only:
Delta = (1 + (l - 1) rho) [d - rho X' (I + rho X X')^-1 X d],   d = x_bar - x.

Departures: the paper gives the number of steps of a window. Here the first share ``burn_in`` of a client's steps is burn-in, and
l windows of nearly equal length divide the rest. With 5 epochs and the defaults each window is one epoch, as in the paper. If
fewer than l steps are left, every step is a sample, and l is their number. ``burn_in_rounds`` counts rounds without clients, too.
The paper's server has rate 0.5 and momentum 0.9 (``--server momentum:lr=0.5,beta=0.9``). The default here is rate 1 without
momentum, as for every other method, so that a comparison shows the effect of Delta alone.

Elsewhere: the authors' code adds one sample after the other in O(l^2 P), and gets the same Delta.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from msgspec import Meta
from torch import Tensor

from fedskew.core.algorithm import Algorithm, Contract, Solver
from fedskew.core.contract import sends_local_models
from fedskew.core.limits import NonNegativeFloat, NonNegativeInt, PositiveInt
from fedskew.core.records import Carry, ServerView, Upload, View
from fedskew.core.task import Task
from fedskew.core.trees import Tree


@dataclass(frozen=True, kw_only=True)
class FedPa(Algorithm):
    rho: NonNegativeFloat = 0.01
    samples: PositiveInt = 4
    burn_in: Annotated[float, Meta(ge=0, le=0.99)] = 0.2
    burn_in_rounds: NonNegativeInt = 0

    idea: ClassVar[str] = (
        "average local posteriors: an update counts more in directions where the local path hardly varies"
    )
    changes: ClassVar[str] = "update path"
    cites: ClassVar[tuple[str, ...]] = ("fedpa",)
    ranges: ClassVar[Mapping[str, str]] = {
        "rho": "0, 0.0001 to 0.1",
        "samples": "epochs after the burn-in",
        "burn_in": "one epoch of 5",
        "burn_in_rounds": "a quarter of the rounds",
    }

    def contract(self) -> Contract:
        return Contract(hazard=self.overshoot, needs=(sends_local_models,))

    def overshoot(self, lr: float) -> str:
        gain = 1 + (self.samples - 1) * self.rho
        if gain < 2:
            return ""
        return (
            f"with samples={self.samples} and rho={self.rho:g} updates are up to {gain:g} times as long, and from 2 on may "
            f"overshoot; set the server optimiser's lr to {1 / gain:.2g}, or rho below {1 / (self.samples - 1):.2g}"
        )

    def broadcast(self, server: ServerView) -> Tree:
        if not self.burn_in_rounds:
            return {}
        return {"sampling": server.x.new_tensor(float(server.round >= self.burn_in_rounds))}

    def local_init(self, task: Task, solver: Solver, view: View) -> tuple[Tensor, Tree]:
        sums = view.x.new_zeros(self.samples, len(view.x))
        return view.x, {"sums": sums, "counts": sums.new_zeros(self.samples)}

    def after_step(self, solver: Solver, view: View, carry: Carry) -> Tree:
        # in float64, where 0.29 x 100 is an integer to 1e-9
        burnt = torch.floor(view.steps.double() * self.burn_in + 1e-9)
        window = torch.floor((carry.steps - burnt - 1) * self.samples / (view.steps - burnt))
        here = (torch.arange(self.samples, device=view.x.device) == window).to(view.x.dtype)
        sums = carry.scratch["sums"] + here[:, None] * (carry.w - view.x)
        return {"sums": sums, "counts": carry.scratch["counts"] + here}

    def local_final(self, solver: Solver, view: View, carry: Carry, after: Tree) -> tuple[Upload, Tree]:
        sums, counts = carry.scratch["sums"], carry.scratch["counts"]
        drawn = counts.clamp(max=1)
        ell = drawn.sum()
        samples = sums / counts.clamp(min=1)[:, None]  # minus x; 0 for windows without a sample
        d = samples.sum(0) / ell
        X = drawn[:, None] * (samples - d)
        inner = torch.eye(self.samples, dtype=X.dtype, device=X.device) + self.rho * (X @ X.T)
        # solve_ex never raises: the round itself reports an update that is not finite
        delta = (1 + (ell - 1) * self.rho) * (d - self.rho * torch.linalg.solve_ex(inner, X @ d)[0] @ X)
        if self.burn_in_rounds:
            delta = torch.where(view.extras["sampling"] > 0, delta, carry.w - view.x)
        return Upload(delta, {}, {}), view.state
