"""The primary metric under a run's last models for each unit of the rows that test them, in the run store.

Split ``test`` has the test rows under the server's model, split ``sites`` the rows at the sites under each site's model
(`fedskew.execution.sites`). A unit is a row, or all rows of a person or client (`Dataset.test_units`).
"""

import zlib
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedskew.core.sites import Ints
from fedskew.store.runs import RunStore

MOST = 10_000
"""Maximum number of values for a run. If there are more units, unit u joins unit u modulo `MOST`."""

Split = Literal["test", "sites"]
TABLES: dict[Split, tuple[str, str]] = {"test": ("test_rows", "test_units"), "sites": ("site_rows", "site_units")}
"""By split: the tables of the values, and of the ids of their units."""


class Stored(NamedTuple):
    """Values of the model after ``round``, one for each unit (units,). Their mean is the model's metric."""

    round: int
    values: NDArray[np.floating]
    # (units,) ids, ascending; None: all runs have the same test rows, or the store is of an older version
    units: Ints | None


def by_unit(values: NDArray[np.floating], units: Ints) -> tuple[Ints, NDArray[np.floating]]:
    """Return the ids of the units, ascending, and one value for each. ``values`` and ``units`` are (rows,).

    The value of a unit with n rows is m + (mean of its rows - m) n / n_mean, with the mean m of all rows. So the mean of the
    units' values is m, and they vary as a mean over clusters of different sizes.
    """
    ids, unit, sizes = np.unique(units, return_inverse=True, return_counts=True)
    mean = values.mean(dtype=np.float64)
    return ids, mean + np.bincount(unit, values - mean) / sizes.mean()


def units_at_sites(names: Sequence[str], units: Ints, sites: int) -> Ints:
    """Return ids of units (rows,) that also say the site of each row. ``names`` has it for each row, ``sites`` is their number.

    A site has the same upper 32 bits in all runs. It has at most its part of `MOST` units.
    """
    code = {name: number_of(name) << 32 for name in set(names)}
    return np.array([code[name] for name in names], dtype=np.int64) + units % max(MOST // sites, 1)


def number_of(site: str) -> int:
    """Return the upper 32 bits of the units of a site."""
    return zlib.crc32(site.encode()) >> 1


def write(
    store: RunStore,
    run: int,
    round_: int,
    values: NDArray[np.floating],
    units: NDArray[np.integer] | None = None,
    split: Split = "test",
) -> None:
    """Store one value for each unit of the rows of the ``split``, of the models after ``round_``.

    ``values`` (rows,) has one for each row; their mean is the model's metric. ``units`` (rows,) are the rows' units; None: each
    row is a unit.
    """
    ids = np.arange(len(values)) if units is None else np.asarray(units, dtype=np.int64)
    if len(np.unique(ids)) > MOST:
        ids = ids % MOST
    ids, values = by_unit(values, ids)
    data = zlib.compress(values.astype("<f4").tobytes())
    of_rows, of_units = TABLES[split]
    with store.transaction():
        store.db.execute(f"INSERT OR REPLACE INTO {of_rows} VALUES (?, ?, ?)", (run, round_, data))
        if units is not None:
            store.db.execute(f"INSERT OR REPLACE INTO {of_units} VALUES (?, ?)", (run, packed(ids)))


def read(store: RunStore, runs: Sequence[int], split: Split = "test") -> dict[int, Stored]:
    """Return the values by run. Runs without stored values are left out."""
    tables = {name for (name,) in store.query("SELECT name FROM sqlite_master WHERE type='table'")}
    of_rows, of_units = TABLES[split]
    if of_rows not in tables:
        return {}
    ids_of_units = f"(SELECT compressed FROM {of_units} AS u WHERE u.run=t.run)" if of_units in tables else "NULL"
    marks = ",".join("?" * len(runs))
    query = f"SELECT run, round, compressed, {ids_of_units} FROM {of_rows} AS t WHERE run IN ({marks})"
    with store.reading():
        return {
            run: Stored(at, np.frombuffer(zlib.decompress(data), "<f4"), None if ids is None else unpacked(ids))
            for run, at, data, ids in store.query(query, list(runs))
        }


def packed(ids: Ints) -> bytes:
    """Compress ascending ids: the lowest byte of each difference, then the next byte of each, and so on.

    Most of the higher bytes are 0, so that an id needs about half a byte.
    """
    steps = np.diff(ids, prepend=0).astype("<i8")
    return zlib.compress(steps.view(np.uint8).reshape(-1, 8).T.tobytes())


def unpacked(data: bytes) -> Ints:
    """Return the ids that `packed` has compressed."""
    planes = np.frombuffer(zlib.decompress(data), np.uint8).reshape(8, -1)
    return np.cumsum(np.ascontiguousarray(planes.T).view("<i8")[:, 0])
