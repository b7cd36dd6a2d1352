"""Ditto (Li, Hu, Beirami, Smith 2021, arXiv:2012.04221, Algorithm 1).

    client   w_k as FedAvg;  beside it, from its own v_k,  v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - x))
    server   as FedAvg; it never sees v_k

v_k approximately minimises F_k(v) + lambda/2 ||v - x||^2. With lambda = 0 this is local training. With a large lambda, v_k is the
global model.

Departures: the paper gives v_k its own number of steps and its own rate. Here v_k takes the round's local steps, at the same
rate, on the same batches as w_k. It has its own solver state, fresh in every round. v_k starts as the model that the client
receives in its first round. All clients have the same lambda.

Elsewhere: some implementations share one optimiser state between w_k and v_k, so that momentum leaks from one to the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedskew.core.algorithm import Algorithm, Contract, GradFn, Solver
from fedskew.core.contract import proximal_hazard
from fedskew.core.limits import NonNegativeFloat
from fedskew.core.records import Carry, Upload, View
from fedskew.core.task import Task
from fedskew.core.trees import Tree


@dataclass(frozen=True, kw_only=True)
class Ditto(Algorithm):
    lam: NonNegativeFloat = 1.0

    idea: ClassVar[str] = "each client also trains a model of its own, pulled towards the global one"
    changes: ClassVar[str] = "personalisation"
    cites: ClassVar[tuple[str, ...]] = ("ditto",)
    ranges: ClassVar[Mapping[str, str]] = {"lam": "0.1, 1 or 2, up to 10"}
    reduces_to: ClassVar[Mapping[str, str]] = {"": "fedavg"}

    def contract(self) -> Contract:
        return Contract(hazard=proximal_hazard("lam", self.lam))

    def client_init(self, x: Tensor) -> Tree:
        return {"v": x}

    def local_init(self, task: Task, solver: Solver, view: View) -> tuple[Tensor, Tree]:
        v = view.state["v"]
        return view.x, {"v": v, "d": v.new_zeros(v.shape), "opt": solver.init(v)}

    def direction(self, grad_fn: GradFn, view: View, w: Tensor, scratch: Tree) -> tuple[Tensor, Tree]:
        v = scratch["v"]
        d = grad_fn(v)[0] + self.lam * (v - view.x)
        return grad_fn(w)[0], scratch | {"d": d}

    def after_step(self, solver: Solver, view: View, carry: Carry) -> Tree:
        v, opt = solver.update(carry.scratch["d"], carry.scratch["opt"], carry.scratch["v"], view.lr)
        return carry.scratch | {"v": v, "opt": opt}

    def local_final(self, solver: Solver, view: View, carry: Carry, after: Tree) -> tuple[Upload, Tree]:
        return Upload(carry.w - view.x, {}, {}), {"v": carry.scratch["v"]}

    def personal(self, view: View) -> Tensor:
        return view.state["v"]
