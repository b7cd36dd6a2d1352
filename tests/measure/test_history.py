"""Warnings of a run: each appears once for planted numbers, and never for sound ones; a resumed run gives the same."""

from dataclasses import replace

import numpy as np
import pytest

from fedskew.api.functions import run
from fedskew.core.errors import Interrupted
from fedskew.execution.run import execute, register
from fedskew.experiment.config import Experiment
from fedskew.measure.history import Watch
from fedskew.measure.registry import Measures
from fedskew.report.html import page
from fedskew.report.series import Results
from fedskew.store.runs import RunStore

BALANCED = np.full((4, 3), 10)
EVERY_CLIENT = np.arange(4)


def watch(counts=BALANCED, by_rows: bool = True) -> Watch:
    return Watch(("cat", "dog", "eel"), np.asarray(counts), ("a", "b", "c", "d"), by_rows)


def kinds(watched: Watch, rounds: int, cohort=EVERY_CLIENT, divergence=1.0, accuracy=0.5, local=()) -> list[str]:
    """Return the kinds of the warnings over the rounds; a number may be a function of the round."""

    def at(value, r):
        return value(r) if callable(value) else value

    warned = [
        w
        for r in range(1, rounds + 1)
        for w in watched.after_round(r, cohort, at(divergence, r), at(accuracy, r), dict(local))
    ]
    return [w.kind for w in warned]


def test_a_sound_run_gives_no_warning() -> None:
    assert watch().begin() == []
    assert kinds(watch(), 40, divergence=lambda r: 1 / r, accuracy=lambda r: 1 - 0.9**r, local={0: 1.0}) == []


def test_divergence_that_explodes() -> None:
    assert kinds(watch(), 3, divergence=lambda r: [1, 20, 20.1][r - 1]) == ["exploding"]
    assert kinds(watch(), 3, divergence=lambda r: [1, 20, 19][r - 1]) == []
    assert kinds(watch(), 2, divergence=0.0) == []


def test_oscillation_of_a_metric_that_is_no_share_is_relative_to_its_mean() -> None:
    def swinging(size: float) -> list[str]:
        return kinds(
            replace(watch(), measure=Measures().primary("loss")), 30, accuracy=lambda r: 200 + size * (-1) ** r
        )

    assert swinging(4) == []
    assert swinging(6) == ["oscillating"]


def test_oscillating_accuracy_warns_and_rising_accuracy_does_not() -> None:
    swinging = lambda r: 0.5 + 0.04 * (-1) ** r  # noqa: E731
    assert kinds(watch(), 10, accuracy=swinging) == []
    assert kinds(watch(), 30, accuracy=swinging) == ["oscillating"]
    assert kinds(watch(), 12, accuracy=lambda r: 0.07 * r) == []


def test_one_client_with_most_of_the_weight() -> None:
    counts = np.array([[60, 60, 60], [10, 10, 10], [10, 10, 10], [10, 10, 10]])
    assert kinds(watch(counts), 3) == ["dominated"]
    assert kinds(watch(counts, by_rows=False), 3) == []
    assert kinds(watch(counts), 3, cohort=np.array([1, 2, 3])) == []
    counts = BALANCED.copy()
    counts[0] = counts[1:].sum(0)
    assert kinds(watch(counts), 3) == []  # half of the weight is not most of it


def test_classes_without_a_client() -> None:
    counts = BALANCED.copy()
    counts[:, 2] = 0
    assert [w.kind for w in watch(counts).begin()] == ["missing class"]
    assert "eel" in watch(counts).begin()[0].line()
    assert kinds(watch(counts), 9) == []
    only_one = BALANCED.copy()
    only_one[1:, 1] = 0
    assert kinds(watch(only_one), 4, cohort=np.array([1, 2, 3])) == []
    assert kinds(watch(only_one), 5, cohort=np.array([1, 2, 3])) == ["absent class"]


def test_local_models_of_one_class() -> None:
    counts = BALANCED.copy()
    counts[3] = (96, 4, 0)
    assert kinds(watch(counts, by_rows=False), 2, local={3: 0.99}) == ["collapsed"]
    assert kinds(watch(counts, by_rows=False), 2, local={3: 0.98, 0: 1.0}) == []


def test_real_clients_are_not_advised_to_have_other_data() -> None:
    """Nobody can make the skew of a hospital milder."""
    counts = np.array([[96, 4, 0], [10, 10, 0], [10, 10, 0], [10, 10, 0]])
    for natural in (False, True):
        watched = replace(watch(counts, by_rows=False), natural=natural)
        warned = [*watched.begin(), *watched.after_round(1, EVERY_CLIENT, 1.0, 0.5, {0: 1.0})]
        assert [w.kind for w in warned] == ["missing class", "collapsed"]
        assert any("skew" in w.remedy or "seed" in w.remedy for w in warned) != natural
        assert all(w.remedy for w in warned)


def test_warnings_are_stored_shown_and_the_same_after_a_resume(tmp_path) -> None:
    extreme = Experiment(
        skew="label-dirichlet:alpha=0.01", clients={"number": 5}, training={"rounds": 6}, engine="stacked",
        checkpoint={"every": 1}, solver="sgd:lr=1.0",
    )  # fmt: skip
    whole = run(extreme, runs=tmp_path / "whole").records[0]
    warned = whole.facts["warnings"]
    assert "collapsed" in [w["kind"] for w in warned]
    assert all({"measured", "threshold", "source", "remedy"} <= set(w) for w in warned)
    assert any("a milder skew" in w["remedy"] for w in warned)
    store = RunStore(tmp_path / "parts")
    number, rounds = register(store, extreme), []
    with pytest.raises(Interrupted):
        execute(store, number, listener=lambda p: rounds.append(p.round), stop=lambda: len(rounds) > 2)
    execute(store, number)
    assert store.run(number).facts["warnings"] == warned
    assert "may predict one class only" in page(Results(store, store.runs()))
