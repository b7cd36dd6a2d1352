"""FedPBS (AbouNassar, Elshall, Abdulah 2026, arXiv:2603.13909, Algorithm 4 and eq. 12 to 14).

    client   V_q <- 1/n_q sum_i (l_i(x) - mean_i l_i(x))^2;  steady if |B_q| > B_th and V_q < V_th
             mu_q <- 0 if steady, else mu;   w <- w - eta (grad F_q(w; b) + mu_q (w - x))
    server   x <- 1/m sum_S w_q,   V_th <- the median of V over S

Clients with large batches and small variances train as in FedAvg, all others as in FedProx.

Departures: the text leaves much open and contradicts itself; this is our interpretation. Equation 12 lacks the 1/2 that equation
13 implies, and equation 14 lacks the rate. A client is unsteady by its batch *or* its variance: this negates the test in the
listing. V_q is measured at the received model on all local data, not on a batch. ``variance="gradient"`` is FedBS's V_q. The text
gives no thresholds. V_th is the last round's median or a number; with the median, every client is unsteady in the first round.
B_th is a share of the largest batch in the population (1/2: 32 at the paper's 64).

The experiment's selection chooses the clients, as in the listing. With ``selection="stable"``, as in the text, only the share
``cohort`` with the smallest variance trains. The weights are 1/m as in the listing, or n_q / sum_S n with
``weighting="samples"``. ``aggregation="softmax"``, as in the text, multiplies them by e^(-V_q / tau) and normalises them to sum 1
(see FedBS). ``mu_scale="variance"`` takes mu V_q / V_th, clipped to [mu / 10, 10 mu]. The text also adapts batch sizes to a
client's resources, but gives no rule and uses a fixed batch in its experiments. This is left out.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedskew.core.algorithm import Algorithm, Contract, GradFn, Solver
from fedskew.core.contract import proximal_hazard
from fedskew.core.errors import require
from fedskew.core.limits import NonNegativeFloat, NonNegativeOrInf, PositiveShare
from fedskew.core.records import Batch, Carry, Cohort, Info, ServerView, Upload, View
from fedskew.core.rows import Of, lowest, moments, single_rows, soft_weights, variance_of
from fedskew.core.task import Task
from fedskew.core.trees import Tree


@dataclass(frozen=True, kw_only=True)
class FedPBS(Algorithm):
    weighting: Literal["samples", "uniform"] = "uniform"
    mu: NonNegativeFloat = 0.01
    mu_scale: Literal["constant", "variance"] = "constant"
    variance: Of = "loss"
    variance_threshold: float | Literal["median"] = "median"
    batch_threshold: NonNegativeOrInf = 0.5
    selection: Literal["random", "stable"] = "random"
    cohort: PositiveShare = 0.5
    aggregation: Literal["plain", "softmax"] = "plain"
    tau: NonNegativeOrInf = 1.0
    tau_scale: Literal["relative", "absolute"] = "relative"

    weighted: ClassVar[bool] = True
    idea: ClassVar[str] = "a proximal term only for clients with small batches or scattered losses"
    changes: ClassVar[str] = "loss landscape and aggregation"
    cites: ClassVar[tuple[str, ...]] = ("fedpbs",)
    ranges: ClassVar[dict[str, str]] = {"mu": "0.001 to 1"}
    reduces_to: ClassVar[dict[str, str]] = {
        "mu=0": "fedavg:weighting=uniform",
        "batch_threshold=0,variance_threshold=inf": "fedavg:weighting=uniform",
        "mu=0.1,variance_threshold=-inf": "fedprox:mu=0.1,weighting=uniform",
        "mu=0,selection=stable,aggregation=softmax,variance=gradient": "fedbs",
    }

    def __post_init__(self) -> None:
        require(self.variance_threshold == self.variance_threshold, "variance_threshold must be a number or 'median'")

    def contract(self) -> Contract:
        most, factor = ("10 mu", 10) if self.mu_scale == "variance" else ("mu", 1)
        needs = (single_rows,) if self.variance == "gradient" else ()
        return Contract(hazard=proximal_hazard(most, factor * self.mu), needs=needs)

    def server_init(self, server: ServerView) -> Tree:
        # no variance is below 0: before the first median no client is steady
        start = 0.0 if self.variance_threshold == "median" else self.variance_threshold
        return {"V_th": server.x.new_full((), start, dtype=torch.float64)}

    def before(self, task: Task, view: View, batch: Batch) -> Tree:
        return moments(self.variance, task, view.x, batch)

    def answer(self, view: View) -> Tree:
        return {"V": variance_of(view.before, view.info.num_examples)} if self.selection == "stable" else {}

    def convene(self, server: ServerView, candidates: Info, answers: Tree) -> tuple[Tree, Tensor]:
        if self.selection == "random":
            return server.state, candidates.index
        return server.state, candidates.index[lowest(answers["V"], self.cohort)]

    def broadcast(self, server: ServerView) -> Tree:
        return {"V_th": server.state["V_th"], "B_th": self.batch_threshold * server.clients.batch_size.max()}

    def local_init(self, task: Task, solver: Solver, view: View) -> tuple[Tensor, Tree]:
        v, v_th = variance_of(view.before, view.info.num_examples), view.extras["V_th"]
        steady = (view.info.batch_size > view.extras["B_th"]) & (v < v_th)
        mu = torch.full_like(v, self.mu)
        if self.mu_scale == "variance":
            mu = mu * torch.where(v_th > 0, (v / v_th).clamp(0.1, 10), 1.0)
        return view.x, {"mu": torch.where(steady, 0.0, mu).to(view.x.dtype)}

    def local_gradient(self, grad_fn: GradFn, view: View, w: Tensor, scratch: Tree) -> Tensor:
        return grad_fn(w)[0] + scratch["mu"] * (w - view.x)

    def local_final(self, solver: Solver, view: View, carry: Carry, after: Tree) -> tuple[Upload, Tree]:
        report = {"V": variance_of(view.before, view.info.num_examples), "mu": carry.scratch["mu"]}
        return Upload(carry.w - view.x, {}, report), view.state

    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        p, v = self.weights(server, cohort), cohort.uploads.report["V"]
        if self.aggregation == "softmax":
            p = soft_weights(p, v, self.tau, self.tau_scale)
        v_th = torch.quantile(v, 0.5) if self.variance_threshold == "median" else server.state["V_th"]
        return cohort.sum(p), {"V_th": v_th}
