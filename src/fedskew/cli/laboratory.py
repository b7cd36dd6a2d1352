"""The options of the verbs that look at experiments while they run or before they count, and their help."""

from __future__ import annotations

import argparse

from fedskew.cli import options

TUNE = """\
Find the settings at which methods do best on rows held out from training
clients, never on test rows, so that comparisons are fair. Every setting tried
is a run in the store: the same command goes on after an interruption, and
`fedskew compare --tuned` with the same options uses what is there.

  fedskew tune --algorithms fedavg fedprox --grid solver.lr=0.03,0.1,0.3 \\
          --grid fedprox.mu=0.01,0.1,1
  fedskew tune --algorithms scaffold --grid solver.lr=0.01,1 --trials 20
"""

WATCH = """\
Follow runs that are going on in another terminal: rounds, accuracy, drift,
pace, warnings. On a terminal the table is redrawn until all runs have ended;
into a pipe it is printed once.

  fedskew watch               the latest run or comparison
  fedskew watch c2 --runs there
"""


def for_tune(parser: argparse.ArgumentParser) -> None:
    options.experiment(parser)
    parser.add_argument("--algorithms", nargs="+", metavar="A", default=["fedavg"], help="methods (default: fedavg)")
    parser.add_argument("--jobs", type=int, metavar="N", help="runs side by side (default: as many as cores)")
    options.tuning(parser)
    options.store(parser)


def for_watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs_wanted", nargs="*", metavar="RUN", help=options.RUNS)
    parser.add_argument("--every", type=float, default=1.0, metavar="S", help="seconds between looks (default: 1)")
    options.store(parser)
