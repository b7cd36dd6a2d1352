"""A hook that returns something else is named, with its file and line."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from fedskew.algorithms import ALGORITHMS
from fedskew.conformance.promises import check
from fedskew.core.algorithm import Algorithm
from fedskew.execution.build import setup_of
from fedskew.experiment.config import Experiment


def wrong(hook: str, function: Callable[..., object], **attributes: object) -> Algorithm:
    """Return a method with this wrong hook."""
    cls = type("Wrong", (Algorithm,), {hook: function, "idea": "an example", "changes": "nothing", **attributes})
    made: Algorithm = dataclass(frozen=True, kw_only=True)(cls)()
    return made


@pytest.mark.parametrize(
    ("hook", "function", "found"),
    [
        (
            "aggregate",
            lambda self, server, cohort: self.mean_delta(server, cohort),
            "aggregate must return (a tensor (43,), a dict); it returns a tensor (43,)",
        ),
        (
            "direction",
            lambda self, grad_fn, view, w, scratch: grad_fn(w),
            "direction must return (a tensor (43,), a dict); it returns (a tensor (43,), a tensor ())",
        ),
        (
            "objective",
            lambda self, task, view, w, batch: task.loss(task.logits(w, batch.x), batch.y),
            "objective must return a tensor (); it returns a tensor (5,)",
        ),
        ("broadcast", lambda self, server: [1], "broadcast must return a dict; it returns list"),
    ],
)
def test_a_wrong_return_value_is_named_with_its_line(hook: str, function: Callable[..., object], found: str) -> None:
    broken = [verdict.reason for verdict in check(wrong(hook, function)) if not verdict.kept]
    line = function.__code__.co_firstlineno
    assert broken[0] == f"{Path(__file__).name}, line {line}: {found}"


def test_a_weighting_that_changes_nothing_is_refused() -> None:
    def ignores(self, server, cohort):
        return cohort.updates.mean(0), server.state

    def helps(self, server, cohort):
        return self.mean_delta(server, cohort), server.state

    silent, states = wrong("aggregate", ignores), wrong("aggregate", helps, weighted=True)
    setup = setup_of(Experiment())
    refused = type(silent)(weighting="uniform").accepts(setup)
    assert refused.startswith("weighting: Wrong has its own aggregate; write weighted = True there")
    assert type(states)(weighting="uniform").accepts(setup) == ""
    choices = {name: get_args(get_type_hints(method)["weighting"]) for name, method in ALGORITHMS.items()}
    own_aggregate = {name for name, method in ALGORITHMS.items() if method.aggregate is not Algorithm.aggregate}
    assert {name for name in own_aggregate if len(choices[name]) > 1} == {
        name for name in own_aggregate if ALGORITHMS[name].weighted
    }
