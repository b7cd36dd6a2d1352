"""How clients differ: chance levels, planted faces, bounds, and every measure of the details."""

import dataclasses
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fedskew.core.errors import BadInput
from fedskew.data.datasets.images import Digits
from fedskew.diagnosis.diagnose import diagnosis, pooled
from fedskew.diagnosis.result import values_of_face
from fedskew.measure.heterogeneity.concept import kinds_for
from fedskew.measure.heterogeneity.counts import label_distance
from fedskew.measure.heterogeneity.details import details, shuffled
from fedskew.measure.heterogeneity.faces import label_chance, random_tables
from fedskew.measure.heterogeneity.rows import MOST_INPUTS
from fedskew.report.diagnosis import farthest
from tests.planted import FACES, diagnosed, faces, subject
from tests.real import real_data

QUICK = settings(max_examples=50, deadline=None, derandomize=True, database=None)


@pytest.fixture(scope="module")
def digits():
    return Digits().load()


# chance


@pytest.mark.parametrize(
    ("rows", "columns"), [([0, 0, 385], [27, 71, 287, 0]), ([3, 0, 4], [0, 5, 2, 0]), ([5], [0, 5])]
)
def test_random_tables_have_their_margins_also_where_these_are_zero(rows, columns):
    draw = random_tables(np.array(rows), np.array(columns))
    for seed in range(20):
        table = draw(np.random.default_rng(seed))
        assert (table.sum(1).tolist(), table.sum(0).tolist()) == (rows, columns)
        assert table.min() >= 0


def test_tables_by_chance_are_rows_dealt_at_random():
    counts = np.array([[3, 1], [2, 6]])
    drawn = np.array(label_chance(counts, counts.sum(1) / counts.sum(), np.asarray, np.random.default_rng(0)))
    # 2x2 tables with these margins are hypergeometric in their first cell
    from scipy import stats

    cells = np.arange(5)
    probability = stats.hypergeom(12, 5, 4).pmf(cells)
    values = [label_distance(np.array([[c, 4 - c], [5 - c, 3 + c]])) for c in cells]
    assert drawn.mean() == pytest.approx(probability @ values, abs=0.01)


def test_random_tables_are_not_held_all_at_once():
    counts = np.random.default_rng(0).integers(0, 4, (200, 10))
    tracemalloc.start()
    try:
        label_chance(counts, counts.sum(1) / counts.sum(), np.asarray, np.random.default_rng(0))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # 999 of them are 16 MB
    assert peak < 100 * counts.nbytes


@QUICK
@given(st.integers(0, 10_000))
def test_shuffled_clients_keep_their_sizes_and_labels(seed):
    rng = np.random.default_rng(seed)
    y, client = rng.integers(0, 4, 60), rng.integers(0, 5, 60)
    dealt = shuffled(client, y, rng)
    assert np.array_equal(np.bincount(dealt * 4 + y, minlength=20), np.bincount(client * 4 + y, minlength=20))


@pytest.mark.slow
def test_iid_clients_are_not_called_skewed_more_than_five_times_in_a_hundred():
    called = [seed for seed in range(100) if diagnosed("digits", "iid", seed).dominant]
    print(f"digits, iid: {len(called)} of 100 called skewed")
    assert len(called) <= 5, called


# planted faces


@pytest.mark.first
@pytest.mark.parametrize("face", ["label", "feature", "quantity", "concept"])
def test_planted_face_dominates(face):
    """Of each face one skew; all of them, over twenty seeds, in the slow test."""
    skew = next(skew for skew, planted in FACES.items() if planted == face)
    assert diagnosed("digits", skew, 0).dominant == face


@pytest.mark.slow
@pytest.mark.parametrize("skew", FACES)
@pytest.mark.parametrize("dataset", ["digits", "uci-har"])
def test_a_planted_face_dominates_in_nineteen_of_twenty_seeds(dataset, skew):
    if dataset != "digits":
        real_data()
    found = [diagnosed(dataset, skew, seed).dominant for seed in range(20)]
    assert found.count(FACES[skew]) >= 19, found


def test_strengths_are_in_0_1_and_values_inside_their_intervals():
    found = diagnosed("digits", "label-dirichlet:alpha=0.5", 3)
    assert [face.name for face in found.faces] == ["label", "feature", "quantity", "concept"]
    for face in found.faces:
        assert 0 <= face.strength <= 1
        assert face.low - 1e-9 <= face.value <= face.high + 1e-9 or face.name == "quantity"
        assert len(face.each) == 10


def test_data_that_cannot_be_diagnosed_are_refused(digits):
    x, y = digits.x[:50].reshape(50, -1), digits.y[:50]
    with pytest.raises(BadInput, match="one client"):
        faces(x, y, np.zeros(50, dtype=np.int64))
    with pytest.raises(BadInput, match="same label"):
        faces(x, np.zeros(50, dtype=np.int64), np.arange(50) % 3)
    with pytest.raises(BadInput, match="29 rows are too few; give at least 30"):
        faces(x[:29], y[:29], np.arange(29) % 3)
    with pytest.raises(BadInput, match="without rows"):
        faces(x, y, 2 * (np.arange(50) % 3))
    with pytest.raises(BadInput, match="each input has the same value in all rows"):
        faces(np.ones((50, 3)), y, np.arange(50) % 3)


def test_few_clients_have_no_interval_and_lone_classes_are_counted():
    rng = np.random.default_rng(0)
    y, client = np.repeat([0, 1, 2], 40), np.r_[np.repeat([0, 1, 2], 40)[:80], rng.integers(0, 3, 40)]
    found = faces(rng.standard_normal((120, 3)), y, client)
    assert all(np.isnan(face.low) for face in found.faces)
    assert found.alone == 80


@pytest.mark.parametrize(("shift", "noted"), [(0, True), (2, False)])
def test_a_note_says_where_columns_may_only_follow_targets_that_are_numbers(shift, noted):
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(6), 200)
    y = np.where(rng.random(1200) < 0.6, client % 3, rng.integers(0, 3, 1200)) + rng.normal(0, 0.1, 1200)
    x = rng.normal(size=(1200, 4)) + 1.5 * (y[:, None] > 0.5) + shift * (client[:, None] == 5)
    facts = tuple((f"c{at}", "mean", "", values) for at, values in enumerate(x.T))
    found = diagnosis(dataclasses.replace(subject(x, y, client), facts=facts))
    assert any(column["column"].startswith("c") for column in found["columns"])
    assert any("may only follow the labels" in note for note in found["notes"]) == noted


def test_further_measures_get_rows_in_their_order():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 3))
    _, z = pooled(subject(x, rng.integers(0, 2, 90), np.arange(90) % 3)).faces()
    assert z == pytest.approx((x - x.mean(0)) / x.std(0))


def test_rows_with_more_inputs_than_products_are_compared_in_random_directions():
    rng = np.random.default_rng(0)
    y, client = rng.integers(0, 3, 600), np.arange(600) % 6
    x = rng.normal(size=(600, MOST_INPUTS + 8)).astype(np.float32)
    assert not faces(x, y, client).dominant
    assert faces(x + 0.15 * (client % 2)[:, None] * rng.normal(size=x.shape[1]), y, client).dominant == "feature"


def test_clients_without_a_common_label_reach_the_stated_bound():
    """Every client is part of everybody: with equal clients nothing in common is 1 - 1/clients."""
    for clients in (2, 5):
        y = np.repeat(np.arange(clients), 40)
        found = faces(np.random.default_rng(0).standard_normal((len(y), 3)), y, y)
        assert found.face("label").value == pytest.approx(1 - 1 / clients)


def test_details_name_every_measure_and_their_chance():
    rng = np.random.default_rng(0)
    y, client = rng.integers(0, 2, 600), rng.integers(0, 3, 600)
    x = rng.standard_normal((600, 4)) + client[:, None]
    counts = np.zeros((3, 2), dtype=np.int64)
    np.add.at(counts, (client, y), 1)
    measured = details(x, y, client, counts)
    assert measured["feature"]["sliced Wasserstein"] > 3 * measured["feature"]["sliced Wasserstein by chance"]
    assert measured["gradient"]["B^2 at zero"] >= 1
    # the labels are of no client and of no input: what is best for one is best for all
    assert 0 <= measured["gradient"]["optimum gap"] < 0.05
    swapped = details(x, ((x[:, 0] > client) ^ (client == 0)).astype(int), client, counts)["gradient"]
    assert swapped["optimum gap"] > 2 * swapped["optimum gap by chance"]
    assert measured["quantity"]["effective clients"] == pytest.approx(3, rel=0.05)


def test_label_without_a_fitted_row_drops_only_the_pooled_fit(monkeypatch):
    monkeypatch.setattr("fedskew.measure.heterogeneity.details.FITTED_ROWS", 20)
    rng = np.random.default_rng(0)
    y, client = np.r_[1, np.zeros(599, dtype=np.int64)], rng.integers(0, 3, 600)
    counts = np.zeros((3, 2), dtype=np.int64)
    np.add.at(counts, (client, y), 1)
    measured = details(rng.standard_normal((600, 4)), y, client, counts)["gradient"]
    assert {name for name, value in measured.items() if value is None} == {
        f"{name} at the pooled fit" for name in ("zeta^2", "B^2", "G^2")
    }


@pytest.mark.parametrize(
    ("rows", "classes", "kinds"), [(10_000, 10, 30), (10_000, 1, 6), (300, 10, 10), (60, 10, 6), (10**6, 100, 40)]
)
def test_each_class_has_three_kinds_of_inputs_if_kinds_have_thirty_rows(rows: int, classes: int, kinds: int) -> None:
    assert kinds_for(rows, classes) == kinds


@pytest.mark.parametrize("seeds", [2, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("shares", [[1 / 6] * 6, [0.3, 0.25, 0.2, 0.15, 0.07, 0.03]])
def test_the_client_with_another_concept_is_named_in_nineteen_of_twenty_seeds(seeds, shares):
    """Clients of equal and of unequal size; one has exchanged labels."""
    named = 0
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        client, y = rng.choice(6, 1500, p=shares), rng.integers(0, 3, 1500)
        x = rng.normal(size=(1500, 6)) + 2 * np.eye(6)[y]
        found = faces(x, np.where(client == 1, (y + 1) % 3, y), client, seed)
        names = [f"client {k}" for k in range(6)]
        face = values_of_face(found.face("concept"), names)
        named += farthest({"client_names": names}, face).startswith("client 1 (0.")
    assert named >= 0.95 * seeds


def test_clients_that_are_about_as_far_are_named_together_and_none_by_chance():
    found = {"client_names": [*"abcde"]}
    face = {"verdict": "mild", "each": [0.4, 0.39, 0.4, 0.38, 0.1]}
    assert farthest(found, face) == "a, c, b and 1 more (0.40)"
    assert farthest(found, {**face, "verdict": "by chance"}) == ""
