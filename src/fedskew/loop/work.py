"""A client's local work as pure functions, and the records of a round: what an engine gets and returns."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedskew.core.algorithm import Algorithm, GradFn, Loss, Solver
from fedskew.core.records import Batch, BatchPlan, Carry, Server, Upload, View
from fedskew.core.sites import Floats
from fedskew.core.task import Task, score
from fedskew.core.trees import Tree, concatenate, pick
from fedskew.skew.partition import Ints

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

    def init(view: View) -> Carry:
        w, scratch = algorithm.local_init(task, solver, view)
        return Carry(w, solver.init(w), scratch, view.lr.new_zeros(()))

    def step(differentiate: Differentiate, view: View, carry: Carry, batch: Batch) -> Carry:
        grad_fn = gradient_on(algorithm, task, solver, differentiate, view, batch)
        g, scratch = algorithm.direction(grad_fn, view, carry.w, carry.scratch)
        w, opt = solver.update(g, carry.opt, carry.w, view.lr)
        carry = Carry(w, opt, scratch, carry.steps + 1)
        return carry._replace(scratch=algorithm.after_step(solver, view, carry))

    return Program(
        before=partial(algorithm.before, task) if overrides(algorithm, "before") else None,
        answer=algorithm.answer,
        convenes=overrides(algorithm, "convene"),
        init=init,
        step=step,
        after=partial(algorithm.after, task) if overrides(algorithm, "after") else None,
        score=partial(score, task),
        final=partial(algorithm.local_final, solver),
        personal=algorithm.personal if overrides(algorithm, "personal") else None,
    )


def overrides(algorithm: Algorithm, hook: str) -> bool:
    """True if the method defines this hook and its options use it."""
    return getattr(type(algorithm), hook) is not getattr(Algorithm, hook) and hook not in algorithm.contract().unused


T = TypeVar("T")


class States(Protocol):
    """Storage of client states between rounds."""

    def get(self, clients: Ints, fresh: Callable[[], Tree]) -> Tree: ...

    def put(self, clients: Ints, states: Tree) -> None: ...


class Turnout(NamedTuple):
    """How many clients there are at each stage of a round."""

    available: int
    selected: int  # number of available clients that the selection chose
    answered: int  # number of selected clients that answered
    stragglers: int  # number of stragglers among the clients that train


class Work(NamedTuple):
    """The work of a cohort of C clients in one round.

    The parts of the view named in `OWN` have a leading axis C, the others are shared.
    """

    round: int  # number of finished rounds before it
    clients: Ints  # (C,) sorted ids
    view: View
    plans: list[BatchPlan]  # the local steps
    passes: list[BatchPlan]  # all training rows once, for the hooks `before` and `after`
    measured: list[BatchPlan]  # rows on which local models are measured; empty if they are not measured
    turnout: Turnout
    memory: Tree  # the codec's state of each client; leading axis C
    rates: Floats | None = None  # (C,) learning rates of the clients; None: all have ``view.lr``


class Done(NamedTuple):
    """The results of a cohort, in the order of ``Work.clients``."""

    uploads: Upload  # leading axis C
    states: Tree  # leading axis C
    scores: Tree  # sums (C,) over the measured rows at each local model; {} if not measured
    received: Ints | None = None  # positions in the cohort of the clients that answered, ascending; None: all of them
    rejected: int | None = None  # number of replies that arrived beside these, and were rejected


class Outcome(NamedTuple):
    """A finished round. Uploads and measures are those before the codec."""

    server: Server
    work: Work
    done: Done
    measures: dict[str, Tensor]  # see `fedskew.measure.updates`; {} in a round without clients
    decisions: dict[str, Tensor]  # (C,) or (), by the keys of the method's ``decides``; {} in a round without clients
    steps: Ints  # (C,) local steps
    bytes_down: int  # sent to the whole cohort
    bytes_up: int  # received from the whole cohort


class Engine(Protocol):
    """Runs a program, the local loop of a method, on the clients of a cohort."""

    def survey(self, program: Program, work: Work, x: Tensor, y: Tensor) -> tuple[Tree, Tree]:
        """Return, with leading axis C, sums over each client's data at the received model, and its answer to the survey."""

    def run(self, program: Program, work: Work, x: Tensor, y: Tensor) -> Done:
        """Train every client by its plan. ``x`` and ``y`` are the pooled rows (n, ...) and targets (n, ...)."""


def members_of(work: Work, at: Ints) -> Work:
    """Return the work of the clients at these positions of the cohort."""
    return work._replace(
        clients=work.clients[at],
        view=work.view.of(at),
        plans=[work.plans[i] for i in at],
        passes=[work.passes[i] for i in at],
        measured=[work.measured[i] for i in at] if work.measured else [],
        memory=pick(work.memory, at),
        rates=None if work.rates is None else work.rates[at],
    )


def by_group(programs: tuple[Program, ...], work: Work, act: Callable[[Program, Work], T]) -> T:
    """Call ``act`` with the program and the clients of each architecture and learning rate.

    Join the results (leading axis C) in the cohort's order.
    """
    if len(programs) == 1 and work.rates is None:
        return act(programs[0], work)
    rates = np.full(len(work.clients), float(work.view.lr)) if work.rates is None else work.rates
    kinds = list(zip((work.clients % len(programs)).tolist(), rates.tolist(), strict=True))
    order, parts = list[int](), list[T]()
    for kind in sorted(set(kinds)):
        at = np.flatnonzero([other == kind for other in kinds])
        members = members_of(work, at)
        view = members.view._replace(lr=torch.full_like(work.view.lr, kind[1]))
        order += at.tolist()
        parts.append(act(programs[kind[0]], members._replace(view=view)))
    return pick(concatenate(parts), torch.as_tensor(np.argsort(order), device=work.view.x.device))


def warped(x: Tensor, warp: Tensor) -> Tensor:
    """Shift and mirror images (..., channels, height, width) by ``warp`` (..., 3).

    ``warp`` holds three numbers: row and column of the pixel that moves to the origin, and 1 for a mirrored image. Pixels beyond
    the border are reflected at it.
    """
    images, change = x.flatten(0, -4), warp.flatten(0, -2)
    height, width = x.shape[-2:]
    rows = reflected(torch.arange(height, device=x.device) + change[:, :1], height)
    columns = reflected(torch.arange(width, device=x.device) + change[:, 1:2], width)
    columns = torch.where(change[:, 2:] == 1, columns.flip(1), columns)
    n, channels = (torch.arange(size, device=x.device) for size in images.shape[:2])
    moved = images[n[:, None, None, None], channels[:, None, None], rows[:, None, :, None], columns[:, None, None, :]]
    return moved.view(x.shape)


def reflected(at: Tensor, size: int) -> Tensor:
    """Reflect positions outside 0..size - 1 at the border pixel."""
    at = at.abs()
    return torch.where(at > size - 1, 2 * (size - 1) - at, at)
