"""Records of a round: the work that an engine gets, what it returns, and the outcome."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedskew.core.records import OWN, Plan, Server, Upload, View
from fedskew.core.trees import Tree, concatenate, pick
from fedskew.loop.local import Program
from fedskew.skew.partition import Ints

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
    plans: list[Plan]  # the local steps
    passes: list[Plan]  # all training rows once, for the hooks `before` and `after`
    measured: list[Plan]  # rows on which local models are measured; empty if they are not measured
    turnout: Turnout
    memory: Tree  # the codec's state of each client; leading axis C


class Done(NamedTuple):
    """The results of a cohort, in the order of ``Work.clients``."""

    uploads: Upload  # leading axis C
    states: Tree  # leading axis C
    scores: Tree  # sums (C,) over the measured rows at each local model; {} if not measured
    received: Ints | None = None  # positions in the cohort of the clients that answered, ascending; None: all of them


class Outcome(NamedTuple):
    """A finished round. Uploads and measures are those before the codec."""

    server: Server
    work: Work
    done: Done
    measures: dict[str, Tensor]  # see `fedskew.measure.updates`; {} in a round without clients
    steps: Ints  # (C,) local steps
    bytes_down: int  # sent to the whole cohort
    bytes_up: int  # received from the whole cohort


class Engine(Protocol):
    """Runs a program, the local loop of a method, on the clients of a cohort."""

    def survey(self, program: Program, work: Work, x: Tensor, y: Tensor) -> tuple[Tree, Tree]:
        """Return, with leading axis C, sums over each client's data at the received model, and its answer to the survey."""
        ...

    def run(self, program: Program, work: Work, x: Tensor, y: Tensor) -> Done:
        """Train every client by its plan. ``x`` and ``y`` are the pooled rows (n, ...) and targets (n, ...)."""
        ...


def members_of(work: Work, at: Ints) -> Work:
    """Return the work of the clients at these positions of the cohort."""
    return work._replace(
        clients=work.clients[at],
        view=work.view._replace(**{part: pick(getattr(work.view, part), at) for part in OWN}),
        plans=[work.plans[i] for i in at],
        passes=[work.passes[i] for i in at],
        measured=[work.measured[i] for i in at] if work.measured else [],
        memory=pick(work.memory, at),
    )


def by_architecture(programs: tuple[Program, ...], work: Work, act: Callable[[Program, Work], T]) -> T:
    """Call ``act`` with each architecture's program and clients; join the results (leading axis C) in the cohort's order."""
    if len(programs) == 1:
        return act(programs[0], work)
    own = work.clients % len(programs)
    groups = [np.flatnonzero(own == g) for g in range(len(programs))]
    parts = [act(p, members_of(work, at)) for p, at in zip(programs, groups, strict=True) if len(at)]
    back = torch.as_tensor(np.argsort(np.concatenate(groups)), device=work.view.x.device)
    joined: T = pick(concatenate(parts), back)
    return joined
