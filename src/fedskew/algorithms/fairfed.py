"""FairFed (Ezzeldin et al. 2023, arXiv:2110.00857).

    client   F_k, Acc_k: fairness gap and accuracy of the received model on the local data;  w_k as in FedAvg
    server   Delta_k = |F - F_k|, or |Acc - Acc_k| where F_k is undefined;  F, Acc: the same on the pooled data
             omega_k <- omega_k - beta (Delta_k - mean_S Delta),   x <- sum_S omega_k w_k / sum_S omega_k

Two classes, two groups: the group is a column of the rows that holds 0 and 1. It is the last column unless ``column`` names
another. Clients send counts. The server computes the gap of the pooled data from them exactly.

Departures: a negative omega counts as 0 in the average. If no weight is above 0, the server takes the cohort's sample weights. If
the pooled gap is undefined, the server compares accuracies.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedskew.core.algorithm import WEIGHT, Algorithm, Contract, Solver
from fedskew.core.contract import sensitive_attribute
from fedskew.core.limits import NonNegativeFloat
from fedskew.core.records import Batch, Carry, Cohort, ServerView, Upload, View
from fedskew.core.rows import accuracy, counts, opportunity, parity
from fedskew.core.task import Task
from fedskew.core.trees import Tree, weighted_sum


@dataclass(frozen=True, kw_only=True)
class FairFed(Algorithm):
    beta: NonNegativeFloat = 1.0
    gap: Literal["opportunity", "parity"] = "opportunity"
    column: int = -1

    weighted: ClassVar[bool] = True
    idea: ClassVar[str] = "clients whose fairness gap is close to the global one gain weight"
    changes: ClassVar[str] = "fairness"
    cites: ClassVar[tuple[str, ...]] = ("fairfed",)
    ranges: ClassVar[Mapping[str, str]] = {"beta": "0.1, 0.5, 1, 2, 5"}
    reduces_to: ClassVar[Mapping[str, str]] = {"beta=0": "fedavg"}

    decides: ClassVar[dict[str, str]] = WEIGHT

    def contract(self) -> Contract:
        return Contract(needs=(sensitive_attribute,))

    def server_init(self, server: ServerView) -> Tree:
        return {"omega": server.clients.num_examples / server.num_examples}

    def before(self, task: Task, view: View, batch: Batch) -> Tree:
        predicted = task.logits(view.x, batch.x).argmax(-1)
        return {"counts": counts(predicted, batch.y, batch.x[:, self.column], batch.mask)}

    def local_final(self, solver: Solver, view: View, carry: Carry, after: Tree) -> tuple[Upload, Tree]:
        return Upload(carry.w - view.x, {}, {"counts": view.before["counts"]}), view.state

    def differences(self, local: Tensor) -> Tensor:
        """Delta_k (C,) from the clients' counts (C, 2, 2, 2)."""
        measure = opportunity if self.gap == "opportunity" else parity
        pooled = local.sum(0)
        gaps = (measure(pooled) - measure(local)).abs()
        return torch.where(gaps.isfinite(), gaps, (accuracy(pooled) - accuracy(local)).abs())

    def moved(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """Return omega (K,) after the round, and the updates' weights (C,)."""
        at = cohort.info.index
        delta = self.differences(cohort.uploads.report["counts"].double())
        omega = server.state["omega"].clone()
        omega[at] -= (self.beta * (delta - delta.mean())).to(omega.dtype)
        w = omega[at].clamp(min=0)
        return omega, w / w.sum() if bool(w.sum() > 0) else self.weights(server, cohort)

    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        omega, w = self.moved(server, cohort)
        return weighted_sum(w, cohort.uploads.delta), {"omega": omega}

    def decided(self, server: ServerView, cohort: Cohort) -> Tree:
        return {"weight": self.moved(server, cohort)[1]}
