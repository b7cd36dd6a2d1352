"""The options of each verb, and their help."""

from __future__ import annotations

import argparse
from pathlib import Path

RUN = """\
Run one experiment and keep every number in the run store.

Start from the built-in example (digits, 10 clients, Dirichlet label skew
alpha 0.1, FedAvg) or from a TOML file, and change what you need:

  fedskew run --algorithm scaffold --lr 0.05
  fedskew run my.toml --rounds 50
  fedskew run runs/7/experiment.toml        repeats run 7 to the last bit
"""

COMPARE = """\
Run several methods on the same partitions and seeds, print a table with 95 %
intervals, and write an HTML report.

  fedskew compare
  fedskew compare --algorithms fedavg scaffold feddyn:alpha=0.1 --seeds 10
  fedskew compare --dataset uci-har --skew natural --seeds 3
"""

RESUME = """\
Go on with runs that were interrupted, from their last checkpoints; the result
equals an uninterrupted run bit for bit.

  fedskew resume              the latest run or comparison
  fedskew resume 7            run 7
  fedskew resume c2           what is unfinished of comparison 2
"""

LIST = """\
List what there is. Runs come from the store, the rest is built in:
algorithms, datasets, skews, models, solvers, servers, refines,
augmentations, availabilities, selections, sharings, codecs, engines.
"""

SHOW = """\
Show a run (settings, status, curve, per-client accuracy) or, for several runs
or a comparison, the table of methods.

  fedskew show 7
  fedskew show c2
"""

CHECK = """\
Check what every method promises, on a miniature federation: the same numbers
in every engine and order, exact resume, nothing changed in place, padding
without effect, and that it reduces to what it says it reduces to.

  fedskew check feddyn:alpha=0.3
  fedskew check ./mine.py::Mine
"""

SKEW = """\
Deal a data set to clients that differ, show what came out beside what was asked,
and write it to a folder of plain files for any other program.

  fedskew skew --skew label-dirichlet:alpha=0.1 --skew quantity-lognormal:sigma=0.6
  fedskew skew --clients 20 --skew label-shards:shards=2 --export clients
  fedskew run --skew from-folder:path=clients       trains on what was written

`fedskew list skews` says what there is.
"""

CITE = """\
Print BibTeX of exactly what some runs used: method, server optimiser, solver,
selection, skew, data set, model, and fedskew itself.

  fedskew cite                the latest run or comparison
  fedskew cite c2 > used.bib
"""

DIAGNOSE = """\
Say how clients' data differ - in labels, inputs, sizes, or in what a label
means - with numbers on one scale, intervals, and what chance would give.

  fedskew diagnose visits.csv --label outcome --client hospital
  fedskew diagnose folder-with-one-file-a-client --label outcome
  fedskew diagnose --dataset uci-har --skew natural --html har.html
"""

DATA = """\
List the data sets, fetch their files from the public source (a broken download
goes on where it ended; checksums are checked), check what is here, or say
where it is. Files that you place by hand are found in the folder that
FEDSKEW_DATA names, or in its subfolder named after the data set.

  fedskew data list
  fedskew data get cifar-10
  fedskew data verify
  fedskew data path mnist
"""

RUNS = "runs by number (7), range (3-5), comparison (c2), or latest (default)"


def for_run(parser: argparse.ArgumentParser) -> None:
    experiment(parser)
    parser.add_argument(
        "--algorithm", metavar="A", help="method, e.g. fedprox:mu=0.1 (`fedskew list algorithms`), or ./mine.py::Mine"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="random seed of the training")
    parser.add_argument("--name", help="what to call the run in tables")
    profile(parser)
    store(parser)


def for_compare(parser: argparse.ArgumentParser) -> None:
    experiment(parser)
    parser.add_argument(
        "--algorithms",
        nargs="+",
        metavar="A",
        default=["fedavg", "fedprox:mu=0.1", "scaffold"],
        help="methods; the first is the one the others are compared with (default: fedavg fedprox:mu=0.1 scaffold)",
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", metavar="N", default=[5], help="how many seeds, or which (default: 5)"
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="runs side by side (default: as many as cores)")
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="where to write the report (default: in the run store)"
    )
    profile(parser)
    parser.add_argument(
        "--tuned",
        action="store_true",
        help="first tune every method as `fedskew tune` does, then compare each at its best",
    )
    tuning(parser)
    budget(parser)
    store(parser)


def tuning(parser: argparse.ArgumentParser) -> None:
    search = parser.add_argument_group("tuning")
    search.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="KEY=V,V",
        help="values of SECTION.OPTION, for all methods, or METHOD.OPTION; may be repeated "
        "(default: 0.3, 1 and 3 times the learning rate)",
    )
    search.add_argument(
        "--trials",
        type=int,
        default=0,
        metavar="N",
        help="let Optuna try N settings and prune, instead of the whole grid",
    )
    search.add_argument(
        "--tuning-seeds", type=int, nargs="+", default=[1000, 1001], metavar="N", help="seeds (default: 1000 1001)"
    )
    search.add_argument(
        "--by",
        choices=("clients", "personal"),
        default="clients",
        help="held-out accuracy that counts: of the global model (default), or of the clients' own models",
    )


def budget(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--budget",
        metavar="B",
        help="read every run where equal budgets are spent: rounds, steps (local), u (rate x steps), bytes, seconds; "
        "bytes=5e6 says how much (default: the least that a run spent)",
    )


def for_resume(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs_wanted", nargs="*", metavar="RUN", help=RUNS)
    parser.add_argument("--jobs", type=int, metavar="N", help="runs side by side (default: as many as cores)")
    trust(parser)
    store(parser)


def trust(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trust",
        action="store_true",
        help="run the files of code that these runs name, also if you never ran them before",
    )


def for_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", nargs="?", default="runs", metavar="WHAT", help="runs (default), algorithms, datasets, ..."
    )
    store(parser)


def for_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs_wanted", nargs="*", metavar="RUN", help=RUNS)
    budget(parser)
    store(parser)


def for_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("method", metavar="METHOD", help="a method as in `run --algorithm`, or FILE.py::CLASS")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")


def for_skew(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE.toml", help="an experiment file to start from")
    clients(parser)
    parser.add_argument("--export", type=Path, metavar="FOLDER", help="write the clients' rows and transforms there")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")


def for_cite(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs_wanted", nargs="*", metavar="RUN", help=RUNS)
    store(parser)


def for_diagnose(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="*", type=Path, metavar="PATH", help="CSV, JSON lines, Parquet or Arrow files, or a folder"
    )
    parser.add_argument("--label", metavar="COLUMN", help="the column with the classes")
    parser.add_argument("--client", metavar="COLUMN", help="the column that says whose a row is (default: the files)")
    parser.add_argument("--dataset", metavar="D", help="instead of files, a named data set")
    parser.add_argument(
        "--skew",
        metavar="S",
        action="append",
        help="how its rows are dealt and changed; may be repeated (`fedskew list skews`)",
    )
    parser.add_argument("--clients", type=int, metavar="K", help="number of clients")
    parser.add_argument("--partition-seed", type=int, metavar="N", help="random seed of the partition")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed of sampling and permutations")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")


def for_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["list", "get", "verify", "path"], help="what to do")
    parser.add_argument("names", nargs="*", metavar="NAME", help="data sets (default: all of them)")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")


def profile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--profile", action="store_true", help="tell where the time of the rounds goes")


def store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), metavar="DIR", help="folder of the run store (default: runs)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")


def clients(parser: argparse.ArgumentParser) -> None:
    """Whose data: what there is to deal, and how."""
    data = parser.add_argument_group("data and clients")
    data.add_argument(
        "--dataset",
        metavar="D",
        help="digits, cifar-10, uci-har:form=features, ag-news, ...: see `fedskew list datasets`",
    )
    data.add_argument(
        "--skew",
        metavar="S",
        action="append",
        help="how clients differ, e.g. label-dirichlet:alpha=0.1, iid, natural; give it again for more faces at once",
    )
    data.add_argument("--clients", type=int, metavar="K", help="number of clients (natural skews bring their own)")
    data.add_argument("--partition-seed", type=int, metavar="N", help="random seed of the partition")
    data.add_argument("--held-out", type=float, metavar="F", help="share of each client's rows kept to measure it")
    data.add_argument("--server-data", type=float, metavar="F", help="share of the training rows that the server keeps")


def experiment(parser: argparse.ArgumentParser) -> None:
    """What an experiment is made of; each option overrides the file."""
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE.toml", help="an experiment file to start from")
    clients(parser)
    work = parser.add_argument_group("method and local work")
    work.add_argument(
        "--model",
        metavar="M",
        help="softmax, mlp:hidden=[64,64], cnn, minilm:frozen=4, hf:NAME, module:FILE.py::CLASS (list models)",
    )
    work.add_argument("--solver", metavar="S", help="local solver: sgd, adamw, with options")
    work.add_argument("--lr", type=float, help="the local solver's learning rate")
    work.add_argument("--momentum", type=float, help="the local solver's momentum")
    work.add_argument("--server", metavar="S", help="server optimiser: sgd:lr=1, momentum, adagrad, adam, yogi")
    work.add_argument("--selection", metavar="S", help="who takes part in a round: everyone, uniform:fraction=0.1")
    work.add_argument(
        "--refine", metavar="R", help="what the server then does on its rows: none, distillation:steps=100"
    )
    work.add_argument("--sharing", metavar="P", help="part of the model that is shared: all, personal:head=1, norm")
    work.add_argument("--cohort", type=int, metavar="M", help="clients a round, chosen at random (default: all)")
    work.add_argument(
        "--codec", metavar="C", help="compress updates: none, top-k:share=0.01, qsgd:levels=15, int8, clip"
    )
    work.add_argument("--augment", metavar="A", help="change training images at random: none, crop-flip:padding=4")
    work.add_argument("--epochs", type=int, metavar="E", help="local epochs a round")
    work.add_argument("--steps", type=int, metavar="T", help="local steps a round, instead of epochs")
    work.add_argument("--batch-size", metavar="B", help="rows of a batch, or all")
    real = parser.add_argument_group("clients that are slow, fail, or are away")
    real.add_argument(
        "--system",
        metavar="O=V,...",
        help="stragglers=0.5 (share with fewer epochs), drop_stragglers=true, dropout=0.1 (of the selected), "
        "epochs=1-5, batch_sizes=[8,32] (each client's own)",
    )
    real.add_argument("--availability", metavar="A", help="always, random:p=0.8, day-night:period=24, blocks:rounds=10")
    run = parser.add_argument_group("the run")
    run.add_argument("--rounds", type=int, metavar="R", help="rounds")
    run.add_argument("--engine", metavar="E", help="auto (a short trial decides), sequential, stacked:width=64")
    run.add_argument("--dtype", metavar="T", help="float32 or float64")
    run.add_argument("--device", metavar="D", help="cpu, cuda, cuda:1, or auto: a GPU where there is one")
    run.add_argument("--precision", metavar="P", help="full, or bf16: bfloat16 where PyTorch's autocast uses it")
    run.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.OPTION=VALUE",
        dest="settings",
        help="anything else of the TOML, e.g. --set evaluation.every=1",
    )
