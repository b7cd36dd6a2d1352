"""Requests that cannot be carried out, or hold odd words: the command, and what the answer must be."""

import io
import os
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

BIG = 2**63


@dataclass(frozen=True)
class Case:
    """A command line, the files in its folder, and its expected answer: an exit code, and one line that contains ``says``."""

    id: str
    argv: tuple[str, ...]
    says: str
    code: int = 2
    files: Mapping[str, str | bytes | Path] = field(default_factory=dict)  # a path stands for a link to it
    env: Mapping[str, str] = field(default_factory=dict)
    sql: str = ""  # done to the store before


def case(id: str, command: str | list[str], says: str, code: int = 2, **options: Any) -> Case:
    """Return a case. If ``command`` is a string, it is split at spaces."""
    argv = command.split(" ") if isinstance(command, str) else command
    return Case(id, tuple(argv), says, code, **options)


def rows(head: str = "a,b,client,y", number: int = 40) -> str:
    return head + "\n" + "".join(f"{i},{i * 7 % 13},h{i % 4},{'uv'[i % 2]}\n" for i in range(number))


def options() -> Iterator[Case]:
    """Return cases with wrong values of a run's options. Cases of one row have the same answer."""
    for says, *commands in OPTIONS:
        yield from (
            case(f"run {words[:40]}{words[40:][-4:]}", ["run", "--rounds", "1", *words.split(" ")], says)
            for words in commands
        )


OPTIONS = [
    ("seed must be at most 2^63 - 1", f"--seed {BIG}"),
    ("--seed: a whole number is needed, got '1e3'", "--seed 1e3"),
    ("--seed: a whole number is needed, got ''", "--seed "),
    ("--seed: a whole number is needed", f"--seed {'9' * 5000}"),
    ("--rounds: a whole number is needed", "--rounds nan"),
    ("1000000000000 clients cannot share", "--clients 1000000000000"),
    ("lr must be a finite number above 0, got nan", "--lr nan"),
    ("lr must be a finite number above 0, got inf", "--lr inf", "--lr 1e309"),
    ("--lr: a number is needed, got 'fast'", "--lr fast"),
    (
        "of memory, but this machine has",
        "--epochs 1000000000",
        f"--epochs {BIG // 2}",
        "--steps 1000000000",
        "--set evaluation.adapt_steps=1000000000",
        "--system epochs=[1,1000000000]",
        "--model mlp:hidden=[1000000000,1000000000]",
    ),
    (
        "local: epochs must be a whole number of at least 1 or a finite number above 0, got",
        "--epochs 1/4",
        "--epochs 0,5",
        "--set local.epochs=half",
    ),
    ("has one seed and no --seeds; write `fedskew compare", "--seeds 5", "--seeds=5", "--seeds 1 2 3"),
    ("has one seed and no --folds; write `fedskew compare", "--folds 5"),
    ("precision bf16 needs dtype float32", "--precision bf16 --dtype float64"),
    ("has no option '--workers'", "--workers 2"),
    ("device 'cuda:99' is not available here", "--device cuda:99"),
    ("device '\\x1b[31m' is not available here", "--device \x1b[31m"),
    ("--set: cannot read 'x'", "--set x"),
    ("OPTION=VALUE", "--system stragglers"),
    ("--set: cannot read 'training'", "--set training"),
    ("--set: cannot read 'a.b.c=1'", "--set a.b.c=1"),
    ("unknown section 'nosuch'", "--set nosuch.x=1"),
    ("unknown option 'x'", "--set training.x=1"),
    ("rounds must be a whole number", "--set training.rounds=", f"--set training.rounds={'9' * 5000}"),
    ("rounds must be a whole number", "--set training.rounds=1979-05-27", f"--set training.rounds={'[' * 100_000}"),
    (
        "brackets within each other",
        f"--set training.rounds={'[' * 5000}{']' * 5000}",
        f"--algorithm fedprox:mu={'[' * 100_000}",
    ),
    ("unknown section ''", "--set .=1"),
    ("unknown algorithm ''", "--algorithm :"),
    ("cannot read 'mu' in 'fedprox:mu'; write NAME:OPTION=VALUE", "--algorithm fedprox:mu"),
    ("unknown algorithm '[/b]'", "--algorithm [/b]"),
    ("unknown algorithm '\\x1b]0;x\\x07'", "--algorithm \x1b]0;x\x07"),
    ("unknown algorithm '\\u202efed'", "--algorithm \u202efed"),
    ("cannot read", "--algorithm ./nosuch.py::A"),
    ("::CLASS:OPTION=VALUE", "--algorithm ./nosuch.py"),
    ("hidden must be a list of 1 or more, each at least 1", "--model mlp:hidden=[]", "--model mlp:hidden=[0]"),
    ("needs 1,200.0 GB of memory, but this machine has", "--model mlp:hidden=[1000000000]"),
    ("model: cannot be built", f"--model mlp:hidden=[{BIG // 2},{BIG // 2}]"),
    ("hidden must be at most 2^63 - 1", f"--model mlp:hidden=[{BIG}]"),
    ("cannot import", "--model nosuch.module::X"),
    ("cannot read ':X'", "--model /dev/zero::X"),
    ("shards", "--skew label-shards:shards=1000000000"),
    ("natural", "--skew natural"),
    ("heart has natural clients", "--dataset heart --clients 20"),
    ("holds no partition", "--skew from-folder:path=nosuch"),
    ("unknown dataset ''", "--dataset "),
    ("unknown dataset 'nosuch'", "--dataset nosuch"),
    ("needs one of label=COLUMN for classes", "--dataset table:path=x.csv"),
    ("unknown dataset '/dev/zero'", "--dataset /dev/zero"),
    ("cannot read this kind of file", "--dataset table:path=/dev/zero,label=y"),
    ("has no option '--nosuch'", "--nosuch"),
    ("has no option '--\\x1b[31m'", "--\x1b[31m"),
    ("does not know what 'b.toml' is for", "a.toml b.toml"),
    ("experiment file .: cannot be read: Is a directory", "."),
]
"""The answer, and the options that get it."""


def dumped(value: object) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, x=np.array([value], dtype=object), y=np.zeros(1, dtype=np.int64))
    return stream.getvalue()


class Trap:
    """An object that NumPy would execute if it read pickles."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("trapped",)


FOLDER = '{"fingerprint": "1e538e21be2698d8", "clients": ["a"], "empty": 0, "unassigned": 0}'
"""A sound `partition.json` of digits."""
PICKLED = {"f/partition.json": FOLDER, "f/partition.npz": pickle.dumps(Trap())}
NODE = "flower node --client 0 --rows x.npz --superlink a:1"
TABLE = "run --dataset table:path=x.csv"
COLUMNS_DIFFER = {"d/a.csv": rows(), "d/b.csv": rows("a,c,client,y")}


NEAR_MISSES = [
    ("did you mean 'fedadam'", "run --algorithm fedadm"),
    ("bucket must be a whole number of at least 1 or all, got 'every'", "run --codec qsgd:bucket=every"),
    ("draws 11 clients, but only 10 have data", "run --cohort 11"),
    ("unknown section 'traning'", "run --set traning.rounds=3"),
    ("No such file or directory; to name a method, write --algorithm fedprox:mu=0.1", "run fedprox:mu=0.1"),
    ("to name a method, write --algorithms scaffold", "compare scaffold"),
    ("write its names one by one: fedavg fedprox", "compare --algorithms fedavg,fedprox"),
    ("a file of rows is named by --dataset table:path=x.csv,label=", "run x.csv", {"x.csv": "a,label\n1,2\n"}),
    ("unknown option 'x'; known are: test_fraction", "run --dataset digits:x=1"),
    ("warm_up 3 needs rows", "run e.toml --server-data 0", {"e.toml": "[server_data]\nshare = 0.1\nwarm_up = 3\n"}),
    (
        "did you mean 'label'? If it has another name, ",
        "run --dataset table:path=x.csv,label=lable",
        {"x.csv": "a,label\n1,2\n"},
    ),
    ("budget: these runs have only 30 of 1e+09 rounds; write rounds=30 or less", "compare --budget rounds=1e9"),
    ("jobs must be at least 1, got -2", "tune --jobs -2"),
    ("compare: grid has no effect without tuned", "compare --grid solver.lr=1,2"),
    ("did you mean 'algorithms'", "list algoritms"),
    ("did you mean 'drift-demo'", "reproduce drift"),
    ("no scale 'huge'; known are: quick, standard", "reproduce fedpbs --scale huge"),
    ("did you mean 'table-4'", "reproduce fedpbs --only tabel-4"),
    ("did you mean 'bytes'", "compare --budget byts"),
    ("table:path=visits.csv,label=COLUMN,client=COLUMN", "run --dataset visits.csv", {"visits.csv": "a,label\n1,2\n"}),
]
"""The answer, the command, and its files."""


def verbs() -> Iterator[Case]:
    """Return all other cases: neither options of a run nor files of the user."""
    for id, command, says, *files in VERBS:
        yield case(id, command, says, files=files[0] if files else {})
    for says, command, *files in NEAR_MISSES:
        yield case(command, command, says, files=files[0] if files else {})
    for id, command, says in FAILING:
        yield case(id, command, says, code=1)


VERBS: list[Any] = [
    ("verb-unknown", "nosuch", "cannot be 'nosuch'"),
    ("verb-escape", "\x1b[31m", "cannot be"),
    ("verb-empty", [""], "cannot be ''"),
    ("list-unknown", "list nosuch", "unknown kind 'nosuch'"),
    ("list-markup", "list [/b]", "unknown kind '[/b]'"),
    ("show-99", "show 99", "there is no run 99"),
    ("show-escape", "show \x1b[2J", "'\\x1b[2J' is not a run"),
    ("budget-word", "show 1 --budget x", "budget"),
    ("watch-nan", "watch --every nan", "--every must be above 0"),
    ("watch-sink", "watch --to nosuch", "unknown sink 'nosuch'"),
    ("watch-password", "watch --to mlflow:uri=http://a:b@c", "uri holds a name or password"),
    ("resume-99", "resume 99", "there is no run 99"),
    ("export-99", "export 99", "there is no run 99"),
    ("export-format", "export 1 --format pickle", "--format cannot be 'pickle'"),
    ("cite-99", "cite 99", "there is no run 99"),
    ("landscape-99", "landscape 99", "there is no run 99"),
    ("landscape-client", "landscape 1 --clients 0 99", "client"),
    ("landscape-negative", "landscape 1 --clients -1 0", "client"),
    ("check-unknown", "check nosuch", "no component 'nosuch'"),
    ("check-empty", ["check", ""], "no component ''"),
    ("check-recursion", "check ./m.py::A", "m.py, line 1: RecursionError", {"m.py": "def f(): f()\nf()"}),
    ("check-nested", "check ./m.py::A", "SyntaxError: too many nested parentheses", {"m.py": "(" * 5000}),
    ("check-zeros", "check ./m.py::A", "null bytes", {"m.py": b"\0" * 10}),
    ("check-latin1", "check ./m.py::A", "SyntaxError", {"m.py": "é = 1".encode("latin-1")}),
    ("check-large", "check ./m.py::A", "it is larger than 1 MiB", {"m.py": "#" * (1 << 21)}),
    ("check-device", "check ./m.py::A", "it is larger than 1 MiB", {"m.py": Path("/dev/zero")}),
    ("check-no-method", "check ./m.py::A", "is no component", {"m.py": "class A: pass"}),
    ("check-escape", "check ./m.py::A", "ValueError: \\x1b[31m[/b]", {"m.py": "raise ValueError('\\x1b[31m[/b]')"}),
    ("reproduce-unknown", "reproduce nosuch", "unknown document 'nosuch'"),
    ("reproduce-scale", "reproduce drift-demo --scale nosuch", "nosuch"),
    ("reproduce-only", "reproduce drift-demo --only nosuch --as-stored", "has no table 'nosuch'"),
    ("data-unknown", "data get nosuch", "unknown data set 'nosuch'"),
    ("data-which", "data get", "name a data set"),
    ("data-action", "data nosuch", "cannot be 'nosuch'"),
    ("tune-grid", "tune --grid x", "--grid: cannot read 'x'"),
    ("tune-grid-empty", "tune --grid solver.lr=", "--grid: cannot read"),
    ("tune-grid-deep", "tune --grid a.b.c=1", "SECTION.OPTION"),
    ("tune-by", "tune --by nosuch", "--by cannot be 'nosuch'"),
    ("compare-none", "compare --algorithms", "--algorithms"),
    ("compare-seeds-0", "compare --seeds 0", "at least 1 and at most 10000"),
    ("compare-seeds-100000", "compare --seeds 100000", "at least 1 and at most 10000"),
    ("compare-seed-2^63", f"compare --seeds 1 {BIG}", "seed must be at most 2^63 - 1"),
    ("compare-40x9000", f"compare --algorithms fedavg fedprox --seeds {' '.join(map(str, range(9000)))}", "18000 runs"),
    ("compare-seeds-same", "compare --seeds 1 1", "seeds must be different"),
    ("compare-jobs-0", "compare --jobs 0", "jobs must be at least 1"),
    ("compare-jobs-10^6", "compare --seeds 1 2 --jobs 1000000", "processes at a time are too many for this machine"),
    ("skew-clients", "skew --clients 0", "number must be at least 1"),
    ("skew-export-there", "skew --export there", "already holds partition.json", {"there/partition.json": "{}"}),
    ("folder-empty", "run --skew from-folder:path=f", "holds no partition", {"f/partition.json": ""}),
    ("folder-list", "run --skew from-folder:path=f", "holds no partition", {"f/partition.json": "[]"}),
    ("folder-deep", "run --skew from-folder:path=f", "holds no partition", {"f/partition.json": "[" * 100_000}),
    ("folder-no-rows", "run --skew from-folder:path=f", "cannot read", {"f/partition.json": FOLDER}),
    ("folder-pickle", "run --skew from-folder:path=f", "cannot read", PICKLED),
    ("diagnose-nothing", "diagnose", "give files with label and client, or dataset"),
    ("diagnose-both", "diagnose x.csv --dataset digits", "one of the two"),
    ("diagnose-no-label", "diagnose x.csv", "name the column of classes by label"),
    ("diagnose-missing", "diagnose x.csv --label y", "no such file or folder"),
    ("diagnose-seed", "diagnose --dataset digits --seed -1", "seed must be at least 0"),
    ("diagnose-same", "diagnose x.csv --label y --client y", "both the label and the client", {"x.csv": rows()}),
    ("diagnose-one-file", "diagnose x.csv --label y", "name the column with the client of each row", {"x.csv": rows()}),
    ("diagnose-numbers", "diagnose x.csv --label a --client client", "labels are classes", {"x.csv": rows()}),
    ("diagnose-few", "diagnose x.csv --label y --client client", "rows are too few", {"x.csv": rows(number=8)}),
    (
        "diagnose-kind",
        "diagnose x.xls --label y --client client",
        "cannot read this kind of file",
        {"x.xls": b"\xd0\xcf"},
    ),
    ("diagnose-folder", "diagnose d --label y", "file in this folder", {"d/readme.txt": "x"}),
    ("diagnose-columns", "diagnose d --label y", "its columns differ", COLUMNS_DIFFER),
    ("flower-what", "flower nosuch", "cannot be 'nosuch'"),
    ("flower-full", "flower init there", "there", {"there/x": "x"}),
    ("flower-recipe", "flower init made --recipe nosuch", "nosuch"),
    ("flower-deep", "flower init made --recipe e.toml", "too many brackets", {"e.toml": "x = " + "[" * 100_000}),
    ("flower-threads", "flower init made --recipe e.toml", "at most 1024", {"e.toml": "[training]\nthreads = 100000"}),
    ("flower-nodes", "flower demo --nodes 0", "--nodes must be at least 1"),
    ("flower-client", "flower node --client -1 --rows x.npz --superlink a:1", "--client must be at least 0"),
    ("flower-rows", NODE, "x.npz"),
    ("flower-pickle", NODE, "x.npz", {"x.npz": dumped(Trap())}),
    ("flower-noise", NODE, "x.npz", {"x.npz": b"PK\x03\x04" + b"\xff" * 200}),
    ("table-label-0", f"{TABLE},label=0", "no column '0'; known are: a, b, client, y", {"x.csv": rows()}),
    ("table-client-3", f"{TABLE},label=y,client=3", "no column '3'; known are", {"x.csv": rows()}),
    ("table-label-true", f"{TABLE},label=true", "label must be text, got True", {"x.csv": rows()}),
    ("table-label-1.5", f"{TABLE},label=1.5", "label must be text, got 1.5", {"x.csv": rows()}),
    ("diagnose-number", "diagnose x.csv --label 3 --client client", "no column '3'", {"x.csv": rows()}),
    ("predict-two", "predict 1-2 x.csv", "name one of them: 1 (FedAvg, seed 0), 2 (FedProx", {"x.csv": rows()}),
    ("export-two", "export 1-2", "name one of them: 1 (FedAvg, seed 0), 2 (FedProx"),
    ("landscape-two", "landscape 1-2", "name one of them: 1 (FedAvg, seed 0), 2 (FedProx"),
    ("tag-nothing", "tag 1", "the following arguments are required: TAG"),
    ("tag-99", "tag 99 good", "there is no run 99"),
    ("rename-blank", ["rename", "1", " "], "a name needs at least one character"),
    ("rm-99", "rm 99 --yes", "there is no run 99"),
    ("list-twice", "list runs runs", "does not know what 'runs' is for"),
    ("list-run", "list run", "did you mean 'runs'"),
    ("show-interval", "show 1 --interval 95", "did you mean ci95?"),
    ("show-columns", "show 1 --columns nosuch", "columns: unknown 'nosuch'; known are: accuracy, accuracy_"),
    ("watch-99", "watch 99", "there is no run 99"),
    ("compare-folds-1", "compare --folds 1", "folds: write a number of at least 2"),
    ("compare-folds-word", "compare --folds x", "folds: write a number of at least 2"),
    (
        "compare-epochs",
        "compare --epochs 1/2",
        "epochs must be a whole number of at least 1 or a finite number above 0",
    ),
    ("tune-epochs", "tune --epochs 1/2", "epochs must be a whole number of at least 1 or a finite number above 0"),
    ("own-model-fails", "run --model ./m.py::M", "m.py", {"m.py": "class M: pass"}),
]

FAILING = [
    ("long-path", f"run {'x' * 5000}", "File name too long"),
    ("report-no-folder", "report 1 --output /proc/nosuch/x.html", "cannot be written"),
    ("skew-export-proc", "skew --export /proc/nosuch", "cannot be written"),
]


METHOD = """from dataclasses import dataclass

from fedskew import Algorithm


@dataclass(frozen=True, kw_only=True)
class Mine(Algorithm):
    {hook}
        raise ZeroDivisionError("[/b] \\x1b[31m")
"""


NAMES = [
    "[/b]x",
    "[baseline] a",
    "\x1b[31mred",
    "\x1b]0;title\x07",
    "a\rb",
    "\u202eabc",
    "[link=http://x]y[/link]",
    ":smile: %s {} \\",
    "$x^$",
    "x" * 3000,
    "<script>alert(1)</script>",
    "=HYPERLINK(1)",
]
"""Names of runs that a terminal, Rich, Matplotlib or a browser would take for more than a name."""

CASES = [*options(), *verbs()]
