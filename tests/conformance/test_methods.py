"""Every method keeps every promise of `fedskew check`, in variants, and the promises that need more than one federation."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from fedskew.algorithms import ALGORITHMS
from fedskew.conformance import promises
from fedskew.conformance.promises import (
    PROMISES,
    RESUMED_AFTER,
    Subject,
    engines_agree,
    examined,
    nothing_is_changed,
    reduces,
    resume_is_exact,
    states_keep_their_shape,
    trains,
)
from fedskew.core.records import BatchPlan
from fedskew.core.trees import leaves, pick
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from fedskew.loop.federation import Federation
from fedskew.loop.plan import Local, SeededPlanner
from fedskew.loop.round import prepare
from fedskew.slots import SERVER_OPTIMISERS, ServerSgd, Yogi
from tests.methods import FIRST, ROUNDS, SPECS, Record, algorithm, assert_equal, federation, halfway, reference, run
from tests.reference import Only
from tests.small import RAGGED, X0

torch.set_num_threads(1)

TIERS = {spec: [] for spec in FIRST} | {spec: [pytest.mark.first] for spec in ("fedavg", "scaffold")}
VARIANTS = [pytest.param(spec, marks=TIERS.get(spec, [pytest.mark.slow])) for spec in SPECS]
"""Each method with its first options; its other variants are in the slow suite."""


def spec_of(variant: Any) -> str:
    return variant if isinstance(variant, str) else variant.values[0]


SHORT = {"rounds": RESUMED_AFTER + 1, "planner": SeededPlanner(Local(epochs=1, batch_size=7), seed=7)}
"""Rounds of up to six steps; `fedskew check` itself has more and longer ones."""


@pytest.mark.parametrize("spec", VARIANTS)
def test_every_method_keeps_every_promise(spec: str) -> None:
    """The server's optimiser has a state. Engines are not compared for variants that differ only in the weighting."""
    subject = Subject(algorithm(spec), Yogi(lr=0.05, bias_correction=True), ALGORITHMS, SHORT)
    for promise in PROMISES:
        if promise is engines_agree and spec not in FIRST and options_of(spec) <= {"weighting"}:
            continue
        verdict = examined(promise.__doc__ or "", promise, subject)
        assert verdict.kept, f"{verdict.promise}: {verdict.reason}"


def options_of(spec: str) -> set[str]:
    """Return the options that differ from the method's first variant."""
    method, plain = algorithm(spec), algorithm(next(s for s in FIRST if s.partition(":")[0] == spec.partition(":")[0]))
    return {name for name, value in vars(method).items() if value != getattr(plain, name)}


@pytest.mark.parametrize("name", SERVER_OPTIMISERS)
def test_fedavg_keeps_the_promises_about_the_server_with_every_server_optimiser(name: str) -> None:
    subject = Subject(algorithm("fedavg"), SERVER_OPTIMISERS[name](), ALGORITHMS, SHORT)
    for promise in (trains, resume_is_exact, nothing_is_changed, states_keep_their_shape):
        verdict = examined("", promise, subject)
        assert verdict.kept, f"{promise.__name__}: {verdict.reason}"


@pytest.mark.parametrize(
    ("name", "own", "other"),
    [(name, own, other) for name, cls in ALGORITHMS.items() for own, other in cls.reduces_to.items()],
)
def test_declared_reductions_hold(name: str, own: str, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promises, "REDUCED", promises.REDUCED[::3])  # SGD over epochs, AdamW over steps
    verdict = examined("", reduces, Subject(ALGORITHMS[name](), ServerSgd(), ALGORITHMS), own, other)
    assert verdict.kept, verdict.reason


# the runs of different methods differ

EQUAL = [
    {"median", "trimmed-mean:beta=0.3"},  # of four values both are the mean of the middle two
    {"fedprox:mu=0.3", "fedprox:mu=0.3,mu_step=0.1"},  # the loss does not rise, nor fall five times
    {"fedavg", "ditto:lam=0.5"},  # they differ in their personal models
    {"fedavg:weighting=uniform", "ditto:weighting=uniform,lam=0.5"},
]


@cache
def models(spec: str) -> torch.Tensor:
    """The global model at the end, or the clients' own if models are not sent."""
    flat = reference(spec)
    return flat.get("kept/own part", flat[f"{ROUNDS}/x"])


@pytest.mark.parametrize("spec", VARIANTS)
def test_every_variant_takes_its_own_steps(spec: str) -> None:
    assert float((models(spec) - X0).abs().max()) > 0.01
    others = FIRST if spec in FIRST else SPECS
    for other in others[: others.index(spec)]:
        if {spec, other} not in EQUAL and models(spec).shape == models(other).shape:
            assert float((models(spec) - models(other)).abs().max()) > 1e-6, other


def test_clients_take_part_again_in_changing_cohorts() -> None:
    flat = reference("fedavg")
    cohorts = [tuple(flat[f"{r}/clients"].tolist()) for r in range(1, ROUNDS + 1)]
    assert len(set(cohorts)) == ROUNDS
    assert all(len(cohort) == 4 for cohort in cohorts)
    taken = np.bincount(np.concatenate(cohorts), minlength=len(RAGGED))
    assert taken.min() >= 1, "every client takes part, those with 1 and with 40 rows too"
    assert 2 <= taken.max() < ROUNDS, "a client takes part again, so that states matter"
    assert len({int(s) for r in range(1, ROUNDS + 1) for s in flat[f"{r}/steps"]}) >= 3


# the numbers of clients do not matter


@dataclass(frozen=True)
class Relabelled:
    """A planner, or a selection, in which client j has the number ``original[j]``."""

    inner: Any
    original: tuple[int, ...]

    def batch_sizes(self, sizes: Any) -> Any:
        return self.inner.batch_sizes(sizes[np.argsort(self.original)])[list(self.original)]

    def train(self, round_: int, client: int, rows: Any) -> BatchPlan:
        return self.inner.train(round_, self.original[client], rows)

    def select(self, clients: Any, rng: Any) -> Any:
        return np.sort(np.argsort(self.original)[self.inner.select(clients, rng)])


ORDER = (4, 0, 6, 2, 5, 1, 3)
PER_CLIENT = ("uploads", "states", "scores", "steps", "measures/update_norm", "measures/distance", "measures/alignment")
BY_NUMBER = ("drfa", "fedga:weighting=uniform,score=accuracy")
"""DRFA draws clients by number; equal accuracies go to the client with the smaller number."""


def relabelled(fed: Federation) -> Federation:
    """Return the same clients with other numbers."""
    part = fed.partition
    rows = [part.rows(k) for k in ORDER]
    other = replace(part, indices=np.concatenate(rows), offsets=np.cumsum([0, *map(len, rows)]))
    planner, selection = Relabelled(fed.planner, ORDER), Relabelled(fed.selection, ORDER)
    return replace(fed, partition=other, planner=planner, selection=selection)


@pytest.mark.parametrize("spec", [v for v in VARIANTS if not spec_of(v).startswith(BY_NUMBER)])
def test_the_numbers_of_clients_do_not_matter(spec: str) -> None:
    ours, theirs = reference(spec), run(relabelled(federation(spec)), Sequential())
    assert set(ours) == set(theirs)
    for name, value in theirs.items():
        round_, _, field = name.partition("/")
        if name == "known" or field == "clients":
            value = torch.as_tensor(ORDER)[value].sort().values
        elif round_ == "kept" or field.startswith(PER_CLIENT):
            new = theirs["known"] if round_ == "kept" else theirs[f"{round_}/clients"]
            value = value[torch.as_tensor(ORDER)[new].argsort()]
        elif field.startswith("server state/") and value.shape[:1] == (len(ORDER),):
            value = value[torch.as_tensor(ORDER).argsort()]  # the server's state of each client
        torch.testing.assert_close(value, ours[name], rtol=1e-12, atol=1e-12)


# a client does not depend on the rest of the cohort

COHORT_MATTERS = ("drfa", "dualmetric", "fedbs:variance=loss", "fedpbs:weighting=samples")
"""Methods whose server compares the clients before they train."""


@pytest.mark.parametrize("spec", [v for v in VARIANTS if not spec_of(v).startswith(COHORT_MATTERS)])
def test_a_client_does_not_depend_on_the_rest_of_the_cohort(spec: str) -> None:
    """Clients 2 and 5 in a cohort of four and in one of two, bit by bit."""
    fed = federation(spec, selection=Only((1, 2, 5, 6)))
    server, states, four = halfway(fed)
    two = prepare(replace(fed, selection=Only((2, 5))), Sequential(), server, states, True)[1]
    many = dict(leaves(pick(Sequential().run(fed.program, four, fed.x, fed.y), [1, 2])))
    assert_equal(dict(leaves(Sequential().run(fed.program, two, fed.x, fed.y))), many)


# measuring and repeating


@pytest.mark.parametrize("engine", [Sequential(), Stacked()], ids=repr)
def test_measuring_local_models_changes_nothing(engine: Any) -> None:
    fed = federation("moon:mu=2.0")
    server, states, work = halfway(fed, measure_local=True)
    bare = prepare(fed, Sequential(), server, states, False)[1]
    assert bare.measured == []
    one, two = (engine.run(fed.program, w, fed.x, fed.y) for w in (work, bare))
    assert two.scores == {}
    assert_equal(dict(leaves((one.uploads, one.states))), dict(leaves((two.uploads, two.states))))


def test_a_run_repeats_itself_under_its_seed_only() -> None:
    for engine in (Sequential(), Stacked()):
        assert_equal(run(federation("scaffold"), engine), run(federation("scaffold"), engine))
    other: Record = run(federation("fedavg", seed=8))
    assert float((other[f"{ROUNDS}/x"] - models("fedavg")).abs().max()) > 1e-6
