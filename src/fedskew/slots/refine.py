"""Refinements: they train the new global model on the server's rows, after the server optimiser's step."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedskew.core.contract import Setup, classes, server_rows
from fedskew.core.limits import NonNegativeInt, PositiveFloat, PositiveInt
from fedskew.core.privacy import after_noise
from fedskew.core.records import Cohort, Privacy, ServerView
from fedskew.core.seeding import torch_stream
from fedskew.core.task import Task
from fedskew.slots.optimisers import AdamW, Sgd

NOTHING_TO_LEARN = 1e-12
"""A step is skipped if the divergence from the teacher is below this. Otherwise Adam would scale up rounding errors."""


@dataclass(frozen=True, kw_only=True)
class Unrefined:
    """Does not change the model."""

    idea: ClassVar[str] = "the model stays as the server optimiser leaves it"
    needs_data: ClassVar[bool] = False
    private = after_noise

    def refine(self, server: ServerView, x: Tensor, cohort: Cohort) -> Tensor:
        return x


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """FedDF (Lin et al. 2020, arXiv:2006.07242): distil the mean prediction of the cohort's models into the new model.

        server   q(b) <- softmax of the mean over the cohort of the logits of w_k on the inputs b
                 ``steps`` steps of ``optimiser`` on KL(q(b) || softmax of the logits of x on b), b a batch of the server's rows

    The labels of these rows are not used. w_k is the model before the round plus the client's update, without aggregation
    weights. A batch is ``batch_size`` rows drawn without replacement, or all rows. The learning rate falls along a cosine from
    ``lr`` to 0 over the steps of a round, or stays ``constant``. The optimiser's state is new in every round.

    Departures: the paper stops early on validation rows after at most 10,000 steps; the number of steps is fixed here.
    """

    steps: NonNegativeInt = 100
    lr: PositiveFloat = 1e-3
    batch_size: PositiveInt = 128
    optimiser: Literal["adam", "sgd"] = "adam"
    schedule: Literal["cosine", "constant"] = "cosine"

    idea: ClassVar[str] = "ensemble distillation: teach the new model what the clients' models say together"
    cites: ClassVar[tuple[str, ...]] = ("feddf",)
    needs_data: ClassVar[bool] = True

    def private(self, privacy: Privacy) -> str:
        """Return why this is never private: the teacher uses the clients' updates without noise."""
        return "refine distillation trains the model with the updates before noise is added; use --refine none"

    def accepts(self, setup: Setup) -> str:
        return server_rows(setup) or classes(setup)

    def refine(self, server: ServerView, x: Tensor, cohort: Cohort) -> Tensor:
        """Return the refined model (P,). ``x`` is the new global model; ``server`` is the state before the round."""
        assert server.data is not None
        inputs, generator = server.data.x, torch_stream(server.seed, "refine", server.round)
        solver = Sgd(lr=self.lr) if self.optimiser == "sgd" else AdamW(lr=self.lr, weight_decay=0.0)
        log_q = F.log_softmax(mean_logits(server.task, server.x, cohort.uploads.delta, inputs), dim=-1)
        state = solver.init(x)
        for t in range(self.steps):
            rows = torch.randperm(len(inputs), generator=generator)[: self.batch_size].to(inputs.device)
            w = x.detach().requires_grad_()  # autograd, because `torch.func` would import the compiler
            value = divergence(log_q[rows], server.task.logits(w, inputs[rows]))
            if not float(value.detach()) < NOTHING_TO_LEARN:  # also true for NaN, which the round detects later
                (g,) = torch.autograd.grad(value, w)
                x, state = solver.update(g, state, x, x.new_tensor(self.rate(t)))
        return x

    def rate(self, t: int) -> float:
        """Return the learning rate of step t, counted from 0."""
        return self.lr if self.schedule == "constant" else self.lr / 2 * (1 + math.cos(math.pi * t / self.steps))


def mean_logits(task: Task, x: Tensor, deltas: Tensor, inputs: Tensor) -> Tensor:
    """Return the logits (n, K) of the local models x + delta, averaged over the cohort, in float64."""
    total = x.new_zeros((), dtype=torch.float64)
    with torch.no_grad():
        for delta in deltas:
            total = total + task.logits(x + delta, inputs).double()
    return total / len(deltas)


def divergence(log_q: Tensor, logits: Tensor) -> Tensor:
    """Return KL(q || softmax(logits)), averaged over the rows, in float64 because values may be close to 0."""
    log_p = F.log_softmax(logits.double(), dim=-1)
    return (log_q.exp() * (log_q - log_p)).sum(-1).mean()
