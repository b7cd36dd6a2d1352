"""What a run has stored, for tests that two runs give the same."""

from fedskew.store.runs import RunStore


def numbers(store: RunStore, run: int = 1) -> list[tuple]:
    """Return round, client, split, name and value of all measurements of a run, except seconds."""
    columns = "round, client, split, name, value"
    query = f"SELECT {columns} FROM measurements WHERE run = ? AND name != 'seconds' ORDER BY 1, 2, 3, 4"
    return [tuple(row) for row in store.query(query, (run,))]
