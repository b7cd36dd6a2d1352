"""MOON (Li, He, Song 2021, arXiv:2103.16257).

    client   minimise  CE + mu l_con,
             l_con = -log [ exp(sim(z, z_glob)/T) / (exp(sim(z, z_glob)/T) + exp(sim(z, z_prev)/T)) ]
             z, z_glob, z_prev: features at w, at the global model, at the client's previous local model
    server   as FedAvg

Departures: the features are the network's last hidden layer; the paper adds a projection head to the encoder. A client keeps one
previous model. In its first round this is the global model that it receives, so that its first contrastive term is the constant
log 2. In the paper it is the initial network in round 0. The default mu is 1, the paper's best on CIFAR-100 and Tiny-ImageNet. On
CIFAR-10 the paper's best is 5.

Elsewhere: the authors' code has a default learning rate of 0.1; the paper trains with 0.01.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from fedskew.core.algorithm import Algorithm, Contract, Solver
from fedskew.core.contract import features
from fedskew.core.limits import NonNegativeFloat, PositiveOrInf
from fedskew.core.records import Batch, Carry, Upload, View
from fedskew.core.task import Task
from fedskew.core.trees import Tree


@dataclass(frozen=True, kw_only=True)
class Moon(Algorithm):
    mu: NonNegativeFloat = 1.0
    temperature: PositiveOrInf = 0.5

    idea: ClassVar[str] = "pull features towards the global model's, push them from the previous local model's"
    changes: ClassVar[str] = "loss landscape"
    cites: ClassVar[tuple[str, ...]] = ("moon",)
    ranges: ClassVar[Mapping[str, str]] = {"mu": "0.1, 1, 5, 10", "temperature": "0.5"}
    reduces_to: ClassVar[Mapping[str, str]] = {"mu=0": "fedavg"}

    def contract(self) -> Contract:
        return Contract(needs=(features,))

    def client_init(self, x: Tensor) -> Tree:
        return {"previous": x}

    def objective(self, task: Task, view: View, w: Tensor, batch: Batch) -> Tensor:
        z, logits = task.outputs(w, batch.x)
        z_glob = task.outputs(view.x, batch.x)[0]
        z_prev = task.outputs(view.state["previous"], batch.x)[0]
        positive = F.cosine_similarity(z, z_glob) / self.temperature
        negative = F.cosine_similarity(z, z_prev) / self.temperature
        # -log(e^p / (e^p + e^n)) = softplus(n - p), which never overflows
        l_con = F.softplus(negative - positive)
        return batch.mean(task.loss(logits, batch.y) + self.mu * l_con)

    def local_final(self, solver: Solver, view: View, carry: Carry, after: Tree) -> tuple[Upload, Tree]:
        return Upload(carry.w - view.x, {}, {}), {"previous": carry.w}
