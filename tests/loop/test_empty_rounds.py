"""Rounds without clients: they count, and only a method that steps alone changes the model."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from fedskew.algorithms import ALGORITHMS
from fedskew.core.algorithm import Algorithm, Contract
from fedskew.core.component import build
from fedskew.engine.choose import EngineChoice, next_work
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from fedskew.engine.states import ClientStates
from fedskew.execution.plan import try_engines
from fedskew.loop.round import play_round, start
from fedskew.slots import Everyone, Momentum
from tests.invariants import NoClients
from tests.reference import assert_close, f64, sized_pair
from tests.small import X0, play, ragged

torch.set_num_threads(1)


@dataclass(frozen=True)
class Coin:
    """Each client with probability 0.1: of seven clients, about every second round has none."""

    def select(self, clients: Any, rng: Any) -> Any:
        return clients[rng.random(len(clients)) < 0.1]


@dataclass(frozen=True, kw_only=True)
class Breeze(Algorithm):
    """Moves the model by 1/2 in every round, with or without clients."""

    def contract(self):
        return Contract(steps_alone=True)

    def server_init(self, server):
        return {"calls": torch.zeros(())}

    def aggregate(self, server, cohort):
        assert cohort.uploads.delta.shape == (cohort.size, len(server.x))
        assert cohort.size or (cohort.uploads.extras, cohort.uploads.report) == ({}, {})
        return self.mean_delta(server, cohort) + 0.5, {"calls": server.state["calls"] + 1}


def test_afl_averages_over_rounds_with_clients() -> None:
    """An empty first round, then x = 1 and 1.575 under lambda (1/4, 3/4) and (0.175, 0.825)."""
    fed = sized_pair(build("algorithm", ALGORITHMS, "afl:gamma=0.02"), (1, 1))
    server, states = start(fed, f64([1.0])), ClientStates()
    for selection in (NoClients(), Everyone(), NoClients(), Everyone()):
        server = play_round(replace(fed, selection=selection), Sequential(), server, states).server
    assert_close(server.state["mean_x"], [1.2875])
    assert_close(server.state["mean_lambda"], [0.2125, 0.7875])


@pytest.mark.parametrize("weighting", ["samples", "uniform", "unbiased", "own"])
def test_a_method_that_steps_alone_gets_empty_uploads_and_the_optimiser_steps(weighting: str) -> None:
    fed = replace(sized_pair(Breeze(weighting=weighting), server=Momentum(lr=1.0, beta=0.5)), selection=NoClients())
    outcomes = play(fed, [1.0], 3)
    # v = 0.5, 0.75, 0.875
    assert_close(torch.cat([o.server.x for o in outcomes]), [1.5, 2.25, 3.125])
    assert float(outcomes[-1].server.state["calls"]) == 3


@dataclass(frozen=True, kw_only=True)
class Choosy(Algorithm):
    """Counts its surveys, and then selects no clients."""

    def server_init(self, server):
        return {"surveys": torch.zeros(())}

    def answer(self, view):
        return {"n": view.info.num_examples}

    def convene(self, server, candidates, answers):
        return {"surveys": server.state["surveys"] + len(answers["n"])}, candidates.index[:0]


@pytest.mark.parametrize("engine", [Sequential(), Stacked()], ids=repr)
def test_a_method_may_survey_clients_and_select_none(engine) -> None:
    outcome = play(ragged(Choosy()), X0, 2, engine)[-1]
    assert torch.equal(outcome.server.x, X0)
    assert float(outcome.server.state["surveys"]) == 14
    assert outcome.bytes_up == 7 * 8
    # no candidates: no survey
    assert float(play(replace(ragged(Choosy()), selection=NoClients()), X0, 2, engine)[-1].server.state["surveys"]) == 0


def test_the_trial_of_engines_waits_for_a_round_with_clients() -> None:
    fed = replace(ragged(build("algorithm", ALGORITHMS, "fedavg")), selection=Coin(), rounds=12)
    empty = next(r for r, o in enumerate(play(fed, X0, 12)) if not len(o.work.clients))
    work = next_work(fed, start(fed, X0)._replace(round=empty))
    assert work is not None
    assert work.round > empty
    assert len(work.clients)


def test_engines_are_not_tried_if_no_round_has_clients() -> None:
    fed = replace(ragged(build("algorithm", ALGORITHMS, "fedavg")), selection=NoClients())
    option, facts = try_engines(fed, X0, [1])
    assert option == EngineChoice(Sequential(), 1)
    assert facts["estimated_seconds_a_round"] == {"sequential": 0.0}
