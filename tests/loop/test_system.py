"""Stragglers, dropouts and unequal devices: a function of (seed, round, client), the same for every method."""

import re
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from fedskew.algorithms import FedAvg
from fedskew.core.algorithm import Algorithm
from fedskew.core.errors import BadInput
from fedskew.engine.sequential import Sequential
from fedskew.engine.states import ClientStates
from fedskew.loop.plan import Local, SeededPlanner, System
from fedskew.loop.round import call, prepare, start
from fedskew.slots import Always, Everyone, Random, Uniform
from tests.small import RAGGED, X0, play, ragged

torch.set_num_threads(1)

SEED = 3


def test_dropouts_have_their_probability_and_are_nested() -> None:
    kept = np.stack([System(dropout=0.3).reached(50, t, SEED) for t in range(1000)])
    assert np.abs(kept.mean(0) - 0.7).max() < 4.5 * np.sqrt(0.21 / 1000)
    more = np.stack([System(dropout=0.5).reached(50, t, SEED) for t in range(1000)])
    assert (kept | ~more).all(), "who does not drop out at 0.5 does not at 0.3"
    assert System(dropout=0.0).reached(50, 0, SEED).all()
    assert not System(dropout=1.0).reached(50, 0, SEED).any()
    assert np.array_equal(System(dropout=0.3).reached(20, 4, SEED), kept[4, :20])


def test_stragglers_have_their_probability_are_independent_and_nested() -> None:
    cohort = np.arange(10)
    chosen = np.zeros((2000, 10))
    for t in range(2000):
        some, more = (System(stragglers=s).late(cohort, 10, t, SEED) for s in (0.3, 0.6))
        assert set(some) <= set(more)
        assert all(0 <= luck < 1 for luck in more.values())
        chosen[t, list(some)] = 1
    assert np.abs(chosen.mean(0) - 0.3).max() < 4.5 * np.sqrt(0.21 / 2000)
    counts = np.bincount(chosen.sum(1).astype(int), minlength=11)
    expected = 2000 * stats.binom.pmf(np.arange(11), 10, 0.3)
    assert stats.chisquare([*counts[:6], counts[6:].sum()], [*expected[:6], expected[6:].sum()]).pvalue > 0.001
    assert not System().late(cohort, 10, 0, SEED)
    assert len(System(stragglers=1.0).late(cohort, 10, 0, SEED)) == 10


def test_stragglers_do_not_depend_on_the_cohort() -> None:
    for share in (0.5, 1.0):
        all_late = System(stragglers=share).late(np.arange(10), 10, 5, SEED)
        some_late = System(stragglers=share).late(np.array([2, 7]), 10, 5, SEED)
        assert some_late == {k: all_late[k] for k in (2, 7) if k in all_late}


def unreliable(**options: Any) -> Any:
    """Seven clients of 1 to 40 rows under FedAvg, batches of 7, five epochs."""
    local = options.pop("local", Local(epochs=5, batch_size=7))
    fed = ragged(options.pop("algorithm", FedAvg()), local=local, selection=options.pop("selection", Everyone()))
    availability, system = options.pop("availability", Always()), System(**options)
    planner = SeededPlanner(local, fed.seed, system.own_work(local, len(RAGGED), fed.seed))
    return replace(fed, availability=availability, system=system, planner=planner, rounds=6)


def works(fed: Any, rounds: int) -> list[Any]:
    """The work of each round, without training."""
    server = start(fed, X0)
    return [prepare(fed, Sequential(), server._replace(round=t), ClientStates(), False)[1] for t in range(rounds)]


def per_epoch(batch_size: int = 7) -> np.ndarray[Any, Any]:
    return -(-np.asarray(RAGGED) // batch_size)


def test_straggler_takes_some_first_whole_epochs_of_its_plan() -> None:
    fed, done = unreliable(stragglers=0.5), []
    for full, work in zip(works(unreliable(), 30), works(fed, 30), strict=True):
        late = fed.system.late(np.arange(7), 7, work.round, fed.seed)
        assert (work.turnout.stragglers, len(work.clients)) == (len(late), 7)
        steps = np.asarray([len(plan.index) for plan in work.plans])
        epochs = steps / per_epoch()
        assert (epochs == epochs.astype(int)).all()
        assert np.flatnonzero(epochs < 5).tolist() == sorted(late)
        done += epochs[epochs < 5].astype(int).tolist()
        assert work.view.steps.tolist() == steps.tolist()
        for mine, whole in zip(work.plans, full.plans, strict=True):
            assert np.array_equal(mine.index, whole.index[: len(mine.index)])
            assert np.array_equal(mine.mask, whole.mask[: len(mine.mask)])
    counts = np.bincount(done, minlength=5)
    assert counts[0] == 0
    assert stats.chisquare(counts[1:]).pvalue > 0.001, "uniform over 1 to 4"


@pytest.mark.parametrize("batches", ["shuffled", "independent"])
def test_a_straggler_does_fewer_steps_if_steps_are_set(batches: str) -> None:
    local = Local(steps=4, batch_size=5, batches=batches)
    steps = np.concatenate(
        [[len(p.index) for p in w.plans] for w in works(unreliable(stragglers=1.0, local=local), 40)]
    )
    counts = np.bincount(steps, minlength=5)
    assert counts[0] == counts[4] == 0
    assert stats.chisquare(counts[1:4]).pvalue > 0.001


def test_dropped_stragglers_receive_the_model_and_send_none() -> None:
    kept, dropped = (unreliable(stragglers=0.5, drop_stragglers=d) for d in (False, True))
    for one, two in zip(play(kept, X0, 4), play(dropped, X0, 4), strict=True):
        in_time = [
            k
            for k, plan, n in zip(one.work.clients, one.work.plans, per_epoch(), strict=True)
            if len(plan.index) == 5 * n
        ]
        assert two.work.clients.tolist() == in_time
        assert two.work.turnout == one.work.turnout == (7, 7, 7, 7 - len(in_time))
        vector = 8 * len(X0)
        assert (two.bytes_down, two.bytes_up) == (7 * vector, len(in_time) * vector)


def test_selection_draws_from_the_available_clients_or_takes_all_of_a_few() -> None:
    fed = unreliable(availability=Random(p=0.5), selection=Uniform(clients=4))
    sizes = set()
    for t in range(40):
        available = np.flatnonzero(fed.availability.available(fed.info, t, fed.seed))
        cohort, _, turnout = call(fed, t)
        assert set(cohort) <= set(available)
        assert len(cohort) == min(4, len(available))
        assert turnout == (len(available), len(cohort), len(cohort), 0)
        sizes.add(len(available))
    assert min(sizes) < 4 < max(sizes)


def test_each_client_has_its_own_epochs_and_batch_size() -> None:
    fed = unreliable(epochs=(1, 3), batch_sizes=(2, 30))
    drawn = set()
    for work in works(fed, 2):
        for k, plan in enumerate(work.plans):
            own = fed.planner.work(k)
            width = min(own.batch_size, RAGGED[k])
            assert float(work.view.info.batch_size[k]) == float(fed.info.batch_size[k]) == width
            assert plan.index.shape == (own.epochs * -(-RAGGED[k] // width), width)
            drawn.add((own.epochs, own.batch_size))
    assert len(drawn) > 2


def test_devices_are_drawn_uniformly_from_lists_and_ranges() -> None:
    own = System(epochs="2-6", batch_sizes=(8, 16, 32)).own_work(Local(), 6000, SEED)
    epochs, sizes = np.asarray([w.epochs for w in own]), np.asarray([w.batch_size for w in own])
    assert set(epochs) == {2, 3, 4, 5, 6}
    assert stats.chisquare(np.bincount(epochs)[2:]).pvalue > 0.001
    assert stats.chisquare(np.unique(sizes, return_counts=True)[1]).pvalue > 0.001
    assert abs(np.corrcoef(epochs, sizes)[0, 1]) < 4 / np.sqrt(6000)
    alone = System(epochs="2-6").own_work(Local(batch_size="all"), 50, SEED)
    assert [w.epochs for w in alone] == epochs[:50].tolist(), "neither the population nor the batch sizes matter"
    assert {w.batch_size for w in alone} == {"all"}
    assert System().own_work(Local(), 50, SEED) == ()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epochs": ()}, "epochs"),
        ({"epochs": (0, 2)}, "epochs: needs one or more numbers of at least 1"),
        ({"epochs": "3"}, "a range such as 2-6"),
        ({"batch_sizes": "6-2"}, "batch_sizes: needs one or more numbers of at least 1"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        System(**options)


@pytest.mark.parametrize(
    ("system", "local"),
    [
        (System(stragglers=0.5), Local(epochs=1)),
        (System(stragglers=0.5), Local(steps=1)),
        (System(stragglers=0.5, epochs=(1, 1)), Local(epochs=5)),
        (System(epochs=(1, 2)), Local(steps=5)),
    ],
)
def test_options_without_effect_are_refused(system: System, local: Local) -> None:
    setup: Any = SimpleNamespace(local=local)
    assert re.search(r"local\.|epochs", system.accepts(setup))
    assert not replace(system, stragglers=0.0, epochs=None).accepts(setup)
    assert not replace(system, drop_stragglers=True, epochs=None).accepts(setup)


@dataclass(frozen=True, kw_only=True)
class Greedy(Algorithm):
    """Surveys candidates, then selects all clients."""

    def answer(self, view):
        return {"n": view.info.num_examples}

    def convene(self, server, candidates, answers):
        assert len(candidates.index) == len(answers["n"])
        return server.state, server.clients.index


def test_a_method_that_selects_all_clients_gets_those_that_are_available_and_answer() -> None:
    options = {"algorithm": Greedy(), "dropout": 0.3, "stragglers": 0.5, "drop_stragglers": True}
    fed = unreliable(availability=Random(p=0.7), selection=Uniform(clients=3), **options)
    for t, outcome in enumerate(play(fed, X0, 12)):
        available = Random(p=0.7).available(fed.info, t, fed.seed) & System(dropout=0.3).reached(7, t, fed.seed)
        cohort = np.flatnonzero(available) if outcome.work.turnout.answered else np.arange(0)
        late = fed.system.late(cohort, 7, t, fed.seed)
        assert outcome.work.turnout.stragglers == len(late)
        assert outcome.work.clients.tolist() == [k for k in cohort if k not in late]
        # the surveyed answered with one number each, those in time with a model
        assert outcome.bytes_up == 8 * (outcome.work.turnout.answered + len(outcome.work.clients) * len(X0))
