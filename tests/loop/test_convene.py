"""A method may survey the proposed clients before it decides who trains, also others than those."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from fedskew.core.algorithm import Algorithm
from fedskew.core.records import Upload
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from tests.reference import Only, ragged
from tests.small import RAGGED, X0, play


@dataclass(frozen=True, kw_only=True)
class Elsewhere(Algorithm):
    """Counts rows at the proposed clients, then lets clients 2 and 5 train."""

    def before(self, task, view, batch):
        return {"rows": batch.mask.sum()}

    def answer(self, view):
        return {"rows": view.before["rows"]}

    def convene(self, server, candidates, answers):
        assert candidates.index.tolist() == [1, 2, 6]
        assert answers["rows"].tolist() == [RAGGED[k] for k in (1, 2, 6)]
        return {"told": answers["rows"].sum()}, torch.tensor([2, 5])

    def local_final(self, solver, view, carry, after):
        return Upload(carry.w - view.x, {}, {"rows": view.before["rows"]}), view.state


@pytest.mark.parametrize("engine", [Sequential(), Stacked(), Stacked(width=1)])
def test_who_was_not_asked_finds_zeros(engine) -> None:
    fed = ragged(Elsewhere(), selection=Only((1, 2, 6)))
    outcome = play(fed, X0, 1, engine)[0]
    assert outcome.work.clients.tolist() == [2, 5]
    assert outcome.done.uploads.report["rows"].tolist() == [RAGGED[2], 0]


def test_bytes_of_the_survey() -> None:
    """The model to the three that were asked and to client 5, who was not; three answers and two updates with a count each."""
    outcome = play(ragged(Elsewhere(), selection=Only((1, 2, 6))), X0, 1)[0]
    model = 8 * X0.numel()
    assert outcome.bytes_down == 4 * model
    assert outcome.bytes_up == 3 * 8 + 2 * (model + 8)
