"""Confidence intervals over seeds and test rows, from the primary metric of each test row."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedskew.measure.intervals import Estimate, over_seeds_and_rows
from fedskew.store import test_rows
from fedskew.store.runs import RunRecord, RunStore

Seeds = tuple[int, int]
"""A run's partition seed and seed."""
ByRow = Mapping[str, Mapping[Seeds, NDArray[np.floating]]]
"""By method and seeds: one value for each test row, shape (rows,), averaged over runs with the same seeds."""


def by_method(store: RunStore, records: Sequence[RunRecord]) -> ByRow:
    """Read the values of the finished runs. Runs with equal seeds but different numbers of test rows are left out."""
    finished = [record for record in records if record.status == "finished"]
    found = test_rows.read(store, [record.id for record in finished])
    gathered: dict[str, dict[Seeds, list[NDArray[np.floating]]]] = {}
    for record in finished:
        stored = found.get(record.id)
        if stored and stored.round == record.rounds:
            own = gathered.setdefault(record.name, {})
            own.setdefault((record.partition_seed, record.seed), []).append(stored.values)
    return {
        method: {seeds: np.mean(values, axis=0) for seeds, values in own.items() if len({*map(len, values)}) == 1}
        for method, own in gathered.items()
    }


def estimate(
    ours: Mapping[Seeds, NDArray[np.floating]],
    first: Mapping[Seeds, NDArray[np.floating]] | None,
    seeds: Collection[Seeds],
) -> Estimate | None:
    """Estimate the mean over these seeds and the test rows; with ``first``, the difference from that method's mean.

    Returns None for fewer than two seeds, and if a seed has no values or another number of test rows.
    """
    sides = [ours] if first is None else [ours, first]
    values = [side.get(key, np.empty(0)) for side in sides for key in seeds]
    if len(seeds) < 2 or len({len(v) for v in values}) > 1 or len(values[0]) < 2:
        return None
    by_seed = np.stack(values).astype(np.float64).reshape(len(sides), len(seeds), -1)
    return over_seeds_and_rows(by_seed[0] if first is None else by_seed[0] - by_seed[1])
