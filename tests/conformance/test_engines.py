"""Both engines give the same numbers in each of their ways to work, on every kind of local work, and on every model."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from fedskew.core.contract import linear_solver
from fedskew.engine import ENGINES
from fedskew.engine.choose import on_threads
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked, StackedProgram
from fedskew.engine.states import ClientStates
from fedskew.loop.federation import Federation
from fedskew.loop.plan import Local
from fedskew.loop.work import program
from fedskew.models import MODELS, Cnn, Cnn1d, LeNet, Mlp, ResNet, Softmax, TextCnn, TextMean
from tests.methods import FIRST, SOLVER, algorithm, assert_close, assert_equal, federation, record, reference, run
from tests.small import classifier, play, ragged

torch.set_num_threads(1)

ENGINE: dict[str, tuple[Any, str]] = {  # and the size from which it works as for large models, 0 in these tests
    "narrowing": (Stacked(), "stacked.SMALL"),
    "one-wide": (Stacked(width=1), ""),
}
SHAPES = ("fedavg", "fedprox", "scaffold", "fednova", "feddyn", "moon")
"""Methods that together use nearly every hook: they meet every solver in every engine."""
ENOUGH = (*SHAPES, "ditto", "fedbs", "fedmd")
"""Methods that together use every hook. The slow suite has the others, too: they stack in `fedskew check`."""


def fast_if_enough(spec: str, *more: str) -> Any:
    enough = [pytest.mark.first] if spec in ("fedavg", "scaffold") else []
    return pytest.param(spec, *more, marks=enough if spec.partition(":")[0] in ENOUGH else pytest.mark.slow)


CELLS = [
    fast_if_enough(spec, solver, engine)
    for spec in FIRST
    for engine in ENGINE
    for solver in SOLVER
    if (solver == "sgd" and engine != "one-wide")
    or (spec.partition(":")[0] in SHAPES and (solver == "momentum" or engine != "one-wide"))
    if solver != "adamw" or linear_solver not in algorithm(spec).contract().needs
]


@pytest.fixture(scope="module", autouse=True)
def _traced_once():
    """Keep the traced graphs of all programs until the end, because tracing takes most of the time."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("fedskew.loop.federation.program", cache(program.__wrapped__))
        patched.setattr("fedskew.engine.stacked.vectorised", cache(StackedProgram))
        yield


def test_every_engine_is_in_the_table():
    assert {type(engine) for engine, _ in ENGINE.values()} | {Sequential} == set(ENGINES.values())


@pytest.mark.parametrize(("spec", "solver", "engine"), CELLS)
def test_engines_agree(monkeypatch, spec, solver, engine):
    expected = reference(spec, solver)
    driver, size = ENGINE[engine]
    if size:
        monkeypatch.setattr(f"fedskew.engine.{size}", 0)
    fed = federation(spec, solver)
    assert_close(run(fed, driver), expected)


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


@pytest.mark.parametrize("spec", [fast_if_enough(spec) for spec in FIRST])
def test_a_client_on_each_thread_changes_no_bit(spec):
    expected = reference(spec)
    with on_threads(3):
        assert_equal(run(federation(spec), Sequential()), expected)


@pytest.mark.parametrize("spec", [fast_if_enough(spec) for spec in FIRST])
def test_engines_agree_if_a_pass_takes_several_batches(monkeypatch, spec):
    """They also agree with held-out rows, on which local models are measured."""
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
    "text-mean": (TextMean(embedding=3, hidden=2, vocabulary=7), (6,)),
}


OTHER = {"lstm", "symbol-lstm", "transformer", "minilm", "hf", "mixed"}
"""Refused by the stacked engine, for targets of symbols, or of several architectures: see their own tests."""


def test_every_model_is_covered():
    assert set(MODELS) == set(MODELS_THAT_STACK) | OTHER


@pytest.mark.parametrize("model", MODELS_THAT_STACK)
def test_engines_agree_on_every_model(model):
    maker, shape = MODELS_THAT_STACK[model]
    net = maker.build(shape, 3, torch.Generator().manual_seed(0)).double()
    rng, words = np.random.default_rng(0), model.startswith("text-")
    x = torch.tensor(rng.integers(0, 7, (15, *shape)) if words else rng.standard_normal((15, *shape)))
    fed = ragged(algorithm("fedavg"), sizes=[5, 1, 9], local=Local(epochs=1, batch_size=4))
    fed = replace(fed, task=classifier(net, 3), x=x, dtype=torch.float64)
    x0 = fed.task.space.flatten(net)
    runs = []
    for engine, threads in ((Sequential(), 1), (Stacked(), 1), (Sequential(), 2)):
        states = ClientStates()
        with on_threads(threads):
            runs.append(record(play(fed, x0, 2, engine, states=states), states))
    assert_close(runs[1], runs[0])
    assert_close(runs[2], runs[0])
