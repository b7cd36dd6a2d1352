"""``bench``: rounds of fedskew against plain PyTorch loops and other simulators on this machine."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

import torch
from rich.table import Table

from fedskew.cli.output import print_json
from fedskew.cli.terminal import Console
from fedskew.core.errors import FedskewError, require
from fedskew.experiment.bench import FULL, WORKLOADS, Workload, measure, option_for
from fedskew.experiment.limits import limit, rates
from fedskew.experiment.peers import PEERS, started
from fedskew.report.performance import COLUMNS, distances, draw, rows, verdicts


def bench(parsed: argparse.Namespace) -> int:
    """Measure, print the table, and draw it where that is asked."""
    require(parsed.repeats >= 1, f"bench: --repeats must be at least 1, got {parsed.repeats}")
    cores = os.cpu_count() or 1
    processes = cores if parsed.processes is None else parsed.processes
    require(
        1 <= processes <= cores,
        f"bench: --processes must be at least 1 and at most {cores}, the cores here, got {processes}",
    )
    known = FULL if parsed.full else WORKLOADS
    chosen = [work for work in known if not parsed.only or parsed.only in work.name]
    names = "; ".join(work.name for work in known)
    require(bool(chosen), f"bench: no work's name holds {parsed.only!r}; there are: {names}")
    works = []
    with Console(stderr=True).status("measuring the machine") as status:
        machine = rates()
        for work in chosen:
            status.update(f"measuring {work.name}")
            act = beside if parsed.peers else measure
            works.append(act(work, parsed.repeats, processes))
            machine = machine.or_better(rates())
        works = [found | {"limit": limit(work, machine)} for work, found in zip(chosen, works, strict=True)]
    if parsed.output:
        try:
            draw(works).savefig(parsed.output)
        except (OSError, ValueError) as error:
            raise FedskewError(f"bench: {parsed.output} cannot be written: {str(error).splitlines()[0]}") from None
    if parsed.json:
        about = {"torch": torch.__version__, "cores": cores, "processes": processes, "rates": asdict(machine)}
        print_json({**about, "works": works})
        return 0
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("work", "side") else "right", no_wrap=column != "work")
    for row in rows(works):
        table.add_row(*row)
    console = Console(highlight=False)
    console.print(f"torch {torch.__version__}, {cores} cores, medians of {parsed.repeats} interleaved rounds")
    console.print(table)
    for line in (*verdicts(works), *distances(works)):
        console.print(line, markup=False)
    return 0


def beside(work: Workload, repeats: int, processes: int) -> dict[str, Any]:
    """The work with the other simulators among its sides; one that cannot take part is left out with a line on standard error."""
    sides, chosen = {}, option_for(work)
    with ExitStack() as stack:
        for peer in PEERS if not work.bf16 else ():
            try:
                # pfl shares the clients of a round equally
                count = processes if peer.alone or work.clients % processes == 0 else 1
                name = f"{peer.name}, {count} processes" if count > 1 else peer.name
                sides[name] = stack.enter_context(started(peer, work, count))
            except FedskewError as error:
                print(f"left out: {error}", file=sys.stderr)
        return measure(work, repeats, processes, chosen, sides)
