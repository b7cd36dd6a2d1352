"""FedNova (Wang et al. 2020, arXiv:2007.07481).

    client   tau_k local steps; the displacement is w_k - x = -eta_l G_k a_k, with G_k the gradients of the steps
    server   x <- x + eta_g tau_eff sum_k p_k (w_k - x) / ||a_k||_1,   tau_eff = sum_k p_k ||a_k||_1 / sum_k p_k

Departures: ||a_k||_1 is the sum of a_k: the solver's displacement over -eta_l along the constant gradient 1. For SGD with
momentum it has a closed form. With the proximal term (``mu``) the linear recursion runs beside the training. Sum and norm agree
while all entries of a_k are positive. Otherwise only the sum makes equal gradients give equal steps. The paper's server momentum
is the server optimiser ``momentum``. The published tau_eff = sum_k p_k tau_k counts steps (``tau_eff="steps"``). Ours makes equal
clients take FedAvg's step under every solver. For plain SGD both are the same.

Elsewhere: the authors' code counts steps if mu is not 0, and its proximal gradient leaks into the momentum buffer.
Division by the number of steps is right for plain SGD only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedskew.core.algorithm import Algorithm, Contract, Solver, local_loss
from fedskew.core.contract import linear_solver, one_rate, proximal_hazard
from fedskew.core.limits import NonNegativeFloat
from fedskew.core.records import Batch, Carry, Cohort, ServerView, Upload, View
from fedskew.core.task import Task
from fedskew.core.trees import Tree, weighted_sum


@dataclass(frozen=True, kw_only=True)
class FedNova(Algorithm):
    mu: NonNegativeFloat = 0.0
    tau_eff: Literal["response", "steps"] = "response"

    weighted: ClassVar[bool] = True
    idea: ClassVar[str] = "divide each update by its effective number of local steps"
    changes: ClassVar[str] = "aggregation"
    cites: ClassVar[tuple[str, ...]] = ("fednova",)
    ranges: ClassVar[Mapping[str, str]] = {"mu": "0; 0.0005, 0.001, 0.005, 0.01"}

    def contract(self) -> Contract:
        return Contract(needs=(linear_solver, one_rate), hazard=proximal_hazard("mu", self.mu))

    def local_init(self, task: Task, solver: Solver, view: View) -> tuple[Tensor, Tree]:
        zero = view.x.new_zeros(())
        return view.x, {"probe": zero, "momentum": zero} if self.mu else {}

    def objective(self, task: Task, view: View, w: Tensor, batch: Batch) -> Tensor:
        f_k = local_loss(task, w, batch)
        return f_k + self.mu / 2 * (w - view.x).square().sum() if self.mu else f_k

    def after_step(self, solver: Solver, view: View, carry: Carry) -> Tree:
        if not self.mu:
            return carry.scratch
        probe = carry.scratch["probe"]
        probe, momentum = solver.respond(1 + self.mu * probe, carry.scratch["momentum"], probe, view.lr)
        return {"probe": probe, "momentum": momentum}

    def local_final(self, solver: Solver, view: View, carry: Carry, after: Tree) -> tuple[Upload, Tree]:
        a = -carry.scratch["probe"] / view.lr if self.mu else solver.unit_response(carry.steps)
        report = {"a": a} if self.tau_eff == "response" else {"a": a, "tau": carry.steps}
        return Upload(carry.w - view.x, {}, report), view.state

    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        p, report = self.weights(server, cohort), cohort.uploads.report
        a = report["a"]
        tau_eff = (p * (a if self.tau_eff == "response" else report["tau"])).sum() / p.sum()
        return tau_eff * weighted_sum(p / a, cohort.uploads.delta), server.state
