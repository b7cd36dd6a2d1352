"""``bench``: rounds of fedskew against plain PyTorch loops on this machine."""

from __future__ import annotations

import argparse
import os

import torch
from rich.console import Console
from rich.table import Table

from fedskew.cli.output import print_json
from fedskew.core.errors import FedskewError, require
from fedskew.experiment.bench import WORKLOADS, measure
from fedskew.report.performance import COLUMNS, draw, rows, verdicts


def bench(parsed: argparse.Namespace) -> int:
    """Measure, print the table, and draw it where that is asked."""
    require(parsed.repeats >= 1, f"bench: --repeats must be at least 1, got {parsed.repeats}")
    cores = os.cpu_count() or 1
    processes = cores if parsed.processes is None else parsed.processes
    require(processes >= 1, f"bench: --processes must be at least 1, got {processes}")
    chosen = [work for work in WORKLOADS if not parsed.only or parsed.only in work.name]
    names = "; ".join(work.name for work in WORKLOADS)
    require(bool(chosen), f"bench: no work's name holds {parsed.only!r}; there are: {names}")
    works = []
    with Console(stderr=True).status("measuring") as status:
        for work in chosen:
            status.update(f"measuring {work.name}")
            works.append(measure(work, parsed.repeats, processes))
    if parsed.output:
        try:
            draw(works).savefig(parsed.output)
        except (OSError, ValueError) as error:
            raise FedskewError(f"bench: {parsed.output} cannot be written: {str(error).splitlines()[0]}") from None
    if parsed.json:
        print_json({"torch": torch.__version__, "cores": cores, "processes": processes, "works": works})
        return 0
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("work", "side") else "right", no_wrap=True)
    for row in rows(works):
        table.add_row(*row)
    console = Console(highlight=False)
    console.print(f"torch {torch.__version__}, {cores} cores, medians of {parsed.repeats} interleaved rounds")
    console.print(table)
    for line in verdicts(works):
        console.print(line, markup=False)
    return 0
