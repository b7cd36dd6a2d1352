"""The trial of engines tells what a round costs from runs of a few steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedskew.algorithms import ALGORITHMS
from fedskew.core.component import build
from fedskew.engine import choose as trial
from fedskew.engine.sequential import Sequential
from fedskew.loop.round import start
from tests.small import X0, ragged

BESIDE, STEP, SCORE = 0.5, 0.25, 0.125


def takes(fed, engine, work):
    """A machine on which a run costs something once, and the same for each step."""
    return BESIDE + STEP * max(len(plan.index) for plan in work.plans) + SCORE * bool(work.measured)


def test_what_comes_once_is_told_from_what_every_step_costs(monkeypatch):
    fed = ragged(build("algorithm", ALGORITHMS, "fedavg"))
    work = trial.next_work(replace(fed, rounds=1), start(fed, X0), measure_local=True)
    longest = int(np.argmax([len(plan.index) for plan in work.plans]))
    few = trial.shortened(work, np.asarray([longest]))
    assert len(few.plans[0].index) > 1
    monkeypatch.setattr(trial, "once", takes)
    assert trial.cost(fed, Sequential(), few) == pytest.approx((BESIDE, STEP, SCORE))


def test_a_disturbed_run_does_not_count(monkeypatch):
    slow = iter([9.0, 0.01, 0.02, 0.03, 5.0])
    monkeypatch.setattr(trial, "once", lambda *_: next(slow))
    monkeypatch.setattr(trial, "ENOUGH", 9.05)
    assert trial.fastest(None, None, None) == 0.01
