"""FedPBS (AbouNassar, Elshall, Abdulah 2026, arXiv:2603.13909, Algorithm 4 and eq. 12 to 14).

    client   V_q <- 1/n_q sum_i (l_i(x) - mean_i l_i(x))^2;  steady if |B_q| > B_th and V_q < V_th
             mu_q <- 0 if steady, else mu;   w <- w - eta (grad F_q(w; b) + mu_q (w - x))
    server   x <- 1/m sum_S w_q,   V_th <- the median of V over S

Departures: the text leaves much open and contradicts itself; this is our interpretation. Equation 12 lacks the 1/2 that equation
13 implies, and equation 14 lacks the rate. A client is unsteady by its batch *or* its variance, the negation of the listing's
test. V_q is measured at the received model on all local data; ``variance="gradient"`` is FedBS's. No threshold is given: V_th is
the last round's median (all are unsteady in the first round) or a number, B_th a share of the population's largest batch (1/2: 32
at the paper's 64). The text, not the listing, has ``selection="stable"``: the share ``cohort`` with the smallest variance trains;
and ``aggregation="softmax"``: weights times e^(-V_q / tau), with sum 1 (see FedBS). ``mu_scale="variance"`` takes mu V_q / V_th
within [mu / 10, 10 mu]. For batch sizes that adapt: ``system.variance``.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedskew.core.algorithm import WEIGHT, Algorithm, Contract, GradFn, Solver
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
    decides: ClassVar[dict[str, str]] = {
        "client/variance": "variance of its rows' losses, or of their gradients with variance=gradient, at the received model",
        "client/batch_size": "rows in a full batch",
        "client/steady": "1 for a large batch and a small variance, so that it trains without the proximal term; else 0",
        "client/mu": "strength of the client's proximal term, 0 for a steady client",
        **WEIGHT,
        "round/variance_threshold": "threshold below which a client's variance is small; the median of the round before",
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
        chosen = lowest(answers["V"], self.cohort) if answers else slice(None)
        return server.state, candidates.index[chosen]

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

    def beta(self, server: ServerView, cohort: Cohort) -> Tensor:
        """Return the updates' weights (C,)."""
        p, v = self.weights(server, cohort), cohort.uploads.report["V"]
        return soft_weights(p, v, self.tau, self.tau_scale) if self.aggregation == "softmax" else p

    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        v_th, given = torch.quantile(cohort.uploads.report["V"], 0.5), self.variance_threshold != "median"
        return cohort.sum(self.beta(server, cohort)), {"V_th": server.state["V_th"] if given else v_th}

    def decided(self, server: ServerView, cohort: Cohort) -> Tree:
        sent, batch, v = self.broadcast(server), cohort.info.batch_size, cohort.uploads.report["V"]
        steady = ((batch > sent["B_th"]) & (v < sent["V_th"])).double()
        beta, v_th = self.beta(server, cohort), sent["V_th"]
        return {"variance": v, "batch_size": batch, "steady": steady, "weight": beta, "variance_threshold": v_th}
