"""q-FedAvg (Li, Sanjabi, Beirami, Smith 2020, arXiv:1905.10497, Algorithm 2) for min_w sum_k F_k(w)^(q+1) / (q + 1).

    client   F_k <- F_k(x) + 1e-10 on all local data;  w_k as in FedAvg;  Dw_k <- L (x - w_k),  L = 1 / eta_l
             Delta_k <- F_k^q Dw_k,   h_k <- q F_k^(q-1) ||Dw_k||^2 + L F_k^q
    server   x <- x - sum_S Delta_k / sum_S h_k

With q = 0 the server takes the plain mean. A larger q gives more weight to clients with a large loss, and takes shorter steps.
The server computes with Delta_k / (L F_max^q) and h_k / (L F_max^q), where F_max is the cohort's largest loss. F_k^q alone would
overflow or underflow for a large q.

Departures: the paper draws clients in proportion to their rows; no selection here does that. For clients drawn uniformly,
``weighting="samples"`` puts n_k into both sums instead. Weight decay counts in F_k as it does in the local gradients. L = 1 /
eta_l turns one step of plain SGD into a gradient. Therefore momentum and AdamW are refused, unless q = 0, where L cancels.

Elsewhere: some libraries compute one loss on the server and use it for every client. Such a loss cannot tell clients apart.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedskew.core.algorithm import WEIGHT, Algorithm, Contract, Solver, Weighting
from fedskew.core.contract import one_rate, plain_solver
from fedskew.core.limits import NonNegativeFloat
from fedskew.core.records import Batch, Carry, Cohort, ServerView, Upload, View
from fedskew.core.task import Task
from fedskew.core.trees import Tree, weighted_sum

EPSILON = 1e-10
"""The paper's guard of F_k^(q-1) where a loss is 0."""


@dataclass(frozen=True, kw_only=True)
class QFedAvg(Algorithm):
    weighting: Weighting = "uniform"
    q: NonNegativeFloat = 1.0

    weighted: ClassVar[bool] = True
    idea: ClassVar[str] = "weigh each client by the q-th power of its loss, so that accuracies become more even"
    changes: ClassVar[str] = "aggregation"
    cites: ClassVar[tuple[str, ...]] = ("qfedavg",)
    ranges: ClassVar[dict[str, str]] = {"q": "0.001 to 15: 0.1, 1, 2, 5"}
    reduces_to: ClassVar[dict[str, str]] = {"q=0": "fedavg:weighting=uniform"}

    decides: ClassVar[dict[str, str]] = WEIGHT

    def contract(self) -> Contract:
        return Contract(needs=(plain_solver, one_rate) if self.q else ())

    def before(self, task: Task, view: View, batch: Batch) -> Tree:
        return {"loss": batch.sum(task.loss(task.logits(view.x, batch.x), batch.y))}

    def local_final(self, solver: Solver, view: View, carry: Carry, after: Tree) -> tuple[Upload, Tree]:
        f_k = view.before["loss"] / view.info.num_examples
        if solver.linear and solver.weight_decay:
            f_k = f_k + solver.weight_decay / 2 * view.x.square().sum()
        delta = carry.w - view.x
        return Upload(delta, {}, {"F": f_k.double(), "LD2": delta.double().square().sum() / view.lr}), view.state

    def step_weights(self, server: ServerView, cohort: Cohort) -> Tensor:
        """Return the updates' weights (C,) in the step; their sum is at most 1."""
        p, report = self.weights(server, cohort).double(), cohort.uploads.report
        f = report["F"] + EPSILON
        s = p * (f / f.max()) ** self.q
        # p_k Delta_k = -a s_k delta_k and p_k h_k = a s_k (q L ||delta_k||^2 / F_k + 1), with a = L F_max^q
        h = s * (1 + self.q * report["LD2"] / f)
        return s * p.sum() / h.sum()

    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        return weighted_sum(self.step_weights(server, cohort), cohort.uploads.delta), server.state

    def decided(self, server: ServerView, cohort: Cohort) -> Tree:
        return {"weight": self.step_weights(server, cohort)}
