"""Every parser of what users and machines hand in: whatever the bytes are, the stated error or a result, and nothing written."""

import io
import json
import random
import string
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from fedskew.advice.advise import advise
from fedskew.advice.evidence import Evidence, packaged, read as read_evidence, text_of
from fedskew.claims.document import document_from
from fedskew.core.component import build
from fedskew.core.errors import BadInput, FedskewError
from fedskew.data.datasets.table import TableData
from fedskew.experiment.config import COMPONENTS, Experiment, from_table_of_sections, read
from fedskew.flower.limits import Limits
from fedskew.flower.node import Node
from fedskew.flower.tables import Rows, read_rows, write_rows
from fedskew.flower.wire import Reply, pack, unpack
from fedskew.skew.exported import FromFolder, export
from fedskew.skew.partition import Partition
from fedskew.store import checkpoints
from fedskew.store.runs import RunStore
from tests.flower_nodes import request

QUICK = settings(max_examples=25, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
LONG = settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))

TABLE = pa.table({"x": [1.0, 2.0, None, 4.0] * 3, "word": ["a", "b", "c", "a"] * 3, "y": ["u", "v", "u", "v"] * 3})


def written(write: Callable[[Path], object]) -> bytes:
    with TemporaryDirectory() as folder:
        write(Path(folder) / "file")
        return (Path(folder) / "file").read_bytes()


@cache
def samples() -> dict[str, bytes]:
    """A sound file of each kind."""
    stream = io.BytesIO()
    with pa.ipc.new_file(stream, TABLE.schema) as writer:
        writer.write_table(TABLE)
    with TemporaryDirectory() as folder:
        path = checkpoints.save(Path(folder), 1, {"x": torch.ones(3), "state": {"c": torch.zeros(2)}}, {"round": 1})
        checkpoint = path.read_bytes()
        store = RunStore(folder)
        store.add_run(name="a", experiment="", experiment_hash="0", seed=0, partition_seed=0, rounds=1)
        store.write_round(1, 1, [(None, "test", "accuracy", 0.5), (3, "fault", "missing", 1.0)])
        store.db.execute("PRAGMA journal_mode=DELETE")
        store.close()
        database = (Path(folder) / "fedskew.db").read_bytes()
    part = Partition(indices=np.arange(6), offsets=np.array([0, 2, 6]), names=("0", "1"), empty=0, unassigned=0)
    with TemporaryDirectory() as folder:
        facts = {"dataset": "digits", "partition_seed": 0}
        export(Path(folder) / "made", part, np.ones((2, 3)), facts, {}, {}, "")
        exported = {path.name: path.read_bytes() for path in (Path(folder) / "made").iterdir()}
    table = packaged()
    rows = Rows(np.ones((3, 2)), np.array([0, 1, 1]), np.ones((1, 2)), np.array([0]))

    def npz(path: Path) -> None:
        write_rows(path.with_suffix(".npz"), rows)
        path.with_suffix(".npz").rename(path)

    return {
        "experiment": Experiment().toml().encode(),
        "csv": written(lambda path: pacsv.write_csv(TABLE, path)),
        "parquet": written(lambda path: pq.write_table(TABLE, path)),
        "arrow": stream.getvalue(),
        "rows": written(npz),
        "checkpoint": checkpoint,
        "database": database,
        "evidence": text_of(Evidence(table.made_by, table.cases[:2])).encode(),
        "partition.json": exported["partition.json"],
        "partition.npz": exported["partition.npz"],
    }


def opened(folder: Path) -> None:
    """All that is read of a store."""
    store = RunStore(folder)
    try:
        store.select(["latest"])
        store.measurements([1])
        store.partition(1)
    finally:
        store.close()


def dealt(path: Path) -> None:
    """A folder where one file is whole."""
    other = next(name for name in ("partition.json", "partition.npz") if name != path.name)
    (path.parent / other).write_bytes(samples()[other])
    FromFolder(path=str(path.parent)).read(6)


def advised(path: Path) -> None:
    """Whatever the table holds, advice can be made of it."""
    found = read_evidence(path.read_bytes(), path.name)
    faces = ("label", "feature", "quantity", "concept")
    for face in faces:
        for strength in (0.0, 0.65):
            advise(found.cases, face, {**dict.fromkeys(faces, 0.1), face: strength})


PARSERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "experiment": ("e.toml", read),
    "csv": ("t.csv", lambda path: TableData(path=str(path), label="y", test_share=0.3).load()),
    "parquet": ("t.parquet", lambda path: TableData(path=str(path), label="y", test_share=0.3).load()),
    "arrow": ("t.arrow", lambda path: TableData(path=str(path), label="y", test_share=0.3).load()),
    "rows": ("r.npz", read_rows),
    "checkpoint": ("round-000001.safetensors", lambda path: checkpoints.newest(path.parent)),
    "partition.json": ("partition.json", dealt),
    "partition.npz": ("partition.npz", dealt),
    "database": ("fedskew.db", lambda path: opened(path.parent)),
    "evidence": ("evidence.json", advised),
}
"""The file's name, and what reads it."""


def damaged(sound: bytes, seed: int) -> bytes:
    """Any bytes, or a sound file that was cut, or where some bytes were changed or put in."""
    luck = random.Random(seed)
    if luck.random() < 0.2:
        return luck.randbytes(luck.randrange(300))
    data = bytearray(sound)
    for _ in range(luck.choice((0, 1, 1, 2, 8))):
        data[luck.randrange(len(data))] = luck.choice((0, 255, luck.randrange(256), ord(luck.choice(string.printable))))
    at = luck.randrange(len(data))
    how = luck.randrange(4)
    if how == 0:
        del data[at:]
    elif how == 1:
        data[at:at] = luck.randbytes(luck.randrange(1, 20))
    elif how == 2:
        del data[at : at + luck.randrange(1, 20)]
    return bytes(data)


def fuzz(limits: settings, check: Callable[[Any], object], values: st.SearchStrategy[Any]) -> None:
    """Whatever the value is, the check ends, or raises one of our errors with a line."""

    @limits
    @given(values)
    def one(value: Any) -> None:
        try:
            check(value)
        except FedskewError as error:
            check_line(str(error))

    one()


def check_line(message: str) -> None:
    assert "\n" not in message


SEEDS = st.integers(0, 2**64)


def parse_file(kind: str, seed: int) -> None:
    (name, parse), content = PARSERS[kind], damaged(samples()[kind], seed)
    with TemporaryDirectory() as outside:
        folder = Path(outside) / "inside"
        folder.mkdir()
        (folder / name).write_bytes(content)
        try:
            parse(folder / name)
        finally:
            assert [path.name for path in Path(outside).iterdir()] == ["inside"]


DOCUMENTS = Path(str(files("fedskew.claims"))) / "documents"
LENGTHS = [QUICK, pytest.param(LONG, marks=pytest.mark.slow)]


@pytest.mark.parametrize("limits", LENGTHS, ids=["", "long"])
@pytest.mark.parametrize("kind", PARSERS)
def test_any_file_is_read_or_refused_in_one_line(kind: str, limits: settings) -> None:
    fuzz(limits, partial(parse_file, kind), SEEDS)


# what stands in text: on the command line, in a table, in a message

NAMES = sorted({name for catalogue in COMPONENTS.values() for name in catalogue})
PIECES = ["", *":,=[].{/1'\"\n\0", "::", ".py", "..", "-1", "1e999", "nan", "true"]
WORDS = st.lists(st.sampled_from(PIECES + NAMES + ["alpha", "mu", "lr", "hidden"]) | st.text(max_size=3), max_size=8)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(NAMES),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "alpha", "share", "rounds", "kinds"]) | st.text(max_size=5), inner, max_size=3
        )
    ),
    max_leaves=8,
)
SECTIONS = list(Experiment().table())
TABLES = st.dictionaries(st.sampled_from(SECTIONS) | st.text(max_size=5), PLAIN, max_size=4)


def compact(words: list[str]) -> None:
    text = "".join(words)
    for section, catalogue in COMPONENTS.items():
        if section != "skew":
            try:
                build(section, catalogue, text)
            except BadInput as error:
                check_line(str(error).replace(text, ""))


def replaced(table: Any, change: tuple[int, Any]) -> Any:
    """The table with one of its values replaced."""
    places = list(values_of(table))
    holder, key = places[change[0] % len(places)]
    holder[key] = change[1]
    return table


def changed_document(change: tuple[int, Any]) -> None:
    """A document of fedskew with one of its values replaced."""
    table = tomllib.loads((DOCUMENTS / "fedpbs.toml").read_text(encoding="utf-8"))
    document_from(replaced(table, change), "fuzz")


def values_of(tree: Any) -> Iterator[tuple[Any, Any]]:
    for key, value in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
        yield tree, key
        if isinstance(value, dict | list):
            yield from values_of(value)


def answered_message(seed: int) -> None:
    """A node answers any damaged message. It stores the checksum of its rows if the message is still valid, else nothing."""
    text = Experiment().replace(clients__number=2).toml()
    luck = random.Random(seed)
    recipe = damaged(text.encode(), seed).decode(errors="replace")
    asking = request(recipe, client=luck.randrange(-1, 3), clients=2, classes=2, shape=(2,))
    message = pack(asking) if luck.random() < 0.7 else damaged(pack(asking), seed)
    with TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.npz"
        rows.write_bytes(samples()["rows"])
        reply, _ = unpack(Node(0, rows, Path(folder) / "states").answer(message), Reply)
        stored = [path.name for path in Path(folder).rglob("*") if path.is_file() and path != rows]
        assert stored == ([] if reply.reason else ["rows.txt"])


def chosen(words: list[str]) -> None:
    with TemporaryDirectory() as folder:
        store = RunStore(folder)
        try:
            store.select(["".join(words)])
        finally:
            store.close()


def changed_evidence(change: tuple[int, Any]) -> None:
    """The packaged table with one of its values replaced."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "evidence.json"
        path.write_text(json.dumps(replaced(json.loads(samples()["evidence"]), change)))
        advised(path)


TEXTS: dict[str, tuple[Callable[[Any], object], st.SearchStrategy[Any]]] = {
    "compact form": (compact, WORDS),
    "table": (from_table_of_sections, TABLES),
    "recipe": (
        Limits().recipe,
        SEEDS.map(lambda seed: damaged(samples()["experiment"], seed).decode(errors="replace")),
    ),
    "document": (changed_document, st.tuples(st.integers(0, 10**6), PLAIN)),
    "evidence": (changed_evidence, st.tuples(st.integers(0, 10**6), PLAIN)),
    "message": (answered_message, SEEDS),
    "runs": (chosen, st.lists(st.sampled_from(["latest", "c", "-", "0", "7", "99", " "]), max_size=5)),
}


@pytest.mark.parametrize("limits", LENGTHS, ids=["", "long"])
@pytest.mark.parametrize("kind", TEXTS)
def test_any_text_is_read_or_refused_in_one_line(kind: str, limits: settings) -> None:
    check, values = TEXTS[kind]
    fuzz(limits, check, values)


def test_broken_numpy_header_is_a_one_line_error(tmp_path: Path) -> None:
    header = b"{'descr': '<f8', ("
    with zipfile.ZipFile(tmp_path / "rows.npz", "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(BadInput, match=r"not a NumPy .npz file of plain arrays") as error:
        read_rows(tmp_path / "rows.npz")
    check_line(str(error.value))
