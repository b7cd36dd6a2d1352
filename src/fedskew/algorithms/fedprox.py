"""FedProx (Li et al. 2020, arXiv:1812.06127).

    client   approximately minimise  F_k(w) + mu/2 ||w - x||^2
    server   as FedAvg

``step="explicit"`` adds the term to the objective, as the paper's code does: SGD with g + mu (w - x). It diverges once eta (mu +
lambda_max) > 2. ``step="implicit"`` solves the proximal part exactly in each step, w <- (w - eta g + eta mu x) / (1 + eta mu).
This is stable wherever plain SGD is.

Departures: the implicit step is ours. Partial work of slow clients is a system setting for every method (``system.stragglers``).
Clients are weighted by their rows, as in the paper's code. The paper's analysis draws clients in proportion to their rows and
averages uniformly; no selection here draws so.

Elsewhere: some frameworks only send mu and leave the term to the client. Some show a norm that is not squared. An adaptive local
solver such as AdamW normalises the term together with the loss, so that mu loses its scale.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedskew.core.algorithm import Algorithm, Contract, GradFn, local_loss
from fedskew.core.contract import linear_solver, proximal_hazard
from fedskew.core.limits import NonNegativeFloat
from fedskew.core.records import Batch, View
from fedskew.core.task import Task
from fedskew.core.trees import Tree


@dataclass(frozen=True, kw_only=True)
class FedProx(Algorithm):
    mu: NonNegativeFloat = 0.1
    step: Literal["explicit", "implicit"] = "explicit"

    idea: ClassVar[str] = "penalise the distance to the round's global model"
    changes: ClassVar[str] = "loss landscape"
    cites: ClassVar[tuple[str, ...]] = ("fedprox",)
    ranges: ClassVar[Mapping[str, str]] = {"mu": "0.001, 0.01, 0.1, 1"}
    reduces_to: ClassVar[Mapping[str, str]] = {"mu=0": "fedavg", "mu=0,step=implicit": "fedavg"}

    def contract(self) -> Contract:
        if self.step == "implicit":
            return Contract(needs=(linear_solver,))
        return Contract(hazard=proximal_hazard("mu", self.mu))

    def objective(self, task: Task, view: View, w: Tensor, batch: Batch) -> Tensor:
        return local_loss(task, w, batch) + self.mu / 2 * (w - view.x).square().sum()

    def direction(self, grad_fn: GradFn, view: View, w: Tensor, scratch: Tree) -> tuple[Tensor, Tree]:
        g = grad_fn(w)[0]
        return g / (1 + view.lr * self.mu) if self.step == "implicit" else g, scratch
