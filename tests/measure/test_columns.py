"""Columns that differ between clients: means by hand, nothing by chance, and the client that differs."""

import numpy as np
import pytest

from fedskew.measure.heterogeneity.columns import differences

CLIENT = np.repeat(np.arange(4), 50)
NAMES = ("north", "south", "east", "west")


def test_a_shifted_client_is_named_with_its_mean() -> None:
    values = np.random.default_rng(0).normal(10, 1, 200)
    values[CLIENT == 2] += 5
    [found] = differences([("pressure", "mean", "", values)], CLIENT, NAMES)
    rest = values[CLIENT != 2].mean()
    assert (found.client, found.here, found.elsewhere) == (
        "east",
        *map(pytest.approx, (values[CLIENT == 2].mean(), rest)),
    )
    assert found.effect == pytest.approx((found.here - rest) / values.std())
    assert found.text.startswith("pressure is higher in east: mean 15.")


def test_the_word_or_gap_that_differs_most_stands_for_its_column() -> None:
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
    assert (found.client, found.here, found.elsewhere) == ("south", 10.0, 0.5)


@pytest.mark.parametrize("rows", [1, 3, 50])
def test_equal_clients_have_no_column(rows: int) -> None:
    """Over 100 draws of 20 columns each, one percent of draws may show one."""
    client = np.repeat(np.arange(4), rows)
    draws = (np.random.default_rng(seed).normal(size=(20, len(client))) for seed in range(100))
    shown = [differences([(str(i), "mean", "", v) for i, v in enumerate(draw)], client, NAMES) for draw in draws]
    assert sum(map(bool, shown)) <= 4


def test_constant_and_empty_columns_are_left_out() -> None:
    facts = [("same", "mean", "", np.ones(200)), ("empty", "mean", "", np.full(200, np.nan))]
    assert differences(facts, CLIENT, NAMES) == []


def test_at_most_five_columns_are_listed_strongest_first() -> None:
    noise = np.random.default_rng(0).normal(size=200)
    facts = [(f"c{i}", "mean", "", noise + (i + 2) / 4 * (CLIENT == 0)) for i in range(8)]
    assert [found.column for found in differences(facts, CLIENT, NAMES)] == ["c7", "c6", "c5", "c4", "c3"]
