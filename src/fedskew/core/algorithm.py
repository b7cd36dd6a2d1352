"""The base class of every federated method: hyper-parameters as fields, and pure hooks with FedAvg's behaviour.

A hook holds no ``.item()``, no branch on tensor values and no boolean indexing, so that engines can stack it over clients.
Client hooks are written for one client; what they may see is in `View`, what persists they return.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from fedskew.core.records import Batch, Carry, Cohort, Info, Privacy, Server, Upload, View
from fedskew.core.task import Task
from fedskew.core.trees import Tree

Loss = Callable[[Task, View, Tensor, Batch], Tensor]
"""A loss () of the parameters (P,) on a batch, of the shape of the hook ``objective``."""


class GradFn(Protocol):
    """Parameters (P,) to (gradient (P,), value ()) on the current batch; numbers, not to be differentiated further.

    Of the objective, or of another ``loss`` on the same batch.
    """

    def __call__(self, w: Tensor, loss: Loss | None = None) -> tuple[Tensor, Tensor]: ...


Weighting = Literal["samples", "uniform", "unbiased"]

FEATURES = "features"
LINEAR_SOLVER = "linear solver"
PLAIN_SOLVER = "plain solver"
SERVER_DATA = "server data"
SENSITIVE = "sensitive attribute"
PLAIN_SERVER = "plain server"


class Solver(Protocol):
    """The local optimiser, as far as a hook may know it. Only a linear one has ``unit_response`` and ``respond``.

    A ``plain`` one moves by its rate times the gradient in each step.
    """

    @property
    def linear(self) -> bool: ...

    @property
    def plain(self) -> bool: ...

    @property
    def weight_decay(self) -> float: ...

    def init(self, w: Tensor) -> Tree: ...

    def update(self, g: Tensor, opt: Tree, w: Tensor, lr: Tensor) -> tuple[Tensor, Tree]: ...

    def unit_response(self, steps: Tensor) -> Tensor: ...

    def respond(self, g: Tensor, momentum: Tensor, position: Tensor, lr: Tensor) -> tuple[Tensor, Tensor]: ...


def local_loss(task: Task, w: Tensor, batch: Batch) -> Tensor:
    """F_k(w; b): the mean loss of a batch, ()."""
    return batch.mean(task.loss(task.logits(w, batch.x), batch.y))


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """One method of federated learning.

    ``weighting`` sets the aggregation weights over the cohort: ``samples`` n_k / sum of the cohort's n (biased under partial
    participation with unequal sizes), ``uniform`` 1 / m, ``unbiased`` (K / m) n_k / n (they do not sum to 1).
    """

    weighting: Weighting = "samples"

    idea: ClassVar[str] = ""
    changes: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    cites: ClassVar[tuple[str, ...]] = ()  # keys of its BibTeX entries
    ranges: ClassVar[Mapping[str, str]] = {}  # option to the values that are usually tried
    reduces_to: ClassVar[Mapping[str, str]] = {}  # own options to another method that then takes the same steps
    acts_alone: ClassVar[bool] = False  # whether the server takes a step even when nobody answered
    shares_model: ClassVar[bool] = True  # False: each client keeps its model, and only what the method adds is sent

    def needs(self) -> frozenset[str]:
        """What the assembly must provide: the constants above, `FEATURES` to `PLAIN_SERVER`."""
        return frozenset()

    def hazard(self, lr: float) -> str:
        """Why this method may diverge at the client learning rate ``lr``, and what to try; empty if it adds no danger."""
        return ""

    def fewest(self, cohort: int) -> int:
        """How many finite updates a round needs of a cohort of this size; a method that leaves the others out says fewer."""
        return cohort

    def privacy(self) -> Privacy | None:
        """The mechanism that hides each client, where the method has one; the assembly then holds everything else to it.

        Its noise is drawn by `fedskew.core.seeding.normals` from ``server.seed``, which between machines is a secret of the server.
        """
        return None

    # server
    def server_init(self, server: Server) -> Tree:
        """The server's own state before round 0; ``server.state`` is still empty."""
        return {}

    def convene(self, server: Server, candidates: Info, answers: Tree) -> tuple[Tree, Tensor]:
        """Who trains in this round, as client ids (m,) in ascending order, and the server's state before it broadcasts to them.

        ``candidates`` are the clients that the selection proposes, ``answers`` what they say (hook ``answer``), both with a
        leading axis. A client that trains without having been a candidate finds zeros in ``view.before``.
        """
        return server.state, candidates.index

    def broadcast(self, server: Server) -> Tree:
        """What is sent besides the model."""
        return {}

    def public(self, server: Server) -> Tree:
        """What every client has at hand without its being sent, such as public rows: in ``view.public``, not counted in bytes."""
        return {}

    def weights(self, server: Server, cohort: Cohort) -> Tensor:
        """Aggregation weights (C,)."""
        n, size = cohort.info.num_examples, max(cohort.size, 1)
        if self.weighting == "uniform":
            return torch.full_like(n, 1.0 / size)
        if self.weighting == "unbiased":
            return n * (server.num_clients / (size * server.num_examples))
        return n / n.sum()

    def shares(self, server: Server, cohort: Cohort) -> Tensor:
        """Each client's share (C,) in the mean over the whole population, for quantities that all clients contribute to."""
        n = cohort.info.num_examples
        if self.weighting == "uniform":
            return torch.full_like(n, 1.0 / server.num_clients)
        return n / server.num_examples

    def mean_delta(self, server: Server, cohort: Cohort) -> Tensor:
        """The weighted mean of the cohort's deltas, (P,)."""
        return cohort.sum(self.weights(server, cohort))

    def aggregate(self, server: Server, cohort: Cohort) -> tuple[Tensor, Tree]:
        """The step of the global model (P,), which the server optimiser takes as minus a gradient, and the new state.

        Without a cohort it is not asked, and the round changes nothing; only a method that ``acts_alone`` then gets uploads
        of no rows: ``delta`` (0, P), and no extras or report.
        """
        return self.mean_delta(server, cohort), server.state

    # client
    def client_init(self, x: Tensor) -> Tree:
        """A client's state when it takes part for the first time; ``x`` is the model it then receives."""
        return {}

    def before(self, task: Task, view: View, batch: Batch) -> Tree:
        """Summed over the local data at x, before the first step."""
        return {}

    def answer(self, view: View) -> Tree:
        """What a candidate tells the server before the round (scalars), where the method has a hook ``convene``."""
        return {}

    def local_init(self, view: View) -> tuple[Tensor, Tree]:
        """Where the client starts (P,), and its scratch."""
        return view.x, {}

    def digest(self, task: Task, solver: Solver, view: View, w: Tensor) -> Tensor:
        """The model (P,) that trains on the client's own rows, from where it starts and what the client received."""
        return w

    def begin(self, solver: Solver, view: View, carry: Carry) -> Tree:
        """The scratch before the first step, where it depends on the solver."""
        return carry.scratch

    def objective(self, task: Task, view: View, w: Tensor, batch: Batch) -> Tensor:
        """The local loss (): the landscape."""
        return local_loss(task, w, batch)

    def local_gradient(self, grad_fn: GradFn, view: View, w: Tensor, scratch: Tree) -> Tensor:
        """The gradient (P,) of the client's local problem at ``w``: that of the objective and of what the server or state adds.

        It is affine in the objective's gradient at ``w``. Inexactness is measured by it, with the ``scratch`` of ``local_init``.
        """
        return grad_fn(w)[0]

    def direction(self, grad_fn: GradFn, view: View, w: Tensor, scratch: Tree) -> tuple[Tensor, Tree]:
        """What the solver takes as the gradient (P,), and the new scratch: the update path."""
        return self.local_gradient(grad_fn, view, w, scratch), scratch

    def after_step(self, solver: Solver, view: View, carry: Carry) -> Tree:
        """The scratch after a step."""
        return carry.scratch

    def after(self, task: Task, view: View, w: Tensor, batch: Batch) -> Tree:
        """Summed over the local data at the local model."""
        return {}

    def local_final(self, solver: Solver, view: View, carry: Carry, after: Tree) -> tuple[Upload, Tree]:
        """What is sent, and the client's new state."""
        return Upload(carry.w - view.x, {}, {}), view.state

    def after_sending(self, state: Tree, lost: Tensor) -> Tree:
        """The new state where a codec loses ``lost`` (P,) of the update: what ``local_final`` sends less what the server decodes.

        For a state whose sum over the clients the server keeps too: both then follow what the server decodes.
        """
        return state

    # evaluation
    def personal(self, view: View) -> Tensor:
        """The model (P,) that the client would use itself, from the view that it would get of the server after a round.

        ``view.before`` holds the sums of the hook ``before`` at that view, where the method has one.
        """
        return view.x
