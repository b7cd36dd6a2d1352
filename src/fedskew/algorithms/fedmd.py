"""FedMD (Li, Wang 2019, arXiv:1910.03581, Algorithm 1).

    client   digest: ``steps`` steps on the mean over X_p and classes of |f_k(X_p) - f~|, or of its square
             revisit: the round's local steps on its own rows
             communicate: its logits f_k on the public rows X_p of the next round
    server   f~ <- mean over the cohort of f_k(X_p);  draws the next X_p

Clients send no model, so they may have different architectures (model ``mixed``). X_p is ``rows`` of the server's rows. Every
round draws a new X_p from the common seed; clients hold these rows from the start. The evaluation measures the clients' own
models.

Departures: a round starts with the digest, so that it needs one message each way. Round 0 has nothing to digest. The paper first
trains every model on the labelled public rows: here ``server_data.warm_up`` steps do this. The paper then trains each model on
its own rows until convergence: here round 0 does this. A digest step takes the next ``batch_size`` rows of X_p, in random order.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.func import grad

from fedskew.core.algorithm import PUBLIC, Algorithm, Contract, Solver
from fedskew.core.contract import server_rows
from fedskew.core.limits import NonNegativeInt, PositiveInt
from fedskew.core.records import Batch, Carry, Cohort, ServerView, Upload, View
from fedskew.core.seeding import torch_stream
from fedskew.core.task import Task
from fedskew.core.trees import Tree, weighted_sum

AGREED = 100
"""Scores that differ by at most this many rounding errors count as equal: their difference has no meaningful sign."""


@dataclass(frozen=True, kw_only=True)
class FedMd(Algorithm):
    weighting: Literal["samples", "uniform"] = "uniform"
    rows: PositiveInt = 5000
    steps: NonNegativeInt = 20
    batch_size: PositiveInt = 256
    distance: Literal["absolute", "squared"] = "absolute"

    weighted: ClassVar[bool] = True
    idea: ClassVar[str] = "clients exchange class scores on public rows, not models, so that architectures may differ"
    changes: ClassVar[str] = "personalisation"
    cites: ClassVar[tuple[str, ...]] = ("fedmd",)
    ranges: ClassVar[Mapping[str, str]] = {"rows": "5000, or all there are"}

    def contract(self) -> Contract:
        return Contract(needs=(server_rows,), shares_model=False)

    def drawn(self, server: ServerView, round_: int) -> Tensor:
        """Return the positions (n,), among the server's rows, of a round's public rows, in random order."""
        assert server.data is not None
        order = torch.randperm(len(server.data.y), generator=torch_stream(server.seed, "public", round_))
        return order[: self.rows].to(server.data.x.device)

    def server_init(self, server: ServerView) -> Tree:
        assert server.data is not None
        rows = self.drawn(server, server.round)
        first_scores = server.task.logits(server.x, server.data.x[:1])
        none = first_scores.new_zeros(len(rows), *first_scores.shape[1:])
        return {"rows": rows, "scores": none, "exchanged": server.x.new_zeros(())}

    def broadcast(self, server: ServerView) -> Tree:
        assert server.data is not None
        inputs, state = server.data.x, server.state
        rows = {"digested": inputs[state["rows"]], "asked": inputs[self.drawn(server, server.round + 1)]}
        return {PUBLIC: rows} | ({"scores": state["scores"]} if bool(state["exchanged"]) else {})

    def local_init(self, task: Task, solver: Solver, view: View) -> tuple[Tensor, Tree]:
        w = view.x
        if "scores" not in view.extras:
            return w, {}
        inputs, scores = view.extras[PUBLIC]["digested"], view.extras["scores"]
        batch, opt = min(self.batch_size, len(inputs)), solver.init(w)
        for t in range(self.steps):
            at = torch.arange(t * batch, (t + 1) * batch, device=w.device) % len(inputs)
            g = grad(lambda w, at=at: self.distance_of(task.logits(w, inputs[at]), scores[at]))(w)
            w, opt = solver.update(g, opt, w, view.lr)
        return w, {}

    def distance_of(self, logits: Tensor, scores: Tensor) -> Tensor:
        """Return the mean distance () between logits and scores, both (n, K)."""
        difference = logits - scores
        if self.distance == "squared":
            return difference.square().mean()
        differs = difference.abs() > AGREED * torch.finfo(scores.dtype).eps * (1 + scores.abs())
        return torch.where(differs, difference.abs(), 0.0).mean()

    def after(self, task: Task, view: View, w: Tensor, batch: Batch) -> Tree:
        # hooks see the model only with a batch: sum over all rows here, divide by their number in `local_final`
        return {"scores": batch.mask.sum() * task.logits(w, view.extras[PUBLIC]["asked"])}

    def local_final(self, solver: Solver, view: View, carry: Carry, after: Tree) -> tuple[Upload, Tree]:
        scores = after["scores"] / view.info.num_examples
        return Upload(carry.w - view.x, {"scores": scores}, {}), view.state

    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        scores = weighted_sum(self.weights(server, cohort), cohort.uploads.extras["scores"])
        return torch.zeros_like(server.x), {
            "rows": self.drawn(server, server.round + 1),
            "scores": scores,
            "exchanged": torch.ones_like(server.state["exchanged"]),
        }
