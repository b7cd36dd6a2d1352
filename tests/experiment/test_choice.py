"""``engine = "auto"``: what the trial's choice makes of an experiment, and what a run stores of it."""

from __future__ import annotations

import pytest
import torch

from fedskew.cli.train import trial_times
from fedskew.engine.choose import Option
from fedskew.engine.stacked import Stacked
from fedskew.experiment import choice
from fedskew.experiment.choice import settled
from tests.experiment.test_experiment import DATA, small

AUTO = small(rounds=1).replace(engine="auto", training__threads=0)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The threads that trials were to choose from; the trial takes the most of them."""
    seen: list[list[int]] = []

    def choose(fed, work, threads):
        seen.append(threads)
        option = Option(Stacked(), threads[-1])
        return option, {"sequential": 0.123456, option.label: 0.01}

    monkeypatch.setattr(choice, "choose", choose)
    monkeypatch.setattr(choice, "cores", lambda: 8)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    return seen


@pytest.mark.parametrize(
    ("jobs", "given", "threads"), [(1, 0, [1, 6]), (2, 0, [1, 4]), (8, 0, [1]), (99, 0, [1]), (2, 3, [3])]
)
def test_threads_to_choose_from(asked: list[list[int]], jobs: int, given: int, threads: list[int]) -> None:
    """One or all of PyTorch's; a share of the cores for runs side by side; those that the user gives."""
    made, facts = settled(AUTO.replace(training__threads=given), DATA, jobs)
    assert asked == [threads]
    assert made.engine == Stacked()
    assert made.training.threads == threads[-1]
    label = Option(Stacked(), threads[-1]).label
    expected = {"sequential": 0.1235, label: 0.01}
    assert facts == {"name": "stacked", "choice": label, "estimated_seconds_a_round": expected}


def test_a_named_engine_is_not_tried(asked: list[list[int]]) -> None:
    made, facts = settled(AUTO.replace(engine="sequential"), DATA, jobs=2)
    assert (made.training.threads, facts, asked) == (4, None, [])


def test_the_head_of_a_run_shows_the_trial() -> None:
    trials = [
        {"estimated_seconds_a_round": {"sequential": 0.5, "stacked": 0.28}},
        {"estimated_seconds_a_round": {"sequential": 0.5, "stacked": 0.343}},
    ]
    assert trial_times(trials) == "trial, s a round: sequential 0.5, stacked 0.28 to 0.34"


def test_a_real_trial_measures_both_engines() -> None:
    made, facts = settled(AUTO, DATA)
    assert facts is not None
    assert facts["choice"] in facts["estimated_seconds_a_round"]
    assert {"sequential", "stacked"} <= set(facts["estimated_seconds_a_round"])
    assert all(0 < seconds < 60 for seconds in facts["estimated_seconds_a_round"].values())
    assert made.training.threads >= 1
