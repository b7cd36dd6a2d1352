"""FedProx (Li et al. 2020, arXiv:1812.06127).

    client   approximately minimise  F_k(w) + mu/2 ||w - x||^2
    server   as FedAvg

``step="explicit"`` adds the term to the objective, as the paper's code does: SGD with g + mu (w - x). It diverges once eta (mu +
lambda_max) > 2. ``step="implicit"`` solves the proximal part exactly in each step, w <- (w - eta g + eta mu x) / (1 + eta mu).
This is stable wherever plain SGD is.

Departures: the implicit step is ours. Partial work of slow clients is a system setting for every method (``system.stragglers``).
Clients are weighted by their rows, as in the paper's code. The paper's analysis draws clients in proportion to their rows and
averages uniformly; no selection here draws so.

``mu_step`` is the paper's own rule for mu (appendix): mu rises by it when the training loss rises, and falls by it, not below 0,
after the loss has fallen five rounds in a row; the count then begins again. Departure: the loss of a round is the weighted mean of
its clients' losses at the model that they receive, so mu moves one round later than with a server that has all rows.

Elsewhere: some frameworks only send mu and leave the term to the client. Some show a norm that is not squared. An adaptive local
solver such as AdamW normalises the term together with the loss, so that mu loses its scale.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedskew.core.algorithm import Algorithm, Contract, GradFn, Solver, local_loss
from fedskew.core.contract import linear_solver, proximal_hazard
from fedskew.core.limits import NonNegativeFloat, PositiveFloat
from fedskew.core.records import Batch, Carry, Cohort, ServerView, Upload, View
from fedskew.core.task import Task
from fedskew.core.trees import Tree

FALLS = 5
"""Number of falls of the loss in a row after which mu falls."""


@dataclass(frozen=True, kw_only=True)
class FedProx(Algorithm):
    mu: NonNegativeFloat = 0.1
    step: Literal["explicit", "implicit"] = "explicit"
    mu_step: PositiveFloat | None = None

    weighted: ClassVar[bool] = True
    idea: ClassVar[str] = "penalise the distance to the round's global model"
    changes: ClassVar[str] = "loss landscape"
    cites: ClassVar[tuple[str, ...]] = ("fedprox",)
    ranges: ClassVar[Mapping[str, str]] = {"mu": "0.001, 0.01, 0.1, 1"}
    reduces_to: ClassVar[Mapping[str, str]] = {"mu=0": "fedavg", "mu=0,step=implicit": "fedavg"}
    decides: ClassVar[Mapping[str, str]] = {"round/mu": "strength of the proximal term that follows the loss (mu_step)"}

    def contract(self) -> Contract:
        unused = ("before",) if self.mu_step is None else ()
        if self.step == "implicit":
            return Contract(needs=(linear_solver,), unused=unused)
        return Contract(hazard=proximal_hazard("mu", self.mu), unused=unused)

    def server_init(self, server: ServerView) -> Tree:
        if self.mu_step is None:
            return {}
        zero = server.x.new_zeros((), dtype=torch.float64)
        return {"mu": zero + self.mu, "loss": zero + torch.nan, "falls": zero}  # no loss so far neither rises nor falls

    def broadcast(self, server: ServerView) -> Tree:
        return {} if self.mu_step is None else {"mu": server.state["mu"].to(server.x.dtype)}

    def strength(self, view: View) -> float | Tensor:
        """Return mu, or mu () as the server sends it."""
        return self.mu if self.mu_step is None else view.extras["mu"]

    def before(self, task: Task, view: View, batch: Batch) -> Tree:
        return {"loss": batch.sum(task.loss(task.logits(view.x, batch.x), batch.y))}

    def objective(self, task: Task, view: View, w: Tensor, batch: Batch) -> Tensor:
        return local_loss(task, w, batch) + self.strength(view) / 2 * (w - view.x).square().sum()

    def direction(self, grad_fn: GradFn, view: View, w: Tensor, scratch: Tree) -> tuple[Tensor, Tree]:
        g = grad_fn(w)[0]
        return g / (1 + view.lr * self.strength(view)) if self.step == "implicit" else g, scratch

    def local_final(self, solver: Solver, view: View, carry: Carry, after: Tree) -> tuple[Upload, Tree]:
        report = {} if self.mu_step is None else {"F": view.before["loss"] / view.info.num_examples}
        return Upload(carry.w - view.x, {}, report), view.state

    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        if self.mu_step is None:
            return self.mean_delta(server, cohort), server.state
        p, last = self.weights(server, cohort).double(), server.state["loss"]
        loss = (p * cohort.uploads.report["F"].double()).sum() / p.sum()
        falls = torch.where(loss < last, server.state["falls"] + 1, 0.0)
        step = (loss > last).double() - (falls == FALLS).double()
        mu = (server.state["mu"] + self.mu_step * step).clamp(min=0)
        return self.mean_delta(server, cohort), {"mu": mu, "loss": loss, "falls": falls * (falls < FALLS)}

    def decided(self, server: ServerView, cohort: Cohort) -> Tree:
        return {"mu": server.state.get("mu", server.x.new_full((), torch.nan))}
