"""The trial of engines: what a round costs, from runs of a few steps, and which option is taken."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from fedskew.algorithms import ALGORITHMS
from fedskew.core.component import build
from fedskew.core.task import Task
from fedskew.engine import choose as trial
from fedskew.engine.choose import EngineChoice, choose
from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from fedskew.loop.round import start
from tests.small import X0, ragged

FED = ragged(build("algorithm", ALGORITHMS, "fedavg"))
LENGTHS = [2, 6, 12, 2, 2, 4, 8]
"""Local steps of its clients, of 5, 17, 40, 3, 1, 9 and 24 rows: two epochs in batches of 7."""
BESIDE, STEP = 0.5, 0.25


def work_of():
    work = trial.next_work(FED, start(FED, X0))
    assert work is not None
    assert [len(plan.index) for plan in work.plans] == LENGTHS
    return work


def takes(fed, engine, work):
    """Return the seconds of a run on a machine: ``BESIDE``, plus ``STEP`` for each step of the client with most steps."""
    return BESIDE + STEP * max(len(plan.index) for plan in work.plans)


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (EngineChoice(Sequential()), 7 * BESIDE + STEP * 36),
        (EngineChoice(Sequential(), threads=2), 4 * BESIDE + STEP * (12 + 6 + 2 + 2)),
        (EngineChoice(Stacked(width=2)), 4 * BESIDE + STEP * (12 + 6 + 2 + 2)),
        (EngineChoice(Stacked()), BESIDE + STEP * 12),
    ],
)
def test_round_costs_one_start_and_the_longest_clients_steps_for_each_block(
    monkeypatch: pytest.MonkeyPatch, option: EngineChoice, expected: float
) -> None:
    monkeypatch.setattr(trial, "once", takes)
    assert trial.estimate_seconds(FED, work_of(), option) == pytest.approx(expected)


@pytest.mark.parametrize(("seconds", "fastest"), [([9.0, 0.01, 0.02, 0.03, 5.0], 0.01), ([9.0, 0.6, 0.01], 0.6)])
def test_a_disturbed_run_does_not_count_and_a_long_one_is_not_repeated(monkeypatch, seconds, fastest) -> None:
    times = iter(seconds)
    monkeypatch.setattr(trial, "once", lambda *_: next(times))
    assert trial.fastest(FED, Sequential(), work_of()) == fastest


@pytest.mark.parametrize("seconds", [60.0, 0.6])
def test_a_hopeless_first_step_ends_a_trial(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    calls = []
    monkeypatch.setattr(trial, "once", lambda *_: calls.append(1) or seconds)
    assert trial.estimate_seconds(FED, work_of(), EngineChoice(Stacked()), limit=1.0) == seconds * 12
    assert len(calls) == 1


def test_a_hopeless_step_is_repeated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first step prepares the engine. Twelve steps of 0.1 s are over the limit."""
    times = iter([0.45, 0.1])
    monkeypatch.setattr(trial, "once", lambda *_: next(times))
    assert trial.estimate_seconds(FED, work_of(), EngineChoice(Stacked()), limit=1.0) == pytest.approx(0.1 * 12)


def test_a_short_step_after_a_long_preparation_is_timed_without_the_start_of_a_run(monkeypatch) -> None:
    """The stacked engine lost in this way where it is four times as fast: of a run with one step, most is the start."""
    first, start, step = iter([0.45]), 0.003, 0.0004
    monkeypatch.setattr(
        trial, "once", lambda fed, engine, work: next(first, start + step * max(len(plan.index) for plan in work.plans))
    )
    seconds = trial.estimate_seconds(FED, work_of(), EngineChoice(Stacked()), limit=0.1)
    assert seconds == pytest.approx(start + step * 12)


def test_few_rows_show_that_a_step_is_hopeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row takes 0.3 s, and a batch has seven."""
    rows = []

    def slow(fed, engine, work):
        rows.append({plan.index.shape[1] for plan in work.plans})
        return 0.3 * max(rows[-1])

    monkeypatch.setattr(trial, "once", slow)
    seconds = trial.estimate_seconds(FED, work_of(), EngineChoice(Sequential()), limit=1.0)
    assert seconds == pytest.approx(0.3 * 7 * 36)
    assert rows == [{trial.FEW_ROWS}]


def test_labels_show_only_what_differs_from_the_default() -> None:
    assert EngineChoice(Sequential()).label == "sequential"
    assert EngineChoice(Stacked(width=5), threads=4).label == "stacked 5 wide 4 threads"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, float]], list[str]]:
    """A machine with given seconds a round under each option. Returns the list of what is tried on it."""

    def prepared(seconds: dict[str, float]) -> list[str]:
        tried: list[str] = []

        def measured(fed, work, option, limit=np.inf):
            tried.append(option.label)
            return seconds[option.label]

        monkeypatch.setattr(trial, "estimate_seconds", measured)
        return tried

    return prepared


TRIALS = {
    "a short run tries the two engines only": ({"sequential": 0.02, "stacked": 0.01}, 10, [1, 2], Stacked(), 1),
    "a long run tries all threads": (
        {"sequential": 9, "stacked": 4, "stacked 4 threads": 2},
        1000,
        [1, 4],
        Stacked(),
        4,
    ),
    "all threads are hardly faster": (
        {"sequential": 9, "stacked": 1, "stacked 2 threads": 0.95},
        1000,
        [1, 2],
        Stacked(),
        1,
    ),
    "an engine that loses on one thread may win on all": (
        {"sequential": 1.9, "stacked": 1, "sequential 2 threads": 0.5, "stacked 2 threads": 1},
        1000,
        [1, 2],
        Sequential(),
        2,
    ),
    "given threads are kept": ({"sequential 3 threads": 2, "stacked 3 threads": 1}, 1000, [3], Stacked(), 3),
}
"""Seconds a round by option, rounds, numbers of threads that may be used, and the choice."""


@pytest.mark.parametrize(("seconds", "rounds", "threads", "engine", "used"), TRIALS.values(), ids=TRIALS)
def test_the_fastest_option_is_chosen(machine, seconds, rounds, threads, engine, used) -> None:
    tried = machine(seconds)
    assert choose(replace(FED, rounds=rounds), work_of(), threads)[0] == EngineChoice(engine, threads=used)
    assert tried == [*seconds]


def test_a_model_that_cannot_be_stacked_is_tried_alone(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = machine({"sequential": 2})
    monkeypatch.setattr(Task, "stacks", False)
    assert choose(replace(FED, rounds=1), work_of(), [1])[0] == EngineChoice(Sequential())
    assert tried == ["sequential"]
