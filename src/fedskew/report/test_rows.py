"""Confidence intervals over seeds and test rows, from the primary metric of each test row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.measure.intervals import Estimate, over_seeds_and_rows
from fedskew.report.stated import Splits
from fedskew.store import test_rows
from fedskew.store.runs import RunRecord, RunStore
from fedskew.store.test_rows import Stored

Seeds = tuple[int, int]
"""A run's partition seed and seed."""
ByRow = Mapping[str, Mapping[Seeds, Stored]]
"""By method and seeds: the values of the units of the test rows, averaged over runs with the same seeds."""


def by_method(store: RunStore, records: Sequence[RunRecord]) -> ByRow:
    """Read the values of the finished runs. Runs with equal seeds but different numbers of test rows are left out."""
    finished = [record for record in records if record.status == "finished"]
    found = test_rows.read(store, [record.id for record in finished])
    gathered: dict[str, dict[Seeds, list[Stored]]] = {}
    for record in finished:
        stored = found.get(record.id)
        if stored and stored.round == record.rounds:
            own = gathered.setdefault(record.name, {})
            own.setdefault((record.partition_seed, record.seed), []).append(stored)
    return {
        method: {
            seeds: several[0]._replace(values=np.mean([stored.values for stored in several], axis=0))
            for seeds, several in own.items()
            if len({len(stored.values) for stored in several}) == 1
        }
        for method, own in gathered.items()
    }


def estimate(
    by_row: ByRow, method: str, first: str, values: Mapping[Any, float], drawn: Splits | None = None
) -> Estimate | None:
    """Estimate the mean of a method's ``values`` by seeds; with ``first``, they are differences from that method.

    The interval covers seeds and test rows, or the test rows that seeds have ``drawn``. Returns None for fewer than two seeds,
    and if all seeds have the same test rows, but the rows' values are not known for each seed.
    """
    if len(values) < 2:
        return None
    rows = rows_of(by_row.get(method, {}), by_row.get(first, {}) if first else None, list(values))
    if drawn:
        return drawn.over(list(values.values()), table_of(rows))
    if not rows or len({len(row.values) for row in rows}) > 1 or len(rows[0].values) < 2:
        return None
    return over_seeds_and_rows(np.stack([row.values for row in rows]))


def rows_of(ours: Mapping[Seeds, Stored], first: Mapping[Seeds, Stored] | None, seeds: Sequence[Seeds]) -> list[Stored]:
    """Return the rows' values of each seed, or their differences from ``first``; empty if those of a seed are not known."""
    sides = [ours] if first is None else [ours, first]
    found = [[side[key] for side in sides if key in side] for key in seeds]
    if any(len(own) < len(sides) or len({len(row.values) for row in own}) > 1 for own in found):
        return []
    return [
        own[0]._replace(values=own[0].values.astype(np.float64) - sum(row.values.astype(np.float64) for row in own[1:]))
        for own in found
    ]


def table_of(rows: Sequence[Stored]) -> NDArray[np.float64] | None:
    """Return the values as (seeds, units), with NaN where a seed does not test a unit; None if the units are not known."""
    parts = [(row.units, row.values) for row in rows if row.units is not None]
    if not parts or len(parts) < len(rows):
        return None
    if any(len(ids) == test_rows.MOST for ids, _ in parts):
        parts = [test_rows.by_unit(values, ids % test_rows.MOST) for ids, values in parts]
    every = np.unique(np.concatenate([ids for ids, _ in parts]))
    table = np.full((len(parts), len(every)), np.nan)
    for own, (ids, values) in zip(table, parts, strict=True):
        own[np.searchsorted(every, ids)] = values
    return table
