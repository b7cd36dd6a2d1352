"""DRFA, distributionally robust federated averaging (Deng, Kamani, Mahdavi 2020, arXiv:2102.12660, Algorithm 1).

    server   draw S: m clients, each by lambda, with replacement;  draw t' from 1 ... tau
    client   w_k: tau local steps from x;  w'_k: the model after t' of them
    server   x <- 1/m sum_S w_k,   w' <- 1/m sum_S w'_k
    server   draw U: m clients, uniformly;  they send F_k(w')
    server   lambda <- Pi( lambda + tau gamma v ),   v_k = K / m F_k(w') for k in U, 0 for the others

It solves AFL's problem with local steps. The random snapshot w' stands for all models between two rounds. Here a round starts
with U, the clients that the selection proposes. Then lambda moves, and the server draws S. x takes the same path as in the paper.
A client that is drawn more than once trains once, and its model counts once for each draw. lambda starts at 1 / K, or at n_k / n
with ``weighting="samples"``.

Departures: F_k(w') is measured on all local data, the paper's on a batch. If clients take different numbers of steps, t' is the
same share of each client's steps, and tau is the mean number of steps over S. S and U leave out clients that do not answer: m
counts only the others, once for each draw. If all of S fail, x and w' stay, and lambda does not move until clients train again.

Elsewhere: the authors' code multiplies gamma by 0.9 after each round, keeps lambda above 0.001, and starts at n_k / n.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedskew.core.algorithm import Algorithm, Solver
from fedskew.core.limits import NonNegativeFloat
from fedskew.core.records import Batch, Carry, Cohort, Info, ServerView, Upload, View
from fedskew.core.seeding import torch_stream
from fedskew.core.task import Task
from fedskew.core.trees import Tree, project_onto_simplex, weighted_sum


@dataclass(frozen=True, kw_only=True)
class Drfa(Algorithm):
    weighting: Literal["samples", "uniform"] = "uniform"
    gamma: NonNegativeFloat = 0.01

    weighted: ClassVar[bool] = True
    idea: ClassVar[str] = "draw clients by their weights in the worst mixture, measured at a random model of the round"
    changes: ClassVar[str] = "fairness"
    cites: ClassVar[tuple[str, ...]] = ("drfa",)
    ranges: ClassVar[dict[str, str]] = {"gamma": "0.008 to 0.01, with 10 local steps"}

    decides: ClassVar[dict[str, str]] = {"client/weight": "lambda: the probability that a draw takes the client"}

    def server_init(self, server: ServerView) -> Tree:
        n = server.clients.num_examples.double()
        zero = n.new_zeros(())  # no steps so far: lambda does not move before the first round
        mixture = n / n.sum() if self.weighting == "samples" else torch.full_like(n, 1 / len(n))
        return {
            "lambda": mixture,
            "copies": torch.zeros_like(n),
            "drawn": zero - 1,
            "share": zero,
            "w": server.x,
            "tau": zero,
        }

    def convene(self, server: ServerView, candidates: Info, answers: Tree) -> tuple[Tree, Tensor]:
        state, m, zero = server.state, len(candidates.index), torch.zeros_like(server.state["drawn"])
        v = torch.zeros_like(state["lambda"])
        v[candidates.index] = answers["F"].double() * (server.num_clients / m)
        mixture = project_onto_simplex(state["lambda"] + state["tau"] * self.gamma * v)
        rng = torch_stream(server.seed, "mixture", server.round)
        drawn = torch.multinomial(mixture.cpu(), m, replacement=True, generator=rng)
        copies = torch.bincount(drawn, minlength=len(mixture)).to(mixture)
        share = torch.rand((), generator=rng, dtype=torch.float64).to(mixture)
        # each snapshot moves lambda once: if no client trains now, the next round does not move it
        changed = {"lambda": mixture, "copies": copies, "drawn": zero + server.round, "share": share, "tau": zero}
        return {**state, **changed}, copies.nonzero()[:, 0]

    def broadcast(self, server: ServerView) -> Tree:
        """Send the snapshot to the clients of U. Later, send the position of the next snapshot to the clients of S."""
        drawn = int(server.state["drawn"]) == server.round
        return {"share": server.state["share"].to(server.x)} if drawn else {"w'": server.state["w"]}

    def before(self, task: Task, view: View, batch: Batch) -> Tree:
        return {"loss": batch.sum(task.loss(task.logits(view.extras["w'"], batch.x), batch.y))}

    def answer(self, view: View) -> Tree:
        return {"F": view.before["loss"] / view.info.num_examples}

    def local_init(self, task: Task, solver: Solver, view: View) -> tuple[Tensor, Tree]:
        return view.x, {"w'": view.x}

    def after_step(self, solver: Solver, view: View, carry: Carry) -> Tree:
        t = torch.minimum((view.extras["share"] * view.steps).floor() + 1, view.steps)
        return {"w'": torch.where(carry.steps == t, carry.w, carry.scratch["w'"])}

    def local_final(self, solver: Solver, view: View, carry: Carry, after: Tree) -> tuple[Upload, Tree]:
        moved = carry.scratch["w'"] - view.x
        return Upload(carry.w - view.x, {"w'": moved}, {"steps": carry.steps}), view.state

    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        copies, uploads = server.state["copies"][cohort.info.index], cohort.uploads
        p = copies / copies.sum()
        return cohort.sum(p), {
            **server.state,
            "w": server.x + weighted_sum(p, uploads.extras["w'"]),
            "tau": (p * uploads.report["steps"]).sum(),
        }

    def decided(self, server: ServerView, cohort: Cohort) -> Tree:
        return {"weight": server.state["lambda"][cohort.info.index]}
