"""DualMetric-Adaptive FL (Gupta, Jorvekar 2025): FedProx whose mu is each client's own and follows two accuracies.

    server   D_global <- change of the model's accuracy on the server's data;  mean <- mean accuracy of the clients
    client   D_k <- change of the received model's accuracy on the local data;  lead_k <- that accuracy - mean
             mu_k <- clip( mu_k f_intra(D_k, D_global) f_inter(lead_k), mu_min, mu_max )
             approximately minimise  F_k(w) + mu_k/2 ||w - x||^2
    server   as FedAvg

The factors are `intra` and `inter`. With ``measured="updated"``, the report's equation, D_k, lead_k and mean are of the clients'
models after their last steps, else of the received model, as in its code. Departures: the bounds, and that mu_k moves once the
client has two accuracies, are from its code. The server has rows of its own in place of the test set.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedskew.core.algorithm import MU, Algorithm, Contract, GradFn, Solver
from fedskew.core.contract import classes, proximal_hazard, server_rows
from fedskew.core.errors import require
from fedskew.core.limits import NonNegativeFloat, NonNegativeOrInf
from fedskew.core.records import Batch, Carry, Cohort, Info, ServerView, Upload, View
from fedskew.core.task import Task, accuracy, score
from fedskew.core.trees import Tree


def intra(d_local: Tensor, d_global: Tensor) -> Tensor:
    """Return the factor for a client's change in accuracy, given the global change."""
    falls, rises, f = d_local < -0.03, d_local > 0.05, torch.ones_like(d_local)
    f = torch.where(falls & (d_global <= 0), 1.005, f)
    f = torch.where(falls & (d_global > 0.05), 0.95, f)
    f = torch.where(rises & (d_global >= 0), 0.995, f)
    return torch.where(rises & (d_global < -0.03), 1.05, f)


def inter(lead: Tensor) -> Tensor:
    """Return the factor for ``lead``: a client's accuracy minus the mean accuracy of the clients."""
    f = torch.where(lead < -0.05, 0.85, torch.ones_like(lead))
    f = torch.where((lead > -0.05) & (lead < -0.02), 0.95, f)
    f = torch.where((lead > 0.02) & (lead < 0.05), 1.05, f)
    return torch.where(lead > 0.05, 1.15, f)


def difference(a: Tensor, b: Tensor) -> Tensor:
    """Return a - b of two shares of rows without rounding errors, so that 3/20 - 2/20 is exactly 0.05, the threshold."""
    return torch.round(a - b, decimals=12)


@dataclass(frozen=True, kw_only=True)
class DualMetric(Algorithm):
    mu: NonNegativeFloat = 0.01
    mu_min: NonNegativeFloat = 0.001
    mu_max: NonNegativeOrInf = 0.1
    measured: Literal["updated"] | None = None

    weighted: ClassVar[bool] = True
    idea: ClassVar[str] = "a proximal strength for each client that follows its own and the global accuracy"
    changes: ClassVar[str] = "loss landscape and fairness"
    cites: ClassVar[tuple[str, ...]] = ("dualmetric",)
    reduces_to: ClassVar[dict[str, str]] = {"mu=0.05,mu_min=0.05,mu_max=0.05": "fedprox:mu=0.05"}
    decides: ClassVar[dict[str, str]] = MU | {"client/rule": "that changed mu: 1 intra, 2 inter, 3 both, 0 neither"}

    def __post_init__(self) -> None:
        require(self.mu_min <= self.mu <= self.mu_max, "mu must be between mu_min and mu_max")

    def contract(self) -> Contract:
        unused = ("before",) if self.measured else ("after",)
        return Contract(needs=(server_rows, classes), hazard=proximal_hazard("mu_max", self.mu_max), unused=unused)

    def server_init(self, server: ServerView) -> Tree:
        zero = server.x.new_zeros((), dtype=torch.float64)
        return dict.fromkeys(("accuracy", "d_global", "mean", "aggregated"), zero)

    def client_init(self, x: Tensor) -> Tree:
        never = x.new_full((), -1.0, dtype=torch.float64)  # below 0: no accuracy of an aggregated model so far
        return {"mu": x.new_full((), self.mu), "accuracy": never} | ({"earlier": never} if self.measured else {})

    def before(self, task: Task, view: View, batch: Batch) -> Tree:
        return {"right": score(task, view.x, batch)["accuracy"]}

    def after(self, task: Task, view: View, w: Tensor, batch: Batch) -> Tree:
        return {"right": score(task, w, batch)["accuracy"]}

    def answer(self, view: View) -> Tree:
        return {"accuracy": view.before["right"].double() / view.info.num_examples.double()} if view.before else {}

    def convene(self, server: ServerView, candidates: Info, answers: Tree) -> tuple[Tree, Tensor]:
        state = server.state | ({"mean": answers["accuracy"].mean()} if answers else {})
        if server.data and bool(state["aggregated"]):  # before that no client has an earlier accuracy to compare
            now = accuracy(server.task, server.x, server.data)
            state |= {"accuracy": now, "d_global": difference(now, server.state["accuracy"])}
        return state, candidates.index

    def broadcast(self, server: ServerView) -> Tree:
        return {name: server.state[name] for name in ("d_global", "mean", "aggregated")}

    def local_init(self, task: Task, solver: Solver, view: View) -> tuple[Tensor, Tree]:
        mu, last = view.state["mu"], view.state["earlier" if self.measured else "accuracy"]
        now = (view.state | self.answer(view))["accuracy"]
        within = torch.where(last < 0, 1.0, intra(difference(now, last), view.extras["d_global"]))
        between = torch.where(last < 0, 1.0, inter(difference(now, view.extras["mean"])))
        moved = (mu * (within * between)).clamp(self.mu_min, self.mu_max).to(mu.dtype)
        return view.x, {"mu": moved, "rule": (within != 1).to(mu) + 2 * (between != 1).to(mu)}

    def local_gradient(self, grad_fn: GradFn, view: View, w: Tensor, scratch: Tree) -> Tensor:
        return grad_fn(w)[0] + scratch["mu"] * (w - view.x)

    def local_final(self, solver: Solver, view: View, carry: Carry, after: Tree) -> tuple[Upload, Tree]:
        mu, last, rule = {"mu": carry.scratch["mu"]}, view.state["accuracy"], {"rule": carry.scratch["rule"]}
        now = self.answer(view._replace(before=after or view.before))
        if self.measured:
            return Upload(carry.w - view.x, {}, mu | now, rule), mu | now | {"earlier": last}
        seen = torch.where(view.extras["aggregated"] > 0, now["accuracy"], last)
        return Upload(carry.w - view.x, {}, mu, rule), mu | {"accuracy": seen}

    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        mean = {"mean": cohort.uploads.report["accuracy"].mean()} if self.measured else {}
        return self.mean_delta(server, cohort), server.state | mean | {"aggregated": server.state["mean"].new_ones(())}
