"""Columns that differ between clients: means by hand, nothing by chance, and the client that differs."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

from fedskew.core.units import unit_factor
from fedskew.data.datasets.heart import CSV
from fedskew.diagnosis.diagnose import compared
from fedskew.diagnosis.subject import ClientRows, from_experiment
from fedskew.experiment.config import Experiment
from fedskew.measure.heterogeneity import columns
from fedskew.measure.heterogeneity.columns import Difference, GroupMoments, beyond_labels, copied, factor_of, moments
from fedskew.measure.heterogeneity.rows import divided
from tests.planted import explained, label_skewed, subject
from tests.real import real_data

CLIENT = np.repeat(np.arange(4), 50)


def differences(*arguments) -> list[Difference]:
    return explained(*arguments)[0]


def group_of(values: np.ndarray) -> GroupMoments:
    return moments(values, np.zeros(len(values), dtype=np.int64), 1).of(np.ones(1))


NAMES = ("north", "south", "east", "west")


def test_a_shifted_client_is_named_with_its_mean() -> None:
    values = np.random.default_rng(0).normal(10, 1, 200)
    values[CLIENT == 2] += 5
    [found] = differences([("pressure", "mean", "", values)], CLIENT, NAMES)
    rest = values[CLIENT != 2].mean()
    assert found.client == "east"
    assert (found.here, found.elsewhere) == pytest.approx((values[CLIENT == 2].mean(), rest))
    assert found.effect == pytest.approx((found.here - rest) / values.std())
    assert found.text.startswith("pressure is higher in east: mean 15.")


@pytest.mark.parametrize(
    ("shifts", "also"),
    [
        ((0, 6, 5, 0, 0), "; likewise in east"),
        ((0, 6, 3.2, 0, 0), ""),
        ((0, 6, -6, 0, 0), ""),
        ((0, 0, -5, 0, -6), "; likewise in east"),
    ],
)
def test_others_that_differ_likewise_are_named_beside_the_farthest_client(shifts: tuple[float, ...], also: str) -> None:
    """At least half as far from all other clients, in the same direction."""
    values = np.random.default_rng(0).normal(10, 1, 250) + np.repeat(shifts, 50)
    [column] = differences([("pressure", "mean", "", values)], np.repeat(np.arange(5), 50), (*NAMES, "middle"))
    assert column.text.partition("deviations)")[2] == also


def test_many_others_that_differ_likewise_are_counted() -> None:
    values = np.random.default_rng(0).normal(10, 1, 500) + 5 * (np.arange(500) % 2 == 0)
    [column] = differences([("pressure", "mean", "", values)], np.arange(500) % 10, [*"0123456789"])
    assert column.text.endswith("; likewise in 4 more clients")


def test_a_client_with_a_number_for_a_name_is_called_a_client() -> None:
    values = np.random.default_rng(0).normal(10, 1, 200) + 5 * (CLIENT == 2)
    [found] = differences([("pressure", "mean", "", values)], CLIENT, [*"0123"])
    assert found.text.startswith("pressure is higher in client 2: mean 15.")


def test_a_column_is_named_by_its_strongest_difference() -> None:
    rng = np.random.default_rng(1)
    word = (rng.random(200) < 0.2) | (CLIENT == 0)
    gaps = np.where(CLIENT == 3, rng.random(200) < 0.5, 0).astype(float)
    facts = [("stage", "share", "IV", word.astype(float)), ("stage", "missing", "", gaps)]
    [found] = differences(facts, CLIENT, NAMES)
    assert (found.kind, found.client) == ("share", "north")
    assert found.text == f"stage is IV in 100 % of north's rows, elsewhere in {100 * found.elsewhere:.0f} %"


def test_missing_numbers_count_in_no_mean() -> None:
    values = np.tile([0.0, 1.0], 100)
    values[CLIENT == 1] += 9
    values[(CLIENT == 1) & (np.arange(200) % 2 == 0)] = np.nan
    [found] = differences([("a", "mean", "", values)], CLIENT, NAMES)
    assert (found.client, found.here, found.elsewhere) == ("south", 10.0, pytest.approx(0.5))


@pytest.mark.parametrize("rows", [1, 3, 50])
def test_equal_clients_have_no_column(rows: int) -> None:
    """Over 40 draws of 20 columns each, one percent of draws may show one."""
    client = np.repeat(np.arange(4), rows)
    draws = (np.random.default_rng(seed).normal(size=(20, len(client))) for seed in range(40))
    shown = [differences([(str(i), "mean", "", v) for i, v in enumerate(draw)], client, NAMES) for draw in draws]
    assert sum(map(bool, shown)) <= 2


def test_constant_and_empty_columns_are_left_out() -> None:
    facts = [("same", "mean", "", np.ones(200)), ("empty", "mean", "", np.full(200, np.nan))]
    assert differences(facts, CLIENT, NAMES) == []


def test_at_most_five_columns_are_listed_strongest_first() -> None:
    noise = np.random.default_rng(0).normal(size=200)
    facts = [(f"c{i}", "mean", "", noise + (i + 2) / 4 * (CLIENT == 0)) for i in range(8)]
    assert [found.column for found in differences(facts, CLIENT, NAMES)] == ["c7", "c6", "c5", "c4", "c3"]


CLIENTS = np.repeat(np.arange(5), 60)
HOSPITALS = ("bern", "genf", "chur", "sion", "zug")


def planted(cause: str, seed: int) -> tuple[list[tuple], np.ndarray]:
    """Facts of eight columns, three classes and all rows of five clients; client 3 has one cause of a difference."""
    rng, mine = np.random.default_rng(seed), CLIENTS == 3
    x, y = rng.normal(70, 10, (300, 8)), rng.integers(0, 3, 300)
    at = int(rng.integers(8))
    if cause == "shifted":
        x[mine, at] += 12
    if cause == "scaled":
        x[mine, at] *= 2.54
    if cause == "centred and scaled":
        x = x - 70
        x[mine, at] *= 2.54
    if cause == "constant":
        x[mine, at] = 0
    if cause == "missing":
        x[mine & (rng.random(300) < 0.9), at] = np.nan
    if cause == "copied":
        x[np.flatnonzero(mine)[:30]], y[np.flatnonzero(mine)[:30]] = x[:30], y[:30]
    if cause == "relabelled":
        y[mine & (y == 1)] = 2
    gaps = [(f"c{c}", "missing", "", np.isnan(x[:, c]).astype(float)) for c in range(8) if np.isnan(x[:, c]).any()]
    facts = [(f"c{c}", "mean", "", x[:, c]) for c in range(8)] + gaps
    facts += [("label", "share", str(c), (y == c).astype(float)) for c in range(3)]
    return [*facts, copied(np.column_stack([x, y]))], np.array([at])


SAYS = {
    "shifted": "is higher in sion",
    "scaled": "times as large in sion, as in another unit",
    "centred and scaled": "varies more in sion",
    "constant": "is 0 in every row of sion, mean ",
    "missing": "of sion's rows, elsewhere in 0 %",
    "copied": "of sion's rows occur more than once",
    "relabelled": "% of sion's rows, elsewhere",
}


@pytest.mark.parametrize("seeds", [5, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("cause", SAYS)
def test_a_planted_cause_is_the_first_named_in_nineteen_of_twenty_seeds(cause: str, seeds: int) -> None:
    hits = 0
    for seed in range(seeds):
        facts, at = planted(cause, seed)
        first = explained(facts, CLIENTS, HOSPITALS)[1][3][:1]
        column = {"copied": "rows", "relabelled": "label"}.get(cause, f"c{at[0]}")
        hits += any(one.column == column and SAYS[cause] in one.text for one in first)
    assert hits >= 0.95 * seeds


@pytest.mark.parametrize("seeds", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_nothing_is_named_on_shuffled_clients_in_ninety_five_of_a_hundred_seeds(seeds: int) -> None:
    """The columns have tails, rare words, copies and gaps of all clients."""
    named = 0
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        heavy, rare = rng.standard_cauchy(300), (rng.random(300) < 0.02).astype(float)
        some = np.where(rng.random(300) < 0.8, 0.0, rng.exponential(size=300))
        rows = copied(np.repeat(rng.normal(size=(150, 2)), 2, axis=0)[rng.permutation(300)])
        facts = [("heavy", "mean", "", heavy), ("rare", "share", "x", rare), ("some", "mean", "", some), rows]
        named += bool(explained([*planted("none", seed)[0][:-1], *facts], rng.permutation(CLIENTS), HOSPITALS)[0])
    print(f"shuffled clients: something is named in {named} of {seeds} seeds")
    assert named <= seeds / 20


def test_the_factor_between_units_needs_mean_and_deviation() -> None:
    rng = np.random.default_rng(0)
    inches = rng.normal(67, 4, 500)

    def unit(one, other):
        return unit_factor(one.mean(), other.mean(), one.std(), other.std(), len(one))

    assert unit(2.54 * inches, rng.normal(67, 4, 500)) == pytest.approx(2.54, rel=0.02)
    assert unit(inches + 100, inches) == 0
    assert unit(inches, inches) == 0
    assert unit(-2 * inches, inches) == 0


def test_one_client_in_fahrenheit_makes_no_other_client_odd() -> None:
    rng = np.random.default_rng(0)
    client, names = np.repeat(np.arange(4), 2000), ("bern", "genf", "sion", "chur")
    values = rng.normal(13.5, 11.4, 8000) * np.where(client == 0, 1.8, 1) + 32 * (client == 0)
    _, by_client = explained([("temperature", "mean", "", values)], client, names)
    assert [one.factor for own in by_client for one in own if one.kind == "mean"] == [0.0] * 4


@pytest.mark.parametrize(
    ("column", "there", "all_of_it", "unit"),
    [("restecg", 1, 1, 0), ("restecg", 1, 0.1, 0.56), ("age", 2.54, 1, 2.6)],
)
def test_codes_of_categories_have_no_unit(column: str, there: float, all_of_it: float, unit: float) -> None:
    """restecg of heart is 0, 1 or 2, and 0.56 times as large in Switzerland, in mean and deviation."""
    rows = pd.read_csv(CSV)[["hospital", column]].dropna()
    swiss = rows["hospital"] == "Switzerland"
    values = rows[column].to_numpy(dtype=float) * all_of_it
    mine, others = group_of(values[swiss] * there), group_of(values[~swiss])
    found = Difference(column, "mean", "", "Switzerland", mine.mean, others.mean, 1.0, 0.0)
    assert factor_of(found, mine, others) == pytest.approx(unit, abs=0.1)


def test_p_values_are_corrected_for_all_tests_and_every_client_has_its_own_list() -> None:
    facts, _ = planted("shifted", 0)
    listed, of_clients = explained(facts, CLIENTS, HOSPITALS)
    assert [len(own) for own in of_clients] == [0, 0, 0, 1, 0]
    assert 0 < listed[0].p <= 0.01
    assert listed[0].each == (0, 0, 0, listed[0].effect, 0)
    assert explained([], CLIENTS, HOSPITALS) == ([], [[]] * 5)


def test_rows_that_occur_more_than_once_are_found_bit_for_bit() -> None:
    x = np.array([[1.0, 2], [3, 4], [1, 2], [1, 2.0000001]])
    assert copied(x)[3].tolist() == [1, 0, 1, 0]


def by_class(made: ClientRows) -> tuple[list[Difference], list[list[Difference]], list[str]]:
    tested = [part for fact in made.facts for part in compared(fact, made)]
    return columns.listed(tested, made.source.clients)


@pytest.mark.parametrize("seeds", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_columns_that_follow_the_class_only_are_not_listed_in_nineteen_of_twenty_seeds(seeds: int) -> None:
    results = [by_class(label_skewed(seed)) for seed in range(seeds)]
    assert sum(bool(every) or any(of_clients) for every, of_clients, _ in results) <= seeds / 20
    assert min(len(by_labels) for _, _, by_labels in results) >= 3
    plain = replace(label_skewed(0), kind="labels")
    assert by_class(plain)[0], "only classes explain a column"


@pytest.mark.parametrize("seeds", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_an_offset_of_one_client_under_label_skew_is_first_in_nineteen_of_twenty_seeds(seeds: int) -> None:
    """Two standard deviations within a class."""
    first = [by_class(label_skewed(seed, 2.0))[0][:1] for seed in range(seeds)]
    found = sum([(one.column, one.client) for one in every] == [("c0", "client 2")] for every in first)
    assert found >= 0.95 * seeds


def test_equal_shares_of_classes_leave_every_difference_as_it_is() -> None:
    rng = np.random.default_rng(0)
    y, client = np.arange(400) % 2, np.arange(400) // 100
    values = rng.normal(size=400) + 3 * y + 2.5 * (client == 1)
    made = replace(subject(values[:, None], y, client), facts=(("a", "mean", "", values),))
    assert by_class(made)[0][0].client == "client 1"
    assert by_class(made)[:2] == explained([("a", "mean", "", values)], client, made.source.clients)
    [tested, _] = compared(made.facts[0], made)
    assert beyond_labels(tested, 8)[1] == pytest.approx(1)


def test_a_client_that_alone_holds_its_class_differs_no_more_than_its_label() -> None:
    client = np.repeat([0, 1], 100)
    values = np.random.default_rng(0).normal(size=200) + 2 * client
    made = replace(subject(values[:, None], client, client), facts=(("a", "mean", "", values),))
    assert by_class(made) == ([], [[], []], ["a"])


def test_gaps_words_and_deviations_are_compared_within_classes_by_hand() -> None:
    """The difference of two clients within classes, weighted by n_1c n_2c / n_c, over the difference of all rows."""
    y, client = np.array([0] * 30 + [1] * 10 + [0] * 12 + [1] * 28), np.repeat([0, 1], 40)
    hits = np.random.default_rng(0).random(80) < np.where(client, 0.9, 0.1)
    weights = np.array([30 * 12 / 42, 10 * 28 / 38])
    gaps = [hits[(client == 1) & (y == c)].mean() - hits[(client == 0) & (y == c)].mean() for c in (0, 1)]
    left = weights @ gaps / weights.sum() / (hits[client == 1].mean() - hits[client == 0].mean())
    for fact in (
        ("a", "missing", "", hits.astype(float)),
        ("a", "word", ("b",), csr_array(hits[:, None].astype(float))),
    ):
        made = subject(hits[:, None], y, client)
        [tested] = compared(fact, made)
        assert beyond_labels(tested, 1) == pytest.approx([left, left])


def test_columns_are_in_the_order_of_their_differences_within_classes() -> None:
    """In all rows "a" differs more, because most rows of client 1 have its class."""
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(4), 200)
    y = (rng.random(800) < np.where(client == 1, 0.9, 0.2)).astype(np.int64)
    a = rng.normal(size=800) + 4 * y + (client == 1)
    b = rng.normal(size=800) + 1.2 * (client == 1)
    facts = (("a", "mean", "", a), ("b", "mean", "", b))
    made = replace(subject(np.stack([a, b], axis=1), y, client), facts=facts)
    assert [one.column for one in by_class(made)[0]] == ["b", "a"]
    assert [one.column for one in explained(list(facts), client, made.source.clients)[0]] == ["a", "b"]


NAMED = ("heart", "adult", "parkinsons", "beijing-air", "uci-har", "uci-har:form=features")


@pytest.mark.parametrize(
    "dataset", [pytest.param(name, marks=[pytest.mark.slow] * (name != "heart")) for name in NAMED]
)
def test_bins_change_the_effect_of_a_deviation_by_few_hundredths(dataset: str) -> None:
    """The mean distance from the median, of a client and of all others, from rows and from 256 bins."""
    if dataset != "heart":
        real_data()
    rows = from_experiment(Experiment(dataset=dataset, skew="natural"), dataset)
    clients, largest = len(rows.source.clients), 0.0
    for fact in rows.facts:
        for part in columns.tests(fact, rows.client, clients):
            if part.kind == "spread":
                known = np.isfinite(fact[3])
                away, client = np.abs(fact[3] - np.median(fact[3][known]))[known], rows.client[known]
                number, total = np.bincount(client, minlength=clients), np.bincount(client, away, clients)
                means = divided(total, number) - divided(total.sum() - total, number.sum() - number)
                largest = max(largest, np.abs(means / away.std() - part.effect).max())
    print(f"{dataset}: bins change the effect of a deviation by at most {largest:.4f} standard deviations")
    assert 0 < largest < 0.025
