"""Simulate comparisons of two methods: how often a verdict is false, and how often a difference is decided.

`python -m tests.measure.verdicts` prints the table of docs/explanations/statistics.md, `python -m tests.measure.verdicts 300 folds`
a part of it with 300 comparisons a cell.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from fedskew.measure.statistics import (
    LEVEL,
    Estimate,
    equivalence_p,
    over_clients,
    over_common_rows,
    over_seeds_and_rows,
    over_splits,
)
from fedskew.report.tables import FEWEST_CLIENTS, FEWEST_ROWS

Floats = NDArray[np.floating]

SHARE = 0.2
"""The share of all rows that each seed draws as its test rows; five folds have the same."""
SPLITS = FOLDS = 5
FEATURES, CLIENT_SHIFT = 10, 1.0
"""Of the learners: numbers of features, and the standard deviation of a client's class means."""
MARGIN = 0.01
BATCH = 50


class Setting(NamedTuple):
    """Which rows each seed tests."""

    name: str
    kind: str  # fixed, redrawn, folds, clients
    rows: int
    clients: int = 0

    @property
    def ratio(self) -> float:
        return 1 / (FOLDS - 1) if self.kind in ("folds", "clients") else SHARE / (1 - SHARE)

    @property
    def enough(self) -> bool:
        return self.clients >= FEWEST_CLIENTS or (not self.clients and self.rows >= FEWEST_ROWS)


SETTINGS = [
    *(Setting("the same test rows", "fixed", rows) for rows in (20, 100, 500, 3000)),
    *(Setting("redrawn test rows", "redrawn", rows) for rows in (20, 100, 500, 3000)),
    *(Setting("folds of rows", "folds", rows) for rows in (20, 100, 500, 3000)),
    *(Setting("folds of clients", "clients", *size) for size in ((20, 5), (100, 5), (500, 10), (3000, 20))),
]


def tested(rng: np.random.Generator, setting: Setting, repeats: int) -> NDArray[np.bool_]:
    """(repeats, splits, rows) whether a split tests a row."""
    rows = setting.rows
    if setting.kind == "fixed":
        return np.ones((repeats, SPLITS, rows), dtype=bool)
    if setting.kind == "redrawn":
        chance, number = rng.random((repeats, SPLITS, rows), dtype=np.float32), round(SHARE * rows)
        return chance <= np.partition(chance, number - 1, axis=2)[..., number - 1 : number]
    units = setting.clients or rows
    fold = rng.permuted(np.tile(np.arange(units) % FOLDS, (repeats, 1)), axis=1)[:, np.arange(rows) % units]
    return fold[:, None] == np.arange(FOLDS)[:, None]


def normals(rng: np.random.Generator, *shape: int) -> Floats:
    return rng.standard_normal(shape, dtype=np.float32)


def learners(
    rng: np.random.Generator, setting: Setting, split: NDArray[np.bool_], gap: float, noise: float
) -> tuple[Floats, float]:
    """The differences (repeats, splits, rows) of two learners, right minus right, and the true one.

    Each learner sees features of its own. Their means differ by class, for the second learner ``1 + gap`` times as much. It learns
    the means from the rows that a split does not test, with ``noise`` of each seed's own. Each client shifts the means of its
    rows; the true difference is that on a new client.
    """
    repeats, _, rows = split.shape
    normal = partial(normals, rng)
    means = np.array([1.0, 1.0 + gap], np.float32)[:, None] * np.full((2, FEATURES), FEATURES**-0.5, np.float32)
    shift = CLIENT_SHIFT * FEATURES**-0.5 * bool(setting.clients)
    x = normal(repeats, 2, rows, FEATURES)
    if setting.clients:
        own = np.float32(shift) * normal(repeats, 2, setting.clients, FEATURES)
        x += own[:, :, np.arange(rows) % setting.clients]
    x += means[:, None]  # times the class, -1 or 1
    weights = (~split)[:, None].astype(np.float32) @ x / (~split).sum(2)[:, None, :, None]
    weights += np.float32(noise) * normal(repeats, 2, split.shape[1], FEATURES)
    right = (weights @ x.swapaxes(2, 3)) > 0
    length = np.linalg.norm(weights, axis=3) * (1 + shift**2) ** 0.5
    exact = ndtr((weights * means[:, None]).sum(3) / length)
    return right[:, 1].astype(np.float32) - right[:, 0], float((exact[:, 1] - exact[:, 0]).mean())


def seeds_apart(
    rng: np.random.Generator, setting: Setting, split: NDArray[np.bool_], true: float, training: float
) -> tuple[Floats, float]:
    """As `learners`, of methods with accuracies 80 % and ``true`` more, whose seeds have nothing in common but the rows.

    Rows are easy or hard for both methods, and some for one of them on every seed. With ``training`` 1 each seed moves each
    method's accuracy, and half of what is its own on a row; with 0 all seeds train the same models.
    """
    repeats, splits, rows = split.shape
    normal = partial(normals, rng)
    hard, right = np.float32(0.8) * normal(repeats, 1, rows), []
    for accuracy in (0.8, 0.8 + true):
        threshold = ndtri(accuracy + training * 0.01 * normal(repeats, splits, 1))
        own = (0.42 if training else 0.6) * normal(repeats, 1, rows)
        if training:
            own = own + 0.43 * normal(repeats, splits, rows)
        right.append(hard + own < threshold)
    return np.broadcast_to(right[1].astype(np.float32) - right[0], split.shape), true


def twins(
    rng: np.random.Generator, setting: Setting, split: NDArray[np.bool_], true: float, _: float
) -> tuple[Floats, float]:
    """As `learners`, of two methods that differ on few rows, on the same ones with every seed."""
    repeats, _, rows = split.shape
    return np.broadcast_to((rng.random((repeats, 1, rows)) < true).astype(np.float32), split.shape), true


Generator = Callable[[np.random.Generator, Setting, NDArray[np.bool_], float, float], tuple[Floats, float]]


def comparisons(
    setting: Setting, made: Generator, gap: float, noise: float, repeats: int
) -> Iterator[tuple[Floats, float]]:
    """Yield the values (splits, rows) of each comparison, NaN where a split does not test a row, and the true difference."""
    rng = np.random.default_rng([setting.rows, len(setting.name), round(1000 * gap), round(100 * noise)])
    for _ in range(0, repeats, BATCH):
        split = tested(rng, setting, BATCH)
        values, true = made(rng, setting, split, gap, noise)
        yield from ((one, true) for one in np.where(split, values, np.nan))


def rules(setting: Setting, values: Floats) -> tuple[Estimate, Estimate, float]:
    """The estimate of the tables, the one by the splits' means alone, and the effective number of test rows."""
    means = np.nanmean(values, axis=1)
    splits, rows = values.shape
    if setting.kind == "fixed":
        whole = over_seeds_and_rows(values)
        return whole, whole, rows
    of_draws = 1 / (1 / (splits * SHARE * rows) + (splits - 1) / (splits * rows))
    drawn = of_draws if setting.kind == "redrawn" else rows
    before = over_splits(means.tolist(), setting.ratio)
    if not setting.enough:
        return before, before, drawn
    if not setting.clients:
        return over_common_rows(values, setting.ratio), before, drawn
    # rows of a client are numbers c, c + clients, ...
    of_clients = values.reshape(splits, -1, setting.clients).mean(1)
    return over_clients(of_clients, FOLDS), before, drawn


class Shares(NamedTuple):
    """Shares of the comparisons, by the rule of the tables and by the one before.

    ``decided_knowing`` is for a test that knows the variance of the mean difference. A real test has to estimate it.
    """

    true: float
    decided: float
    decided_before: float
    decided_knowing: float
    equivalent: float
    equivalent_before: float
    covered: float


def shares(setting: Setting, made: Generator, gap: float, noise: float, repeats: int) -> Shares:
    drawn = list(comparisons(setting, made, gap, noise, repeats))
    true = float(np.mean([exact for _, exact in drawn])) if gap else 0.0
    differences = np.array([np.nanmean(values) for values, _ in drawn])
    needed = -ndtri(LEVEL / 2) * differences.std(ddof=1)
    counts = np.zeros(6)
    for (values, _), difference in zip(drawn, differences, strict=True):
        new, before, rows = rules(setting, values)
        means, margin = np.nanmean(values, axis=1).tolist(), abs(true) or MARGIN
        within = [equivalence_p(means, margin, rows), new.p_within(margin)]
        old = [0.0 if np.ptp(means) == 0 else equivalence_p(means, margin), before.p_within(margin)]
        counts += (
            abs(new.mean) > new.half(LEVEL),
            abs(before.mean) > before.half(LEVEL),
            abs(difference) > needed,
            np.nanmax(within) < LEVEL,
            np.nanmax(old) < LEVEL,
            abs(new.mean - true) <= new.half(LEVEL),
        )
    return Shares(true, *(counts / len(drawn)).tolist())


METHODS: dict[str, tuple[Generator, tuple[float, float]]] = {
    "apart": (seeds_apart, (1.0, 0.0)),
    "learners": (learners, (0.05, 0.15)),
}
"""The simulated methods, and two amounts of chance between seeds."""


LINES = [
    (setting, methods)
    for setting in SETTINGS
    for methods in METHODS
    if setting.kind == "redrawn" or (methods == "apart") == (setting.kind == "fixed")
]
"""The lines of the table. Methods that learn from the rows would need new training rows, which fixed test rows do not have."""


class Line(NamedTuple):
    """A line of the table, as shares of the comparisons. The worse of several kinds of methods counts."""

    false: float
    equivalent: float
    equivalent_before: float
    true: float
    decided: float
    decided_before: float
    decided_knowing: float


def line(setting: Setting, methods: str, repeats: int) -> Line:
    made, amounts = METHODS[methods]
    gap = 0.03 if made is seeds_apart else 0.5 if setting.clients else 0.2 if setting.rows < 3000 else 0.1
    false = [shares(setting, made, 0.0, noise, repeats) for noise in amounts]
    differing, equal = shares(setting, made, gap, amounts[0], repeats), shares(setting, twins, MARGIN, 0.0, repeats)
    return Line(
        max(one.decided for one in false),
        max(differing.equivalent, equal.equivalent),
        max(differing.equivalent_before, equal.equivalent_before),
        differing.true,
        differing.decided,
        differing.decided_before,
        differing.decided_knowing,
    )


if __name__ == "__main__":
    repeats, only = (int(sys.argv[1]) if len(sys.argv) > 1 else 3000), sys.argv[2:]
    print(
        "| which rows | rows | methods | false verdicts | false equivalence | before | difference, points | decided | before"
        " | knowing |\n"
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    )
    for setting, methods in LINES:
        if not only or setting.kind in only:
            rows = f"{setting.rows:,}" + f", {setting.clients} clients" * bool(setting.clients)
            shown = [f"{100 * value:.1f}" for value in line(setting, methods, repeats)]
            print(f"| {setting.name} | {rows} | {methods} | {' | '.join(shown)} |", flush=True)
