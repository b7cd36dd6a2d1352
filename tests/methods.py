"""Every method on ragged clients, in variants that together use each word of its options; and every number of its runs.

A new method needs no line here, unless its default options take FedAvg's steps for the first rounds.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import torch

from fedskew.algorithms import ALGORITHMS
from fedskew.conformance.hooks import Record, facts
from fedskew.core.algorithm import Algorithm
from fedskew.core.component import build, label
from fedskew.core.errors import BadInput
from fedskew.core.records import Server
from fedskew.core.trees import leaves
from fedskew.engine.sequential import Sequential
from fedskew.engine.states import ClientStates
from fedskew.loop.federation import Federation
from fedskew.loop.round import prepare
from fedskew.loop.work import Outcome, Work
from fedskew.slots import AdamW, ServerSgd, Sgd, Uniform
from tests.small import X0, play, ragged

OPTIONS = {
    "fedprox": "mu=0.3",
    "feddyn": "alpha=0.2",
    "moon": "mu=2.0",
    "fairfed": "beta=0.1",
    "f3": "rule=fair-accuracy-average,alpha=0.3,beta=0.37",
    "fedlc": "tau=0.5",
    "fedpa": "rho=0.5",
    "trimmed-mean": "beta=0.3",
    "krum": "f=0,c=2",
    "mofedsam": "beta=0.3",
    "qfedavg": "q=2.0",
    "drfa": "gamma=0.1",
    "fedbs": "cohort=1.0",
    "fedga-generalisation": "d=0.2",
    "fedpbs": "mu=0.3",
    "ditto": "lam=0.5",
    "per-fedavg": "alpha=0.1",
    "fedmd": "rows=11,batch_size=4",
    "dualmetric": "mu=0.09",
    "dp-fedavg": "clip=0.3,noise=0.5,q=0.5",
}
"""Options under which a method differs clearly from the others within four rounds."""

MORE = [
    *("fednova:mu=0.3", "fednova:mu=0.3,tau_eff=steps", "fedntd:beta=0.5,tau=3.0", "fedproc:alpha=0.3", "krum:f=0"),
    *("fedpa:rho=0.2,samples=3,burn_in=0.5,burn_in_rounds=2", "fedsam:rho=0.5", "fedsmoo:beta=5.0", "mofedsam:rho=0.0"),
    *("fedbs:variance=loss", "ifca:k=3", "ifca:mu=0.3", "dp-fedavg:clip=0.3,noise=0.0,q=0.5"),
    *("fedprox:mu=0.3,mu_step=0.1", "fedprox:mu=0.3,mu_step=0.1,step=implicit", "dualmetric:mu=0.09,measured=updated"),
]
"""Values of numbers that switch on other parts of a method."""


def algorithm(spec: str) -> Algorithm:
    method: Algorithm = build("algorithm", ALGORITHMS, spec)
    return method


def first(name: str) -> Algorithm:
    return algorithm(f"{name}:{OPTIONS[name]}" if name in OPTIONS else name)


def words(method: Algorithm) -> dict[str, tuple[Any, ...]]:
    """The options that take a word, and their words, the method's own first."""
    kinds = {name: get_args(kind) for name, kind in get_type_hints(type(method)).items() if get_origin(kind) is Literal}
    own = {name: kind.index(getattr(method, name)) for name, kind in kinds.items()}
    return {name: kind[own[name] :] + kind[: own[name]] for name, kind in kinds.items()}


def variants(name: str) -> Iterator[Algorithm]:
    """The method with its first words, with its second ones, ...; another weighting at least once if it allows one."""
    yield first(name)
    choices = words(first(name))
    for i in range(1, max([2, *(len(kind) for option, kind in choices.items() if option != "weighting")])):
        changed = {option: kind[i % len(kind)] for option, kind in choices.items()}
        other = "uniform" if first(name).weighting == "samples" else "samples"
        changed["weighting"] = other if other in choices["weighting"] else first(name).weighting
        try:
            yield replace(first(name), **changed)
        except BadInput:
            yield replace(first(name), **{**changed, "weighting": first(name).weighting})


FIRST = [label(first(name), ALGORITHMS) for name in ALGORITHMS]
SPECS = list(dict.fromkeys([*(label(method, ALGORITHMS) for name in ALGORITHMS for method in variants(name)), *MORE]))
ROUNDS = 4
SOLVER: dict[str, Any] = {
    "sgd": Sgd(lr=0.1),
    "momentum": Sgd(lr=0.05, momentum=0.9, weight_decay=0.01, lr_decay=0.9),
    "adamw": AdamW(lr=0.01, lr_decay=0.9),
}


def federation(spec: str, solver: str = "sgd", server: Any = None, **changes: Any) -> Federation:
    """Seven clients of 1 to 40 rows; four take part in a round."""
    options = {"selection": Uniform(clients=4), "solver": SOLVER[solver], "server": server or ServerSgd()} | changes
    return replace(ragged(algorithm(spec), **options), rounds=ROUNDS)


def facts_of(outcome: Outcome) -> Record:
    """Return every number of a round, but for what the method shows of its decisions."""
    more = {"measures": outcome.measures, "steps": torch.as_tensor(outcome.steps)}
    return facts(outcome._replace(decisions={})) | dict(leaves(more))


def record(outcomes: list[Outcome], states: ClientStates) -> Record:
    """Return every number of a run, by name."""
    flat = {f"{o.server.round}/{name}": value for o in outcomes for name, value in facts_of(o).items()}
    ids, rows = states.export()
    order = torch.as_tensor(np.argsort(ids))
    flat["known"] = torch.as_tensor(ids)[order]
    return flat | {f"kept/{name}": value[order] for name, value in leaves(rows)}


def run(fed: Federation, engine: Any = None, rounds: int = ROUNDS) -> Record:
    states = ClientStates()
    return record(play(fed, X0, rounds, engine, states=states), states)


@cache
def reference(spec: str, solver: str = "sgd") -> Record:
    """The run with one client after the other."""
    return run(federation(spec, solver), Sequential())


def halfway(fed: Federation, measure_local: bool = True) -> tuple[Server, ClientStates, Work]:
    """The third round's work, with states from the first two."""
    states = ClientStates()
    server = play(fed, X0, 2, states=states)[-1].server
    server, work, _ = prepare(fed, Sequential(), server, states, measure_local)
    return server, states, work


def assert_close(ours: Record, theirs: Record) -> None:
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-12, atol=1e-12, msg=lambda m, name=name: f"{name}: {m}")


def assert_equal(ours: Record, theirs: Record) -> None:
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype
        assert torch.equal(ours[name], value), name
