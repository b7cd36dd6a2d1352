"""Find columns that differ, as `columns` does, but from each client's counts, moments and histograms instead of rows."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from fedskew.measure.heterogeneity.columns import MOSTLY, SHIFTED, Group, Kind, Tested, chance, normal, shares
from fedskew.measure.heterogeneity.rows import Floats, Ints, divided

BINS = 256
"""Number of bins of a column. There is one for each whole number if possible; else bins are narrow near the mean."""

NARROW = 1.5
"""Distance from the mean, in standard deviations, at which bins begin to get wider."""


class ClientMoments(NamedTuple):
    """Number of rows, mean, deviation, minimum and maximum of a column at each client; arrays are (clients,).

    ``whole``: whether all numbers of a client are whole.
    """

    rows: Ints
    mean: Floats
    deviation: Floats
    low: Floats
    high: Floats
    whole: NDArray[np.bool_]

    def of(self, chosen: Floats) -> Group:
        """Return the moments of some clients together. ``chosen`` (clients,) is 1 for these clients, else 0."""
        rows = self.rows * chosen
        total = float(rows.sum())
        mean = float(divided(rows @ self.mean, np.asarray(total)))
        square = float(divided(rows @ (self.deviation**2 + (self.mean - mean) ** 2), np.asarray(total)))
        held = rows > 0
        low, high = self.low[held].min(initial=np.inf), self.high[held].max(initial=-np.inf)
        return Group(int(total), mean, square**0.5, float(low), float(high), bool(self.whole[held].all()))


def edges(held: ClientMoments) -> Floats:
    """Return the `BINS` - 1 inner edges of a column's bins. A value on an edge belongs to the bin below."""
    every = held.of(np.ones(len(held.rows)))
    if every.whole and every.high - every.low < BINS:
        return np.asarray(every.low + 0.5 + np.arange(BINS - 1), dtype=np.float64)
    ends = max(every.high - every.mean, every.mean - every.low) / ((every.deviation or 1.0) * NARROW)
    places = np.linspace(-1, 1, BINS - 1) * np.arcsinh(max(ends, 1.0))
    return np.asarray(every.mean + every.deviation * NARROW * np.sinh(places), dtype=np.float64)


def middles(inner: Floats) -> Floats:
    """Return the middle of each bin (bins,). The two outer bins have no end; their point mirrors the next middle at the edge."""
    inside = (inner[1:] + inner[:-1]) / 2
    return np.concatenate([[2 * inner[0] - inside[0]], inside, [2 * inner[-1] - inside[-1]]])


def histogram(values: Floats, inner: Floats) -> Ints:
    """Return the number of values in each bin (bins,), without missing values (NaN)."""
    found = np.searchsorted(inner, values[~np.isnan(values)])
    return np.bincount(found, minlength=len(inner) + 1).astype(np.int64)


def median(middle: Floats, counts: Ints) -> float:
    """Return the median of binned values. Its error is at most half the width of its bin."""
    ends = np.cumsum(counts)
    places = np.searchsorted(ends, [(ends[-1] - 1) // 2, ends[-1] // 2], side="right")
    return float(middle[places].mean())


def of_numbers(column: str, held: ClientMoments, counts: Ints, inner: Floats) -> list[Tested]:
    """Compare each client's mean and deviation with all others', like `columns.tests`. ``counts`` is (clients, bins)."""
    clients = len(counts)
    everyone = np.ones(clients)
    every = held.of(everyone)
    if not counts.sum() or every.deviation <= 0:
        return []

    def groups(k: int) -> tuple[Group, Group]:
        mine = (np.arange(clients) == k).astype(float)
        return held.of(mine), held.of(everyone - mine)

    others = [groups(k)[1] for k in range(clients)]
    rest = np.array([other.mean for other in others])
    effect = (held.mean - rest) / every.deviation
    pooled, middle = counts.sum(0), middles(inner)
    if pooled.max() >= MOSTLY * pooled.sum():
        # ranks of mostly equal numbers are no longer nearly normal
        other = of_shares(column, "share", "", counts.sum(1), counts.sum(1) - counts[:, pooled.argmax()])
        return [Tested(column, "mean", "", held.mean, rest, effect, one.p, groups) for one in other]
    found = [Tested(column, "mean", "", held.mean, rest, effect, by_ranks(counts, middle)[0], groups)]
    distance = np.abs(middle - median(middle, pooled))
    if np.ptp(distance[pooled > 0]) > 0:
        p, distances = by_ranks(counts, distance)
        spread = np.array([other.deviation for other in others])
        # a client whose mean differs is far from the median, too
        p = np.where(found[0].p <= SHIFTED, 1.0, p)
        found.append(Tested(column, "spread", "", held.deviation, spread, distances, p, groups))
    return found


def by_ranks(counts: Ints, values: Floats) -> tuple[Floats, Floats]:
    """Test binned ``values`` (bins,) by ranks; return p values and effects on the mean, (clients,)."""
    pooled, rows = counts.sum(0), counts.sum(1)
    same = rankdata(values, method="dense").astype(np.int64) - 1
    often = np.bincount(same, weights=pooled)
    rank = (np.cumsum(often) - (often - 1) / 2)[same]
    found = []
    for numbers in (rank, values):
        total, mean = counts @ numbers, pooled @ numbers / pooled.sum()
        deviation = float(np.sqrt(pooled @ (numbers - mean) ** 2 / pooled.sum()))
        found.append((divided(total, rows), divided(total.sum() - total, rows.sum() - rows), deviation))
    (a, b, deviation), (here, elsewhere, scale) = found
    return normal((a - b) / deviation, rows, rows.sum() - rows), (here - elsewhere) / scale


def of_shares(column: str, kind: Kind, word: str, rows: Ints, hits: Ints) -> list[Tested]:
    """Compare the clients' shares of rows, like `columns.tests`. ``hits`` of ``rows`` (clients,) have the fact."""
    if not 0 < hits.sum() < rows.sum():
        return []
    many = hits.astype(np.float64)
    return [Tested(column, kind, word, *shares(many, rows), chance(many, rows))]
