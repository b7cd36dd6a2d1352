"""Experiment files, tables, environment variables and stores that cannot be read as they are, and what the answer must be."""

import gzip
import io
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.hostile import Case, case, rows


def experiments() -> Iterator[Case]:
    """Return cases with wrong experiment files."""
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
    ("section-number", "training = 5", "training must be a table"),
    ("section-list", "training = []", "training must be a table"),
    ("section-unknown", '["[/b]"]\nx = 1', "unknown section '[/b]'"),
    ("component-number", "algorithm = 5", "algorithm: expected a name"),
    ("component-no-name", "[algorithm]\nmu = 1", "algorithm: needs a name"),
    ("name-number", "name = 5", "name must be a string"),
    ("skews-empty", "skew = []", "skew"),
    ("skews-nested", "skew = [[]]", "skew"),
    ("twice", "[training]\n[training]", "not valid TOML"),
    ("option-escape", '[training]\n"\\u001b[31m" = 1', "unknown option '\\x1b[31m'"),
]


def tables() -> Iterator[Case]:
    """Return cases with files of a user that ``skew`` and ``diagnose`` read."""
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
LATE = '{"y":"u","client":"a"}\n' * 200_000 + '{"y":"u","client":"a","z":1}\n'
NOTHING = pa.array([], pa.string())
LINE = b'{"y":"u","client":"a","x":"' + b"a" * (72 << 20) + b'"}\n'

TABLES: list[tuple[str, str | bytes | Path, str]] = [
    ("empty.csv", "", "no rows"),
    ("header.csv", "a,b,client,y\n", "no rows"),
    ("newlines.csv", "\n" * 100, "newlines.csv"),
    ("binary.csv", bytes(range(256)) * 40, "it is not text"),
    ("utf16.csv", rows().encode("utf-16"), "it is not text"),
    ("latin1.csv", rows().replace("h1", "hä").encode("latin-1"), "is not UTF-8 text"),
    ("markup.csv", rows("a,b,[/b],y"), "no column 'client'"),
    ("escape.csv", rows("a,b,\x1b[31mclient,y"), "no column 'client'; did you mean '\\x1b[31mclient'?"),
    ("unclosed.csv", swallowing(20, '19,3,"h2,u'), "line 21: a quote opens that is never closed"),
    ("unclosed-last.csv", swallowing(40, '39,3,h2,"u'), "line 41: a quote opens that is never closed"),
    ("unclosed-header.csv", '"a,b,client,y\n' + rows(), "unclosed-header.csv"),
    ("quote-in-quotes.csv", swallowing(20, '19,"3"x,h2,"u\n'), "a quote opens that"),
    ("one-label.csv", rows().replace(",v\n", ",u\n"), "all rows have the "),
    ("no-client.csv", rows("a,b,owner,y"), "no column 'client'"),
    ("all-ragged.csv", "a,b,client,y\n" + "1,h\n" * 40, "lines have too few or too many cells"),
    ("many-labels.csv", "a,client,y\n" + "".join(f"{i},h{i % 2},{i}\n" for i in range(1200)), "labels are classes"),
    ("not-gzip.csv.gz", rows().encode(), "not-gzip.csv.gz"),
    ("cut.csv.gz", gzip.compress(rows(number=4000).encode(), mtime=0)[:-40], "cut.csv.gz"),
    ("loop.csv", Path("loop.csv"), "loop.csv"),
    ("endless.csv", Path("/dev/zero"), "cannot read this kind of file"),
    ("null.csv", Path("/dev/null"), "cannot read this kind of file"),
    ("tabs.tsv", rows(), "no column 'y'"),
    ("scalars.jsonl", "1\n2\n", "each line must be one object"),
    ("cut.jsonl", '{"y": "u", "client"', "each line must be one object"),
    ("mixed.jsonl", '{"y": 1, "client": "a"}\n{"y": "u", "client": []}\n', "each line must be one object"),
    ("deep.jsonl", DEEP, "more than 60 nested objects or lists"),
    ("deep-open.jsonl", b'{"y":' + b"[" * 100_000 + b"\n", "more than 60 nested objects or lists"),
    ("line.jsonl.gz", gzip.compress(LINE, 1, mtime=0), "a line is longer than 64 MiB"),
    ("late.jsonl", LATE, "the key ['z'] is missing in the first lines"),
    ("noise.parquet", os.urandom(2000), "cannot be read as parquet"),
    ("none.parquet", parquet(pa.table({"y": NOTHING, "client": NOTHING})), "no rows"),
    ("list-label.parquet", parquet(pa.table({"y": [["u"]] * 40, "client": ["a", "b"] * 20})), "column 'y' holds list"),
    ("noise.arrow", os.urandom(2000), "cannot be read as arrow"),
    ("zip.npz", b"PK\x03\x04" + b"\0" * 100, "cannot read this kind of file"),
    ("folder", Path(), "folder"),
]


def environments() -> Iterator[Case]:
    """Return cases with wrong environment variables."""
    for name, value, command, says in ENVIRONMENTS:
        yield case(f"env-{name}-{value}", command, says, env={name: value})


ENVIRONMENTS = [
    ("RANK", "-1", "run", "RANK=-1, WORLD_SIZE=1: whole numbers are needed"),
    ("RANK", "１", "resume 1", "ranks go from 0 to WORLD_SIZE - 1"),
    ("FEDSKEW_DATA", "/nonexistent", "run --dataset mnist", "in /nonexistent"),
    ("FEDSKEW_DATA", "\x1b[31m", "run --dataset mnist", "\\x1b[31m"),
]


def stores() -> Iterator[Case]:
    """Return cases with run stores that were changed after they were written."""
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
    ("status='odd'", "at status"),
    ("updated='yesterday'", "Invalid isoformat string: 'yesterday'"),
    ("updated=5", "damaged:"),
    ("name=x'ff'", "damaged: Expected str, got bytes at name"),
    ("experiment=x'ff'", "damaged: Expected str, got bytes at experiment"),
    ("seed='x'", "damaged: Expected int, got str at seed"),
    ("comparison='x'", "damaged: Expected int | null, got str at comparison"),
]

FAILED = "UPDATE runs SET status='failed'"
ODD = [
    ("UPDATE runs SET experiment='[' WHERE id=1", "cite 1", 2, "run 1: not valid TOML"),
    (f"UPDATE runs SET experiment='x = {'[' * 50_000}' WHERE id=1", "cite 1", 2, "too many brackets"),
    ("UPDATE runs SET experiment='skew = 5', status='interrupted' WHERE id=1", "resume 1", 2, "skew"),
    ("UPDATE runs SET experiment='' , status='failed' WHERE id=1", "resume 1 --jobs 0", 2, "jobs must be at least 1"),
    (
        f"{FAILED}, experiment='[training]\nworkers = 1000' WHERE id=1",
        "resume 1",
        2,
        "training.workers no longer exists: use --jobs",
    ),
    ("UPDATE measurements SET value='abc' WHERE run=1", "show 1", 1, "its file is damaged"),
    ("UPDATE measurements SET round='x' WHERE run=1", "show 1", 1, "damaged"),
    ("UPDATE partitions SET rows='x' WHERE run=1", "report 1", 1, "damaged"),
    ("DROP TABLE partitions", "report 1", 1, "damaged"),
    ("DROP TABLE measurements", "show 1", 1, "damaged"),
    ("DROP TABLE measurements", "watch 1", 1, "cannot be read, its file is damaged"),
    ("DROP TABLE measurements", "watch 1 --to tensorboard", 1, "cannot be read, its file is damaged"),
]


FILE_CASES = [*experiments(), *tables(), *environments(), *stores()]
