"""Measure a method's cost in a round of the miniature federation: sizes of states and messages, and evaluations."""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import ParamSpec, TypeVar

from torch import Tensor

from fedskew.conformance import miniature
from fedskew.core.algorithm import Algorithm
from fedskew.core.contract import ServerOptimiser
from fedskew.core.machine import on_threads
from fedskew.core.records import Batch, Carry, View
from fedskew.core.task import Task
from fedskew.core.trees import Tree, leaves, pick
from fedskew.engine.sequential import Sequential
from fedskew.engine.states import ClientStates
from fedskew.loop.plan import Local, SeededPlanner
from fedskew.loop.round import close_round, prepare, sent_extras
from fedskew.loop.work import Differentiate, Done, Program, Work
from fedskew.slots import ServerSgd

P = ParamSpec("P")
R = TypeVar("R")

LEGEND = (
    "state and messages in models |w|, s: single numbers, C: classes, d: features, K: clients, n: public rows; "
    "f: forward passes besides the gradients' own; pass: over all local rows, or the public ones; "
    "first: gradients before the local steps"
)

FEW_ROWS = (5, 7, 6, 3, 1, 8, 4)
"""Client sizes. They are so small that a pass over a client's rows is one batch."""


@dataclass(frozen=True)
class Cost:
    """The cost of one round. A size such as ``2 + 3s`` means two models and three numbers."""

    client_state: str
    server_state: str  # besides the model; includes the server optimiser's state
    down: str  # sent to a client, with the model
    up: str  # received from a client
    gradients: float  # number of gradients in a local step
    forwards: float  # number of forward passes in a local step, besides one for each gradient
    passes: float  # number of forward passes over a client's rows before and after training
    server_forwards: float  # number of forward passes at the server in a round
    first: float  # number of gradients before the first local step

    @property
    def compute(self) -> str:
        """The computation of a local step, such as ``1 + 2f``, then of the round."""
        step = f"{self.gradients:g}" + (f" + {self.forwards:g}f" if self.forwards else "")
        passes = f", {self.passes:g} pass{'es' if self.passes != 1 else ''} a round" if self.passes else ""
        passes += f", {self.first:g} first" if self.first else ""
        return step + passes + (f", {self.server_forwards:g}f at the server" if self.server_forwards else "")

    def row(self) -> dict[str, str | float]:
        """Return plain values for tables."""
        return asdict(self) | {"compute": self.compute}


@dataclass(eq=False)
class Tally:
    """Counts of forward passes (by part of the round), gradients, steps and clients."""

    phase: str = "server"
    forwards: Counter[str] = field(default_factory=Counter)
    gradients: int = 0
    steps: int = 0
    clients: int = 0
    answers: Tree = field(default_factory=dict)  # one row for each candidate


@dataclass(frozen=True, eq=False)
class CountedTask(Task):
    """A task that counts its forward passes."""

    tally: Tally = field(default_factory=Tally)

    # compared by identity: programs are cached by task, and each tally needs its own program
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def outputs(self, w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        self.tally.forwards[self.tally.phase] += 1
        return Task.outputs(self, w, x)


@dataclass(frozen=True, eq=False)
class Counted:
    """An engine that runs one client after the other and counts the calls of hooks."""

    tally: Tally

    def survey(self, program: Program, work: Work, x: Tensor, y: Tensor) -> tuple[Tree, Tree]:
        before, answers = Sequential().survey(self.counted(program), work, x, y)
        self.tally.phase, self.tally.answers = "server", answers
        return before, answers

    def run(self, program: Program, work: Work, x: Tensor, y: Tensor) -> Done:
        self.tally.clients = len(work.clients)
        done = Sequential().run(self.counted(program), work, x, y)
        self.tally.phase = "server"
        return done

    def counted(self, program: Program) -> Program:
        """Return the program with counting hooks."""
        tally = self.tally

        def step(differentiate: Differentiate, view: View, carry: Carry, batch: Batch) -> Carry:
            def counted(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
                inner = differentiate(function)

                def grad_fn(w: Tensor) -> tuple[Tensor, Tensor]:
                    before = tally.forwards["step"]
                    result = inner(w)
                    # a gradient without a forward pass, such as a penalty's, is not counted
                    tally.gradients += tally.forwards["step"] > before
                    return result

                return grad_fn

            tally.phase = "step"
            tally.steps += 1
            return program.step(counted, view, carry, batch)

        def within(phase: str, hook: Callable[P, R]) -> Callable[P, R]:
            def counted(*args: P.args, **kwargs: P.kwargs) -> R:
                tally.phase = phase
                return hook(*args, **kwargs)

            return counted

        return program._replace(
            step=step,
            init=within("init", program.init),
            before=within("before", program.before) if program.before else None,
            after=within("after", program.after) if program.after else None,
        )


SERVER = ServerSgd()


@lru_cache(maxsize=256)
@on_threads(1)
def measure_cost(algorithm: Algorithm, server_optimiser: ServerOptimiser = SERVER) -> Cost:
    """Measure the cost of the second round, in which all states exist."""
    tally = Tally()
    fed = miniature.federation(
        algorithm,
        CountedTask(miniature.TASK.kind, miniature.NET, miniature.SPACE, miniature.CLASSES, tally=tally),
        sizes=FEW_ROWS,
        planner=SeededPlanner(Local(epochs=1, batch_size=2), seed=7),
        server_optimiser=server_optimiser,
    )
    engine, states = Counted(tally), ClientStates()
    server = miniature.play(fed, engine, 1, states=states)[-1].server
    tally.forwards, tally.gradients, tally.steps = Counter(), 0, 0
    server, work, _ = prepare(fed, engine, server, states, measure_local=False)
    candidates = len(next(leaves(tally.answers))[1]) if tally.answers else len(work.clients)
    done = engine.run(fed.program, work, fed.x, fed.y)
    server = close_round(fed, server, work, done)
    down = units((fed.sent(work.view.x), sent_extras(work.view)))
    up = units(pick(done.uploads._replace(delta=fed.sent(done.uploads.delta), notes={}), 0))
    if fed.program.convenes:
        down += " to all candidates"
        up += f", and {units(pick(tally.answers, 0))} from all candidates" if tally.answers else ""
    passes = tally.forwards["before"] / candidates + tally.forwards["after"] / len(work.clients)
    return Cost(
        client_state=units(pick(done.states, 0)),
        server_state=units((server.state, server.opt)),
        down=down,
        up=up,
        gradients=round(tally.gradients / tally.steps, 2),
        forwards=round((tally.forwards["step"] - tally.gradients) / tally.steps, 2),
        passes=round(passes, 2),
        server_forwards=tally.forwards["server"],
        first=tally.forwards["init"] / len(work.clients),
    )


def units(tree: object) -> str:
    """Format the size of a tree in models and single numbers. Each size in the miniature federation is unique."""
    size = miniature.SPACE.size
    names = {
        miniature.CLASSES * miniature.FEATURES: "C·d s",
        miniature.CLASSES: "C s",
        miniature.FEATURES: "d s",
        len(miniature.SIZES): "K s",
        miniature.PUBLIC: "n s",
        miniature.CLASSES * miniature.PUBLIC: "n·C s",
    }
    models, numbers, others = 0, 0, Counter[str]()
    for _, leaf in leaves(tree):
        if leaf.numel() % size == 0:
            models += leaf.numel() // size
        elif leaf.numel() in names:
            others[names[leaf.numel()]] += 1
        else:
            numbers += leaf.numel()
    parts = [str(models)] if models else []
    parts += [name if times == 1 else f"{times} {name}" for name, times in others.items()]
    parts += [("" if numbers == 1 else str(numbers)) + "s"] if numbers else []
    return " + ".join(parts) or "—"
