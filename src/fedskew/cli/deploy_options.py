"""What deployment and export take on the command line. Importing it loads nothing heavy."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedskew.cli.options import store, trust

EXPORT = """\
Write the model of a run's newest checkpoint to a file: its parameters by name
(safetensors), or a program from rows to logits (TorchScript, ONNX).

  fedskew export 7
  fedskew export 7 --format torchscript --output model.pt
  fedskew export 7 --format onnx         needs the extra onnx
"""

FLOWER = """\
The same run between real machines, on Flower (pip install 'fedskew[flower]').

  fedskew flower init FOLDER --recipe my.toml    a Flower app for `flwr run`
  fedskew flower node --client 0 --rows my.npz --superlink HOST:PORT
                                                 one client, on its machine
  fedskew flower check HOST:PORT --root-certificates ca.pem
                                                 whether the SuperLink answers
  fedskew flower demo --nodes 4                  all of it on this machine
"""


def for_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", default="latest", metavar="RUN", help="a run's number, or latest (default)")
    parser.add_argument("--format", choices=("safetensors", "torchscript", "onnx"), default="safetensors")
    parser.add_argument("--output", type=Path, metavar="FILE", help="the file to write (default: in the run's folder)")
    trust(parser)
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), metavar="DIR", help="folder of the run store (default: runs)"
    )


def for_flower(parser: argparse.ArgumentParser) -> None:
    whats = parser.add_subparsers(title="what", metavar="WHAT", required=True, dest="what")
    recipe = "an experiment file, or the name of a method (default: fedavg)"

    init = whats.add_parser("init", help="write a Flower app that runs an experiment")
    init.add_argument("folder", type=Path, metavar="FOLDER", help="where to write it; must not exist, or be empty")
    init.add_argument("--recipe", default="fedavg", metavar="NAME|FILE.toml", help=recipe)
    init.add_argument(
        "--rows", action="store_true", help="also write each simulated client's rows, FOLDER-rows/0.npz ..."
    )
    init.add_argument("--runs", default="runs", metavar="DIR", help="folder of the run store, on the server's machine")

    node = whats.add_parser("node", help="run one client beside a SuperNode")
    node.add_argument("--client", type=int, required=True, metavar="K", help="which client this is, from 0")
    node.add_argument("--rows", type=Path, required=True, metavar="FILE.npz", help="its rows: arrays x and y")
    node.add_argument("--states", type=Path, metavar="DIR", help="where it keeps its state (default: beside the rows)")
    node.add_argument("--superlink", required=True, metavar="HOST:PORT", help="the SuperLink's address")
    node.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="NAME",
        help="a method of another package, or a module PACKAGE.MODULE.CLASS, that a server may name; may be repeated",
    )
    node.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="WHAT=N",
        help="the most that a server may ask for: clients, classes, threads, steps or examples; may be repeated",
    )
    node.add_argument("options", nargs="*", metavar="-- OPTION", help="further options of flower-supernode, after --")

    check = whats.add_parser("check", help="say whether a SuperLink answers, and whether its certificate is right")
    check.add_argument("superlink", metavar="HOST:PORT", help="the SuperLink's address")
    trust = check.add_mutually_exclusive_group()
    trust.add_argument("--root-certificates", type=Path, metavar="FILE", help="the authority's (default: the system's)")
    trust.add_argument("--insecure", action="store_true", help="the SuperLink runs without TLS")

    demo = whats.add_parser("demo", help="a server and its nodes on this machine, and a run on them")
    demo.add_argument("--recipe", default="fedavg", metavar="NAME|FILE.toml", help=recipe)
    demo.add_argument("--nodes", type=int, default=4, metavar="N", help="how many nodes (default: 4)")
    demo.add_argument("--rounds", type=int, default=3, metavar="R", help="rounds (default: 3)")
    store(demo)
