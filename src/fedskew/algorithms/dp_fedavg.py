"""DP-FedAvg (McMahan, Ramage, Talwar, Zhang 2018, arXiv:1710.06963, Algorithm 1 with the estimator of fixed denominator).

    each client takes part with probability q, independently of the others
    client   as FedAvg;  Delta_k <- (w_k - x) min(1, S / ||w_k - x||)
    server   Delta_k <- Delta_k min(1, S / ||Delta_k||);  x <- x + (sum_k Delta_k + N(0, z^2 S^2 I)) / (q K)

``clip`` is S, ``noise`` is z. Adding or removing one client changes the sum by at most S. For this, all clients have the same
weight, and the denominator is the expected number of clients. A round without clients adds noise, too. K is public.

The server clips each update again, so that neither a codec nor an attacker exceeds S. With other methods, the
codec `clip` clips updates (`fedskew.slots.codecs`). An experiment refuses every component that makes one client's update depend
on another's, or that uses an update without noise (`fedskew.core.privacy`).

Departures: the client clips the whole update once, after the local training. The paper also clips after each batch, and by layer.
All weights are 1, so W = K; the paper's are at most 1. S is fixed. Adaptive clipping (Andrew et al. 2021, arXiv:1905.03871) is
left out, because its quantile has a privacy cost of its own.

Elsewhere: many implementations scale the noise for a uniform mean but add it to a mean weighted by examples. Many draw a fixed
number of clients. The usual accountant covers neither.

The guarantee covers the models of all rounds, in exact arithmetic. It does not cover other published results: the drift (of the
clipped updates), the clients' accuracy, or the fact that too few clients answered. It does not cover steps before round 0, such
as scales and vocabularies of all clients' rows. It does not cover simulated runs: their noise and sampling come from the seed.
Between machines both come from a secret of the server.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.linalg import vector_norm

from fedskew.core.algorithm import Algorithm, Contract, Solver
from fedskew.core.contract import sends_local_models
from fedskew.core.errors import require
from fedskew.core.limits import NonNegativeFloat, OpenShare, PositiveOrInf, PositiveShare
from fedskew.core.records import Carry, Cohort, Privacy, ServerView, Upload, View
from fedskew.core.seeding import normals
from fedskew.core.trees import Tree, weighted_sum


@dataclass(frozen=True, kw_only=True)
class DpFedAvg(Algorithm):
    weighting: Literal["uniform"] = "uniform"
    clip: PositiveOrInf = 1.0
    noise: NonNegativeFloat = 1.0
    q: PositiveShare = 0.1
    delta: OpenShare = 1e-5

    idea: ClassVar[str] = (
        "clipped updates of a random sample, summed with Gaussian noise: the model reveals no single client"
    )
    changes: ClassVar[str] = "privacy"
    cites: ClassVar[tuple[str, ...]] = ("dp-fedavg",)
    ranges: ClassVar[Mapping[str, str]] = {
        "clip": "0.1 to 20, about the median length of the updates",
        "noise": "0.5 to 1.5",
        "q": "0.01 to 0.1, the same as in the selection",
        "delta": "below 1 / K, such as K^-1.1",
    }
    reduces_to: ClassVar[Mapping[str, str]] = {"clip=inf,noise=0,q=1": "fedavg:weighting=uniform"}

    def __post_init__(self) -> None:
        require(self.noise == 0 or self.clip < math.inf, "noise is a multiple of clip; give a finite clip, or noise=0")

    def contract(self) -> Contract:
        # noise is added in a round without clients, too
        return Contract(
            privacy=Privacy(self.q, self.noise, self.delta, by=DpFedAvg), steps_alone=True, needs=(sends_local_models,)
        )

    def local_final(self, solver: Solver, view: View, carry: Carry, after: Tree) -> tuple[Upload, Tree]:
        delta = carry.w - view.x
        return Upload(delta * self.factor(delta).to(delta.dtype), {}, {}), view.state

    def factor(self, rows: Tensor) -> Tensor:
        """Return float64 factors (...). They shorten updates (..., P) that are longer than S to length S."""
        return (self.clip / vector_norm(rows, dim=-1, dtype=torch.float64)).clamp(max=1)

    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        rows = cohort.uploads.delta
        total = weighted_sum(self.factor(rows), rows)
        if self.noise:
            z = normals(server.seed, rows.shape[1], "noise", server.round)
            total = total + (self.noise * self.clip * z).to(rows)
        return total / (self.q * server.num_clients), server.state
