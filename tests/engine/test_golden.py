"""Speed never changes numbers: ten rounds of five methods are those that were written down once, under every engine."""

import pytest

from fedskew.engine.sequential import Sequential
from fedskew.engine.stacked import Stacked
from tests.golden import METHODS, ROUNDS, curve, made_on, read

MADE_ON, CURVES = read()
ENGINES = [Sequential(), Stacked()]
ADVICE = "numbers have changed; if they are meant to, make the curves anew with `python -m tests.golden` and say why"


def test_the_curves_are_complete() -> None:
    assert set(CURVES) == set(METHODS)
    assert all(len(points) == ROUNDS for points in CURVES.values())
    assert all(points[-1]["accuracy"] > points[0]["accuracy"] for points in CURVES.values())


@pytest.mark.first
@pytest.mark.parametrize("method", METHODS)
def test_accuracy_curve_equals_the_golden_one(method: str) -> None:
    found = {engine: curve(method, engine) for engine in ENGINES}
    for engine in ENGINES[1:]:
        for mine, reference in zip(found[engine], found[ENGINES[0]], strict=True):
            assert mine == pytest.approx(reference, rel=1e-12, abs=1e-12), f"{engine} differs from one after the other"
    for round_, (mine, golden) in enumerate(zip(found[ENGINES[0]], CURVES[method], strict=True), start=1):
        same = mine == golden if made_on() == MADE_ON else mine == pytest.approx(golden, rel=1e-10, abs=1e-12)
        assert same, f"{method}, round {round_}: {mine} is not {golden}: {ADVICE}"
