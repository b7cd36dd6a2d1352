"""FedBS, the baseline of FedPBS (AbouNassar, Elshall, Abdulah 2026, arXiv:2603.13909, eq. 8 to 11).

    client   V_q <- 1/n_q sum_i ||grad l_i(x) - mean_i grad l_i(x)||^2
    server   S <- the B clients with the smallest scores a_q V_q;  only they train, as in FedAvg
    server   x <- sum_S beta_q w_q,   beta_q = e^(-V_q / tau) / sum_S e^(-V_j / tau)

Warning: the variance is smallest for clients whose rows the model already fits. Under label skew, the server may choose only
clients that hold a single class, and never the clients with the other classes.

Departures: the text leaves much open; this is our interpretation. Other methods with the name FedBS (local batch statistics,
balanced subtasks, a layer of biases) are different. V_q is measured at the received model on all local data, as in equation 8.
The algorithm listing takes a batch, whose variance is only a noisy estimate of V_q. B is ``cohort``, a share of the proposed
clients. Of equal scores, the smaller client id comes first. The importance a_q is 1, or mean n / n_q, which favours clients with
many rows.

The text gives neither tau nor its unit. ``tau_scale="relative"`` multiplies tau by the median of V over S, ``"absolute"`` takes
it as it is. The text also mentions scores in the weights (``weigh_by="score"``) and the variance of the losses
(``variance="loss"``). ``weighting="samples"`` multiplies the exponential by n_q.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedskew.core.algorithm import WEIGHT, Algorithm, Contract, Solver
from fedskew.core.limits import NonNegativeOrInf, PositiveShare
from fedskew.core.records import Batch, Carry, Cohort, Info, ServerView, Upload, View
from fedskew.core.rows import Of, lowest, moments, single_rows, soft_weights, variance_of
from fedskew.core.task import Task
from fedskew.core.trees import Tree


@dataclass(frozen=True, kw_only=True)
class FedBS(Algorithm):
    weighting: Literal["samples", "uniform"] = "uniform"
    cohort: PositiveShare = 0.5
    variance: Of = "gradient"
    importance: Literal["none", "size"] = "none"
    weigh_by: Literal["variance", "score"] = "variance"
    tau: NonNegativeOrInf = 1.0
    tau_scale: Literal["relative", "absolute"] = "relative"

    weighted: ClassVar[bool] = True
    idea: ClassVar[str] = "train the clients with the smallest gradient variance; a smaller one gives a larger weight"
    changes: ClassVar[str] = "aggregation"
    cites: ClassVar[tuple[str, ...]] = ("fedpbs",)
    ranges: ClassVar[dict[str, str]] = {"cohort": "0.3 to 1", "tau": "0.1 to 10, relative"}
    reduces_to: ClassVar[dict[str, str]] = {
        "cohort=1.0,tau=inf": "fedavg:weighting=uniform",
        "cohort=1.0,tau=inf,weighting=samples": "fedavg",
    }

    decides: ClassVar[dict[str, str]] = {
        "client/variance": "variance of its rows' gradients, or of their losses with variance=loss, at the received model",
        **WEIGHT,
    }

    def contract(self) -> Contract:
        return Contract(needs=(single_rows,) if self.variance == "gradient" else ())

    def scores(self, server: ServerView, info: Info, v: Tensor) -> Tensor:
        """a_q V_q, (C,)."""
        return v * (server.clients.num_examples.mean() / info.num_examples) if self.importance == "size" else v

    def before(self, task: Task, view: View, batch: Batch) -> Tree:
        return moments(self.variance, task, view.x, batch)

    def answer(self, view: View) -> Tree:
        return {"V": variance_of(view.before, view.info.num_examples)}

    def convene(self, server: ServerView, candidates: Info, answers: Tree) -> tuple[Tree, Tensor]:
        lowest_scores = lowest(self.scores(server, candidates, answers["V"]), self.cohort)
        return server.state, candidates.index[lowest_scores]

    def local_final(self, solver: Solver, view: View, carry: Carry, after: Tree) -> tuple[Upload, Tree]:
        return Upload(carry.w - view.x, {}, {"V": variance_of(view.before, view.info.num_examples)}), view.state

    def beta(self, server: ServerView, cohort: Cohort) -> Tensor:
        """beta_q, (C,)."""
        v = cohort.uploads.report["V"]
        scores = self.scores(server, cohort.info, v) if self.weigh_by == "score" else v
        return soft_weights(self.weights(server, cohort), scores, self.tau, self.tau_scale)

    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        return cohort.sum(self.beta(server, cohort)), server.state

    def decided(self, server: ServerView, cohort: Cohort) -> Tree:
        return {"variance": cohort.uploads.report["V"], "weight": self.beta(server, cohort)}
