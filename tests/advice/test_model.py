"""The expected gain: planted effects are found, chance is not, and the check says which is which."""

import numpy as np
import pytest

from fedskew.advice.check import check
from fedskew.advice.evidence import FACES
from fedskew.advice.model import advisable, fit, left_out, points_of
from tests.advice.planted import case, planted

EFFECTS = {
    "against-labels": lambda label, concept: 0.2 * label - 0.1 * concept,
    "against-concepts": lambda label, concept: 0.3 * concept - 0.05,
    "never": lambda label, concept: -0.05,
    "idle": lambda label, concept: 0.0,
}


def test_planted_effects_rank_the_methods() -> None:
    model = fit(points_of(planted(EFFECTS, 20), "test"))
    labels, concepts = {"label": 0.9}, {"label": 0.1, "concept": 0.9}
    gains = {name: model.expected(name, labels).gain for name in EFFECTS}
    assert max(gains, key=gains.__getitem__) == "against-labels"
    # the gain is half an accuracy point a point of FedAvg's error of 0.5
    assert gains["against-labels"] == pytest.approx(2 * 0.18, abs=0.06)
    assert model.expected("against-concepts", concepts).gain == pytest.approx(2 * 0.22, abs=0.08)
    assert gains["never"] < -0.05


def test_an_unknown_method_has_the_common_line() -> None:
    points = points_of(planted({"a": lambda label, _: 0.1, "b": lambda label, _: 0.1}, 20), "test")
    model = fit(points)
    # two own lines and the common one share a gain of 0.2, so that the squares are least: the common one has two thirds
    assert model.expected("new", {"label": 0.5}).gain == pytest.approx(0.2 * 2 / 3, abs=0.01)
    assert model.expected("a", {"label": 0.5}).gain == pytest.approx(0.2, abs=0.01)


def test_the_ridge_solves_its_normal_equations() -> None:
    """The prediction for a method with one gain lies between the common prediction and this gain. The prior sets the weights."""
    cases = [case({}, ("only", 0.1), data="a")]
    model = fit(points_of(cases, "test"))
    # minimise (g - c - o)^2 + 3 c^2 + 3 o^2 with g = 0.2: c = o = g / (2 + 3)
    assert model.expected("only", {}).gain == pytest.approx(2 * 0.2 / 5)


def test_a_left_out_data_set_does_not_touch_its_prediction() -> None:
    cases = planted(EFFECTS, 3)
    points = points_of(cases, "test")
    changed = points._replace(gain=np.where(points.data_set == "set0", 9.0, points.gain))
    mine = points.data_set == "set0"
    np.testing.assert_array_equal(left_out(points)[mine], left_out(changed)[mine])
    assert not np.allclose(left_out(points)[~mine], left_out(changed)[~mine])


def test_the_check_finds_planted_effects() -> None:
    found = check(planted(EFFECTS, 8, noise=0.01), "test")
    assert found is not None
    assert (found.data_sets, found.cases) == (8, 40)
    assert found.beats_fedavg
    assert found.beats_winner
    assert found.rank.mean > 0.8
    assert found.covered.mean > 0.85
    assert found.advised.mean <= found.best.mean


def test_the_check_does_not_find_chance() -> None:
    effects = dict.fromkeys("abcdefgh", lambda label, concept: 0.0)
    found = check(planted(effects, 8, noise=0.05), "test")
    assert found is not None
    assert not found.beats_winner
    assert abs(found.rank.mean) < 0.25
    assert 0.88 < found.covered.mean < 0.99


def test_two_data_sets_are_not_checked() -> None:
    assert check(planted(EFFECTS, 2), "test") is None
    assert check(planted(EFFECTS, 4), "own") is None


def test_only_federated_methods_that_were_measured_often_are_advised() -> None:
    cases = [case({}, ("often", 0.1), ("centralised", 0.2), ("data-sharing", 0.1), skew=str(at)) for at in range(3)]
    cases[0] = case({}, ("often", 0.1), ("once", 0.3), skew="0")
    assert advisable(cases, "test") == ["often"]


def test_strengths_are_read_in_the_order_of_the_faces() -> None:
    points = points_of([case(dict.fromkeys(FACES, 0.0) | {"concept": 0.7}, ("a", 0.1))], "test")
    assert points.faces.tolist() == [[1.0, 0.0, 0.0, 0.0, 0.7]]
