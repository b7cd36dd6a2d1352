"""Compare the clients' columns by each client's counts, moments and histograms, which need not come from pooled rows."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from fedskew.measure.heterogeneity.columns import (
    MOSTLY,
    SHIFTED,
    Fact,
    Group,
    Held,
    Kind,
    Tested,
    chance,
    normal,
    shares,
)
from fedskew.measure.heterogeneity.rows import Floats, Ints, divided, members, table

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


def moments(values: Floats, client: Ints, clients: int) -> ClientMoments:
    """Return the moments of finite ``values`` (n,) at each ``client`` (n,)."""
    rows = np.bincount(client, minlength=clients)
    mean = divided(np.bincount(client, values, clients), rows)
    variance = divided(np.bincount(client, (values - mean[client]) ** 2, clients), rows)
    low, high = np.full(clients, np.inf), np.full(clients, -np.inf)
    np.minimum.at(low, client, values)
    np.maximum.at(high, client, values)
    fractions = np.bincount(client, np.mod(values, 1) != 0, clients)
    return ClientMoments(rows, mean, np.sqrt(variance), low, high, fractions == 0)


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


def tests(fact: Fact | Held, client: Ints, clients: int) -> list[Tested]:
    """Compare each client's rows with all others': means and deviations by ranks, shares of rows by binomial tails."""
    if fact[1] == "word":
        column, kind, words, held = fact
        hits = (members(client, clients) @ held).toarray()
        rows = np.bincount(client, minlength=clients)
        return [part for at, word in enumerate(words) for part in of_shares(column, kind, word, rows, hits[:, at])]
    valid = np.isfinite(fact[3])
    values, owner = fact[3][valid], client[valid]
    if fact[1] not in ("mean", "content", "symbol"):
        return of_shares(*fact[:3], np.bincount(owner, minlength=clients), np.bincount(owner, values, clients))
    if not len(values):
        return []
    of_clients = moments(values, owner, clients)
    inner = edges(of_clients)
    counts = table(owner, np.searchsorted(inner, values), (clients, BINS)).astype(np.int64)
    return of_numbers(*fact[:3], of_clients, counts, inner)


def of_numbers(column: str, kind: Kind, word: str, held: ClientMoments, counts: Ints, inner: Floats) -> list[Tested]:
    """Compare each client's mean and deviation with all others'. ``counts`` (clients, bins) are histograms."""
    clients = len(counts)
    everyone = np.ones(clients)
    every = held.of(everyone)
    if not counts.sum() or not 0 < every.deviation < np.inf:
        return []

    def groups(k: int) -> tuple[Group, Group]:
        mine = (np.arange(clients) == k).astype(float)
        return held.of(mine), held.of(everyone - mine)

    others = every.rows - held.rows
    centred = np.where(held.rows > 0, held.mean - every.mean, 0.0)
    rest = every.mean - divided(held.rows * centred, others)
    effect = (held.mean - rest) / every.deviation
    pooled, middle = counts.sum(0), middles(inner)
    p = by_ranks(counts, middle)[0]
    first = Tested(column, kind, word, held.mean, rest, effect, p, groups, centre=every.mean)
    if pooled.max() >= MOSTLY * pooled.sum():
        # ranks of mostly equal numbers are no longer nearly normal
        other = of_shares(column, "share", "", counts.sum(1), counts.sum(1) - counts[:, pooled.argmax()])
        return [first._replace(p=part.p) for part in other]
    tested = [first]
    origin = median(middle, pooled)
    distance = np.abs(middle - origin)
    if np.ptp(distance[pooled > 0]) > 0 and kind != "symbol":
        p, distances = by_ranks(counts, distance)
        squares = held.rows * (held.deviation**2 + centred**2)
        variance = divided(every.rows * every.deviation**2 - squares, others) - (rest - every.mean) ** 2
        # a client whose mean differs is far from the median, too
        p = np.where(tested[0].p <= SHIFTED, 1.0, p)
        spread = np.sqrt(np.maximum(variance, 0))
        centre = float(pooled @ distance / pooled.sum())
        tested.append(Tested(column, "spread", word, held.deviation, spread, distances, p, groups, origin, centre))
    return tested


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


def of_shares(column: str, kind: Kind, word: str, rows: Ints, hits: Ints | Floats) -> list[Tested]:
    """Compare the clients' shares of rows. ``hits`` of ``rows`` (clients,) have the fact."""
    if not 0 < hits.sum() < rows.sum():
        return []
    many = hits.astype(np.float64)
    centre = float(many.sum() / rows.sum())
    return [Tested(column, kind, word, *shares(many, rows), chance(many, rows), centre=centre)]
