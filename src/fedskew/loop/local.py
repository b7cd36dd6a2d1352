"""The local loop as pure functions for one client. Engines call them for one client, or vectorised for several."""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from fedskew.core.algorithm import Algorithm, GradFn, Loss, Solver
from fedskew.core.records import Batch, Carry, Upload, View
from fedskew.core.task import Task, score, stackable
from fedskew.core.trees import Tree

Differentiate = Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], tuple[Tensor, Tensor]]]
"""Maps a scalar function of the parameters (P,) to a function that returns its gradient (P,) and its value."""


def differentiate(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Return a function that computes gradient and value by autograd, for one client.

    `torch.func.grad_and_value` also works for stacked clients, but needs more memory.
    """

    def grad_fn(w: Tensor) -> tuple[Tensor, Tensor]:
        leaf = w.detach().requires_grad_()
        with torch.enable_grad():
            value = function(leaf)
        return torch.autograd.grad(value, leaf)[0], value.detach()

    return grad_fn


def gradient_on(
    algorithm: Algorithm, task: Task, solver: Solver, differentiate: Differentiate, view: View, batch: Batch
) -> GradFn:
    """Return the gradient function on a batch that a method's hooks get. It includes weight decay, except AdamW's."""
    decays = solver.linear and solver.weight_decay > 0

    def grad_fn(w: Tensor, loss: Loss | None = None) -> tuple[Tensor, Tensor]:
        if loss is not None:
            return differentiate(lambda w: loss(task, view, w, batch))(w)
        g, value = differentiate(lambda w: algorithm.objective(task, view, w, batch))(w)
        return (torch.add(g, w, alpha=solver.weight_decay) if decays else g), value

    return grad_fn


class Program(NamedTuple):
    """The local loop of a method on a task: ``before -> answer -> init -> step ... -> after, score -> final``.

    ``before`` and ``after`` are None if the method has no such hook. ``step`` gets the engine's function to differentiate.
    """

    stacks: bool  # True if PyTorch's function transforms work with it
    before: Callable[[View, Batch], Tree] | None
    answer: Callable[[View], Tree]
    convenes: bool  # True if the method surveys clients before it selects some of them
    init: Callable[[View], Carry]
    step: Callable[[Differentiate, View, Carry, Batch], Carry]
    after: Callable[[View, Tensor, Batch], Tree] | None
    score: Callable[[Tensor, Batch], Tree]
    final: Callable[[View, Carry, Tree], tuple[Upload, Tree]]
    personal: Callable[[View], Tensor] | None  # None: the client uses the model that it receives


@lru_cache(maxsize=32)
def program(algorithm: Algorithm, task: Task, solver: Solver) -> Program:
    """Return the program of a method, a task and a local solver. It is cached, so that engines trace it only once."""

    def before(view: View, batch: Batch) -> Tree:
        return algorithm.before(task, view, batch)

    def init(view: View) -> Carry:
        w, scratch = algorithm.local_init(task, solver, view)
        return Carry(w, solver.init(w), scratch, view.lr.new_zeros(()))

    def step(differentiate: Differentiate, view: View, carry: Carry, batch: Batch) -> Carry:
        grad_fn = gradient_on(algorithm, task, solver, differentiate, view, batch)
        g, scratch = algorithm.direction(grad_fn, view, carry.w, carry.scratch)
        w, opt = solver.update(g, carry.opt, carry.w, view.lr)
        carry = Carry(w, opt, scratch, carry.steps + 1)
        return carry._replace(scratch=algorithm.after_step(solver, view, carry))

    def after(view: View, w: Tensor, batch: Batch) -> Tree:
        return algorithm.after(task, view, w, batch)

    def final(view: View, carry: Carry, sums: Tree) -> tuple[Upload, Tree]:
        return algorithm.local_final(solver, view, carry, sums)

    return Program(
        stacks=stackable(task),
        before=before if overrides(algorithm, "before") else None,
        answer=algorithm.answer,
        convenes=overrides(algorithm, "convene"),
        init=init,
        step=step,
        after=after if overrides(algorithm, "after") else None,
        score=lambda w, batch: score(task, w, batch),
        final=final,
        personal=algorithm.personal if overrides(algorithm, "personal") else None,
    )


def overrides(algorithm: Algorithm, hook: str) -> bool:
    """True if the method defines this hook."""
    return getattr(type(algorithm), hook) is not getattr(Algorithm, hook)
