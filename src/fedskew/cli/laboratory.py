"""The options of the verbs that look into experiments, or repeat a document's, and their help."""

from __future__ import annotations

import argparse
from pathlib import Path

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
  fedskew watch c2 --to tensorboard:folder=logs --to wandb:mode=offline
"""

REPORT = """\
Write one self-contained HTML page about some runs.

  fedskew report              the latest run or comparison
  fedskew report c2 --output c2.html
  fedskew report c2 --figures paper --tables paper
  fedskew report --live       a page on this machine that follows the runs
"""

LANDSCAPE = """\
Draw the loss around the global model of a run, on the test set and on chosen
clients' own rows, from its newest checkpoint.

  fedskew landscape 3             the plane through the global model and what
                                  clients 0 and 1 make of it in the next round
  fedskew landscape 3 --clients 2 7 --output plane.png
  fedskew landscape 3 --kind line --points 51
"""

REPRODUCE = """\
Repeat a document's experiments, print its numbers beside ours, and say of each
of its claims whether it holds, fails, or is undecided. What the run store holds
already is not run again, so the same command goes on after an interruption.

  drift-demo      book section 'Non-IID Data': listing 14.4.1 to the last digit,
                  exercises 14.4.2 and 14.4.3, the ladder of mitigations
  iid-to-noniid   From IID to Non-IID: Figures 2 to 10, 12, 13
  fedpbs          FedPBS: Tables 3 and 4, Figures 3 to 7
  failure-modes   Failure Modes: Tables II to IV, Figures 1 to 7
  dualmetric      DualMetric: Tables 5.1 and 5.2, Figure 5.1
  contradictions  where these contradict one another: eight joint experiments

  fedskew reproduce drift-demo
  fedskew reproduce fedpbs --only table-4
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
    parser.add_argument(
        "--to",
        action="append",
        default=[],
        metavar="SINK",
        help="send every round to tensorboard:folder=F, mlflow:uri=U,experiment=E or wandb:project=P,mode=offline as well, "
        "until all runs have ended; may be repeated",
    )
    options.store(parser)


def for_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs_wanted", nargs="*", metavar="RUN", help=options.RUNS)
    parser.add_argument("--output", type=Path, metavar="FILE", help="the file to write (default: in the run store)")
    parser.add_argument(
        "--live", action="store_true", help="serve the page on 127.0.0.1 and draw it anew as runs go on"
    )
    parser.add_argument(
        "--port", type=int, default=8765, metavar="N", help="of --live, or the next free (default: 8765)"
    )
    parser.add_argument("--figures", type=Path, metavar="DIR", help="also write every figure as PDF, SVG and PNG")
    parser.add_argument("--tables", type=Path, metavar="DIR", help="also write the tables as CSV, LaTeX and Markdown")
    options.budget(parser)
    options.store(parser)


def for_landscape(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs_wanted", nargs="*", metavar="RUN", help="a run by its number (default: the latest)")
    parser.add_argument(
        "--kind",
        choices=("plane", "surface", "line"),
        default="plane",
        help="plane: through three models; surface, line: along random directions with filter normalisation",
    )
    parser.add_argument(
        "--clients", type=int, nargs="+", default=[0, 1], metavar="K", help="whose losses (default: 0 1)"
    )
    parser.add_argument("--points", type=int, default=25, metavar="N", help="points along each axis (default: 25)")
    parser.add_argument(
        "--reach", type=float, default=1.0, metavar="A", help="how far random directions go (default: 1)"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="an .svg, .png or .pdf (default: in the run store)")
    options.trust(parser)
    options.store(parser)


def for_reproduce(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("document", metavar="DOCUMENT", help="one of those above")
    parser.add_argument(
        "--scale",
        default="quick",
        metavar="S",
        help="quick (minutes, default), standard (hours), full (the document's)",
    )
    parser.add_argument("--only", metavar="TABLE", help="one table or figure, e.g. table-4, with the claims about it")
    parser.add_argument("--jobs", type=int, metavar="N", help="runs side by side (default: as many as cores)")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="where to write the page (default: in the run store)"
    )
    parser.add_argument("--export", type=Path, metavar="FILE", help="also write the numbers behind it, as JSON")
    parser.add_argument("--as-stored", action="store_true", help="run nothing: judge what the run store holds")
    options.store(parser)
