"""FedGA, greedy aggregation (after Cong et al. 2024, Knowledge-Based Systems 304, 112201).

    client   as FedAvg
    server   A <- {argmin_k L_V(w_k)};  while some k outside A lowers L_V(avg(A + k)) by more than eps |L_V(avg(A))|:
             A <- A + the best such k;  x <- the better of avg(A) and avg(S_t)
             V: the server's labelled rows;  avg: the mean weighted by n_k;  at most m (m + 1) / 2 + 1 values of L_V

Departures: the paper names a progressive search for partially optimal models, and its listing is not public. The lines above are
our interpretation. Of equal values, the full average comes first, then the smaller client id. ``score="accuracy"`` replaces the
loss by minus the accuracy on V. The server evaluates each model as a server optimiser with rate 1 would produce it. The search
and the full average leave out an update that is not finite; normally the round loop stops the run at such an update first. In one
round the greedy choice is never worse on V than the full average. Over several rounds it may be worse.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedskew.core.algorithm import WEIGHT, Algorithm, Contract
from fedskew.core.contract import classes, server_rows
from fedskew.core.limits import NonNegativeFloat
from fedskew.core.records import Cohort, ServerView
from fedskew.core.trees import Tree, all_finite, weighted_sum


@dataclass(frozen=True, kw_only=True)
class FedGA(Algorithm):
    weighting: Literal["samples", "uniform"] = "samples"
    score: Literal["loss", "accuracy"] = "loss"
    eps: NonNegativeFloat = 1e-4

    weighted: ClassVar[bool] = True
    idea: ClassVar[str] = "add clients greedily to the average while they improve it on the server's own rows"
    changes: ClassVar[str] = "aggregation"
    cites: ClassVar[tuple[str, ...]] = ("fedga",)
    ranges: ClassVar[dict[str, str]] = {"eps": "0 to 0.01"}
    decides: ClassVar[dict[str, str]] = WEIGHT

    def contract(self) -> Contract:
        return Contract(needs=(server_rows, classes) if self.score == "accuracy" else (server_rows,))

    def server_init(self, server: ServerView) -> Tree:
        return {"weight": torch.zeros_like(server.clients.num_examples)}  # of the updates in the last round's mean

    def value(self, server: ServerView, w: Tensor) -> float:
        """L_V(w), or minus the accuracy; infinite where it is undefined."""
        assert server.data is not None
        scores = server.task.scores(server.task.logits(w, server.data.x), server.data.y)
        mean = float(server.data.mean(scores[self.score]))
        signed = -mean if self.score == "accuracy" else mean
        return signed if math.isfinite(signed) else math.inf

    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        deltas = cohort.uploads.delta
        finite = [k for k in range(cohort.size) if all_finite(deltas[k])]
        p, weight = self.weights(server, cohort), torch.zeros_like(server.clients.num_examples)
        if not finite:
            return torch.zeros_like(server.x), {"weight": weight}

        def mean(members: list[int]) -> tuple[Tensor, Tensor, Tensor]:
            at = torch.tensor(sorted(members), device=deltas.device)
            share = p[at] / p[at].sum()
            return weighted_sum(share, deltas[at]), cohort.info.index[at], share

        with torch.no_grad():
            subset, best = self.search(server, p, deltas, finite)
            full = mean(finite)
            better = self.value(server, server.x + full[0]) <= best
        delta, taken, share = full if better else mean(subset)
        return delta, {"weight": weight.index_copy(0, taken, share)}

    def decided(self, server: ServerView, cohort: Cohort) -> Tree:
        assert server.after is not None
        return {"weight": server.after["weight"][cohort.info.index]}

    def search(self, server: ServerView, p: Tensor, deltas: Tensor, clients: list[int]) -> tuple[list[int], float]:
        """The greedy subset A of these positions of the cohort, and L_V(avg(A))."""
        subset: list[int] = []
        outside, best = list(clients), math.inf
        total, weight = torch.zeros_like(server.x), torch.zeros_like(p[0])
        while outside:
            values = {k: self.value(server, server.x + (total + p[k] * deltas[k]) / (weight + p[k])) for k in outside}
            k = min(outside, key=lambda k: (values[k], k))
            if subset and not values[k] < best - self.eps * abs(best):
                break
            subset.append(k)
            outside.remove(k)
            best, total, weight = values[k], total + p[k] * deltas[k], weight + p[k]
        return subset, best
