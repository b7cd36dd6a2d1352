"""FedGA, generalisation adjustment (Zhang et al. 2023, CVPR, Algorithm 1).

    client   receives x = w^t;  G_k <- F_k(w^t) - F_k(w_k), w_k its own last local model;  then trains as FedAvg
    server   a_k <- a_k + d_t (G_k - mean G) / max_j |G_j - mean G|,  d_t = (1 - (t - 1) / R) d
             a <- a clipped to [0, 1] and divided by its sum;  x <- x + sum_k a_k (w_k - x)

Only the clients can measure the gap of the average of round t - 1, because they hold the data. They measure it when they receive
that average in round t, and send it with their updates. The weights of round t use it, as in the paper. a starts at n_k / n, or
at 1 / K with ``weighting="uniform"``.

Departures: a cohort keeps its sum of the population's a. Within the cohort the weights sum to 1 before and after the step, so
that full participation is the paper's method. A gap compares the received model with the client's own last local model, from
whichever round. A client in its first round has no gap, and its weight does not move. Equal gaps change nothing. If all weights
of a cohort are 0, its updates are averaged as in FedAvg. F_k is measured on the training rows.

Elsewhere: the authors' code does not subtract the mean gap. It divides by the largest |gap|, steps d / 3 for three
clients, and starts at 1 / 3. By default it takes accuracies on rows held out at each client.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedskew.core.algorithm import WEIGHT, Algorithm, Contract, Solver
from fedskew.core.limits import Share
from fedskew.core.records import Batch, Carry, Cohort, ServerView, Upload, View
from fedskew.core.task import Task
from fedskew.core.trees import Tree, weighted_sum


@dataclass(frozen=True, kw_only=True)
class FedGAGeneralisation(Algorithm):
    weighting: Literal["samples", "uniform"] = "samples"
    d: Share = 0.1

    weighted: ClassVar[bool] = True
    idea: ClassVar[str] = "give more weight to clients whose loss rises most when models are averaged"
    changes: ClassVar[str] = "aggregation"
    cites: ClassVar[tuple[str, ...]] = ("fedga-generalisation",)
    ranges: ClassVar[dict[str, str]] = {"d": "0.05 to 0.2"}
    reduces_to: ClassVar[dict[str, str]] = {"d=0": "fedavg", "d=0,weighting=uniform": "fedavg:weighting=uniform"}

    decides: ClassVar[dict[str, str]] = WEIGHT

    def contract(self) -> Contract:
        return Contract(planned=self.d > 0)

    def server_init(self, server: ServerView) -> Tree:
        n = server.clients.num_examples
        a = torch.full_like(n, 1 / len(n)) if self.weighting == "uniform" else n / n.sum()
        return {"a": a}

    def client_init(self, x: Tensor) -> Tree:
        return {"trained": x.new_zeros(()), "seen": x.new_zeros(())}

    def before(self, task: Task, view: View, batch: Batch) -> Tree:
        return {"loss": batch.sum(task.loss(task.logits(view.x, batch.x), batch.y))}

    def after(self, task: Task, view: View, w: Tensor, batch: Batch) -> Tree:
        return {"loss": batch.sum(task.loss(task.logits(w, batch.x), batch.y))}

    def local_final(self, solver: Solver, view: View, carry: Carry, after: Tree) -> tuple[Upload, Tree]:
        n = view.info.num_examples
        report = {"gap": view.before["loss"] / n - view.state["trained"], "seen": view.state["seen"]}
        state = {"trained": after["loss"] / n, "seen": torch.ones_like(view.state["seen"])}
        return Upload(carry.w - view.x, {}, report), state

    def _share(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """Return the sum () of a over the cohort, and the updates' weights (C,)."""
        a, members, report = server.state["a"], cohort.info.index, cohort.uploads.report
        mass = a[members].sum()
        share = torch.where(mass > 0, a[members] / mass, self.weights(server, cohort))
        d_t = (1 - (server.round - 1) / server.rounds) * self.d
        return mass, adjusted(share, report["gap"], report["seen"], d_t)

    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        mass, share = self._share(server, cohort)
        a = server.state["a"].index_copy(0, cohort.info.index, mass * share)
        return weighted_sum(share, cohort.uploads.delta), {"a": a}

    def decided(self, server: ServerView, cohort: Cohort) -> Tree:
        return {"weight": self._share(server, cohort)[1]}


def adjusted(share: Tensor, gap: Tensor, seen: Tensor, step: float) -> Tensor:
    """Return the weights (C,), with sum 1, after a step towards clients with larger gaps. Clients without a gap do not count."""
    centred = seen * (gap - (seen * gap).sum() / seen.sum().clamp(min=1))
    largest = centred.abs().max()
    moved = share + step * centred / torch.where(largest > 0, largest, torch.ones_like(largest))
    clipped = moved.clamp(0, 1)
    return clipped / clipped.sum()
