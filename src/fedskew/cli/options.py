"""The options of the command line, each described once: its help, and the setting of an experiment that it overrides."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Option:
    """An option, or a positional argument where ``name`` has no dashes.

    ``sets`` is the component ("solver") or the setting ("solver.lr") of the experiment that its value replaces.
    ``how`` is passed on to `argparse`.
    """

    name: str
    help: str
    sets: str
    how: dict[str, Any]

    @property
    def attribute(self) -> str:
        """The name of its value among the parsed arguments."""
        return self.name.lstrip("-").replace("-", "_")


def option(name: str, metavar: str, help: str, sets: str = "", **how: Any) -> Option:
    """An option with a value."""
    return Option(name, help, sets, {"metavar": metavar, **how})


def switch(name: str, help: str) -> Option:
    """An option without a value."""
    return Option(name, help, "", {"action": "store_true"})


def repeated(name: str, metavar: str, help: str, sets: str = "", **how: Any) -> Option:
    """An option that may be given several times."""
    return option(name, metavar, help, sets, action="append", **how)


JSON = switch("--json", "print JSON on standard output")
STORE = (option("--runs", "DIR", "folder of the run store (default: runs)", type=Path, default=Path("runs")), JSON)
RUNS = option("runs_wanted", "RUN", "number (7), range (3-5), comparison (c2), or latest (default)", nargs="*")
FILE = option("file", "FILE.toml", "experiment file to start from", nargs="?", type=Path)
JOBS = option("--jobs", "N", "runs side by side (default: one for each core)", type=int)
PROFILE = switch("--profile", "print how much time each part of the rounds takes")
TRUST = switch("--trust", "run the code files that these runs name, even if you never ran them before")
BUDGET = option(
    "--budget",
    "B",
    "compare runs at equal budgets: rounds, steps (local), u (learning rate x steps), bytes or seconds; "
    "bytes=5e6 gives the amount (default: the smallest total of any run)",
)

CLIENTS = (
    option("--dataset", "D", "digits, cifar-10, uci-har:form=features, ... (`fedskew list datasets`)", "dataset"),
    repeated(
        "--skew", "S", "how clients differ: label-dirichlet:alpha=0.1, iid, natural, ...; repeat to combine", "skew"
    ),
    option("--clients", "K", "number of clients (natural skews bring their own)", "clients.number", type=int),
    option("--partition-seed", "N", "random seed of the partition", "clients.partition_seed", type=int),
    option("--held-out", "F", "share of each client's rows held out to measure on", "clients.held_out", type=float),
    option("--server-data", "F", "share of the training rows kept by the server", "server_data.share", type=float),
)

METHOD = (
    option("--model", "M", "softmax, mlp:hidden=[64,64], cnn, hf:NAME, ... (`fedskew list models`)", "model"),
    option("--solver", "S", "local solver: sgd or adamw, with options", "solver"),
    option("--lr", "F", "learning rate of the local solver", "solver.lr", type=float),
    option("--momentum", "F", "momentum of the local solver", "solver.momentum", type=float),
    option("--server", "S", "server optimiser: sgd:lr=1, momentum, adagrad, adam, yogi", "server"),
    option("--selection", "S", "which clients take part in a round: everyone, uniform:fraction=0.1", "selection"),
    option("--refine", "R", "training on the server's rows after each round: none, distillation:steps=100", "refine"),
    option("--sharing", "P", "shared part of the model: all, personal:head=1, norm", "sharing"),
    option("--cohort", "M", "number of clients a round, chosen at random (default: all)", type=int),
    option("--codec", "C", "compression of updates: none, top-k:share=0.01, qsgd:levels=15, int8, clip", "codec"),
    option("--augment", "A", "random changes of training images: none, crop-flip:padding=4", "augment"),
    option("--epochs", "E", "local epochs a round", "local.epochs", type=int),
    option("--steps", "T", "local steps a round, instead of epochs", "local.steps", type=int),
    option("--batch-size", "B", "rows a batch, or all", "local.batch_size"),
)

FAILURES = (
    option(
        "--system",
        "O=V,...",
        "stragglers=0.5 (share with fewer epochs), drop_stragglers=true, dropout=0.1 (share of the selected), "
        "epochs=1-5 or batch_sizes=[8,32] (each client has its own)",
    ),
    option("--availability", "A", "always, random:p=0.8, day-night:period=24, blocks:rounds=10", "availability"),
)

COMPUTE = (
    option("--rounds", "R", "number of rounds", "training.rounds", type=int),
    option("--engine", "E", "auto (a short trial decides), sequential, stacked:width=64", "engine"),
    option("--dtype", "T", "float32 or float64", "training.dtype"),
    option("--device", "D", "cpu, cuda, cuda:1, or auto (a GPU if there is one)", "training.device"),
    option("--precision", "P", "full, or bf16 (PyTorch's autocast to bfloat16)", "training.precision"),
    repeated(
        "--set", "KEY=VALUE", "any other setting as SECTION.OPTION=VALUE, e.g. --set evaluation.every=1", default=[]
    ),
)

EXPERIMENT = {
    "data and clients": CLIENTS,
    "method and local work": METHOD,
    "clients that are slow, fail or are away": FAILURES,
    "rounds and computation": COMPUTE,
}
"""Options that override an experiment file, by the title of their group."""

TUNING = (
    repeated(
        "--grid",
        "KEY=V,V",
        "values of SECTION.OPTION for all methods, or of METHOD.OPTION; may be repeated "
        "(default: 0.3, 1 and 3 times the learning rate)",
        default=[],
    ),
    option("--trials", "N", "try N settings chosen by Optuna, with pruning, not the whole grid", type=int, default=0),
    option("--tuning-seeds", "N", "seeds (default: 1000 1001)", type=int, nargs="+", default=[1000, 1001]),
    option(
        "--by",
        "MODEL",
        "whose held-out accuracy counts: clients (the global model on them, default) or personal (their own models)",
        choices=("clients", "personal"),
        default="clients",
    ),
)

ONE_METHOD = (
    option("--algorithm", "A", "method: fedprox:mu=0.1, ./mine.py::Mine, ... (`fedskew list algorithms`)"),
    option("--seed", "N", "random seed of the training", "training.seed", type=int),
    option("--name", "NAME", "name of the run in tables"),
    PROFILE,
)

DEFAULT_METHODS = ["fedavg", "fedprox:mu=0.1", "scaffold"]
SEVERAL_METHODS = (
    option(
        "--algorithms",
        "A",
        f"methods; the others are compared with the first (default: {' '.join(DEFAULT_METHODS)})",
        nargs="+",
        default=DEFAULT_METHODS,
    ),
    option("--seeds", "N", "number of seeds, or a list of seeds (default: 5)", type=int, nargs="+", default=[5]),
    JOBS,
    option("--report", "FILE", "report file to write (default: in the run store)", type=Path),
    PROFILE,
    switch("--tuned", "tune every method first as `fedskew tune` does, then compare the best settings"),
    BUDGET,
)

SETTINGS = {one.attribute: one.sets for one in (*CLIENTS, *METHOD, *FAILURES, *COMPUTE, *ONE_METHOD) if one.sets}
"""The component or setting of an experiment that each option replaces."""
