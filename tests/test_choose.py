"""The trial of engines tells what a round costs from runs of a few steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedskew.algorithms import ALGORITHMS
from fedskew.core.component import build
from fedskew.engine import choose as trial
from fedskew.engine.choose import Option, choose
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
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
    monkeypatch.setattr(trial, "LONG", 10.0)
    assert trial.fastest(None, None, None) == 0.01


def test_a_long_run_is_not_repeated(monkeypatch):
    slow = iter([0.6, 0.01])
    monkeypatch.setattr(trial, "once", lambda *_: next(slow))
    assert trial.fastest(None, None, None) == 0.6


def machine(**speeds):
    """A trial that knows what every option takes (seconds a round by label, `_` for a space), and what was asked."""
    known, asked = {label.replace("_", " "): value for label, value in speeds.items()}, []

    def measure(option, bar):
        asked.append(option.label)
        return known[option.label]

    return measure, asked


def test_labels_say_what_is_not_as_usual():
    assert Option(Sequential()).label == "sequential"
    assert Option(Stacked(width=5), threads=4).label == "stacked 5 wide 4 threads"


def test_a_short_run_tries_the_two_engines_only():
    measure, asked = machine(sequential=0.02, stacked=0.01)
    assert choose(measure, 10, [1, 2], {}, 8, 8) == Option(Stacked())
    assert asked == ["sequential", "stacked"]


def test_a_long_run_tries_threads_and_widths_while_they_gain():
    measure, asked = machine(
        sequential=9, stacked=4, stacked_4_threads=2, stacked_2_threads=3, stacked_4_wide_4_threads=1,
        stacked_2_wide_4_threads=0.9999,
    )  # fmt: skip
    assert choose(measure, 1000, [1, 2, 4], {}, 8, 8) == Option(Stacked(width=4), threads=4)
    assert asked[2:4] == ["stacked 4 threads", "stacked 2 threads"]
    assert asked[4:] == ["stacked 4 wide 4 threads", "stacked 2 wide 4 threads"]


def test_blocks_are_widened_where_there_are_clients_for_it():
    measure, asked = machine(sequential=9, stacked=1, stacked_4_wide=2, stacked_16_wide=0.5, stacked_20_wide=0)
    assert choose(measure, 1000, [1], {}, 8, 20) == Option(Stacked(width=16))
    assert asked[2:] == ["stacked 4 wide", "stacked 16 wide"]


def test_the_plain_option_wins_where_others_hardly_gain():
    measure, _ = machine(sequential=1, sequential_2_threads=0.95)
    assert choose(measure, 1000, [1, 2], {}, 0, 8) == Option(Sequential())


def test_an_engine_that_loses_on_one_thread_may_win_on_more_but_not_if_it_is_far_behind():
    measure, asked = machine(sequential=1.9, stacked=1, sequential_2_threads=0.5, stacked_2_threads=1)
    assert choose(measure, 10**6, [1, 2], {}, 1, 8) == Option(Sequential(), threads=2)
    measure, asked = machine(sequential=2.1, stacked=1, stacked_2_threads=1)
    assert choose(measure, 10**6, [1, 2], {}, 1, 1) == Option(Stacked())
    assert "sequential 2 threads" not in asked


def test_what_is_known_is_not_tried_again():
    seconds = {"sequential": 3.0, "stacked": 2.0, "stacked 2 threads": 1.0}
    measure, asked = machine()
    assert choose(measure, 0, [1, 2], seconds, 1, 1) == Option(Stacked(), threads=2)
    assert asked == []


def test_a_hopeless_first_step_ends_a_trial(monkeypatch):
    fed = ragged(build("algorithm", ALGORITHMS, "fedavg"))
    work = trial.next_work(replace(fed, rounds=1), start(fed, X0), measure_local=False)
    calls = []
    monkeypatch.setattr(trial, "once", lambda *_: calls.append(1) or 60.0)
    longest = max(len(plan.index) for plan in work.plans)
    assert trial.measured(fed, work, Option(Stacked(width=len(work.plans))), bar=2.0) == 60.0 * longest
    assert len(calls) == 1
