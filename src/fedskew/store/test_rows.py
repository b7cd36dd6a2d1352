"""What each test row adds to the primary metric of a run's last model, in the run store."""

import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedskew.store.runs import RunStore

MOST = 10_000
"""Most values of a run. More rows are stored as means of `MOST` groups, row i in group i modulo `MOST`."""

Values = NDArray[np.float32]


def write(store: RunStore, run: int, round_: int, values: NDArray[np.floating]) -> None:
    """Store the values (rows,) of the model after this round. Their mean is the metric of the model."""
    if len(values) > MOST:
        group = np.arange(len(values)) % MOST
        values = np.bincount(group, values) / np.bincount(group)
    data = zlib.compress(values.astype("<f4").tobytes())
    with store.transaction():
        store.check_lease(run)
        store.db.execute("INSERT OR REPLACE INTO test_rows VALUES (?, ?, ?)", (run, round_, data))


def read(store: RunStore, runs: Sequence[int]) -> dict[int, tuple[int, Values]]:
    """By run: the round and the values (rows,). Runs without stored values are left out, as are all of an older store."""
    if not store.query("SELECT 1 FROM sqlite_master WHERE name='test_rows'"):
        return {}
    marks = ",".join("?" * len(runs))
    found = store.query(f"SELECT run, round, compressed FROM test_rows WHERE run IN ({marks})", list(runs))
    with store.reading():
        return {run: (at, np.frombuffer(zlib.decompress(data), "<f4")) for run, at, data in found}
