"""The base class of all federated methods. Its fields are hyperparameters. Its hooks are pure functions; together they are FedAvg.

A client hook handles one client. It receives a `View` and returns new values. It must not use ``.item()``, branches on tensor
values, or boolean indexing, because engines stack clients.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Literal, Protocol, final

import torch
from torch import Tensor

from fedskew.core.contract import Contract as Contract, Setup, Solver as Solver
from fedskew.core.records import Batch, Carry, Cohort, Info, ServerView, Upload, View
from fedskew.core.task import Task
from fedskew.core.trees import Tree

Loss = Callable[[Task, View, Tensor, Batch], Tensor]
"""A loss () of the parameters (P,) on a batch, with the arguments of the hook ``objective``."""


class GradFn(Protocol):
    """Gradient (P,) and value () of the objective, or of another ``loss``, on the current batch, at parameters (P,).

    The results are detached: they cannot be differentiated again.
    """

    def __call__(self, w: Tensor, loss: Loss | None = None) -> tuple[Tensor, Tensor]: ...


Weighting = Literal["samples", "uniform", "unbiased", "own"]

WEIGHT = {"client/weight": "weight of the client's update in the new model"}
"""The entry in ``decides`` of a method that weights updates in its own way."""

MU = {"client/mu": "strength of the client's proximal term"}
"""The entry in ``decides`` of a method whose clients have proximal terms of different strength."""

PUBLIC = "public"
"""The key of `Algorithm.broadcast` for data that every client already holds, such as public rows. Its bytes are not counted."""


def local_loss(task: Task, w: Tensor, batch: Batch) -> Tensor:
    """F_k(w; b): the mean loss of a batch, ()."""
    return batch.mean(task.loss(task.logits(w, batch.x), batch.y))


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """One method of federated learning.

    ``weighting`` sets the aggregation weights over the cohort: ``samples`` n_k / sum of the cohort's n (biased under partial
    participation with unequal sizes), ``uniform`` 1 / m, ``unbiased`` (K / m) n_k / n (they do not sum to 1),
    ``own`` the weights that ``clients.own`` gives to clients, divided by the cohort's sum (1 for a client without one).
    """

    weighting: Weighting = "samples"

    idea: ClassVar[str] = ""
    changes: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    cites: ClassVar[tuple[str, ...]] = ()  # keys of its BibTeX entries
    ranges: ClassVar[Mapping[str, str]] = {}  # option to the values that are usually tried
    reduces_to: ClassVar[Mapping[str, str]] = {}  # own options to the method whose steps they reproduce
    weighted: ClassVar[bool] = False  # True for a method with its own ``aggregate`` that uses the option ``weighting``
    # ``client/NAME`` or ``round/NAME`` to the meaning, with unit: what a run stores by client, or once a round, where the upload's
    # report, its notes or the hook ``decided`` have this NAME
    decides: ClassVar[Mapping[str, str]] = {}

    def contract(self) -> Contract:
        """Needs and properties of the method: see `Contract`."""
        return Contract()

    @final
    def accepts(self, setup: Setup) -> str:
        """Return why the method cannot work in this setup; empty if it can."""
        usual = next(f.default for f in fields(self) if f.name == "weighting")
        if self.weighting != usual and not self.weighted and type(self).aggregate is not Algorithm.aggregate:
            name = type(self).__name__
            return f"weighting: {name} has its own aggregate; write weighted = True there if it uses the weights, or leave it out"
        return self.contract().refusal(setup)

    # server
    def server_init(self, server: ServerView) -> Tree:
        """Return the server's state before the first round. ``server.state`` is still empty."""
        return {}

    def convene(self, server: ServerView, candidates: Info, answers: Tree) -> tuple[Tree, Tensor]:
        """Return the server's new state, and the ids (m,), ascending, of the clients that train in this round.

        ``candidates`` are the clients that the selection has drawn. ``answers`` has their results of the hook ``answer``. Both have
        a leading axis. A client that trains but is no candidate gets zeros in ``view.before``.
        """
        return server.state, candidates.index

    def broadcast(self, server: ServerView) -> Tree:
        """Return tensors that each client gets in addition to the model. The bytes of the entry `PUBLIC` are not counted."""
        return {}

    @final
    def weights(self, server: ServerView, cohort: Cohort) -> Tensor:
        """Return the aggregation weights (C,)."""
        n, size = cohort.info.num_examples, max(cohort.size, 1)
        if self.weighting == "uniform":
            return torch.full_like(n, 1.0 / size)
        if self.weighting == "unbiased":
            return n * (server.num_clients / (size * server.num_examples))
        n = server.weights[cohort.info.index] if self.weighting == "own" else n
        return n / n.sum()

    @final
    def shares(self, server: ServerView, cohort: Cohort) -> Tensor:
        """Return each client's weight (C,) in a mean over all clients."""
        n = cohort.info.num_examples
        if self.weighting == "uniform":
            return torch.full_like(n, 1.0 / server.num_clients)
        if self.weighting == "own":
            return server.weights[cohort.info.index] / server.weights.sum()
        return n / server.num_examples

    @final
    def mean_delta(self, server: ServerView, cohort: Cohort) -> Tensor:
        """Return the weighted mean (P,) of the cohort's deltas."""
        return cohort.sum(self.weights(server, cohort))

    def aggregate(self, server: ServerView, cohort: Cohort) -> tuple[Tensor, Tree]:
        """Return the step of the global model (P,), and the server's new state. The server optimiser's gradient is minus the step.

        It is not called in a round without updates, unless the contract says ``steps_alone``: then ``delta`` is (0, P), and
        there are no extras and no report.
        """
        return self.mean_delta(server, cohort), server.state

    def decided(self, server: ServerView, cohort: Cohort) -> Tree:
        """Return what the server decides with `aggregate`, by the names in ``decides``: a value of each client (C,), or one ().

        It gets the arguments of `aggregate`, and the state that this returned as ``server.after``. NaN stands for no decision.
        """
        return {}

    # client
    def client_init(self, x: Tensor) -> Tree:
        """Return a client's state before its first round. ``x`` (P,) is the model that it receives in that round."""
        return {}

    def before(self, task: Task, view: View, batch: Batch) -> Tree:
        """Return values on a batch at ``view.x``, before the first step. Their sum over the local data is ``view.before``."""
        return {}

    def answer(self, view: View) -> Tree:
        """Return scalars that a candidate sends to the server for the hook ``convene``."""
        return {}

    def local_init(self, task: Task, solver: Solver, view: View) -> tuple[Tensor, Tree]:
        """Return the local model (P,) before the first step, and the scratch: values that the client keeps between steps."""
        return view.x, {}

    def objective(self, task: Task, view: View, w: Tensor, batch: Batch) -> Tensor:
        """Return the local loss () on a batch."""
        return local_loss(task, w, batch)

    def local_gradient(self, grad_fn: GradFn, view: View, w: Tensor, scratch: Tree) -> Tensor:
        """Return the gradient (P,) of the local problem at ``w``: the objective's, plus terms from the server or the client state.

        It must be affine in the objective's gradient at ``w``. The measure of inexactness uses it, with the scratch of
        ``local_init``.
        """
        return grad_fn(w)[0]

    def direction(self, grad_fn: GradFn, view: View, w: Tensor, scratch: Tree) -> tuple[Tensor, Tree]:
        """Return the gradient (P,) for the solver's next step, and the new scratch."""
        return self.local_gradient(grad_fn, view, w, scratch), scratch

    def after_step(self, solver: Solver, view: View, carry: Carry) -> Tree:
        """Return the scratch after a step."""
        return carry.scratch

    def after(self, task: Task, view: View, w: Tensor, batch: Batch) -> Tree:
        """Return values on a batch at the local model ``w`` after the last step. They are summed over the local data."""
        return {}

    def local_final(self, solver: Solver, view: View, carry: Carry, after: Tree) -> tuple[Upload, Tree]:
        """Return the client's upload and its new state. ``after`` has the sums of the hook ``after``."""
        return Upload(carry.w - view.x, {}, {}), view.state

    # evaluation
    def personal(self, view: View) -> Tensor:
        """Return the model (P,) that the client itself uses after a round. ``view`` is the view of the next round."""
        return view.x
