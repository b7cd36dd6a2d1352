"""Two hundred requests that cannot be carried out as they are, or hold odd words: what is asked, and what the answer must be."""

from __future__ import annotations

import gzip
import io
import os
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

BIG = 2**63


@dataclass(frozen=True)
class Case:
    """A command line, what lies in its folder, and what it must answer: an exit code, and one line that holds ``says``."""

    id: str
    argv: tuple[str, ...]
    says: str
    code: int = 2
    files: Mapping[str, str | bytes | Path] = field(default_factory=dict)  # a path stands for a link to it
    env: Mapping[str, str] = field(default_factory=dict)
    sql: str = ""  # done to the store before


def case(id: str, command: str | list[str], says: str, code: int = 2, **options: Any) -> Case:
    """``command`` is split at spaces where it is a string."""
    argv = command.split(" ") if isinstance(command, str) else command
    return Case(id, tuple(argv), says, code, **options)


def rows(head: str = "a,b,client,y", number: int = 40) -> str:
    return head + "\n" + "".join(f"{i},{i * 7 % 13},h{i % 4},{'uv'[i % 2]}\n" for i in range(number))


def options() -> Iterator[Case]:
    """Numbers and words where a run takes them."""
    for id, words, says in OPTIONS:
        yield case(f"run-{id}", ["run", "--rounds", "1", *words.split(" ")], says)


OPTIONS = [
    ("seed-negative", "--seed -1", "seed must be at least 0, got -1"),
    ("seed-2^63", f"--seed {BIG}", "seed must be at most 2^63 - 1"),
    ("seed-float", "--seed 1e3", "--seed: a whole number is needed, got '1e3'"),
    ("seed-empty", "--seed ", "--seed: a whole number is needed, got ''"),
    ("seed-of-5000-digits", f"--seed {'9' * 5000}", "--seed: a whole number is needed"),
    ("partition-seed-2^64", f"--partition-seed {2 * BIG}", "partition_seed must be at most 2^63 - 1"),
    ("rounds-0", "--rounds 0", "rounds must be at least 1, got 0"),
    ("rounds-2^63", f"--rounds {BIG}", "rounds must be at most 2^63 - 1"),
    ("rounds-nan", "--rounds nan", "--rounds: a whole number is needed"),
    ("clients-0", "--clients 0", "number must be at least 1, got 0"),
    ("clients-10^12", "--clients 1000000000000", "1000000000000 clients cannot share"),
    ("clients-2^63", f"--clients {BIG}", "number must be at most 2^63 - 1"),
    ("lr-nan", "--lr nan", "lr must be a finite number above 0, got nan"),
    ("lr-inf", "--lr inf", "lr must be a finite number above 0, got inf"),
    ("lr-minus-zero", "--lr -0.0", "lr must be a finite number above 0, got -0.0"),
    ("lr-1e309", "--lr 1e309", "lr must be a finite number above 0, got inf"),
    ("lr-word", "--lr fast", "--lr: a number is needed, got 'fast'"),
    ("momentum-nan", "--momentum nan", "momentum"),
    ("momentum-1", "--momentum 1", "momentum"),
    ("held-out-1", "--held-out 1", "held_out is a share"),
    ("held-out-nan", "--held-out nan", "held_out is a share"),
    ("server-data-nan", "--server-data nan", "share must be at least 0 and at most 0.5"),
    ("epochs-0", "--epochs 0", "epochs must be at least 1"),
    ("epochs-1e9", "--epochs 1000000000", "of memory, and this machine has"),
    ("epochs-2^62", f"--epochs {BIG // 2}", "of memory, and this machine has"),
    ("steps-1e9", "--steps 1000000000", "of memory, and this machine has"),
    ("steps-0", "--steps 0", "steps must be at least 1"),
    ("batch-0", "--batch-size 0", "batch_size must be at least 1"),
    ("batch-word", "--batch-size some", "batch_size"),
    ("batch-2^63", f"--batch-size {BIG}", "batch_size must be at most 2^63 - 1"),
    ("cohort-0", "--cohort 0", "clients"),
    ("cohort-2^63", f"--cohort {BIG}", "clients must be at most 2^63 - 1"),
    ("workers", "--workers 2", "has no option '--workers'"),
    ("threads-100000", "--set training.threads=100000", "threads must be at least 0 and at most 1024"),
    ("threads-negative", "--set training.threads=-1", "threads must be at least 0"),
    ("dtype", "--dtype float16", "dtype must be float32 or float64, got 'float16'"),
    ("device", "--device cuda:99", "device 'cuda:99' is not available here"),
    ("device-escape", "--device \x1b[31m", "device '\\x1b[31m' is not available here"),
    ("adapt-1e9", "--set evaluation.adapt_steps=1000000000", "of memory, and this machine has"),
    ("set-bare", "--set x", "--set: cannot read 'x'"),
    ("set-section", "--set training", "--set: cannot read 'training'"),
    ("set-unknown-section", "--set nosuch.x=1", "unknown section 'nosuch'"),
    ("set-unknown-option", "--set training.x=1", "unknown option 'x'"),
    ("set-empty-value", "--set training.rounds=", "rounds: expected 'int', got 'str'"),
    ("set-date", "--set training.rounds=1979-05-27", "rounds: expected 'int'"),
    ("set-bool", "--set training.rounds=true", "rounds: expected 'int', got 'bool'"),
    ("set-table", "--set training.rounds={a=1}", "rounds: expected 'int', got 'object'"),
    ("set-5000-digits", f"--set training.rounds={'9' * 5000}", "rounds: expected 'int', got 'str'"),
    ("set-deep", f"--set training.rounds={'[' * 100_000}", "rounds: expected 'int'"),
    ("set-deep-closed", f"--set training.rounds={'[' * 5000}{']' * 5000}", "brackets within each other"),
    ("set-dot", "--set .=1", "unknown section ''"),
    ("every-0", "--set evaluation.every=0", "every must be at least 1"),
    ("checkpoint-0", "--set checkpoint.every=0", "every must be at least 1"),
    ("system-epochs-1e9", "--system epochs=[1,1000000000]", "of memory, and this machine has"),
    ("algorithm-empty", "--algorithm :", "unknown algorithm ''"),
    ("algorithm-half", "--algorithm fedprox:mu", "cannot read 'mu' in 'fedprox:mu'"),
    ("algorithm-nan", "--algorithm fedprox:mu=nan", "mu"),
    ("algorithm-minus", "--algorithm fedprox:mu=-1", "mu"),
    ("algorithm-1e400", "--algorithm fedprox:mu=1e400", "mu"),
    ("algorithm-deep", f"--algorithm fedprox:mu={'[' * 100_000}", "brackets within each other"),
    ("algorithm-markup", "--algorithm [/b]", "unknown algorithm '[/b]'"),
    ("algorithm-escape", "--algorithm \x1b]0;x\x07", "unknown algorithm '\\x1b]0;x\\x07'"),
    ("algorithm-bidi", "--algorithm \u202efed", "unknown algorithm '\\u202efed'"),
    ("own-missing", "--algorithm ./nosuch.py::A", "cannot read"),
    ("own-no-class", "--algorithm ./nosuch.py", "::CLASS:OPTION=VALUE"),
    ("model-no-width", "--model mlp:hidden=[]", "hidden needs widths of at least 1"),
    ("model-width-0", "--model mlp:hidden=[0]", "hidden needs widths of at least 1"),
    ("model-width-float", "--model mlp:hidden=[1.5]", "hidden"),
    ("model-10^9", "--model mlp:hidden=[1000000000]", "needs 1,200.0 GB of memory, and this machine has"),
    ("model-10^9-twice", "--model mlp:hidden=[1000000000,1000000000]", "of memory, and this machine has"),
    ("model-2^62", f"--model mlp:hidden=[{BIG // 2},{BIG // 2}]", "model: cannot be built"),
    ("model-2^63", f"--model mlp:hidden=[{BIG}]", "hidden must be at most 2^63 - 1"),
    ("model-module", "--model module:nosuch.module.X", "cannot import"),
    ("model-device", "--model module:/dev/zero::X", "it is larger than 1 MiB"),
    ("skew-alpha-0", "--skew label-dirichlet:alpha=0", "alpha must be a finite number above 0"),
    ("skew-alpha-nan", "--skew label-dirichlet:alpha=nan", "alpha must be a finite number above 0"),
    ("skew-alpha-denormal", "--skew label-dirichlet:alpha=1e-320", "alpha must be a finite number above 0"),
    ("skew-shards", "--skew label-shards:shards=1000000000", "shards"),
    ("skew-natural", "--skew natural", "natural"),
    ("skew-no-folder", "--skew from-folder:path=nosuch", "holds no partition"),
    ("dataset-empty", "--dataset ", "unknown dataset ''"),
    ("dataset-unknown", "--dataset nosuch", "unknown dataset 'nosuch'"),
    ("dataset-no-label", "--dataset table:path=x.csv", "needs the option 'label'"),
    ("dataset-device", "--dataset /dev/zero", "unknown dataset '/dev/zero'"),
    ("table-device", "--dataset table:path=/dev/zero,label=y", "unknown kind of file"),
    ("option-unknown", "--nosuch", "has no option '--nosuch'"),
    ("option-escape", "--\x1b[31m", "has no option '--\\x1b[31m'"),
    ("word", "nosuch", "experiment file nosuch: cannot be read"),
    ("two-files", "a.toml b.toml", "does not know what 'b.toml' is for"),
    ("device-as-file", "/dev/zero", "it is larger than 1 MiB"),
    ("folder-as-file", ".", "experiment file .: cannot be read: Is a directory"),
]


def experiments() -> Iterator[Case]:
    """Experiment files."""
    for id, text, says in EXPERIMENTS:
        yield case(f"toml-{id}", "run e.toml", says, files={"e.toml": text})


EXPERIMENTS: list[tuple[str, str | bytes, str]] = [
    ("bytes", b"\xff\xfe\x00", "it is not UTF-8 text"),
    ("zeros", b"\0" * 100, "not valid TOML"),
    ("large", "#" * (1 << 21), "it is larger than 1 MiB"),
    ("deep-array", "x = " + "[" * 100_000, "too many brackets within each other"),
    ("deep-table", "x = " + "{a=" * 100_000, "too many brackets within each other"),
    ("deep-key", ".".join("a" * 5000) + " = 1", "e.toml"),
    ("5000-digits", f"[training]\nrounds = {'9' * 5000}", "not valid TOML"),
    ("2^63", f"[training]\nrounds = {BIG}", "rounds must be at most 2^63 - 1"),
    ("minus-2^63", f"[training]\nseed = -{BIG}", "seed must be at most 2^63 - 1"),
    ("section-number", "training = 5", "training must be a table"),
    ("section-list", "training = []", "training must be a table"),
    ("section-unknown", '["[/b]"]\nx = 1', "unknown section '[/b]'"),
    ("component-number", "algorithm = 5", "algorithm: expected a name"),
    ("component-no-name", "[algorithm]\nmu = 1", "algorithm: needs a name"),
    ("name-number", "name = 5", "name must be a string"),
    ("skews-empty", "skew = []", "skew"),
    ("skews-nested", "skew = [[]]", "skew"),
    ("list-for-number", "[training]\nrounds = [1]", "rounds: expected 'int', got 'array'"),
    ("nan-for-number", "[training]\nrounds = nan", "rounds: expected 'int'"),
    ("inf", "[solver]\nname = 'sgd'\nlr = inf", "lr must be a finite number above 0"),
    ("twice", "[training]\n[training]", "not valid TOML"),
    ("option-escape", '[training]\n"\\u001b[31m" = 1', "unknown option '\\x1b[31m'"),
    ("threads", "[training]\nthreads = 100000", "threads must be at least 0 and at most 1024"),
]


def tables() -> Iterator[Case]:
    """A user's files, read by ``skew`` and ``diagnose``."""
    for name, contents, says in TABLES:
        spec = f"table:path={name},label=y,client=client"
        yield case(f"skew-{name}", f"skew --skew natural --dataset {spec}", says, files={name: contents})
    for name, contents, says in TABLES[::3]:
        yield case(f"diagnose-{name}", f"diagnose {name} --label y --client client", says, files={name: contents})


def parquet(table: pa.Table) -> bytes:
    stream = io.BytesIO()
    pq.write_table(table, stream)
    return stream.getvalue()


def swallowing(place: int, row: str) -> str:
    lines = rows().splitlines()
    lines[place] = row
    return "\n".join(lines) + "\n"


DEEP = b'{"y":"u","client":"a","x":1}\n{"y":"u","client":"a","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
LINE = b'{"y":"u","client":"a","x":"' + b"a" * (72 << 20) + b'"}\n'
SOUND = parquet(pa.table({"a": [1.0, 2.0] * 20, "client": ["a", "b"] * 20, "y": ["u", "v", "v", "u"] * 10}))

TABLES: list[tuple[str, str | bytes | Path, str]] = [
    ("empty.csv", "", "no rows"),
    ("header.csv", "a,b,client,y\n", "no rows"),
    ("newlines.csv", "\n" * 100, "newlines.csv"),
    ("binary.csv", bytes(range(256)) * 40, "it is no text in UTF-8"),
    ("utf16.csv", rows().encode("utf-16"), "it is no text in UTF-8"),
    ("latin1.csv", rows().replace("h1", "hä").encode("latin-1"), "is not UTF-8 text"),
    ("twice.csv", rows("a,a,client,y"), "two columns are called 'a'"),
    ("spaced-twice.csv", rows("a, a,client,y"), "two columns are called 'a'"),
    ("markup.csv", rows("a,b,[/b],y"), "no column 'client'"),
    ("escape.csv", rows("a,b,\x1b[31mclient,y"), "no column 'client'; did you mean '\\x1b[31mclient'?"),
    ("unclosed.csv", swallowing(20, '19,3,"h2,u'), "line 21: a quote opens that is never closed"),
    ("unclosed-last.csv", swallowing(40, '39,3,h2,"u'), "line 41: a quote opens that is never closed"),
    ("unclosed-header.csv", '"a,b,client,y\n' + rows(), "unclosed-header.csv"),
    ("quote-in-quotes.csv", swallowing(20, '19,"3"x,h2,"u\n'), "a quote opens that"),
    ("one-label.csv", rows().replace(",v\n", ",u\n"), "all rows have the label 'u'"),
    ("no-client.csv", rows("a,b,owner,y"), "no column 'client'"),
    ("empty-label.csv", "a,client,y\n" + "1,h,\n" * 40, "no row has both a label"),
    ("all-ragged.csv", "a,b,client,y\n" + "1,h\n" * 40, "lines have too few or too many cells"),
    ("many-labels.csv", "a,client,y\n" + "".join(f"{i},h{i % 2},{i}\n" for i in range(1200)), "labels are classes"),
    ("not-gzip.csv.gz", rows().encode(), "not-gzip.csv.gz"),
    ("cut.csv.gz", gzip.compress(rows(number=4000).encode())[:-40], "cut.csv.gz"),
    ("loop.csv", Path("loop.csv"), "loop.csv"),
    ("endless.csv", Path("/dev/zero"), "unknown kind of file"),
    ("null.csv", Path("/dev/null"), "unknown kind of file"),
    ("tabs.tsv", rows(), "no column 'y'"),
    ("scalars.jsonl", "1\n2\n", "each line must be one object"),
    ("lists.jsonl", "[1]\n[2]\n", "each line must be one object"),
    ("cut.jsonl", '{"y": "u", "client"', "each line must be one object"),
    ("mixed.jsonl", '{"y": 1, "client": "a"}\n{"y": "u", "client": []}\n', "each line must be one object"),
    ("deep.jsonl", DEEP, "more than 60 objects or lists within each other"),
    ("deep-open.jsonl", b'{"y":' + b"[" * 100_000 + b"\n", "more than 60 objects or lists within each other"),
    ("line.jsonl.gz", gzip.compress(LINE, 1), "a line is longer than 64 MiB"),
    (
        "late.jsonl",
        '{"y":"u","client":"a"}\n' * 200_000 + '{"y":"u","client":"a","z":1}\n',
        "the key ['z'] comes after",
    ),
    ("noise.parquet", os.urandom(2000), "cannot be read as parquet"),
    ("cut.parquet", SOUND[: len(SOUND) // 2], "cannot be read as parquet"),
    (
        "none.parquet",
        parquet(pa.table({"y": pa.array([], pa.string()), "client": pa.array([], pa.string())})),
        "no rows",
    ),
    ("list-label.parquet", parquet(pa.table({"y": [["u"]] * 40, "client": ["a", "b"] * 20})), "column 'y' holds list"),
    ("noise.arrow", os.urandom(2000), "cannot be read as arrow"),
    ("csv.arrow", rows(), "cannot be read as arrow"),
    ("zip.npz", b"PK\x03\x04" + b"\0" * 100, "unknown kind of file"),
    ("folder", Path(), "folder"),
]


def dumped(value: object) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, x=np.array([value], dtype=object), y=np.zeros(1, dtype=np.int64))
    return stream.getvalue()


class Trap:
    """What NumPy would execute if it read pickles."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("trapped",)


FOLDER = '{"fingerprint": "1e538e21be2698d8", "clients": ["a"], "empty": 0, "unassigned": 0}'
"""A sound `partition.json` of digits."""


def verbs() -> Iterator[Case]:
    """Everything that is neither an option of a run, nor a file of the user's."""
    for id, command, says, *files in VERBS:
        yield case(id, command, says, files=files[0] if files else {})
    for id, command, says in FAILING:
        yield case(id, command, says, code=1)


VERBS: list[Any] = [
    ("verb-unknown", "nosuch", "cannot be 'nosuch'"),
    ("verb-escape", "\x1b[31m", "cannot be"),
    ("verb-empty", [""], "cannot be ''"),
    ("list-unknown", "list nosuch", "unknown kind 'nosuch'"),
    ("list-markup", "list [/b]", "unknown kind '[/b]'"),
    ("show-0", "show 0", "there is no run 0"),
    ("show-99", "show 99", "there is no run 99"),
    ("show-backwards", "show 2-1", "'2-1' is not a run"),
    ("show-range", "show 1-999999999999999999", "there is no run 3"),
    ("show-19-digits", f"show {BIG}", "is not a run"),
    ("show-c0", "show c0", "there is no comparison c0"),
    ("show-sql", ["show", "1;DROP TABLE runs"], "is not a run"),
    ("show-unicode-digit", "show ١", "'١' is not a run"),
    ("show-empty", ["show", ""], "'' is not a run"),
    ("show-escape", "show \x1b[2J", "'\\x1b[2J' is not a run"),
    ("budget-word", "show 1 --budget x", "budget"),
    ("budget-empty", "show 1 --budget rounds=", "budget"),
    ("budget-nan", "show 1 --budget rounds=nan", "budget"),
    ("budget-minus", "show 1 --budget rounds=-1", "budget"),
    ("budget-inf", "show 1 --budget bytes=1e400", "budget"),
    ("report-port-0", "report 1 --live --port 0", "--port must be at least 1"),
    ("report-port-70000", "report 1 --live --port 70000", "--port must be at least 1 and at most 65535"),
    ("report-live-output", "report 1 --live --output x", "--live writes no file"),
    ("watch-0", "watch --every 0", "--every must be above 0"),
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
    ("check-unknown", "check nosuch", "unknown algorithm 'nosuch'"),
    ("check-empty", ["check", ""], "unknown algorithm ''"),
    ("check-syntax", "check ./m.py::A", "m.py, line 1: SyntaxError", {"m.py": "def"}),
    ("check-raises", "check ./m.py::A", "m.py, line 1: ZeroDivisionError", {"m.py": "1 / 0"}),
    ("check-recursion", "check ./m.py::A", "m.py, line 1: RecursionError", {"m.py": "def f(): f()\nf()"}),
    ("check-nested", "check ./m.py::A", "SyntaxError: too many nested parentheses", {"m.py": "(" * 5000}),
    ("check-zeros", "check ./m.py::A", "null bytes", {"m.py": b"\0" * 10}),
    ("check-latin1", "check ./m.py::A", "SyntaxError", {"m.py": "é = 1".encode("latin-1")}),
    ("check-large", "check ./m.py::A", "it is larger than 1 MiB", {"m.py": "#" * (1 << 21)}),
    ("check-device", "check ./m.py::A", "it is larger than 1 MiB", {"m.py": Path("/dev/zero")}),
    ("check-no-class", "check ./m.py::A", "holds no class 'A'", {"m.py": "x = 1"}),
    ("check-no-method", "check ./m.py::A", "is not a method", {"m.py": "class A: pass"}),
    (
        "check-escape",
        ["check", "./m.py::A"],
        "ValueError: \\x1b[31m[/b]",
        {"m.py": "raise ValueError('\\x1b[31m[/b]')"},
    ),
    ("reproduce-unknown", "reproduce nosuch", "unknown document 'nosuch'"),
    ("reproduce-scale", "reproduce drift-demo --scale nosuch", "nosuch"),
    ("reproduce-only", "reproduce drift-demo --only nosuch --as-stored", "has no table 'nosuch'"),
    ("data-unknown", "data get nosuch", "unknown data set 'nosuch'"),
    ("data-which", "data get", "name a data set"),
    ("data-action", "data nosuch", "cannot be 'nosuch'"),
    ("tune-grid", "tune --grid x", "--grid: cannot read 'x'"),
    ("tune-grid-empty", "tune --grid solver.lr=", "--grid: cannot read"),
    ("tune-grid-section", "tune --grid nosuch.lr=1", "neither a section's option nor one of the methods"),
    ("tune-grid-seed", "tune --grid training.seed=1,2", "seeds are not tuned"),
    ("tune-grid-nan", "tune --grid solver.lr=nan", "lr must be a finite number above 0"),
    ("tune-by", "tune --by nosuch", "--by cannot be 'nosuch'"),
    ("compare-none", "compare --algorithms", "--algorithms"),
    ("compare-twice", "compare --algorithms fedavg fedavg", "an algorithm is named twice"),
    ("compare-seeds-0", "compare --seeds 0", "at least 1 and at most 10000"),
    ("compare-seeds-100000", "compare --seeds 100000", "at least 1 and at most 10000"),
    ("compare-seed-2^63", f"compare --seeds 1 {BIG}", "seed must be at most 2^63 - 1"),
    ("compare-40x9000", f"compare --algorithms fedavg fedprox --seeds {' '.join(map(str, range(9000)))}", "18000 runs"),
    ("compare-seeds-same", "compare --seeds 1 1", "seeds must be different"),
    ("compare-jobs-0", "compare --jobs 0", "--jobs must be at least 1"),
    ("compare-jobs-10^6", "compare --seeds 1 2 --jobs 1000000", "processes side by side are too many here"),
    ("compare-budget", "compare --budget x", "budget"),
    ("skew-clients", "skew --clients 0", "number must be at least 1"),
    ("skew-export-there", "skew --export there", "holds partition.json already", {"there/partition.json": "{}"}),
    ("folder-empty", "run --skew from-folder:path=f", "holds no partition", {"f/partition.json": ""}),
    ("folder-list", "run --skew from-folder:path=f", "holds no partition", {"f/partition.json": "[]"}),
    ("folder-deep", "run --skew from-folder:path=f", "holds no partition", {"f/partition.json": "[" * 100_000}),
    ("folder-no-rows", "run --skew from-folder:path=f", "cannot read", {"f/partition.json": FOLDER}),
    (
        "folder-pickle",
        "run --skew from-folder:path=f",
        "cannot read",
        {"f/partition.json": FOLDER, "f/partition.npz": pickle.dumps(Trap())},
    ),
    ("diagnose-nothing", "diagnose", "give files with --label and --client, or --dataset"),
    ("diagnose-both", "diagnose x.csv --dataset digits", "one of the two"),
    ("diagnose-no-label", "diagnose x.csv", "name the column with the labels"),
    ("diagnose-missing", "diagnose x.csv --label y", "no such file or folder"),
    ("diagnose-seed", "diagnose --dataset digits --seed -1", "seed must be at least 0"),
    (
        "diagnose-same",
        "diagnose x.csv --label y --client y",
        "cannot be both the label and the client",
        {"x.csv": rows()},
    ),
    ("diagnose-one-file", "diagnose x.csv --label y", "name the column that says whose a row is", {"x.csv": rows()}),
    ("diagnose-numbers", "diagnose x.csv --label a --client client", "labels are classes", {"x.csv": rows()}),
    ("diagnose-few", "diagnose x.csv --label y --client client", "rows say nothing", {"x.csv": rows(number=8)}),
    ("diagnose-kind", "diagnose x.xls --label y --client client", "unknown kind of file", {"x.xls": b"\xd0\xcf"}),
    ("diagnose-folder", "diagnose d --label y", "file in this folder", {"d/readme.txt": "x"}),
    (
        "diagnose-columns",
        "diagnose d --label y",
        "its columns differ",
        {"d/a.csv": rows(), "d/b.csv": rows("a,c,client,y")},
    ),
    ("flower-what", "flower nosuch", "cannot be 'nosuch'"),
    ("flower-full", "flower init there", "there", {"there/x": "x"}),
    ("flower-recipe", "flower init made --recipe nosuch", "nosuch"),
    ("flower-deep", "flower init made --recipe e.toml", "too many brackets", {"e.toml": "x = " + "[" * 100_000}),
    ("flower-threads", "flower init made --recipe e.toml", "at most 1024", {"e.toml": "[training]\nthreads = 100000"}),
    ("flower-nodes", "flower demo --nodes 0", "--nodes must be at least 1"),
    ("flower-client", "flower node --client -1 --rows x.npz --superlink a:1", "--client must be at least 0"),
    ("flower-rows", "flower node --client 0 --rows x.npz --superlink a:1", "x.npz"),
    (
        "flower-pickle",
        "flower node --client 0 --rows x.npz --superlink a:1",
        "x.npz",
        {"x.npz": dumped(Trap())},
    ),
    (
        "flower-noise",
        "flower node --client 0 --rows x.npz --superlink a:1",
        "x.npz",
        {"x.npz": b"PK\x03\x04" + b"\xff" * 200},
    ),
    ("own-model-fails", "run --model module:./m.py::M", "m.py", {"m.py": "class M: pass"}),
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


def environments() -> Iterator[Case]:
    """Variables of the environment."""
    for name, value, command, says in ENVIRONMENTS:
        yield case(f"env-{name}-{value}", command, says, env={name: value})


ENVIRONMENTS = [
    ("RANK", "abc", "run", "RANK=abc, WORLD_SIZE=1: whole numbers are needed"),
    ("RANK", "", "compare", "RANK=, WORLD_SIZE=1: whole numbers are needed"),
    ("RANK", "-1", "run", "RANK=-1, WORLD_SIZE=1: whole numbers are needed"),
    ("RANK", "1", "run", "RANK=1, WORLD_SIZE=1: there is no such rank"),
    ("RANK", "１", "resume 1", "there is no such rank"),
    ("WORLD_SIZE", "x", "run", "RANK=0, WORLD_SIZE=x: whole numbers are needed"),
    ("WORLD_SIZE", "2", "run", "MASTER_ADDR and MASTER_PORT not set"),
    ("FEDSKEW_DATA", "/nonexistent", "run --dataset mnist", "in /nonexistent"),
    ("FEDSKEW_DATA", "\x1b[31m", "run --dataset mnist", "\\x1b[31m"),
]


def stores() -> Iterator[Case]:
    """Runs whose columns and facts are not what was written."""
    for i, (what, says) in enumerate(FACTS):
        verb = ("show 1", "report 1", "watch 1", "resume 1", "cite 1", "export 1")[i % 6]
        sql = f"UPDATE runs SET facts='{what}' WHERE id=1"
        yield case(f"facts-{i}-{verb.split()[0]}", verb, says, code=1, sql=sql)
    for i, (what, says) in enumerate(COLUMNS):
        verb = ("show 1", "report 1", "watch 1", "resume 1", "landscape 1")[i % 5]
        sql = f"UPDATE runs SET {what} WHERE id=1"
        yield case(f"column-{i}-{verb.split()[0]}", verb, says, code=1, sql=sql)
    for i, (sql, verb, code, says) in enumerate(ODD):
        yield case(f"store-{i}-{verb.split()[0]}", verb, says, code=code, sql=sql)


FACTS = [
    ("[]", "damaged: Expected object, got array at facts"),
    ("null", "damaged: Expected object, got null at facts"),
    ('"x"', "damaged: Expected object, got str at facts"),
    ("{", "run 1: its record in the store is damaged"),
    ("", "run 1: its record in the store is damaged"),
    ("[" * 100_000, "run 1: its record in the store is damaged"),
    ('{"warnings": 5}', "damaged: Expected array, got int at facts.warnings"),
    ('{"warnings": [5]}', "damaged: Expected object, got int at facts.warnings[0]"),
    ('{"warnings": [{}]}', "damaged: Object missing required field kind"),
    ('{"engine": "x"}', "damaged: Expected object, got str at facts.engine"),
    ('{"engine": {"choice": 5}}', "damaged: Expected str, got int at facts.engine.choice"),
    ('{"data": []}', "damaged: Expected object, got array at facts.data"),
    ('{"profile": 5}', "damaged: Expected object, got int at facts.profile"),
    ('{"profile": {"a": "x"}}', "damaged: Expected float, got str at facts.profile[...]"),
    ('{"measured_every": []}', "damaged: Expected int, got array at facts.measured_every"),
]

COLUMNS = [
    ("rounds='x'", "damaged: Expected int, got str at rounds"),
    ("rounds=-1", "damaged: Expected int >= 0 at rounds"),
    ("rounds_done=1e400", "damaged: Expected int, got float at rounds_done"),
    ("status='odd'", "damaged: Invalid enum value 'odd' at status"),
    ("updated='yesterday'", "damaged: Invalid RFC3339 encoded datetime at updated"),
    ("updated=5", "damaged:"),
    ("name=x'ff'", "damaged: Expected str, got bytes at name"),
    ("experiment=x'ff'", "damaged: Expected str, got bytes at experiment"),
    ("seed='x'", "damaged: Expected int, got str at seed"),
    ("comparison='x'", "damaged: Expected int | null, got str at comparison"),
]

ODD = [
    ("UPDATE runs SET experiment='[' WHERE id=1", "cite 1", 2, "run 1: not valid TOML"),
    (f"UPDATE runs SET experiment='x = {'[' * 50_000}' WHERE id=1", "cite 1", 2, "too many brackets"),
    ("UPDATE runs SET experiment='skew = 5', status='interrupted' WHERE id=1", "resume 1", 2, "skew"),
    ("UPDATE runs SET experiment='' , status='failed' WHERE id=1", "resume 1 --jobs 0", 2, "--jobs must be at least 1"),
    (
        "UPDATE runs SET experiment='[training]\nworkers = 1000', status='failed' WHERE id=1",
        "resume 1",
        2,
        "training.workers is gone: use --jobs",
    ),
    ("UPDATE measurements SET value='abc' WHERE run=1", "show 1", 1, "its file is damaged"),
    ("UPDATE measurements SET round='x' WHERE run=1", "show 1", 1, "damaged"),
    ("UPDATE partitions SET rows='x' WHERE run=1", "report 1", 1, "damaged"),
    ("DROP TABLE partitions", "report 1", 1, "damaged"),
    ("DROP TABLE measurements", "show 1", 1, "damaged"),
]


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

CASES = [*options(), *experiments(), *tables(), *verbs(), *environments(), *stores()]
