"""Detect two columns of the same quantity in different units, which differ by a constant factor."""

import math
from collections.abc import Sequence
from statistics import median

UNIT, CLOSE = 1.5, 0.1
"""A factor between two units is at least `UNIT`. The logarithms of the factors of mean and deviation may differ by `CLOSE`."""

DISTINCT = 6
"""The logarithm of a factor between units is this many times the median distance of the other clients' means: about 4 deviations"""

FACTORS = {
    1.609: "miles and km",
    2.205: "kg and lb",
    2.54: "inches and cm",
    3.281: "m and feet",
    7.501: "kPa and mmHg",
    10.0: "a factor of ten",
    12.0: "years and months",
    18.02: "mmol/l and mg/dl of glucose",
    25.4: "inches and mm",
    38.67: "mmol/l and mg/dl of cholesterol",
    60.0: "hours and minutes",
    88.42: "mg/dl and µmol/l of creatinine",
    100.0: "a factor of a hundred, such as percent or cents",
    365.25: "years and days",
    1000.0: "a factor of a thousand",
}
"""Usual factors between two units, and the units' names, the larger unit first."""

CODES = 10
"""Whole numbers with fewer possible values are codes of categories rather than quantities."""


def are_codes(whole: bool, low: float, high: float) -> bool:
    """Whether numbers from ``low`` to ``high`` are codes, which have no unit."""
    return whole and high - low < CODES


def unit_factor(mean: float, rest: float, deviation: float, spread: float, rows: int) -> float:
    """Return the factor between two columns that seem to have different units; 0 if mean and deviation give different factors.

    The first column has ``mean``, ``deviation`` and ``rows``; the second has mean ``rest`` and deviation ``spread``, `within` its
    clients.
    """
    if not spread or not deviation or abs(rest) < spread / 2 or mean * rest <= 0:
        return 0.0
    by_mean, by_spread = math.log(mean / rest), math.log(deviation / spread)
    gap = min(abs(by_mean) / 2, CLOSE + 2 / math.sqrt(rows))
    far = abs(by_mean) >= math.log(UNIT) and abs(by_mean - by_spread) <= gap
    return math.exp(by_mean) if far else 0.0


def within(rows: Sequence[float], deviations: Sequence[float]) -> float:
    """Return the deviation of all rows from the means of their own clients, whether or not these differ."""
    return math.hypot(
        *(math.sqrt(n / sum(rows)) * deviation for n, deviation in zip(rows, deviations, strict=True) if n)
    )


def from_most(mean: float, others: Sequence[float], factor: float) -> bool:
    """Whether ``mean`` is about ``factor`` times the middle one, or each of the two middle ones, of the sorted ``others``.

    If so, this client is the odd one. Without this test one client in another unit would make all others look odd. Most others
    must also differ from each other by far less: shops of many sizes have no other unit.
    """
    finite = sorted(other for other in others if math.isfinite(other))
    middle = finite[(len(finite) - 1) // 2], finite[len(finite) // 2]
    if any(
        mean * other_mean <= 0 or abs(math.log(mean / other_mean / factor)) > math.log(UNIT) / 2
        for other_mean in middle
    ):
        return False
    apart = [abs(math.log(other / middle[0])) if other * mean > 0 else math.inf for other in finite]
    return abs(math.log(factor)) >= DISTINCT * median(apart)


def usual_factor(factor: float) -> tuple[float, str]:
    """Return the usual factor close to this one, or its inverse, and the units' names; the factor itself if there is none."""
    up = max(factor, 1 / factor)
    near = min(FACTORS, key=lambda usual: abs(math.log(usual / up)))
    if abs(math.log(near / up)) > CLOSE:
        return factor, ""
    return near if factor > 1 else 1 / near, FACTORS[near]
