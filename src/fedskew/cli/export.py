"""``export``: the model of a run, out of the store."""

import argparse

from fedskew.cli.output import warn
from fedskew.cli.request import confirm, require_one
from fedskew.cli.terminal import Console
from fedskew.core.errors import require
from fedskew.store.runs import RunStore


def export(parsed: argparse.Namespace) -> int:
    """Write the model of the newest checkpoint to a folder or a file."""
    from fedskew.serving.export import SUFFIX
    from fedskew.serving.export import export as write
    from fedskew.serving.folder import write_folder
    from fedskew.serving.predict import number_of

    store = RunStore(parsed.runs, read_only=True)
    chosen = store.select([parsed.run])
    require_one("export", chosen)
    confirm(parsed, chosen)
    run, output = chosen[0].id, parsed.output
    of_name = {suffix: form for form, suffix in SUFFIX.items()}
    form = parsed.format or of_name.get(output.suffix if output else "", "folder")
    every = parsed.client == "all"
    clients = sorted({*store.partition(run)["client"]}) if every else [number_of(store, run, parsed.client)]
    require(not every or form == "folder", "export: --client all writes folders; name one client to write a file")
    for client in clients:
        place = output / f"client-{client}" if output and every else output
        if form == "folder":
            path = write_folder(store, run, place, client, warn)
        else:
            path = write(store, run, form, place, warn, client=client)
        Console().print(f"wrote {path}", soft_wrap=True)
    return 0
