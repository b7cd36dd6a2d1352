"""``export``: the model of a run, out of the store."""

import argparse

from fedskew.cli.output import warn
from fedskew.cli.request import confirm
from fedskew.cli.terminal import Console
from fedskew.core.errors import require
from fedskew.store.runs import RunStore


def export(parsed: argparse.Namespace) -> int:
    """Write the newest checkpoint's model to a file."""
    from fedskew.experiment.export import export as write

    store = RunStore(parsed.runs, read_only=True)
    chosen = store.select([parsed.run])
    require(len(chosen) == 1, f"export: {parsed.run} names {len(chosen)} runs; name one")
    confirm(parsed, chosen)
    path = write(store, chosen[0].id, parsed.format, parsed.output, warn)
    Console().print(f"wrote {path}")
    return 0
