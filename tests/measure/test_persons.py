"""Intervals over persons with several test rows: simulated coverage with the rows of a person as one unit, and without."""

from functools import partial

import numpy as np
import pytest

from fedskew.measure.statistics import over_seeds_and_rows
from fedskew.store.test_rows import by_unit
from tests.measure.test_intervals import differences

SAME = 0.7
"""The share of the variance of a row, over rows, that all rows of a person have in common."""


def of_persons(rng: np.random.Generator, person: np.ndarray, deviation: float) -> np.ndarray:
    """How easy each row is. The rows of a person have a part of it in common."""
    common, own = rng.normal(size=person.max() + 1)[person], rng.normal(size=len(person))
    return deviation * (SAME**0.5 * common + (1 - SAME) ** 0.5 * own)


def decisions(
    persons: int, alike: bool, true: float, repeats: int, seeds: int = 5
) -> tuple[float, float, float, float]:
    """Of ``repeats`` comparisons the share of intervals that cover the true difference, and of those that leave out 0.

    First by persons, then by rows. A person has five rows, or one to nine if they are not ``alike``.
    """
    rng, counts = np.random.default_rng(persons), np.zeros(4)
    for _ in range(repeats):
        sizes = np.full(persons, 5) if alike else rng.integers(1, 10, persons)
        person = np.repeat(np.arange(persons), sizes)
        values = differences(rng, seeds, true, partial(of_persons, rng, person))
        by_person = np.stack([by_unit(own, person)[1] for own in values])
        for at, found in ((0, over_seeds_and_rows(by_person)), (2, over_seeds_and_rows(values))):
            counts[at : at + 2] += abs(found.mean - true) <= found.half(), abs(found.mean) > found.half()
    return tuple((counts / repeats).tolist())


CELLS = [(persons, alike) for persons in (20, 100, 600) for alike in (True, False)]


def test_intervals_by_person_cover_the_planted_difference() -> None:
    covered, _, by_rows, _ = decisions(100, True, 0.0, repeats=400)
    assert 0.93 <= covered <= 0.985
    assert by_rows < covered - 0.03  # by rows: too narrow


@pytest.mark.slow
@pytest.mark.parametrize(("persons", "alike"), CELLS)
@pytest.mark.parametrize("true", [0.0, 0.03])
def test_coverage_by_person_by_simulation(persons: int, alike: bool, true: float) -> None:
    covered, decided, *_ = decisions(persons, alike, true, repeats=3000)
    assert 0.93 <= covered <= 0.975
    assert true or decided <= 0.06


if __name__ == "__main__":
    print("persons  rows a person  difference  covered  decided  covered, by rows  decided, by rows")
    for persons, alike in CELLS:
        for true in (0.0, 0.03):
            found = decisions(persons, alike, true, 3000)
            shares = (f"{100 * share:.1f} %" for share in found)
            print(persons, "5" if alike else "1 to 9", true, *shares, sep="  ", flush=True)
