"""Availability: which clients are online is a function of (seed, round, client), with the stated probabilities."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from fedskew.core.records import Info
from fedskew.slots import Always, Blocks, DayNight, OnOff, Random, Unequal

SEED = 3


def population(labels: list[int], num_classes: int) -> Info:
    """Return one client for each label. Most of its rows have this label."""
    counts = np.ones((len(labels), num_classes))
    counts[np.arange(len(labels)), labels] = 5
    k = torch.arange(len(labels))
    return Info(k, torch.as_tensor(counts.sum(1)), torch.as_tensor(counts), torch.ones(len(labels)))


def times(availability: Any, clients: Info, rounds: int, seed: int = SEED) -> np.ndarray[Any, Any]:
    """Return (rounds, K): True if a client is available in a round."""
    return np.stack([availability.available(clients, t, seed) for t in range(rounds)])


def test_availability_always_includes_all_clients() -> None:
    assert times(Always(), population([0] * 5, 2), 4).all()


@pytest.mark.parametrize("p", [0.2, 0.8, 1.0])
def test_random_availability_has_its_probability_in_every_client_and_round(p: float) -> None:
    available = times(Random(p=p), population([0] * 40, 2), 1000)
    sigma = np.sqrt(p * (1 - p))
    assert np.abs(available.mean(0) - p).max() <= 4.5 * sigma / np.sqrt(1000)
    assert np.abs(available.mean(1) - p).max() <= 5 * sigma / np.sqrt(40)
    if p < 1:  # neither neighbours nor successive rounds go together
        assert abs(np.corrcoef(available[1:].ravel(), available[:-1].ravel())[0, 1]) < 4 / np.sqrt(40_000)
        assert abs(np.corrcoef(available[:, 1:].ravel(), available[:, :-1].ravel())[0, 1]) < 4 / np.sqrt(40_000)


def test_by_day_and_by_night_in_two_opposite_time_zones() -> None:
    """With two classes the phases are 0 and 1/2: at noon of the one it is midnight for the other."""
    available = times(DayNight(period=10, phase="label"), population([0, 1] * 50, 2), 40)
    for t in range(0, 40, 10):
        assert available[t, 0::2].all()
        assert not available[t, 1::2].any()
        assert not available[t + 5, 0::2].any()
        assert available[t + 5, 1::2].all()


@pytest.mark.parametrize("peak", [1.0, 0.6])
def test_the_probability_follows_a_cosine_from_peak_to_zero(peak: float) -> None:
    rounds, period = 4000, 8
    available = times(DayNight(period=period, peak=peak, phase="label"), population([0, 1, 2, 3] * 5, 4), rounds)
    for k in range(4):
        own = available[:, k::4].reshape(rounds // period, period, 5).mean((0, 2))
        expected = peak * (1 + np.cos(2 * np.pi * (np.arange(period) / period - k / 4))) / 2
        assert np.abs(own - expected).max() < 4.5 * 0.5 / np.sqrt(2500)


def test_time_zones_by_chance_are_spread_over_the_day_and_belong_to_the_client() -> None:
    available = times(DayNight(period=20), population([0] * 500, 2), 2000)
    assert abs(available.mean() - 0.5) < 0.005
    by_hour = available.reshape(100, 20, 500).mean(0)
    noon = np.angle((by_hour * np.exp(2j * np.pi * np.arange(20) / 20)[:, None]).sum(0)) / (2 * np.pi) % 1
    assert stats.kstest(noon, "uniform").pvalue > 0.001
    assert (by_hour.max(0) - by_hour.min(0)).min() > 0.8, "each client has its own day and night"
    # where its day begins does not determine its availability in a single round
    assert abs(available[0].mean() - 0.5) < 4.5 * 0.5 / np.sqrt(500)
    assert abs(np.corrcoef(available[0], np.cos(2 * np.pi * noon))[0, 1] - np.sqrt(0.5)) < 0.1


@pytest.mark.parametrize("blocks", [1, 2, 3])
@pytest.mark.parametrize("phase", ["random", "label"])
def test_blocks_take_turns(blocks: int, phase: str) -> None:
    labels = [2, 0, 1, 2, 0, 1, 1]
    available = times(Blocks(blocks=blocks, rounds=4, phase=phase), population(labels, 3), 4 * blocks * 2)
    turns = available.reshape(2 * blocks, 4, 7)
    assert (turns == turns[:, :1]).all(), "the same all through a turn"
    assert np.array_equal(turns[:blocks], turns[blocks:]), "and again in the next cycle"
    assert (turns[:blocks, 0].sum(0) == 1).all(), "each client has one turn in a cycle"
    sizes = turns[:blocks, 0].sum(1)
    assert sizes.max() - sizes.min() <= 1
    if phase == "label" and blocks == 3:
        # in the order of the classes, ties by number: 1, 4 | 2, 5, 6 | 0, 3, cut at 7/3 and 14/3
        assert [set(np.flatnonzero(turn[0])) for turn in turns[:3]] == [{1, 4, 2}, {5, 6}, {0, 3}]


def test_blocks_by_chance_are_the_seeds() -> None:
    clients = population([0] * 40, 2)
    one, again, other = (times(Blocks(rounds=1), clients, 1, seed) for seed in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    assert not np.array_equal(one[0], np.arange(40) < 20)


@pytest.mark.parametrize(("leave", "join"), [(0.1, 0.1), (0.05, 0.3), (0.5, 0.5)])
def test_clients_come_and_go_with_their_probabilities(leave: float, join: float) -> None:
    available = times(OnOff(leave=leave, join=join), population([0] * 500, 2), 60)
    before, after = available[:-1], available[1:]
    assert (~after[before]).mean() == pytest.approx(leave, abs=5 * np.sqrt(leave / before.sum()))
    assert after[~before].mean() == pytest.approx(join, abs=5 * np.sqrt(join / (~before).sum()))
    share = join / (leave + join)
    assert available[0].mean() == pytest.approx(share, abs=5 * np.sqrt(0.25 / 500)), "from the first round on"
    assert available.mean() == pytest.approx(share, abs=0.05)


def test_each_client_has_a_probability_of_its_own() -> None:
    """Shares of 200 rounds under Beta(2, 6): mean 1/4, variance 12/(64 x 9), and 1/200 of E p(1 - p) of the draws."""
    share = times(Unequal(a=2, b=6), population([0] * 1500, 2), 200).mean(0)
    variance = 12 / (64 * 9)
    assert share.mean() == pytest.approx(0.25, abs=5 * np.sqrt(variance / 1500))
    assert share.var() == pytest.approx(variance + (0.25 * 0.75 - variance) / 200, rel=0.2)


@pytest.mark.parametrize("availability", [Random(p=0.4), DayNight(period=5), Always(), Unequal(), OnOff()], ids=repr)
def test_availability_of_a_client_does_not_depend_on_the_population(availability: Any) -> None:
    few, many = (times(availability, population([0] * k, 2), 30) for k in (7, 11))
    assert np.array_equal(few, many[:, :7])
