"""The promises of methods. Each is a function that plays a miniature federation and raises `Broken` with the reason."""

import dataclasses
import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskew.algorithms import ALGORITHMS
from fedskew.conformance.hooks import Broken, Record, expect_same, record, snapshot, wrong_return
from fedskew.conformance.miniature import SIZES, federation, play, start_of
from fedskew.core.algorithm import Algorithm
from fedskew.core.component import build, from_table, parse, plain
from fedskew.core.contract import Selection, ServerOptimiser, Solver, linear_solver, plain_solver
from fedskew.core.machine import on_threads
from fedskew.core.records import BatchPlan, Cohort, Server
from fedskew.core.trees import leaves, pick, signature
from fedskew.core.user_code import fault
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from fedskew.engine.states import ClientStates
from fedskew.loop.federation import Federation
from fedskew.loop.plan import Local, Planner, SeededPlanner
from fedskew.loop.round import close_round, fresh, prepare, start
from fedskew.loop.work import Engine, Outcome, Work, members_of
from fedskew.skew.partition import Ints
from fedskew.slots import SOLVERS as CATALOGUE, Poisson, ServerSgd, Uniform
from fedskew.store import checkpoints

RESUMED_AFTER = 2
DRAWS, ROOM = 16, 1.2
"""Number of draws for measuring a method's noise, and the tolerated factor of its measured value."""
SOLVERS: dict[str, Solver] = {
    name: build("solver", CATALOGUE, spec)
    for name, spec in {
        "sgd": "sgd:lr=0.1",
        "momentum": "sgd:lr=0.05,momentum=0.9,weight_decay=0.01,lr_decay=0.9",
        "adamw": "adamw:lr=0.01",
    }.items()
}
LOCAL = {"epochs": Local(epochs=2, batch_size=7), "steps": Local(steps=3, batch_size=4, batches="independent")}
REDUCED = (("sgd", "epochs"), ("sgd", "steps"), ("momentum", "epochs"), ("adamw", "steps"))
"""Solvers and local work for which a reduction must hold."""


@dataclass(frozen=True)
class Verdict:
    """The result for one promise."""

    promise: str
    kept: bool
    reason: str = ""  # why it is broken


@dataclass(frozen=True)
class Subject:
    """The method that is examined, with its server optimiser and the catalogue of other methods."""

    algorithm: Algorithm
    server: ServerOptimiser
    catalogue: Mapping[str, type]
    slots: Mapping[str, Any] = field(default_factory=dict)  # other fields of the federation

    @cached_property
    def federation(self) -> Federation:
        """The miniature federation of this method."""
        return replace(federation(self.algorithm, server_optimiser=self.server), **self.slots)

    @cached_property
    def course(self) -> tuple[list[Outcome], ClientStates, ClientStates]:
        """All rounds with the sequential engine, the states after `RESUMED_AFTER` rounds, and the states after all rounds."""
        states = ClientStates()
        first = play(self.federation, Sequential(), RESUMED_AFTER, states=states)
        middle = deepcopy(states)
        return first + play(self.federation, Sequential(), server=first[-1].server, states=states), middle, states

    @cached_property
    def reference(self) -> Record:
        """All numbers of `course`."""
        outcomes, _, states = self.course
        return record(outcomes, states)

    def middle(self) -> tuple[Server, ClientStates]:
        """Return copies of the server and the states after `RESUMED_AFTER` rounds."""
        outcomes, states, _ = self.course
        return deepcopy((outcomes[RESUMED_AFTER - 1].server, states))

    def halfway(self) -> tuple[Federation, Server, ClientStates, Work]:
        """Prepare the round after `RESUMED_AFTER` rounds; return the federation, server, states and work."""
        server, states = self.middle()
        server, work, _ = prepare(self.federation, Sequential(), server, states, True)
        return self.federation, server, states, work


def played(fed: Federation, engine: Engine, rounds: int | None = None) -> Record:
    """Play the rounds (default: all) and return all numbers."""
    states = ClientStates()
    return record(play(fed, engine, rounds, states=states), states)


def trains(subject: Subject) -> None:
    """trains on clients of different sizes in changing cohorts, and all numbers stay finite"""
    for name, value in subject.reference.items():
        if ": decisions" not in name and not bool(value.double().isfinite().all()):
            raise Broken(f"{name} is not finite")


def engines_agree(subject: Subject) -> None:
    """gives the same numbers one client after the other and stacked, to 1e-12, with every solver"""
    for engine in (Stacked(), Stacked(width=3)):
        expect_same(played(subject.federation, engine), subject.reference)
    for solver in (SOLVERS["momentum"], SOLVERS["adamw"]):
        # a joint loss may have gradients that are 0 except for rounding; AdamW would scale up these rounding errors
        if trains_with(subject.algorithm, solver) and (solver.linear or not subject.federation.task.joint):
            fed = replace(subject.federation, solver=solver)
            expect_same(played(fed, Stacked(), RESUMED_AFTER), played(fed, Sequential(), RESUMED_AFTER))


def order_does_not_matter(subject: Subject) -> None:
    """gives each client the same result in any order of the clients"""
    fed, _, _, work = subject.halfway()
    order = list(reversed(range(len(work.clients))))
    turned = members_of(work, np.array(order))
    for engine in (Sequential(), Stacked(width=2)):
        expected = engine.run(fed.program, work, fed.x, fed.y)
        restored = pick(engine.run(fed.program, turned, fed.x, fed.y), order)
        expect_same(dict(leaves(restored)), dict(leaves(expected)))


def resume_is_exact(subject: Subject) -> None:
    """resumes from a checkpoint bit by bit as if it had never stopped"""
    fed, (server, states) = subject.federation, subject.middle()
    tree = {"x": server.x, "opt": server.opt, "state": server.state, "clients": states.checkpoint()}
    with tempfile.TemporaryDirectory() as folder:
        read, _ = checkpoints.load(checkpoints.save(Path(folder), server.round, tree, {}))
    restored = {"x": read["x"], "opt": read.get("opt", {}), "state": read.get("state", {}), "round": server.round}
    continued = ClientStates.restore(read["clients"]["ids"].numpy(), read["clients"].get("states", {}))
    rest = play(fed, Sequential(), server=start(fed, start_of(fed))._replace(**restored), states=continued)
    ours = record(rest, continued)
    expect_same(ours, {name: subject.reference[name] for name in ours}, tolerance=0.0)


def nothing_is_changed(subject: Subject) -> None:
    """changes nothing in place: neither its inputs nor earlier results"""
    for engine in (Sequential(), Stacked()):
        fed, server, states, work = subject.halfway()
        inputs = (work, (server.x, server.opt, server.state), (fed.x, fed.y), fed.info, states.export()[1])
        before = snapshot(*inputs)
        done = engine.run(fed.program, work, fed.x, fed.y)
        results = snapshot(done)
        after = close_round(fed, server, work, done)
        expect_same(snapshot(*inputs), before, tolerance=0.0)
        states.put(work.clients, done.states)
        next_server = snapshot((after.x, after.opt, after.state))
        play(fed, engine, RESUMED_AFTER + 2, server=after, states=states)
        expect_same(snapshot(done), results, tolerance=0.0)
        expect_same(snapshot((after.x, after.opt, after.state)), next_server, tolerance=0.0)


@dataclass(frozen=True)
class Padded:
    """A planner that adds rows of another client, with mask 0, before and after the inner planner's batches."""

    inner: Planner

    def batch_sizes(self, sizes: Ints) -> Ints:
        return self.inner.batch_sizes(sizes)

    def varied(self, shares: Mapping[int, float]) -> Planner:
        return Padded(self.inner.varied(shares))

    def parts(self, client: int) -> int:
        return self.inner.parts(client)

    def train(self, round_: int, client: int, rows: Ints) -> BatchPlan:
        index, mask, *_ = self.inner.train(round_, client, rows)
        stranger = (int(rows[0]) + sum(SIZES) // 2) % sum(SIZES)
        wide = ((0, 0), (2, 3))
        return BatchPlan(np.pad(index, wide, constant_values=stranger), np.pad(mask, wide))


def padding_changes_nothing(subject: Subject) -> None:
    """gives the same numbers if batches hold rows under a mask of 0"""
    padded = replace(subject.federation, planner=Padded(subject.federation.planner))
    for engine in (Sequential(), Stacked()):
        expect_same(played(padded, engine), subject.reference)


def states_keep_their_shape(subject: Subject) -> None:
    """keeps the names, shapes and types of its states over the rounds"""
    fed = subject.federation
    server = start(fed, start_of(fed))
    client, of_server = signature(fresh(fed, server.x)), signature((server.state, server.opt))
    for outcome in subject.course[0]:
        at = f"after round {outcome.server.round}"
        for what, first, now in (
            ("client", client, signature(pick(outcome.done.states, 0))),
            ("server", of_server, signature((outcome.server.state, outcome.server.opt))),
        ):
            if first != now:
                changed = sorted(set(first.items()) ^ set(now.items()), key=str)
                raise Broken(f"{what} state {changed[0][0]!r} {at} has another name, shape or type than at the start")


def is_a_value(subject: Subject) -> None:
    """is a value: frozen, and equal to its pickled copy and to the copy read from its table"""
    a = subject.algorithm
    copies = {"pickled copy": pickle.loads(pickle.dumps(a)), "table": from_table(type(a), plain(a), "table")}
    for name, copy in copies.items():
        if copy != a or hash(copy) != hash(a):
            raise Broken(f"its {name} is not equal to it")
    try:
        setattr(a, next(f.name for f in dataclasses.fields(a)), None)
    except dataclasses.FrozenInstanceError:
        return
    raise Broken("its options can be assigned to; write @dataclass(frozen=True, kw_only=True)")


def hides_each_client(subject: Subject) -> None:
    """hides the effect of each client in its noise, if it states a privacy loss"""
    privacy = subject.algorithm.contract().privacy
    if privacy is None or not privacy.noise:
        return
    fed, server, _, work = subject.halfway()
    uploads = Sequential().run(fed.program, work, fed.x, fed.y).uploads
    # make them longer than the clipping length, as a codec or an attacker may do
    uploads = uploads._replace(delta=1000 * uploads.delta)

    def step(members: list[int], seed: int = 0) -> torch.Tensor:
        cohort = Cohort(pick(work.view.info, members), pick(uploads, members))
        return subject.algorithm.aggregate(fed.view(server)._replace(seed=seed), cohort)[0].double()

    everyone = list(range(len(work.clients)))
    noise = float(torch.stack([step(everyone, seed) for seed in range(DRAWS)]).var(0).mean().sqrt())
    for left_out in everyone:
        change = float((step(everyone) - step([i for i in everyone if i != left_out])).norm())
        if change > ROOM * noise / privacy.noise:
            raise Broken(
                f"one client changes the model by {change:.1e}; the noise hides {noise / privacy.noise:.1e} only"
            )


def says_what_it_is(subject: Subject) -> None:
    """describes its idea and its changes in one line each, and declares ranges for existing options only"""
    cls = type(subject.algorithm)
    if missing := [name for name in ("idea", "changes") if not getattr(cls, name)]:
        raise Broken(f'{" and ".join(missing)} missing; write {missing[0]}: ClassVar[str] = "one line" in the class')
    if "\n" in cls.idea + cls.changes:
        raise Broken("idea and changes must be one line each")
    for option in set(cls.ranges) - {f.name for f in dataclasses.fields(cls)}:
        raise Broken(f"ranges names {option!r}, which is not an option")


def has_what_it_decides(subject: Subject) -> None:
    """has in each round the values that it declares in decides"""
    for outcome in subject.course[0]:
        for key in type(subject.algorithm).decides:
            if key not in outcome.decisions:
                raise Broken(
                    f"decides has {key!r}, but neither an upload's report or notes nor the hook decided has a value"
                )
            shape, due = tuple(outcome.decisions[key].shape), (len(outcome.work.clients),) * key.startswith("client/")
            if shape != due:
                raise Broken(f"the value of {key!r} must be a tensor {due}; it is a tensor {shape}")


PROMISES: tuple[Callable[[Subject], None], ...] = (
    trains,
    engines_agree,
    order_does_not_matter,
    resume_is_exact,
    nothing_is_changed,
    padding_changes_nothing,
    states_keep_their_shape,
    is_a_value,
    hides_each_client,
    says_what_it_is,
    has_what_it_decides,
)


def trains_with(algorithm: Algorithm, solver: Solver) -> bool:
    """True if the method can use the local solver."""
    needs = algorithm.contract().needs
    return (solver.linear or linear_solver not in needs) and (solver.plain or plain_solver not in needs)


def reduces(subject: Subject, options: str, other: str) -> None:
    """Check that the method with the options ``own`` takes the steps of ``other``, with each solver that both can use."""
    cls = type(subject.algorithm)
    ours = from_table(cls, parse(f"{cls.__name__}:{options}" if options else cls.__name__, options)[1], "reduces_to")
    theirs = build("algorithm", subject.catalogue, other, "reduces_to")
    # the guarantee of a privacy mechanism depends on how clients are drawn
    privacy = ours.contract().privacy or theirs.contract().privacy
    rate = privacy.q if privacy else 0.0
    selection = cohort_selection(rate)
    for name, kind in REDUCED:
        solver, planner = SOLVERS[name], SeededPlanner(LOCAL[kind], seed=7)
        if not (trains_with(ours, solver) and trains_with(theirs, solver)):
            continue
        fed = replace(subject.federation, algorithm=ours, solver=solver, planner=planner, selection=selection)
        for outcome, x in zip(play(fed, Sequential()), models(theirs, subject.server, name, kind, rate), strict=True):
            try:
                expect_same({"x": outcome.server.x}, {"x": x})
            except Broken as broken:
                raise Broken(f"round {outcome.server.round}, solver {name}, {kind}: {broken}") from None


def cohort_selection(rate: float) -> Selection:
    """Return a selection that draws each client with this probability; for 0, one that draws five clients a round."""
    return Poisson(rate=rate) if rate else Uniform(clients=5)


@lru_cache(maxsize=32)
def models(method: Algorithm, server: ServerOptimiser, solver: str, kind: str, rate: float) -> list[Tensor]:
    """Return the global model after each round. It is cached, because many methods reduce to the same method."""
    planner = SeededPlanner(LOCAL[kind], seed=7)
    fed = federation(
        method, server_optimiser=server, solver=SOLVERS[solver], planner=planner, selection=cohort_selection(rate)
    )
    return [outcome.server.x for outcome in play(fed, Sequential())]


def check(
    algorithm: Algorithm, server: ServerOptimiser | None = None, catalogue: Mapping[str, type] = ALGORITHMS
) -> Iterator[Verdict]:
    """Yield the verdicts on a method, one by one. If it does not train, yield only the first."""
    subject = Subject(algorithm, server or ServerSgd(), catalogue)
    for promise in PROMISES:
        verdict = examined(promise.__doc__ or "", promise, subject)
        if not verdict.kept:
            verdict = replace(verdict, reason=wrong_return(subject.federation) or verdict.reason)
        yield verdict
        if promise is trains and not verdict.kept:
            return
    for options, other in type(algorithm).reduces_to.items():
        yield examined(
            f"takes the steps of {other} with {options or 'its default options'}", reduces, subject, options, other
        )


def examined(promise: str, test: Callable[..., None], *arguments: object) -> Verdict:
    """Test a promise; return the verdict. Any exception in the method's code breaks the promise."""
    try:
        with on_threads(1):  # with so little work several threads only wait for each other
            test(*arguments)
    except Broken as broken:
        return Verdict(promise, False, str(broken))
    except Exception as error:
        first = (str(error).strip() or "without a message").splitlines()[0]
        return Verdict(promise, False, str(fault(error) or f"{type(error).__name__}: {first}"))
    return Verdict(promise, True)
