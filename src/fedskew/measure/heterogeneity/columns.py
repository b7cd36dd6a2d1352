"""Find the facts in which clients differ, from each client's counts, moments and histograms; no rows need to be pooled."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import bdtr, bdtrc, ndtr, ndtri

from fedskew.core.text import count, percent
from fedskew.core.units import are_codes, from_most, unit_factor, usual_factor, within
from fedskew.measure.heterogeneity.rows import Floats, Ints, divided, members, table

LEVEL = 0.01
"""Level of all tests together (Bonferroni): about the probability that chance alone lists anything."""

SMALL = 0.2
"""Minimum effect that is listed, in standard deviations of all rows (Cohen's "small")."""

MOST, MOST_OF_CLIENT = 5, 3
"""Maximum number of listed columns: over all clients, and for one client."""

MOSTLY = 0.5
"""If at least this share of the rows has the same number, the test counts rows with other numbers instead of ranking."""

SHIFTED = 1e-4
"""A client's deviation is not compared if the p value of its mean (not corrected) is at most this."""

Kind: TypeAlias = Literal["mean", "content", "spread", "share", "missing", "copied", "symbol", "word"]
Fact: TypeAlias = tuple[str, Literal["mean", "content", "share", "missing", "copied", "symbol"], str, Floats]
"""(column, kind, word, values): one value for each row (n,), NaN if unknown.
``mean``: the column's number. ``share``: 1 if the column holds the word. ``missing`` and ``copied``: 1 if so. ``content``: a number
computed from an image, a signal or a text. ``symbol``: the share of a symbol in the row."""
WordFact: TypeAlias = tuple[str, Literal["word"], tuple[str, ...], csr_array]
"""(column, "word", words, hits): ``hits`` (n, words) is 1 if the row's text has the word."""


@dataclass(frozen=True)
class Difference:
    """A column's mean, deviation or share of rows: of one client (``here``), and of all other clients (``elsewhere``).

    ``effect``: in standard deviations of all rows. ``p``: corrected for all tests. ``text``: the difference as a sentence.
    ``each``: the effect of every client, with 0 for clients within chance or whose labels explain it. ``factor``: the ratio of the
    client's numbers to the others', if they may be in another unit; else 0.
    """

    column: str
    kind: Kind
    word: str
    client: str
    here: float
    elsewhere: float
    effect: float
    p: float
    text: str = ""
    each: tuple[float, ...] = ()
    factor: float = 0.0


class GroupMoments(NamedTuple):
    """Number of rows, mean, standard deviation, minimum and maximum of a column in some rows."""

    rows: int
    mean: float
    deviation: float
    low: float
    high: float
    whole: bool = False


NONE = GroupMoments(0, 0.0, 0.0, 0.0, 0.0)


class Tested(NamedTuple):
    """The tests of one fact; arrays are (clients,). ``groups(k)`` returns the numbers of client k and of all others.

    The others' deviation is from their own means.
    """

    column: str
    kind: Kind
    word: str
    here: Floats
    elsewhere: Floats
    effect: Floats  # in standard deviations of all rows
    p: Floats
    # only facts of numbers have groups
    groups: Callable[[int], tuple[GroupMoments, GroupMoments]] = lambda k: (NONE, NONE)
    origin: float = 0.0  # a deviation compares the rows' distances from it
    centre: float = 0.0  # the mean of all rows: of their values, or of these distances
    by_class: Callable[[], tuple[Floats, Floats]] | None = None
    """Returns sums of the rows' differences from ``centre``, and numbers of rows, both (clients, classes)."""

    @property
    def name(self) -> str:
        """The name under which the fact is listed. A list has each name only once."""
        return f"{self.column} {self.word}" if self.kind in ("word", "symbol") else self.column

    @property
    def fact(self) -> tuple[str, str, str]:
        """Column, kind and word of the fact whose values are compared."""
        return self.column, "mean" if self.kind in ("content", "spread") else self.kind, self.word

    def difference(self, k: int, clients: Sequence[str], number: int) -> Difference:
        """The difference of client ``k``. ``number`` counts all tests."""
        here, groups = float(self.here[k]), self.groups(k)
        p = min(1.0, float(self.p[k]) * number)
        effect = float(self.effect[k])
        part = Difference(self.column, self.kind, self.word, clients[k], here, float(self.elsewhere[k]), effect, p)
        factor = factor_of(part, *groups)
        if factor and from_most(here, np.delete(self.here, k).tolist(), factor):
            part = replace(part, factor=factor)
        return replace(part, text=sentence(part, *groups))


def centred(values: Floats, centre: Floats | float) -> Floats:
    """Return the differences of ``values`` from ``centre``; 0 for unknown values."""
    return np.nan_to_num(values - centre, posinf=0.0, neginf=0.0)


def beyond_labels(fact: Tested, number: int) -> Floats:
    """Return the part (clients,) of each client's effect that rows of the same class have, too; 0 if it is small or within chance.

    Classes c have the weights n_kc n_c' / (n_kc + n_c'), where n_c' counts the rows of the others (Mantel and Haenszel 1959). p is
    from the test on all rows, for the effect and the precision that are left. ``number`` counts all tests. Without classes, or
    without sums of the client's rows, the part is 1.
    """
    if fact.by_class is None:
        return np.ones(len(fact.p))
    sums, rows = fact.by_class()
    others, of_others = rows.sum(0) - rows, sums.sum(0) - sums
    weight = divided(rows * others, rows + others)
    within = divided((weight * (divided(sums, rows) - divided(of_others, others))).sum(1), weight.sum(1))
    mine, rest = rows.sum(1), others.sum(1)
    left = np.abs(divided(within, divided(sums.sum(1), mine) - divided(of_others.sum(1), rest)))
    precision = np.sqrt(divided(weight.sum(1) * (mine + rest), mine * rest))
    with np.errstate(invalid="ignore"):
        p = 2 * ndtr(ndtri(fact.p / 2) * left * precision)
    beyond = (np.abs(fact.effect) * left >= SMALL) & (p * number <= LEVEL)
    return np.where(mine == 0, 1.0, np.where(beyond, left, 0.0))


def listed(
    facts: Sequence[Tested], clients: Sequence[str]
) -> tuple[list[Difference], list[list[Difference]], list[str]]:
    """Return the columns that differ most, and for each client the columns in which it differs most, strongest first.

    A column's text names the farthest client, and those that differ at least half as much in the same direction.

    The third list names columns that are in none of these, because rows of the same class do not differ: see `beyond_labels`.
    """
    if not facts:
        return [], [[] for _ in clients], []
    number = len(facts) * len(clients)
    effects = np.stack([np.where(fact.p * number <= LEVEL, fact.effect, 0.0) for fact in facts])
    large = np.where(np.abs(effects) >= SMALL, np.abs(effects), 0.0)
    left = np.ones_like(large)
    for at in np.flatnonzero(large.any(1)).tolist():
        left[at] = np.where(large[at] > 0, beyond_labels(facts[at], number), 1.0)
    effects, size = np.where(left > 0, effects, 0.0), large * left

    def strongest(sizes: Floats, most: int) -> list[int]:
        """The facts with the largest ``sizes`` (facts,) above 0, at most ``most``, of each name only one."""
        order = np.argsort(-sizes, kind="stable")[: np.count_nonzero(sizes)].tolist()
        names: dict[str, int] = {}
        for at in order:
            names.setdefault(facts[at].name, at)
        return [*names.values()][:most]

    columns = []
    for at in strongest(size.max(1), MOST):
        farthest, each = int(size[at].argmax()), effects[at]
        alike = np.flatnonzero(each * np.sign(each[farthest]) >= np.abs(each[farthest]) / 2).tolist()
        others = [in_sentence(clients[k]) for k in alike if k != farthest]
        also = ", ".join(others) if len(others) <= MOST_OF_CLIENT else count(len(others), "more client")
        part = facts[at].difference(farthest, clients, number)
        columns.append(replace(part, text=part.text + f"; likewise in {also}" * bool(also), each=tuple(each.tolist())))
    most = [strongest(size[:, k], MOST_OF_CLIENT) for k in range(len(clients))]
    of_clients = [[facts[at].difference(k, clients, number) for at in places] for k, places in enumerate(most)]
    differ = {fact.column for fact, sizes in zip(facts, size, strict=True) if sizes.any()}
    order = [at for at in np.argsort(-large.max(1), kind="stable").tolist() if large[at].any()]
    by_labels = dict.fromkeys(facts[at].column for at in order if facts[at].column not in differ)
    return columns, of_clients, [*by_labels]


def shares(hits: Floats, rows: Ints) -> tuple[Floats, Floats, Floats]:
    """Return each client's share of rows, the others' share, and the effect, (..., clients).

    ``hits`` (..., clients) counts each client's rows with the fact; ``rows`` (clients,) counts all its rows.
    """
    total = hits.sum(-1, keepdims=True)
    here, elsewhere = divided(hits, rows), divided(total - hits, rows.sum() - rows)
    share = total / rows.sum()
    return here, elsewhere, divided(here - elsewhere, np.sqrt(share * (1 - share)))


def normal(effect: Floats, rows: Ints, others: Ints) -> Floats:
    """Return two-sided p values of effects of means, which are nearly normal; 1 if the client or the others have one row."""
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.abs(effect) / np.sqrt(1 / rows + 1 / others)
    return np.where((rows > 1) & (others > 1), 2 * ndtr(-z), 1.0)


def chance(hits: Floats, rows: Ints) -> Floats:
    """Return two-sided p values (..., clients) of shares; arguments are as in `shares`."""
    p = np.asarray(normal(shares(hits, rows)[2], rows, rows.sum() - rows))
    # Shares of rare words are not normal. Binomial tails are upper bounds: draws without replacement have no wider tails.
    near = p <= LEVEL
    share = np.broadcast_to(hits.sum(-1, keepdims=True) / rows.sum(), p.shape)[near]
    k, n = np.rint(hits)[near], np.broadcast_to(rows, p.shape)[near]
    at_least = np.where(k > 0, bdtrc(np.maximum(k - 1, 0), n, share), 1.0)
    at_most = bdtr(k, n, share)
    p[near] = np.maximum(p[near], np.minimum(1, 2 * np.minimum(at_most, at_least)))
    return p


def factor_of(part: Difference, mine: GroupMoments, others: GroupMoments) -> float:
    """The factor between the client's unit and the unit of all others; 0 if there is none."""
    codes = are_codes(mine.whole and others.whole, min(mine.low, others.low), max(mine.high, others.high))
    if part.kind != "mean" or codes:
        return 0.0
    return unit_factor(mine.mean, others.mean, mine.deviation, others.deviation, mine.rows)


def in_sentence(client: str) -> str:
    return f"client {client}" if client.isdecimal() else client


def sentence(part: Difference, mine: GroupMoments, others: GroupMoments) -> str:
    """Describe the difference in a sentence."""
    column, client = part.column, in_sentence(part.client)
    if part.kind == "copied":
        return f"{percent(part.here)} of {client}'s rows occur more than once, elsewhere {percent(part.elsewhere)}"
    shares = percent(part.here), percent(part.elsewhere)
    if part.kind == "symbol":
        return f'{column} "{part.word}" is {shares[0]} of {client}\'s symbols, elsewhere {shares[1]}'
    if part.kind not in ("mean", "content", "spread"):
        fact = {"missing": "is missing", "word": f'has the word "{part.word}"'}.get(part.kind, f"is {part.word}")
        return f"{column} {fact} in {shares[0]} of {client}'s rows, elsewhere in {shares[1]}"
    mean, rest = mine.mean, others.mean
    if mine.low == mine.high:
        return f"{column} is {mine.low:,.4g} in every row of {client}, mean {rest:,.4g} elsewhere"
    if part.factor:
        _, units = usual_factor(part.factor)
        unit = f"another unit ({units})" if units else "another unit"
        return f"{column} is {part.factor:.3g} times as large in {client}, as in {unit}: mean {mean:,.4g}, elsewhere {rest:,.4g}"
    if part.kind == "spread":
        way, deviations = "more" if part.effect > 0 else "less", f"{part.here:,.4g}, elsewhere {part.elsewhere:,.4g}"
        return f"{column} varies {way} in {client}: standard deviation {deviations}"
    way, size = "higher" if part.effect > 0 else "lower", f"{abs(part.effect):.1f} standard deviations"
    return f"{column} is {way} in {client}: mean {mean:,.4g}, elsewhere {rest:,.4g} ({size})"


def copied(x: NDArray[np.generic]) -> Fact:
    """Return the fact that a row of ``x`` (n, ...) is equal to another row."""
    keys = [row.tobytes() for row in np.ascontiguousarray(x)]
    _, group, often = np.unique(list(map(hash, keys)), return_inverse=True, return_counts=True)
    return "rows", "copied", "", (often[group] > 1).astype(np.float64)


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

    def of(self, members: Floats) -> GroupMoments:
        """Return the moments of some clients together. ``members`` (clients,) is 1 for these clients, else 0."""
        rows = self.rows * members
        total = float(rows.sum())
        mean = float(divided(rows @ self.mean, np.asarray(total)))
        square = float(divided(rows @ (self.deviation**2 + (self.mean - mean) ** 2), np.asarray(total)))
        some = rows > 0
        low, high = self.low[some].min(initial=np.inf), self.high[some].max(initial=-np.inf)
        return GroupMoments(int(total), mean, square**0.5, float(low), float(high), bool(self.whole[some].all()))


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


def edges(of_clients: ClientMoments) -> Floats:
    """Return the `BINS` - 1 inner edges of a column's bins. A value on an edge belongs to the bin below."""
    every = of_clients.of(np.ones(len(of_clients.rows)))
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
    bins = np.searchsorted(inner, values[~np.isnan(values)])
    return np.bincount(bins, minlength=len(inner) + 1).astype(np.int64)


def median(middle: Floats, counts: Ints) -> float:
    """Return the median of binned values. Its error is at most half the width of its bin."""
    ends = np.cumsum(counts)
    places = np.searchsorted(ends, [(ends[-1] - 1) // 2, ends[-1] // 2], side="right")
    return float(middle[places].mean())


def tests(fact: Fact | WordFact, client: Ints, clients: int) -> list[Tested]:
    """Compare each client's rows with all others': means and deviations by ranks, shares of rows by binomial tails."""
    if fact[1] == "word":
        column, kind, words, has_word = fact
        hits = (members(client, clients) @ has_word).toarray()
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


def of_numbers(
    column: str, kind: Kind, word: str, of_clients: ClientMoments, counts: Ints, inner: Floats
) -> list[Tested]:
    """Compare each client's mean and deviation with all others'. ``counts`` (clients, bins) are histograms."""
    everyone = np.ones(len(counts))
    every, rows = of_clients.of(everyone), of_clients.rows
    if not counts.sum() or not 0 < every.deviation < np.inf:
        return []

    def groups(k: int) -> tuple[GroupMoments, GroupMoments]:
        mine = (np.arange(len(counts)) == k).astype(float)
        spread = within(np.delete(rows, k).tolist(), np.delete(of_clients.deviation, k).tolist())
        return of_clients.of(mine), of_clients.of(everyone - mine)._replace(deviation=spread)

    others = every.rows - rows
    offset = np.where(rows > 0, of_clients.mean - every.mean, 0.0)
    rest = every.mean - divided(rows * offset, others)
    effect = (of_clients.mean - rest) / every.deviation
    pooled, middle = counts.sum(0), middles(inner)
    p = by_ranks(counts, middle)[0]
    means = Tested(column, kind, word, of_clients.mean, rest, effect, p, groups, centre=every.mean)
    if pooled.max() >= MOSTLY * pooled.sum():
        # ranks of mostly equal numbers are no longer nearly normal
        different = of_shares(column, "share", "", counts.sum(1), counts.sum(1) - counts[:, pooled.argmax()])
        return [means._replace(p=part.p) for part in different]
    origin = median(middle, pooled)
    distance = np.abs(middle - origin)
    if not np.ptp(distance[pooled > 0]) > 0 or kind == "symbol":
        return [means]
    p, distances = by_ranks(counts, distance)
    squares = rows * (of_clients.deviation**2 + offset**2)
    variance = divided(every.rows * every.deviation**2 - squares, others) - (rest - every.mean) ** 2
    # a client whose mean differs is far from the median, too
    p = np.where(means.p <= SHIFTED, 1.0, p)
    centre = float(pooled @ distance / pooled.sum())
    elsewhere = np.sqrt(np.maximum(variance, 0))
    spread = Tested(column, "spread", word, of_clients.deviation, elsewhere, distances, p, groups, origin, centre)
    return [means, spread]


def by_ranks(counts: Ints, values: Floats) -> tuple[Floats, Floats]:
    """Compare each client's binned ``values`` (bins,) with all others'. Return p of mean ranks and effects on means (clients,)."""
    pooled, rows = counts.sum(0), counts.sum(1)
    value = np.unique(values, return_inverse=True)[1]
    frequency = np.bincount(value, weights=pooled)
    rank = (np.cumsum(frequency) - (frequency - 1) / 2)[value]

    def effects(numbers: Floats) -> Floats:
        """The clients' means minus the others', in standard deviations of all rows."""
        total, mean = counts @ numbers, pooled @ numbers / pooled.sum()
        deviation = float(np.sqrt(pooled @ (numbers - mean) ** 2 / pooled.sum()))
        difference = divided(total, rows) - divided(total.sum() - total, rows.sum() - rows)
        return np.asarray(difference / deviation)

    return normal(effects(rank), rows, rows.sum() - rows), effects(values)


def of_shares(column: str, kind: Kind, word: str, rows: Ints, hits: Ints | Floats) -> list[Tested]:
    """Compare the clients' shares of rows. ``hits`` of ``rows`` (clients,) have the fact."""
    if not 0 < hits.sum() < rows.sum():
        return []
    many = hits.astype(np.float64)
    centre = float(many.sum() / rows.sum())
    return [Tested(column, kind, word, *shares(many, rows), chance(many, rows), centre=centre)]
