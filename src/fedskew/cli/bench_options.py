"""The options of ``bench``; nothing here imports PyTorch."""

from __future__ import annotations

import argparse
from pathlib import Path

BENCH = """\
Measure whole rounds of fedskew against plain PyTorch loops that do exactly the
same work, in one process and in as many as there are cores, interleaved. The
models that come out are compared, too. With --peers, Flower's simulation and
pfl-research take part, from the package index into environments of their own.

  fedskew bench
  fedskew bench --peers --full --json > performance.json
  fedskew bench --only MLP --repeats 9 --output bench.svg
"""


def for_bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--repeats", type=int, default=5, metavar="N", help="interleaved rounds of each side (default: 5)"
    )
    parser.add_argument("--processes", type=int, metavar="N", help="of the sides that use several (default: as cores)")
    parser.add_argument("--peers", action="store_true", help="also measure Flower's simulation and pfl-research")
    parser.add_argument("--full", action="store_true", help="ten times the images: rounds of half a minute")
    parser.add_argument("--only", metavar="TEXT", help="works whose name holds this text")
    parser.add_argument("--output", type=Path, metavar="FILE", help="also draw a picture: .svg, .png or .pdf")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")
