"""Measure whole rounds of fedskew against plain PyTorch loops that do exactly the same work, interleaved.

The models that come out are compared. With --peers, Flower's simulation and pfl-research take part, from the package index
into environments of their own.

  python -m benchmarks.rounds
  python -m benchmarks.rounds --peers --full --json > performance.json
  python -m benchmarks.rounds --only MLP --repeats 9 --output bench.svg
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from benchmarks.rounds.limits import limit, rates
from benchmarks.rounds.page import COLUMNS, distances, draw, rows, verdicts
from benchmarks.rounds.peers import PEERS, started
from benchmarks.rounds.work import FULL, WORKLOADS, Workload, measure
from rich.console import Console
from rich.table import Table

from fedskew.core.errors import FedskewError


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.rounds", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "--repeats", type=int, default=5, metavar="N", help="interleaved rounds of each side (default: 5)"
    )
    made.add_argument(
        "--processes", type=int, metavar="N", help="of the other sides that use several (default: as cores)"
    )
    made.add_argument("--peers", action="store_true", help="also measure Flower's simulation and pfl-research")
    made.add_argument("--full", action="store_true", help="ten times the images: rounds of half a minute")
    made.add_argument("--only", metavar="TEXT", help="works whose name holds this text")
    made.add_argument("--output", type=Path, metavar="FILE", help="also draw a picture: .svg, .png or .pdf")
    made.add_argument("--json", action="store_true", help="print JSON on standard output")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table, and draw it if asked."""
    made = parser()
    parsed = made.parse_args(arguments)
    cores = os.cpu_count() or 1
    processes = parsed.processes or cores
    known = FULL if parsed.full else WORKLOADS
    chosen = [work for work in known if not parsed.only or parsed.only in work.name]
    if parsed.repeats < 1 or not 1 <= processes <= cores:
        made.error(f"--repeats must be at least 1, and --processes from 1 to {cores}, the cores of this machine")
    if not chosen:
        made.error(f"no work's name holds {parsed.only!r}; there are: {'; '.join(work.name for work in known)}")
    works = []
    with Console(stderr=True).status("measuring the machine") as status:
        machine = rates()
        if machine.bf16 < machine.float32:
            slow = f"{machine.bf16 / 1e9:.0f} instead of {machine.float32 / 1e9:.0f} GFLOP/s in a matrix product"
            for work in chosen:
                if work.bf16:
                    print(f"left out: {work.name}: this processor is slower in bf16, {slow}", file=sys.stderr)
            chosen = [work for work in chosen if not work.bf16]
        for work in chosen:
            status.update(f"measuring {work.name}")
            act = beside if parsed.peers else measure
            works.append(act(work, parsed.repeats, processes))
            machine = machine.or_better(rates())
        works = [found | {"limit": limit(work, machine)} for work, found in zip(chosen, works, strict=True)]
    if parsed.output:
        draw(works).savefig(parsed.output)
    if parsed.json:
        about = {"torch": torch.__version__, "cores": cores, "processes": processes, "rates": asdict(machine)}
        print(json.dumps({**about, "works": works}, indent=2))
        return
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


def beside(work: Workload, repeats: int, processes: int) -> dict[str, Any]:
    """Measure the work with the other simulators; one that cannot start is left out with a line on standard error."""
    sides = {}
    with ExitStack() as stack:
        for peer in PEERS if not work.bf16 else ():
            try:
                # pfl shares the clients of a round equally
                count = processes if peer.alone or work.clients % processes == 0 else 1
                name = f"{peer.name}, {count} processes" if count > 1 else peer.name
                sides[name] = stack.enter_context(started(peer, work, count))
            except FedskewError as error:
                print(f"left out: {error}", file=sys.stderr)
        return measure(work, repeats, processes, sides)


if __name__ == "__main__":
    main()
