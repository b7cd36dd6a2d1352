"""The verbs of the command line: their options, and the function that carries each out. Importing it loads nothing heavy."""

import argparse
import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

from fedskew.experiment import keywords
from fedskew.experiment.keywords import DEFAULT_METHODS, DiagnoseKeywords, Keyword, declared


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


def repeated(name: str, metavar: str, help: str) -> Option:
    """An option that may be given several times."""
    return option(name, metavar, help, action="append", default=[])


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
BY = option(
    "--by",
    "SPLIT",
    "what compares the methods: the server's model on the test rows (test, default), or each site's model on its rows (sites)",
    choices=("test", "sites"),
    default="test",
    dest="compared_by",
)
COLUMNS = option(
    "--columns",
    "C,...",
    "columns of the table of methods, e.g. accuracy,difference,bytes_to_70 (default: all that are not empty)",
    default="",
)


def of_keyword(keyword: Keyword) -> Option:
    """The option for a keyword of Python. Without it on the command line, its default in Python holds."""
    name = f"--{keyword.name.replace('_', '-')}"
    if keyword.kind is bool:
        return switch(name, keyword.help)
    how = {"type": keyword.kind, "choices": keyword.choices or None, "nargs": "+" if keyword.several else None}
    return option(name, keyword.metavar, keyword.help, action="append" if keyword.repeated else "store", **how)


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
    *STORE,
)
OF_TABLES = (COLUMNS, BY, INTERVAL, BUDGET)


@dataclass(frozen=True)
class Verb:
    """A verb of the command line. ``function`` names a module of `fedskew.cli` and a function in it.

    It prints the result, and returns an exit code if that is not 0.
    """

    name: str
    function: str
    summary: str
    options: Sequence[Option] = ()
    groups: Mapping[str, Sequence[Option]] = field(default_factory=dict)

    def __call__(self, parsed: argparse.Namespace) -> int:
        """Carry out the verb. Return the exit code."""
        module, _, function = self.function.partition(".")
        # most modules import PyTorch, which takes longer than printing a help text
        carry_out = getattr(import_module(f"fedskew.cli.{module}"), function)
        if not gc.isenabled():  # see `fedskew.cli.main.entry`
            gc.enable()
            gc.freeze()
        return carry_out(parsed) or 0


TUNED = option("--algorithms", "A", "methods (default: fedavg)", nargs="+")
GROUPS_OF_COMPARE = {**EXPERIMENT, "tuning": TUNING}

WATCH = (
    option("--every", "S", "seconds between updates (default: 1)", type=float, default=1.0),
    repeated(
        "--to",
        "SINK",
        "also send every round to tensorboard:folder=F, mlflow:uri=U,experiment=E or wandb:project=P,mode=offline "
        "until all runs have ended; may be repeated",
    ),
)

DIAGNOSE = (
    option("paths", "PATH", "CSV, JSON lines, Parquet or Arrow files, or a folder", nargs="*", type=Path),
    *of_keywords(DiagnoseKeywords),
    option("--html", "FILE", "also write an HTML page", type=Path),
    switch("--list", "only list the numbers that leave a client"),
)

REPORT = (
    option("--output", "FILE", "file to write (default: in the run store)", type=Path),
    switch("--watch", "write the page again every few seconds while runs continue; it reloads itself"),
    option("--figures", "DIR", "also write every figure as PDF, SVG and PNG", type=Path),
    option("--tables", "DIR", "also write the tables as CSV, LaTeX and Markdown", type=Path),
)

MORE_ROUNDS = option("--rounds", "R", "let finished runs go on, up to R rounds", type=int)
ONE_RUN = option("run", "RUN", "number of a run, or latest (default)", nargs="?", default="latest")
LANDSCAPE = (
    ONE_RUN,
    *of_keywords(keywords.LandscapeKeywords),
    option("--output", "FILE", "picture to write: .svg, .png or .pdf (default: in the run store)", type=Path),
)

REPRODUCE = (
    option("document", "DOCUMENT", "a document of this list"),
    option("--scale", "S", "quick (minutes, default), standard (hours), full (as published)", default="quick"),
    option("--only", "TABLE", "one table or figure, e.g. table-4, with its claims"),
    JOBS,
    option("--output", "FILE", "page to write, .html or .md (default: HTML in the run store)", type=Path),
    option("--export", "FILE", "read finished runs from this JSON file if it exists, and write all back", type=Path),
    switch("--as-stored", "start no runs: judge the stored ones"),
)

ANSWERS = (
    option(
        "run", "RUN", "number or tag of a run (default: latest, or a study's final model)", nargs="?", default="latest"
    ),
    option("rows", "FILE", "new rows: CSV, Parquet, Arrow or JSON lines; npy or npz for images", type=Path),
    option("--client", "NAME", "use this client's personal model"),
)
PREDICT = (
    *ANSWERS,
    option("--output", "FILE", "table to write, .csv or .parquet (default: CSV on standard output)", type=Path),
    switch("--calibrated", "recalibrate the probabilities of classes on held-out rows"),
)

STUDY = (
    option("path", "FILE", "CSV, JSON lines, Parquet or Arrow file or folder, or FILE.toml", nargs="?", type=Path),
    *of_keywords(keywords.StudyOptions),
    JOBS,
    option("--report", "FILE", "page to write (default: in the run store)", type=Path),
    *STORE,
)

RUN_WORDS = "number (7), range (3-5), or comparison (c2)"
EXPORT = (
    ONE_RUN,
    option(
        "--format",
        "FORMAT",
        "folder, safetensors, torchscript, onnx (default: by the ending of --output, or folder)",
        choices=get_args(keywords.Format),
    ),
    option("--output", "PATH", "folder or file to write (default: in the run's folder)", type=Path),
    option("--client", "NAME", "export this client's personal model; all: a folder for each client"),
)

RECIPE = option("--recipe", "NAME|FILE.toml", "method, or experiment file (default: fedavg)", default="fedavg")
INIT = (
    option("folder", "FOLDER", "folder to write; it must be empty or absent", type=Path),
    RECIPE,
    switch("--rows", "also write each simulated client's rows to FOLDER-rows/0.npz, ..."),
    option("--runs", "DIR", "folder of the run store on the server's machine (default: runs)", default="runs"),
)
NODE = (
    option("--client", "K", "number of this client, from 0", type=int, required=True),
    option("--name", "NAME", "name of the site on the server's pages (default: site K)", default=""),
    option(
        "--table", "FILE,label=COLUMN", "its rows: a CSV or Parquet file, and its target as --dataset table: takes it"
    ),
    option("--rows", "FILE.npz", "its rows as arrays x and y, instead of --table", type=Path),
    switch("--share-summary", "send the server counts, means, sums and words of the columns or texts, if it asks"),
    switch("--share-diagnosis", "answer a diagnosis; `fedskew diagnose --list` shows all numbers that leave"),
    option("--fewest", "K", "fewest rows of a word or count that leaves (default: 5)", type=int, default=5),
    option("--states", "DIR", "folder of its state (default: next to the rows)", type=Path),
    option("--superlink", "HOST:PORT", "address of the SuperLink", required=True),
    option("--status", "PORT", "serve /health and /metrics on this port of 127.0.0.1", type=int, default=0),
    switch("--json-log", "write each answer as a line of JSON on standard error"),
    repeated(
        "--allow",
        "NAME",
        "component of another package, by name or as MODULE::CLASS, that a server may name; may be repeated",
    ),
    repeated(
        "--limit",
        "WHAT=N",
        "largest number of clients, classes, threads, steps, examples, bytes or diagnoses that a server may request; may "
        "be repeated",
    ),
    option("options", "-- OPTION", "more options of flower-supernode, after --", nargs="*"),
)
CONNECTION = (
    option("superlink", "HOST:PORT", "address of the SuperLink"),
    option("--root-certificates", "FILE", "the authority's certificate (default: the system's)", type=Path),
    switch("--insecure", "connect without TLS"),
)
DIAGNOSED = (
    option("connection", "SUPERLINK", "its name in Flower's configuration (default: Flower's)", nargs="?", default=""),
    option("--clients", "K", "number of sites, each with its node", type=int, required=True),
    option("--wait", "SECONDS", "time for all nodes to connect (default: 300)", type=float, default=300.0),
    option("--html", "FILE", "also write an HTML page", type=Path),
)
DEMO = (
    RECIPE,
    option("--nodes", "N", "number of nodes (default: 4)", type=int, default=4),
    option("--rounds", "R", "number of rounds (default: 3)", type=int, default=3),
)

RESUMED = option("runs_wanted", "RUN", f"{RUN_WORDS} (default: the newest that was interrupted)", nargs="*")
ONE_RUN = option("run", "RUN", RUN_WORDS)
TAGS = option("tags", "TAG", "word by which `show`, `report` and others find the runs", nargs="+")
UNTAG = switch("--remove", "remove the tags instead")
NEW_NAME = option("name", "NAME", "name in tables and titles")
YES = switch("--yes", "remove without asking")
TOML = switch("--toml", "print the experiments only")
KIND = option("what", "WHAT", "runs (default), algorithms, datasets, ...", nargs="?", default="runs")
CHECKED = option("component", "COMPONENT", "FILE.py::CLASS, a name of any kind, or FILE.py to list its classes")
DEALT = option("--export", "FOLDER", "folder for the clients' rows and transforms", type=Path)
DATA = (
    option("action", "ACTION", "list, get, verify or path", choices=("list", "get", "verify", "path")),
    option("names", "NAME", "data sets (default: all)", nargs="*"),
)

EVIDENCE = (
    option(
        "action",
        "ACTION",
        "show (default), run the protocol, check the advice, add a comparison, or write a page",
        choices=("show", "run", "check", "add", "page"),
        nargs="?",
        default="show",
    ),
    option("words", "COMPARISON", "for add: finished comparisons (c7)", nargs="*"),
    repeated("--case", "TITLE", "for run: a case, such as 'tcga-brca, natural' (default: all)"),
    option("--algorithms", "A", "for run: methods of the protocol (default: all)", nargs="+"),
    option("--seeds", "N", "for run: only the first N seeds (default: all)", type=int),
    option("--output", "FILE", "for run and page: the file to write", type=Path),
    TRUST,
    *STORE,
)

VERBS = (
    Verb("study", "train.study", "go from rows to a decision: what differs, costs and helps", STUDY, EXPERIMENT),
    Verb("run", "train.run", "run one experiment", (FILE, *ONE_METHOD, *STORE), EXPERIMENT),
    Verb("compare", "train.compare", "run several methods on equal terms", (FILE, *SEVERAL_METHODS), GROUPS_OF_COMPARE),
    Verb("tune", "train.tune", "find the best settings of each method", (FILE, TUNED, JOBS, *STORE), GROUPS_OF_COMPARE),
    Verb("watch", "watch.watch", "follow runs in another terminal", (RUNS, *WATCH, *STORE)),
    Verb("diagnose", "diagnose.diagnose", "measure how clients' data differ", (*DIAGNOSE, *STORE)),
    Verb("resume", "train.resume", "continue interrupted runs", (RESUMED, MORE_ROUNDS, JOBS, TRUST, *STORE)),
    Verb("list", "show.list_", "list runs, algorithms, data sets, skews, ...", (KIND, *STORE)),
    Verb("tag", "show.tag", "tag runs", (ONE_RUN, TAGS, UNTAG, STORE[0])),
    Verb("rename", "show.rename", "name a run or a comparison", (ONE_RUN, NEW_NAME, STORE[0])),
    Verb("rm", "show.rm", "remove runs", (RUNS, YES, STORE[0])),
    Verb("show", "show.show", "print one run or a comparison", (RUNS, TOML, *OF_TABLES, *STORE)),
    Verb("report", "show.report", "write an HTML report of runs", (RUNS, *REPORT, *OF_TABLES, *STORE)),
    Verb("landscape", "models.landscape", "draw the loss around a run's model", (*LANDSCAPE, TRUST, *STORE)),
    Verb("check", "components.check", "check that a component keeps its promises", (CHECKED, JSON)),
    Verb("skew", "data.skew", "split a data set among clients", (FILE, DEALT, JSON), {"data and clients": CLIENTS}),
    Verb("cite", "show.cite", "print BibTeX of what runs used", (RUNS, *STORE)),
    Verb("data", "data.data", "list, download, verify and locate data sets", (*DATA, JSON)),
    Verb("evidence", "evidence.evidence", "show what methods gained over FedAvg, and add cases", EVIDENCE),
    Verb("reproduce", "reproduce.reproduce", "repeat the experiments of a document", (*REPRODUCE, *STORE)),
    Verb("predict", "models.predict", "predict the rows of a file with a run's model", (*PREDICT, TRUST, *STORE)),
    Verb("confusion", "models.columns", "count the answers to rows of each class", (*ANSWERS, TRUST, *STORE)),
    Verb("importance", "models.columns", "say which columns a model needs", (*ANSWERS, TRUST, *STORE)),
    Verb("monitor", "models.columns", "compare new rows with training rows", (*ANSWERS, TRUST, *STORE)),
    Verb("export", "models.export", "write a run's model for other programs", (*EXPORT, TRUST, STORE[0])),
    Verb("flower init", "deploy.init", "write a Flower app that runs an experiment", INIT),
    Verb("flower node", "deploy.node", "run one client next to a SuperNode", NODE),
    Verb("flower diagnose", "deploy.diagnose", "measure how the rows of nodes differ", (*DIAGNOSED, *STORE)),
    Verb("flower check", "deploy.check", "test the connection to a SuperLink and its certificate", CONNECTION),
    Verb("flower demo", "deploy.demo", "run a server and its nodes on this machine", (*DEMO, *STORE)),
)
GROUPS = {"flower": "run on real machines with Flower"}
"""Summaries of verbs that only hold other verbs."""
