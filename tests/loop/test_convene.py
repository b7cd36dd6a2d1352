"""A method may survey candidates before it selects clients, also others than the candidates."""

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
class Reselects(Algorithm):
    """Counts rows at the candidates, then selects clients 2 and 5."""

    def before(self, task, view, batch):
        return {"rows": batch.mask.sum()}

    def answer(self, view):
        return {"rows": view.before["rows"]}

    def convene(self, server, candidates, answers):
        assert candidates.index.tolist() == [1, 2, 6]
        assert answers["rows"].tolist() == [RAGGED[k] for k in (1, 2, 6)]
        return {"rows": answers["rows"].sum()}, torch.tensor([2, 5])

    def local_final(self, solver, view, carry, after):
        return Upload(carry.w - view.x, {}, {"rows": view.before["rows"]}), view.state


@pytest.mark.parametrize("engine", [Sequential(), Stacked(), Stacked(width=1)])
def test_a_client_that_was_not_surveyed_gets_zeros(engine) -> None:
    fed = ragged(Reselects(), selection=Only((1, 2, 6)))
    outcome = play(fed, X0, 1, engine)[0]
    assert outcome.work.clients.tolist() == [2, 5]
    assert outcome.done.uploads.report["rows"].tolist() == [RAGGED[2], 0]


def test_survey_bytes_are_counted() -> None:
    """The model to three candidates and to client 5, which was not surveyed. Three answers, and two updates with a count each."""
    outcome = play(ragged(Reselects(), selection=Only((1, 2, 6))), X0, 1)[0]
    model = 8 * X0.numel()
    assert outcome.bytes_down == 4 * model
    assert outcome.bytes_up == 3 * 8 + 2 * (model + 8)
