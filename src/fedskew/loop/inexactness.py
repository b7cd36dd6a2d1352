"""How exactly clients solve their local problems (Li et al. 2020, arXiv:1812.06127, definition 2).

    gamma_k = ||grad h_k(w_k)|| / ||grad h_k(x)||

h_k is the client's local problem on all its training rows, with weight decay. Its gradient is the method's hook
``local_gradient``, which local steps follow. This includes a proximal term, SCAFFOLD's correction and FedSMOO's dual variable, but
not the perturbation of FedSAM and its variants. For FedProx, grad h_k(x) = grad F_k(x).

gamma is 0 if the problem is solved exactly, 1 if the local model is no nearer to the solution than the start, above 1 if farther.
"""

from functools import lru_cache

import torch
from torch import Tensor
from torch.func import grad_and_value
from torch.linalg import vector_norm

from fedskew.core.algorithm import Algorithm
from fedskew.core.contract import Solver
from fedskew.core.records import Batch, View
from fedskew.core.task import Task
from fedskew.core.trees import Tree
from fedskew.loop.federation import Federation
from fedskew.loop.sharing import PART, OwnPart
from fedskew.loop.work import Engine, Outcome, Program, by_group, gradient_on, program


def inexactness(fed: Federation, engine: Engine, outcome: Outcome) -> Tensor:
    """Return gamma (C,) of the cohort's local models; NaN if the gradient at the start is 0."""
    work, view = outcome.work, outcome.work.view
    models = view.x + outcome.done.uploads.delta
    if fed.own_part:
        models = models.index_copy(1, fed.own_part.at, outcome.done.states[PART])
    at_models = work._replace(view=view._replace(state={"own": view.state, "w": models}))
    programs = tuple(surveying(fed.algorithm, task, fed.solver, fed.own_part) for task in fed.tasks)
    slopes, _ = by_group(programs, at_models, lambda p, part: engine.survey(p, part, fed.x, fed.targets(part.round)))
    start, end = (vector_norm(slopes[place].double(), dim=1) for place in ("start", "end"))
    return torch.where(start > 0, end / start, torch.nan)


@lru_cache(maxsize=32)
def surveying(algorithm: Algorithm, task: Task, solver: Solver, part: OwnPart | None) -> Program:
    """Return a program for two gradients of the local problem: at the start and at the local model, each summed over all rows."""

    def before(view: View, batch: Batch) -> Tree:
        start, rows = view._replace(state=view.state["own"]), batch.mask.sum()
        start = part.own(start) if part else start
        grad_fn = gradient_on(algorithm, task, solver, grad_and_value, start, batch)
        scratch = algorithm.local_init(task, solver, start)[1]

        def gradient(w: Tensor) -> Tensor:
            # the gradient of a batch with only padding may be undefined
            return torch.where(rows > 0, rows * algorithm.local_gradient(grad_fn, start, w, scratch), 0.0)

        return {"start": gradient(start.x), "end": gradient(view.state["w"])}

    return program(algorithm, task, solver)._replace(before=before, answer=lambda view: {})
