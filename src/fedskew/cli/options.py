"""The options of the command line, each described once. An experiment's options are the keywords of Python."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedskew.experiment import keywords
from fedskew.experiment.keywords import DEFAULT_METHODS, Keyword, declared


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
    """The option for a keyword of Python. Without it on the command line, its default in Python holds."""
    name = f"--{keyword.name.replace('_', '-')}"
    if keyword.kind is bool:
        return switch(name, keyword.help)
    how: dict[str, Any] = {}
    if keyword.kind is not str:
        how["type"] = keyword.kind
    if keyword.choices:
        how["choices"] = keyword.choices
    if keyword.repeated:
        how["action"] = "append"
    if keyword.several:
        how["nargs"] = "+"
    return option(name, keyword.metavar, keyword.help, **how)


def of_keywords(options: type) -> tuple[Option, ...]:
    """The options for the keywords that a `TypedDict` declares."""
    return tuple(map(of_keyword, declared(options).values()))


def keywords_of(parsed: argparse.Namespace, options: type) -> dict[str, Any]:
    """Return the keywords that a `TypedDict` declares and that the command line has."""
    values = vars(parsed)
    return {name: values[name] for name in options.__annotations__ if values.get(name) is not None}


CLIENTS, TUNING = of_keywords(keywords.DataSettings), of_keywords(keywords.TuningOptions)

SET = repeated("--set", "KEY=VALUE", "any other setting as SECTION.OPTION=VALUE, e.g. --set evaluation.every=1")

EXPERIMENT = {
    "data and clients": CLIENTS,
    "method and local work": of_keywords(keywords.MethodSettings),
    "clients that are slow, fail or are unavailable": of_keywords(keywords.FailureSettings),
    "rounds and computation": (*of_keywords(keywords.ComputeSettings), SET),
}
"""Options that override an experiment file, by the title of their group."""

ONE_METHOD = (*of_keywords(keywords.RunSettings), PROFILE)

SEVERAL_METHODS = (
    option(
        "--algorithms",
        "A",
        f"methods; the others are compared with the first (default: {' '.join(DEFAULT_METHODS)})",
        nargs="+",
    ),
    *of_keywords(keywords.ComparisonOptions),
    JOBS,
    option("--report", "FILE", "report file to write (default: in the run store)", type=Path),
    PROFILE,
    switch("--no-baselines", "do not add fedavg-ft and local-only beside methods with a model for each client"),
    BUDGET,
    COLUMNS,
    INTERVAL,
)
