"""The primary metric of each test row under a run's last model, in the run store."""

import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedskew.store.runs import RunStore

MOST = 10_000
"""Maximum number of values for a run. If there are more rows, row i joins group i modulo `MOST`, and group means are stored."""

Values = NDArray[np.float32]


def write(store: RunStore, run: int, round_: int, values: NDArray[np.floating]) -> None:
    """Store one value for each test row, shape (rows,), of the model after ``round_``. Their mean is the model's metric."""
    if len(values) > MOST:
        group = np.arange(len(values)) % MOST
        values = np.bincount(group, values) / np.bincount(group)
    data = zlib.compress(values.astype("<f4").tobytes())
    with store.transaction():
        store.check_lease(run)
        store.db.execute("INSERT OR REPLACE INTO test_rows VALUES (?, ?, ?)", (run, round_, data))


def read(store: RunStore, runs: Sequence[int]) -> dict[int, tuple[int, Values]]:
    """Return, by run, the round and the values of shape (rows,). Runs without stored values are left out."""
    if not store.query("SELECT 1 FROM sqlite_master WHERE name='test_rows'"):
        return {}
    marks = ",".join("?" * len(runs))
    found = store.query(f"SELECT run, round, compressed FROM test_rows WHERE run IN ({marks})", list(runs))
    with store.reading():
        return {run: (at, np.frombuffer(zlib.decompress(data), "<f4")) for run, at, data in found}
