"""The conformance table: every algorithm on every engine, solver and server optimiser, with one set of promises.

A new algorithm adds a line to `ROWS` and is tested on everything.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedskew.algorithms import ALGORITHMS
from fedskew.conformance.promises import Subject, reduces, trains_with
from fedskew.core.component import build
from fedskew.core.records import OWN, Plan, Server
from fedskew.core.task import Classification
from fedskew.core.trees import leaves, pick
from fedskew.core.vectors import ParameterSpace
from fedskew.engine import ENGINES, sequential
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked, Steps
from fedskew.engine.states import ClientStates
from fedskew.loop.federation import Federation
from fedskew.loop.local import program
from fedskew.loop.plan import Local
from fedskew.loop.round import Outcome, Work, close_round, prepare, start
from fedskew.models import MODELS, Cnn, Cnn1d, LeNet, Mlp, ResNet, Softmax, TextCnn
from fedskew.slots import (
    SERVER_OPTIMISERS,
    SOLVERS,
    Adagrad,
    Adam,
    AdamW,
    Everyone,
    Momentum,
    ServerSgd,
    Sgd,
    Uniform,
    Yogi,
)
from fedskew.store import checkpoints
from tests.small import RAGGED, X0, play, ragged

torch.set_num_threads(1)

ROWS: dict[str, list[str]] = {
    "fedavg": ["fedavg", "fedavg:weighting=uniform", "fedavg:weighting=unbiased"],
    "fedprox": ["fedprox:mu=0.3", "fedprox:mu=0.3,step=implicit"],
    "scaffold": ["scaffold", "scaffold:option=I", "scaffold:weighting=samples"],
    "fednova": ["fednova", "fednova:mu=0.3", "fednova:mu=0.3,tau_eff=steps"],
    "feddyn": ["feddyn:alpha=0.2", "feddyn:alpha=0.2,weighting=samples"],
    "moon": ["moon:mu=2.0"],
    "fairfed": ["fairfed:beta=0.1"],
    "f3": ["f3:rule=fair-accuracy-average,alpha=0.3,beta=0.37"],
    "f3-gradient": ["f3-gradient"],
    "fedntd": ["fedntd", "fedntd:beta=0.5,tau=3.0"],
    "fedlc": ["fedlc:tau=0.5", "fedlc:tau=0.5,denominator=exclude"],
    "fedproc": ["fedproc", "fedproc:alpha=0.3"],
    "fedpa": ["fedpa:rho=0.5", "fedpa:rho=0.2,samples=3,burn_in=0.5,burn_in_rounds=2"],
    "fedsam": ["fedsam", "fedsam:rho=0.5,weighting=samples"],
    "median": ["median"],
    "trimmed-mean": ["trimmed-mean:beta=0.3"],
    "krum": ["krum:f=0,c=2", "krum:f=0"],
    "fedsol": ["fedsol", "fedsol:scale=fixed,rho=0.1", "fedsol:proximal=l2,scale=fixed,rho=0.1"],
    "fedsmoo": ["fedsmoo", "fedsmoo:beta=5.0,weighting=samples"],
    "mofedsam": ["mofedsam:beta=0.3", "mofedsam:rho=0.0,beta=0.3"],
    "qfedavg": ["qfedavg:q=2.0", "qfedavg:q=0.5,weighting=samples"],
    "afl": ["afl", "afl:weighting=uniform"],
    "drfa": ["drfa:gamma=0.1", "drfa:gamma=0.1,weighting=samples"],
    "fedbs": ["fedbs:cohort=1.0", "fedbs:variance=loss,importance=size,weigh_by=score"],
    "fedga": ["fedga", "fedga:score=accuracy", "fedga:weighting=uniform"],
    "fedga-generalisation": ["fedga-generalisation:d=0.2", "fedga-generalisation:d=0.2,weighting=uniform"],
    "fedga-alignment": ["fedga-alignment"],
    "fedpbs": [
        "fedpbs:mu=0.3",
        "fedpbs:mu=0.3,mu_scale=variance,variance=gradient,selection=stable,aggregation=softmax",
    ],
    "ditto": ["ditto:lam=0.5"],
    "per-fedavg": [
        "per-fedavg:alpha=0.1",
        "per-fedavg:alpha=0.1,form=hessian-free",
        "per-fedavg:alpha=0.1,batches=same",
    ],
    "ifca": ["ifca", "ifca:k=3,weighting=samples", "ifca:k=3,averaging=gradients"],
    "fedmd": ["fedmd:rows=11,batch_size=4", "fedmd:distance=squared,steps=3,weighting=samples"],
    "dualmetric": ["dualmetric:mu=0.09"],
    "dp-fedavg": ["dp-fedavg:clip=0.3,noise=0.5,q=0.5", "dp-fedavg:clip=0.3,noise=0.0,q=0.5"],
}
SPECS = [spec for row in ROWS.values() for spec in row]
FIRST = [row[0] for row in ROWS.values()]
DRAWN = ROWS["drfa"]
"""Those who train are drawn by the server, by number."""
CHOSEN = [*DRAWN, *ROWS["fedbs"][1:], *ROWS["fedpbs"][1:]]
"""Who trains depends on who else is proposed."""
ALIKE = {"median", "trimmed-mean:beta=0.3"}
"""Of four values a trimmed mean is the mean or the median."""
SAME_MODEL = {"fedavg", "ditto:lam=0.5"}
"""They differ in what clients keep."""
TOGETHER = [*DRAWN, *ROWS["fedbs"][1:], *ROWS["fedpbs"][1:], *ROWS["dualmetric"]]
"""What clients do depends on who else is proposed: who trains at all, or how far one is from their mean."""

SOLVER: dict[str, Any] = {
    "sgd": Sgd(lr=0.1),
    "momentum": Sgd(lr=0.05, momentum=0.9, weight_decay=0.01, lr_decay=0.9),
    "adamw": AdamW(lr=0.01, lr_decay=0.9),
}
SERVER: dict[str, Any] = {
    "sgd": ServerSgd(),
    "sgd-slow": ServerSgd(lr=0.7),
    "momentum": Momentum(beta=0.5),
    "adagrad": Adagrad(lr=0.1),
    "adam": Adam(lr=0.05),
    "yogi": Yogi(lr=0.05, bias_correction=True),
}
ENGINE: dict[str, tuple[Any, str]] = {  # and the size from which it works as for large models, here 0
    "stacked": (Stacked(), ""),
    "narrowing": (Stacked(), "stacked.SMALL"),
    "three-wide": (Stacked(width=3), ""),
    "one-wide": (Stacked(width=1), ""),
    "recorded": (Sequential(), "sequential.MODEL"),
}
ROUNDS = 4


@pytest.fixture(scope="module", autouse=True)
def _traced_once():
    """Tracing a stacked step is what costs time here: keep every program's graphs to the end."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("fedskew.loop.federation.program", cache(program.__wrapped__))
        patched.setattr("fedskew.engine.stacked.vectorised", cache(Steps))
        patched.setattr("fedskew.engine.sequential.traced", cache(sequential.traced.__wrapped__))
        yield


def algorithm(spec: str) -> Any:
    return build("algorithm", ALGORITHMS, spec)


def allowed(spec: str, solver: str) -> bool:
    return trains_with(algorithm(spec), SOLVER[solver])


def federation(spec: str, solver: str = "sgd", server: str = "sgd", **changes: Any) -> Federation:
    """Seven clients of 1 to 40 rows, of which four take part in a round."""
    options = {"selection": Uniform(clients=4), "solver": SOLVER[solver], "server": SERVER[server]} | changes
    return replace(ragged(algorithm(spec), **options), rounds=ROUNDS)


Record = dict[str, Tensor]


def facts_of(outcome: Outcome) -> Record:
    """Everything that is known of a round."""
    tree = {
        "x": outcome.server.x,
        "opt": outcome.server.opt,
        "state": outcome.server.state,
        "uploads": outcome.done.uploads,
        "states": outcome.done.states,
        "scores": outcome.done.scores,
        "measures": outcome.measures,
        "clients": torch.as_tensor(outcome.work.clients),
        "steps": torch.as_tensor(outcome.steps),
        "bytes": torch.tensor([outcome.bytes_down, outcome.bytes_up]),
    }
    return dict(leaves(tree))


def record(outcomes: list[Outcome], states: ClientStates) -> Record:
    """All numbers of a run, by name."""
    flat = {f"{o.server.round}/{name}": value for o in outcomes for name, value in facts_of(o).items()}
    ids, rows = states.export()
    order = torch.as_tensor(np.argsort(ids))
    flat["known"] = torch.as_tensor(ids)[order]
    return flat | {f"kept/{name}": value[order] for name, value in leaves(rows)}


def run(fed: Federation, engine: Any = None, rounds: int = ROUNDS) -> Record:
    states = ClientStates()
    return record(play(fed, X0, rounds, engine, states=states), states)


@cache
def reference(spec: str, solver: str = "sgd", server: str = "sgd") -> Record:
    """The run with one client after the other."""
    return run(federation(spec, solver, server), Sequential())


def assert_close(ours: Record, theirs: Record) -> None:
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-12, atol=1e-12, msg=lambda m, name=name: f"{name}: {m}")


def assert_equal(ours: Record, theirs: Record) -> None:
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype
        assert torch.equal(ours[name], value), name


def models(flat: Record) -> Tensor:
    """What training led to: the global model, or the clients' own where models are not sent."""
    return flat.get("kept/own part", flat[f"{ROUNDS}/x"])


def apart(ours: Record, theirs: Record) -> float:
    return float((models(ours) - models(theirs)).abs().max())


# the table is complete


def test_every_algorithm_has_a_row():
    assert set(ROWS) == set(ALGORITHMS), "add a line to ROWS for a new algorithm"
    for name, row in ROWS.items():
        assert row
        assert all(type(algorithm(spec)) is ALGORITHMS[name] for spec in row)


def test_every_engine_solver_and_server_optimiser_is_in_the_table():
    assert {type(engine) for engine, _ in ENGINE.values()} | {Sequential} == set(ENGINES.values())
    assert {type(solver) for solver in SOLVER.values()} == set(SOLVERS.values())
    assert {type(server) for server in SERVER.values()} == set(SERVER_OPTIMISERS.values())


def test_the_scenario_is_ragged_and_its_cohorts_change():
    flat = reference("fedavg")
    cohorts = [tuple(flat[f"{r}/clients"].tolist()) for r in range(1, ROUNDS + 1)]
    assert len(set(cohorts)) == ROUNDS
    assert all(len(cohort) == 4 for cohort in cohorts)
    taken = np.bincount(np.concatenate(cohorts), minlength=len(RAGGED))
    assert taken.min() >= 1, "everybody takes part, the clients with 1 and with 40 rows too"
    assert taken.max() >= 2, "somebody takes part again, so that states matter"
    assert taken.max() < ROUNDS
    assert len({int(s) for r in range(1, ROUNDS + 1) for s in flat[f"{r}/steps"]}) >= 3


@pytest.mark.parametrize("spec", SPECS)
def test_the_scenario_moves_and_tells_algorithms_apart(spec):
    flat = reference(spec)
    assert float((models(flat) - X0).abs().max()) > 0.01
    for other in SPECS:
        alike = other == spec or {spec, other} <= ALIKE or {spec, other} <= SAME_MODEL
        assert alike or apart(flat, reference(other)) > 1e-6
    for name in ("loss", "accuracy"):
        assert flat[f"1/scores/{name}"].shape == flat["1/clients"].shape


# engines agree


SHAPES = ("fedavg", "fedprox", "scaffold", "fednova", "feddyn", "moon")
"""Methods that together use nearly every hook: they meet every solver, and every way to cut a cohort into blocks."""


def in_the_table(spec: str, solver: str, engine: str) -> bool:
    """Tracing is what costs time. Weightings only change what the server does, and how blocks are cut is no method's own."""
    own_program = "weighting" not in spec
    first, shaping = spec in FIRST, spec in FIRST and spec.partition(":")[0] in SHAPES
    wanted = {
        "stacked": solver == "sgd" or (own_program and (shaping or (first and solver == "momentum"))),
        "narrowing": own_program and solver == "sgd" and (first or shaping),
        "three-wide": shaping and solver == "sgd",
        "one-wide": shaping and solver == "sgd",
        "recorded": own_program and (solver == "sgd" or shaping),
    }
    return wanted[engine] and allowed(spec, solver)


CELLS = [
    (spec, solver, engine)
    for spec in SPECS
    for solver in SOLVER
    for engine in ENGINE
    if in_the_table(spec, solver, engine)
]


@pytest.mark.parametrize(("spec", "solver", "engine"), CELLS)
def test_engines_agree(monkeypatch, spec, solver, engine):
    expected = reference(spec, solver)
    driver, size = ENGINE[engine]
    if size:
        monkeypatch.setattr(f"fedskew.engine.{size}", 0)
    fed = federation(spec, solver)
    assert_close(run(fed, driver), expected)
    assert engine != "recorded" or sequential.traced(fed.program).graphs


@pytest.mark.parametrize(
    ("spec", "server"),
    [
        (spec, server)
        for spec in FIRST
        for server in SERVER
        if spec == "fedavg" or (server in ("sgd-slow", "yogi") and algorithm(spec).contract().shares_model)
    ],
)
def test_engines_agree_under_every_server_optimiser(spec, server):
    expected = reference(spec, "sgd", server)
    assert_close(run(federation(spec, "sgd", server), Stacked()), expected)
    assert server == "sgd" or apart(expected, reference(spec)) > 1e-6


@pytest.mark.parametrize(
    "local",
    [
        Local(epochs=1, batch_size="all"),
        Local(steps=3, batch_size=4),
        Local(steps=7, batch_size=16, batches="independent"),
        Local(epochs=3, batch_size=1),
    ],
    ids=["all", "three-steps", "independent", "single-rows"],
)
def test_engines_agree_on_every_kind_of_local_work(local):
    fed = federation("fedavg", local=local)
    assert_close(run(fed, Stacked(), 2), run(fed, Sequential(), 2))


@pytest.mark.parametrize("spec", FIRST)
def test_engines_agree_where_a_pass_takes_several_batches(monkeypatch, spec):
    """Also with held-out rows, which are what local models are measured on."""
    monkeypatch.setattr("fedskew.loop.plan.PASS_ROWS", 7)
    fed = with_held_out(federation(spec))
    expected = run(fed, Sequential(), 2)
    assert_close(run(fed, Stacked(), 2), expected)
    monkeypatch.setattr("fedskew.loop.plan.PASS_ROWS", 256)
    assert_close(run(fed, Sequential(), 2), expected)
    assert not torch.equal(expected["1/scores/loss"], reference(spec)["1/scores/loss"])


def with_held_out(fed: Federation) -> Federation:
    """The first two thirds of each client's rows train, and client k is measured on 3 k + 1 rows of the pool."""
    part = fed.partition
    aside = [np.arange(k, k + 3 * k + 1) for k in range(len(part))]
    offsets = np.cumsum([0, *map(len, aside)])
    return replace(fed, partition=replace(part, held_out=(np.concatenate(aside), offsets)))


MODELS_THAT_STACK = {
    "softmax": (Softmax(zero_init=False), (6,)),
    "mlp": (Mlp(hidden=(5, 4)), (2, 3)),
    "cnn": (Cnn(hidden=4), (1, 4, 4)),
    "cnn1d": (Cnn1d(filters=2, hidden=4), (2, 32)),
    "lenet": (LeNet(), (1, 28, 28)),
    "resnet18": (ResNet(width=2), (1, 8, 8)),
    "text-cnn": (TextCnn(embedding=3, filters=2, widths=(2,), vocabulary=7), (6,)),
}
ELSEWHERE = {"lstm", "minilm", "hf", "module", "mixed"}
"""Refused by the stacked engine, or a user's own, or of several architectures: see their own tests."""


def test_every_model_is_covered():
    assert set(MODELS) == set(MODELS_THAT_STACK) | ELSEWHERE


@pytest.mark.parametrize("model", MODELS_THAT_STACK)
def test_engines_agree_on_every_model(monkeypatch, model):
    maker, shape = MODELS_THAT_STACK[model]
    net = maker.build(shape, 3, torch.Generator().manual_seed(0)).double()
    sizes = [5, 1, 9]
    rng = np.random.default_rng(0)
    fed = replace(
        ragged(algorithm("fedavg"), sizes=sizes, local=Local(epochs=1, batch_size=4)),
        task=Classification(net, ParameterSpace(net), 3),
        x=torch.tensor(
            rng.integers(0, 7, (sum(sizes), *shape))
            if model == "text-cnn"
            else rng.standard_normal((sum(sizes), *shape))
        ),
        dtype=torch.float64,
    )
    x0 = fed.task.space.flatten(net)
    runs = []
    for engine, size in ((Sequential(), 1 << 62), (Stacked(), 0), (Sequential(), 0)):
        monkeypatch.setattr("fedskew.engine.sequential.MODEL", size)
        states = ClientStates()
        runs.append(record(play(fed, x0, 2, engine, states=states), states))
    assert_close(runs[1], runs[0])
    assert_close(runs[2], runs[0])


# the order of clients does not matter


@dataclass(frozen=True)
class Relabelled:
    """A planner, or a selection, that knows client j as ``original[j]``."""

    inner: Any
    original: tuple[int, ...]

    def batch_sizes(self, sizes: Any) -> Any:
        return self.inner.batch_sizes(sizes[np.argsort(self.original)])[list(self.original)]

    def train(self, round_: int, client: int, rows: Any) -> Plan:
        return self.inner.train(round_, self.original[client], rows)

    def select(self, clients: Any, rng: Any) -> Any:
        return np.sort(np.argsort(self.original)[self.inner.select(clients, rng)])


ORDER = (4, 0, 6, 2, 5, 1, 3)


def relabelled(fed: Federation) -> Federation:
    """The same clients under other numbers."""
    part = fed.partition
    rows = [part.rows(k) for k in ORDER]
    other = replace(part, indices=np.concatenate(rows), offsets=np.cumsum([0, *map(len, rows)]))
    return replace(
        fed,
        partition=other,
        planner=Relabelled(fed.planner, ORDER),
        selection=Relabelled(fed.selection, ORDER),
    )


PER_CLIENT = ("uploads", "states", "scores", "steps", "measures/update_norm", "measures/distance", "measures/alignment")


TIED = ("fedga:score=accuracy",)
"""Equal accuracies go to the client with the smaller number."""


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec not in (*DRAWN, *TIED)])
def test_the_numbers_of_clients_do_not_matter(spec):
    ours, theirs = reference(spec), run(relabelled(federation(spec)), Sequential())
    assert set(ours) == set(theirs)
    for name, value in theirs.items():
        round_, _, field = name.partition("/")
        if name == "known" or field == "clients":
            value = torch.as_tensor(ORDER)[value].sort().values
        elif round_ == "kept" or field.startswith(PER_CLIENT):
            new = theirs["known"] if round_ == "kept" else theirs[f"{round_}/clients"]
            value = value[torch.as_tensor(ORDER)[new].argsort()]
        elif field.startswith("state/") and value.shape[:1] == (len(ORDER),):
            value = value[torch.as_tensor(ORDER).argsort()]  # what the server keeps of each client
        torch.testing.assert_close(value, ours[name], rtol=1e-12, atol=1e-12)


def halfway(fed: Federation, measure_local: bool = True) -> tuple[Server, ClientStates, Work]:
    """The third round's work, with states from the first two."""
    states = ClientStates()
    server = play(fed, X0, 2, states=states)[-1].server
    server, work, _ = prepare(fed, Sequential(), server, states, measure_local)
    return server, states, work


def shuffled(work: Work, order: list[int]) -> Work:
    view = work.view
    return work._replace(
        clients=work.clients[order],
        view=view._replace(**{part: pick(getattr(view, part), order) for part in OWN}),
        plans=[work.plans[i] for i in order],
        passes=[work.passes[i] for i in order],
        measured=[work.measured[i] for i in order],
    )


@pytest.mark.parametrize(
    ("spec", "engine"),
    [(spec, Sequential()) for spec in SPECS] + [(spec, Stacked(width=w)) for spec in FIRST for w in (0, 3)],
)
def test_the_order_of_work_does_not_matter(spec, engine):
    fed = federation(spec)
    _, _, work = halfway(fed)
    expected = engine.run(fed.program, work, fed.x, fed.y)
    every = list(range(len(work.clients)))
    for order in (every[::-1], every[1::2] + every[::2]):
        done = engine.run(fed.program, shuffled(work, order), fed.x, fed.y)
        back = [order.index(i) for i in every]
        flat = dict(leaves(expected))
        for name, value in leaves(done):
            torch.testing.assert_close(value[back], flat[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec not in TOGETHER])
def test_a_client_does_not_see_who_else_takes_part(spec):
    """What clients 2 and 5 do in a cohort of four and in one of two; bit for bit where each works alone."""
    fed = federation(spec, selection=Only((1, 2, 5, 6)))
    server, states, four = halfway(fed)
    two = prepare(replace(fed, selection=Only((2, 5))), Sequential(), server, states, True)[1]
    many = dict(leaves(pick(Sequential().run(fed.program, four, fed.x, fed.y), [1, 2])))
    assert_equal(dict(leaves(Sequential().run(fed.program, two, fed.x, fed.y))), many)
    if spec in FIRST:
        assert_close(dict(leaves(Stacked().run(fed.program, two, fed.x, fed.y))), many)


@dataclass(frozen=True)
class Only:
    chosen: tuple[int, ...]

    def select(self, clients: Any, rng: Any) -> Any:
        return np.asarray(self.chosen)


# a resumed run equals the uninterrupted one


RESUMED = [(spec, "sequential", "momentum") for spec in SPECS]
RESUMED += [(spec, "stacked", "sgd") for spec in FIRST] + [("fedavg", "sequential", "adamw")]


@pytest.mark.parametrize(("spec", "engine", "solver"), RESUMED)
def test_a_resumed_run_is_the_same_to_the_last_bit(tmp_path, spec, engine, solver):
    engine = ENGINES[engine]()
    fed = federation(spec, solver, "yogi")
    states = ClientStates()
    whole = play(fed, X0, ROUNDS, engine, states=states)
    stop = 2
    half_states = ClientStates()
    server = play(fed, X0, stop, engine, states=half_states)[-1].server
    ids, rows = half_states.export()
    tree = {
        "x": server.x,
        "opt": server.opt,
        "state": server.state,
        "clients": {"ids": torch.as_tensor(ids), "states": rows},
    }
    read, facts = checkpoints.load(checkpoints.save(tmp_path, stop, tree, {"round": server.round}))
    kept = {"x": read["x"], "opt": read.get("opt", {}), "state": read.get("state", {}), "round": facts["round"]}
    restored = start(fed, X0)._replace(**kept)
    again = ClientStates.restore(read["clients"]["ids"].numpy(), read["clients"].get("states", {}))
    rest = play(fed, None, ROUNDS, engine, server=restored, states=again)
    assert len(rest) == ROUNDS - stop
    assert_equal(record(rest, again), record(whole[stop:], states))


def test_states_are_kept_by_client():
    """Against a plain dictionary, over many rounds in which the population grows."""
    rng, states, plain = np.random.default_rng(0), ClientStates(), {}

    def fresh() -> dict[str, Any]:
        return {"a": torch.full((3,), -1.0), "b": {"c": torch.tensor(-2)}}

    for turn in range(60):
        clients = np.sort(rng.choice(5 + 3 * turn, size=min(4, 5 + 3 * turn), replace=False))
        got = states.get(clients, fresh)
        for i, k in enumerate(clients):
            expected = plain.get(int(k), fresh())
            assert torch.equal(got["a"][i], expected["a"])
            assert torch.equal(got["b"]["c"][i], expected["b"]["c"])
        new = {"a": torch.tensor(rng.standard_normal((4, 3)), dtype=torch.float32), "b": {"c": torch.arange(4) + turn}}
        states.put(clients, new)
        for i, k in enumerate(clients):
            plain[int(k)] = {"a": new["a"][i].clone(), "b": {"c": new["b"]["c"][i].clone()}}
        if turn % 20 == 19:
            states = ClientStates.restore(*states.export())
    ids, rows = states.export()
    assert sorted(ids) == sorted(plain)
    for i, k in enumerate(ids):
        assert torch.equal(rows["a"][i], plain[int(k)]["a"])


def test_a_state_that_was_handed_out_is_not_the_store_itself():
    states = ClientStates()
    given = {"a": torch.ones(2, 3)}
    states.put(np.array([4, 7]), given)
    given["a"].zero_()
    handed = states.get(np.array([4, 7]), lambda: {"a": torch.zeros(3)})
    assert (handed["a"] == 1).all()
    handed["a"].zero_()
    assert (states.get(np.array([7]), lambda: {"a": torch.zeros(3)})["a"] == 1).all()
    x = torch.ones(3)
    states.get(np.array([9]), lambda: {"a": x})["a"].zero_()
    assert (x == 1).all(), "a fresh state is a copy too"


# nothing is changed in place


def frozen(*things: Any) -> Any:
    """A deep copy of every array, tensor and tree."""

    def copy(thing: Any) -> Any:
        if isinstance(thing, Tensor):
            return thing.clone()
        if isinstance(thing, np.ndarray):
            return thing.copy()
        if isinstance(thing, dict):
            return {key: copy(value) for key, value in thing.items()}
        if isinstance(thing, list | tuple):
            return [copy(value) for value in thing]
        return thing

    return copy(things)


def assert_unchanged(before: Any, after: Any) -> None:
    assert len(before) == len(after)
    if isinstance(before, dict):
        before, after = [before[k] for k in sorted(before)], [after[k] for k in sorted(after)]
    for one, two in zip(before, after, strict=True):
        if isinstance(one, Tensor):
            assert torch.equal(one, two)
        elif isinstance(one, np.ndarray):
            assert np.array_equal(one, two)
        elif isinstance(one, dict | list | tuple):
            assert_unchanged(one, two)
        else:
            assert one == two


@pytest.mark.parametrize(
    ("spec", "engine"), [(spec, Sequential()) for spec in SPECS] + [(spec, Stacked()) for spec in FIRST]
)
def test_inputs_are_not_mutated(monkeypatch, spec, engine):
    monkeypatch.setattr("fedskew.engine.stacked.SMALL", 0)
    fed = federation(spec, "momentum", "momentum")
    server, states, work = halfway(fed)
    part = fed.partition
    pool = (fed.x, fed.y, fed.info, part.indices, part.offsets, [p.data for p in fed.task.model.parameters()])
    kept = frozen(server, work, pool, states.export())
    done = engine.run(fed.program, work, fed.x, fed.y)
    assert_unchanged(kept, frozen(server, work, pool, states.export()))
    finished = frozen(done)
    after = close_round(fed, server, work, done)
    states.put(work.clients, done.states)
    assert_unchanged(kept[:3], frozen(server, work, pool))
    assert_unchanged(finished, frozen(done))
    # nor is anything that was handed out changed by later rounds
    late = frozen(after)
    play(fed, None, 5, engine, server=after, states=states)
    assert_unchanged(kept[:3], frozen(server, work, pool))
    assert_unchanged(finished, frozen(done))
    assert_unchanged(late, frozen(after))


# padding changes nothing


@dataclass(frozen=True)
class Padded:
    """The inner planner's batches with rows of somebody else before and after them, under a mask of 0."""

    inner: Any
    before: int
    after: int

    def batch_sizes(self, sizes: Any) -> Any:
        return self.inner.batch_sizes(sizes)

    def train(self, round_: int, client: int, rows: Any) -> Plan:
        index, mask, *_ = self.inner.train(round_, client, rows)
        wide = ((0, 0), (self.before, self.after))
        stranger = (int(rows[0]) + 50) % sum(RAGGED)
        return Plan(np.pad(index, wide, constant_values=stranger), np.pad(mask, wide))


@pytest.mark.parametrize("spec", SPECS)
def test_padding_changes_nothing(spec):
    fed = federation(spec)
    padded = replace(fed, planner=Padded(fed.planner, 2, 3))
    assert_close(run(padded, Sequential()), reference(spec))


@pytest.mark.parametrize("spec", ["fedavg", "scaffold:option=I"])
def test_padding_changes_nothing_when_stacked(spec):
    fed = federation(spec)
    padded = replace(fed, planner=Padded(fed.planner, 0, 4))
    assert_close(run(padded, Stacked()), reference(spec))


# values, not objects


@pytest.mark.parametrize("component", [*map(algorithm, SPECS), *SOLVER.values(), *SERVER.values()], ids=repr)
def test_components_are_values(component):
    copy = pickle.loads(pickle.dumps(component))
    assert copy == component
    assert hash(copy) == hash(component)
    with pytest.raises(AttributeError):
        component.weighting = "uniform"


def test_a_pickled_algorithm_trains_alike():
    fed = federation("scaffold")
    assert_equal(run(replace(fed, algorithm=pickle.loads(pickle.dumps(fed.algorithm)))), reference("scaffold"))


# what a method reduces to


PLAIN = Local(epochs=2, batch_size=8)
EQUAL_STEPS = Local(steps=3, batch_size=8)
REDUCTIONS = [  # method, what it becomes, where, solver, sizes of the clients
    ("fedprox:mu=0.0", "fedavg", PLAIN, "sgd", RAGGED),
    ("fedprox:mu=0.0", "fedavg", PLAIN, "momentum", RAGGED),
    ("fedprox:mu=0.0", "fedavg", PLAIN, "adamw", RAGGED),
    ("fedprox:mu=0.0,step=implicit", "fedavg", PLAIN, "sgd", RAGGED),
    ("fedprox:mu=0.0,weighting=uniform", "fedavg:weighting=uniform", PLAIN, "sgd", RAGGED),
    ("moon:mu=0.0", "fedavg", PLAIN, "sgd", RAGGED),
    ("moon:mu=0.0", "fedavg", PLAIN, "adamw", RAGGED),
    ("fednova", "fedavg", EQUAL_STEPS, "sgd", RAGGED),
    ("fednova", "fedavg", EQUAL_STEPS, "momentum", RAGGED),
    ("fednova:mu=0.3", "fedprox:mu=0.3", EQUAL_STEPS, "sgd", RAGGED),
    ("fednova:mu=0.0", "fednova", PLAIN, "sgd", RAGGED),
    ("fednova", "fedavg", PLAIN, "momentum", [23]),
    ("scaffold", "fedavg", PLAIN, "sgd", [23]),
    ("scaffold:option=I", "fedavg", PLAIN, "momentum", [23]),
    ("scaffold:weighting=samples", "fedavg", PLAIN, "sgd", [23]),
    ("scaffold", "fedavg:weighting=uniform", Local(steps=1, batch_size="all"), "sgd", RAGGED),
    ("fedavg:weighting=uniform", "fedavg", PLAIN, "sgd", [8, 8, 8]),
    ("fedavg:weighting=unbiased", "fedavg", PLAIN, "sgd", [8, 8, 8]),
    ("feddyn:alpha=0.3,weighting=samples", "feddyn:alpha=0.3", PLAIN, "sgd", [8, 8, 8]),
    ("scaffold:weighting=samples", "scaffold", PLAIN, "sgd", [8, 8, 8]),
    ("fedntd:beta=0.0", "fedavg", PLAIN, "sgd", RAGGED),
    ("fedntd:beta=0.0,tau=3.0", "fedavg", PLAIN, "adamw", RAGGED),
    ("fedlc:tau=0.0", "fedavg", PLAIN, "sgd", RAGGED),
    ("fedlc:tau=0.0,n_min=1.0", "fedavg", PLAIN, "adamw", RAGGED),
    ("fedproc:alpha=0.0", "fedavg", PLAIN, "sgd", RAGGED),
    ("fedproc:alpha=0.0", "fedavg", PLAIN, "adamw", RAGGED),
    ("fedpa:burn_in_rounds=4", "fedavg", PLAIN, "momentum", RAGGED),
    ("fedpa:rho=0.5,burn_in_rounds=4", "fedavg", PLAIN, "adamw", RAGGED),
    ("fedpa:rho=0.5", "fedavg", Local(steps=1, batch_size=8), "sgd", RAGGED),
    ("fedpa:samples=1,rho=0.5", "fedpa:samples=1,rho=0.0", PLAIN, "sgd", RAGGED),
    ("fedsam:rho=0", "fedavg:weighting=uniform", PLAIN, "momentum", RAGGED),
    ("fedsam:rho=0,weighting=samples", "fedavg", PLAIN, "adamw", RAGGED),
    ("mofedsam:beta=1", "fedsam", PLAIN, "momentum", RAGGED),
    ("mofedsam:beta=1,rho=0", "fedavg:weighting=uniform", PLAIN, "sgd", RAGGED),
    ("fedsol:rho=0", "fedavg", PLAIN, "momentum", RAGGED),
    ("trimmed-mean:beta=0", "fedavg:weighting=uniform", PLAIN, "sgd", RAGGED),
    ("trimmed-mean:beta=0.4", "median", PLAIN, "sgd", RAGGED),
    ("krum:f=0,c=4", "fedavg:weighting=uniform", PLAIN, "sgd", RAGGED),
    ("fedsmoo:rho=0,beta=10", "feddyn:alpha=0.1", PLAIN, "momentum", RAGGED),
    ("fedsmoo:rho=0,beta=2,weighting=samples", "feddyn:alpha=0.5,weighting=samples", PLAIN, "adamw", RAGGED),
    ("qfedavg:q=0", "fedavg:weighting=uniform", PLAIN, "sgd", RAGGED),
    ("qfedavg:q=0,weighting=samples", "fedavg", PLAIN, "adamw", RAGGED),
    ("qfedavg:q=0,weighting=unbiased", "fedavg:weighting=unbiased", PLAIN, "momentum", RAGGED),
    ("afl:gamma=0", "fedavg:weighting=unbiased", PLAIN, "momentum", RAGGED),
    ("afl:gamma=0,weighting=uniform", "fedavg:weighting=uniform", PLAIN, "adamw", RAGGED),
    ("afl", "fedavg", PLAIN, "sgd", [23]),
    ("drfa", "fedavg", PLAIN, "momentum", [23]),
    ("fedbs:cohort=1.0,tau=inf", "fedavg:weighting=uniform", PLAIN, "momentum", RAGGED),
    ("fedbs:cohort=1.0,tau=inf,weighting=samples", "fedavg", PLAIN, "adamw", RAGGED),
    ("fedbs", "fedavg", PLAIN, "sgd", [23]),
    ("fedga", "fedavg", PLAIN, "momentum", [23]),
    ("fedga-generalisation:d=0.0", "fedavg", PLAIN, "sgd", RAGGED),
    ("fedga-generalisation:d=0.0,weighting=uniform", "fedavg:weighting=uniform", PLAIN, "adamw", RAGGED),
    ("fedga-generalisation", "fedavg", PLAIN, "sgd", [23]),
    ("fedpbs:mu=0", "fedavg:weighting=uniform", PLAIN, "adamw", RAGGED),
    ("fedpbs:mu=0.3,batch_threshold=0,variance_threshold=inf", "fedavg:weighting=uniform", PLAIN, "momentum", RAGGED),
    ("fedpbs:mu=0.3,variance_threshold=-inf", "fedprox:mu=0.3,weighting=uniform", PLAIN, "momentum", RAGGED),
    ("fedpbs:mu=0.3,batch_threshold=1.0,weighting=samples", "fedprox:mu=0.3", PLAIN, "adamw", RAGGED),
    ("fedpbs:mu=0,selection=stable,aggregation=softmax,variance=gradient", "fedbs", PLAIN, "sgd", RAGGED),
    *[("ditto:lam=0.5", "fedavg", PLAIN, solver, RAGGED) for solver in SOLVER],
    *[("per-fedavg:alpha=0.0,batches=same", "fedavg:weighting=uniform", PLAIN, solver, RAGGED) for solver in SOLVER],
    ("ifca:k=1", "fedavg:weighting=uniform", PLAIN, "momentum", RAGGED),
    ("ifca:k=1,weighting=samples", "fedavg", PLAIN, "sgd", RAGGED),
    ("dualmetric:mu=0.05,mu_min=0.05,mu_max=0.05", "fedprox:mu=0.05", PLAIN, "momentum", RAGGED),
    (
        "dualmetric:mu=0.05,mu_min=0.05,mu_max=0.05,weighting=uniform",
        "fedprox:mu=0.05,weighting=uniform",
        PLAIN,
        "adamw",
        RAGGED,
    ),
    ("dp-fedavg:clip=inf,noise=0.0,q=1.0", "fedavg:weighting=uniform", PLAIN, "momentum", [5, 8, 13]),
]


@pytest.mark.parametrize(("method", "becomes", "local", "solver", "sizes"), REDUCTIONS)
def test_a_method_reduces_to_a_simpler_one(method, becomes, local, solver, sizes):
    everyone = len(sizes) < 4 or "scaffold" in method
    options = {"local": local, "sizes": sizes, "selection": Everyone() if everyone else Uniform(clients=4)}
    ours, theirs = (run(federation(spec, solver, **options)) for spec in (method, becomes))
    for round_ in range(1, ROUNDS + 1):
        # control variates that cancel in the mean still part the clients
        only_the_mean = "scaffold" in method and "scaffold" not in becomes and len(sizes) > 1
        for name in ("x",) if only_the_mean else ("x", "uploads/delta", "scores/loss", "measures/drift", "clients"):
            key = f"{round_}/{name}"
            torch.testing.assert_close(ours[key], theirs[key], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("method", "simpler", "local"),
    [
        ("fedprox:mu=0.01", "fedavg", PLAIN),
        ("fedprox:mu=0.01,step=implicit", "fedavg", PLAIN),
        ("fednova:mu=0.01", "fednova", PLAIN),
        ("fednova", "fedavg", PLAIN),
        ("moon:mu=0.01", "fedavg", PLAIN),
        ("scaffold", "fedavg:weighting=uniform", PLAIN),
        ("scaffold:weighting=samples", "scaffold", PLAIN),
        ("fedntd:beta=0.01", "fedavg", PLAIN),
        ("fedlc:tau=0.01", "fedavg", PLAIN),
        ("fedproc:alpha=0.01", "fedavg", PLAIN),
        ("fedpa:burn_in_rounds=3", "fedavg", PLAIN),
        ("fedpa:rho=0.1", "fedpa:rho=0.0", PLAIN),
        ("fedga", "fedavg", PLAIN),
        ("fedga-generalisation:d=0.01", "fedavg", PLAIN),
        ("fedga-alignment", "fedavg", PLAIN),
    ],
)
def test_and_is_another_method_elsewhere(method, simpler, local):
    assert apart(*(run(federation(spec, local=local)) for spec in (method, simpler))) > 1e-6


# the rounds do not depend on how often one asks


@pytest.mark.parametrize("engine", [Sequential(), Stacked()], ids=repr)
def test_measuring_local_models_changes_nothing(engine):
    fed = federation("moon:mu=2.0")
    server, states, work = halfway(fed, measure_local=True)
    bare = prepare(fed, Sequential(), server, states, False)[1]
    assert bare.measured == []
    one, two = (engine.run(fed.program, w, fed.x, fed.y) for w in (work, bare))
    assert two.scores == {}
    assert_equal(dict(leaves((one.uploads, one.states))), dict(leaves((two.uploads, two.states))))


def test_a_run_repeats_itself():
    for engine in (Sequential(), Stacked()):
        assert_equal(run(federation("scaffold"), engine), run(federation("scaffold"), engine))


def test_the_seed_matters():
    assert apart(run(federation("fedavg", seed=8)), reference("fedavg")) > 1e-6


# what methods declare themselves


@pytest.mark.parametrize(
    ("name", "own", "other"),
    [(name, own, other) for name, cls in ALGORITHMS.items() for own, other in cls.reduces_to.items()],
)
def test_declared_reductions_hold(name, own, other):
    """Over whole trajectories, under every solver that both methods allow and two kinds of local work."""
    reduces(Subject(ALGORITHMS[name](), ServerSgd(), ALGORITHMS), own, other)
