"""The options of the command line, each described once. An experiment's options are the keywords of Python."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedskew.experiment import keywords
from fedskew.experiment.keywords import DEFAULT_METHODS, Keyword


@dataclass(frozen=True)
class Option:
    """An option, or a positional argument where ``name`` has no dashes.

    ``how`` is passed on to `argparse`.
    """

    name: str
    help: str
    how: dict[str, Any]


def option(name: str, metavar: str, help: str, **how: Any) -> Option:
    """An option with a value."""
    return Option(name, help, {"metavar": metavar, **how})


def switch(name: str, help: str) -> Option:
    """An option without a value."""
    return Option(name, help, {"action": "store_true"})


def repeated(name: str, metavar: str, help: str, **how: Any) -> Option:
    """An option that may be given several times."""
    return option(name, metavar, help, action="append", **how)


JSON = switch("--json", "print JSON")
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


INTERVAL = option(
    "--interval",
    "I",
    "what follows the mean over seeds: ci95 (95 %% interval, default), std (standard deviation) or sem (standard error)",
    choices=("ci95", "std", "sem"),
    default="ci95",
)
COLUMNS = option(
    "--columns",
    "C,...",
    "columns of the table of methods, e.g. accuracy,worst_client,difference (default: all that are not empty)",
    default="",
)


def of_keyword(keyword: Keyword) -> Option:
    """The option of a setting that Python has as a keyword."""
    how: dict[str, Any] = {"action": "append"} if keyword.repeated else {}
    if keyword.kind is not str:
        how["type"] = keyword.kind
    return option(f"--{keyword.name.replace('_', '-')}", keyword.metavar, keyword.help, **how)


CLIENTS, METHOD, FAILURES = (
    tuple(map(of_keyword, group)) for group in (keywords.DATA, keywords.METHOD, keywords.FAILURES)
)

COMPUTE = (
    *map(of_keyword, keywords.COMPUTE),
    repeated(
        "--set", "KEY=VALUE", "any other setting as SECTION.OPTION=VALUE, e.g. --set evaluation.every=1", default=[]
    ),
)

EXPERIMENT = {
    "data and clients": CLIENTS,
    "method and local work": METHOD,
    "clients that are slow, fail or are unavailable": FAILURES,
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
    option(
        "--trials",
        "N",
        "try N settings chosen by Optuna instead of the whole grid; bad trials end early",
        type=int,
        default=0,
    ),
    option("--tuning-seeds", "N", "seeds (default: 1000 1001)", type=int, nargs="+", default=[1000, 1001]),
    option(
        "--by",
        "MODEL",
        "whose held-out rows count: clients (the global model on them, default) or personal (their own models)",
        choices=("clients", "personal"),
        default="clients",
    ),
)

ONE_METHOD = (*map(of_keyword, keywords.ONE_RUN), PROFILE)

SEVERAL_METHODS = (
    option(
        "--algorithms",
        "A",
        f"methods; the others are compared with the first (default: {' '.join(DEFAULT_METHODS)})",
        nargs="+",
        default=DEFAULT_METHODS,
    ),
    option("--seeds", "N", "number of seeds, or a list of seeds (default: 5)", type=int, nargs="+"),
    option(
        "--folds",
        "K",
        "cross-validation: each seed tests one of K folds of the rows (K:clients: of whole clients); --seeds is then the number of "
        "repetitions (default: 1)",
        default="",
    ),
    JOBS,
    option("--report", "FILE", "report file to write (default: in the run store)", type=Path),
    PROFILE,
    switch("--no-baselines", "do not add fedavg-ft and local-only beside methods with a model for each client"),
    switch("--tuned", "tune every method first as `fedskew tune` does, then compare the best settings"),
    BUDGET,
    COLUMNS,
    INTERVAL,
)
