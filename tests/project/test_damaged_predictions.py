"""What a prediction needs besides the weights: a changed, endless or foreign file is refused in one line, never used."""

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fedskew.cli.main import main
from fedskew.execution.learned import CHECKSUM
from tests.commands import error_of
from tests.hostile import rows

FILE = Path("runs/1/preprocessing.json")
Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, and one from an earlier version. Both predict."""
    folder = tmp_path_factory.mktemp("sound")
    words = "run --dataset table:path=t.csv,label=y,client=client --rounds 1 --model softmax --set training.threads=1"
    with pytest.MonkeyPatch.context() as patch:
        (folder / "now").mkdir()
        patch.chdir(folder / "now")
        Path("t.csv").write_text(rows())
        assert main(words.split(" ")) == 0
        shutil.copytree(".", folder / "earlier")
        patch.chdir(folder / "earlier")
        remove_checksum()
        for name in ("now", "earlier"):
            patch.chdir(folder / name)
            assert main(["predict", "1", "t.csv", "--output", "a.csv"]) == 0
    return folder


@pytest.fixture
def run(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(sound / "now", tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def earlier_run(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(sound / "earlier", tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def remove_checksum() -> None:
    """Make the checkpoint one of an earlier version."""
    [path] = Path("runs/1").glob("round-*.safetensors")
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    facts = {key: value for key, value in json.loads(metadata["facts"]).items() if key != CHECKSUM}
    save_file(load_file(path), path, metadata={**metadata, "facts": json.dumps(facts)})


def number(key: str, value: object) -> Change:
    """Change an entry of the first column."""
    return lambda learned: learned["preprocessing"]["columns"][0].update({key: value})


def entry(key: str, value: object) -> Change:
    return lambda learned: learned.update({key: value})


CHANGES: dict[str, Change] = {
    "mean": number("mean", 7.5),
    "scale": number("scale", 2.0),
    "fill": number("fill", 1.0),
    "class order": entry("classes", ["v", "u"]),
    "name": number("name", "client"),
}
"""They fit each other. Only the checksum shows the change."""
WRONG: dict[str, tuple[Change, str]] = {
    "scale 0": (number("scale", 0.0), "scale cannot be 0"),
    "scale below 0": (number("scale", -1.0), "scale cannot be -1"),
    "not finite": (number("mean", 10**400), "damaged"),
    "version": (entry("version", 2), "it has version 2, and this fedskew reads 1"),
    "wider": (entry("shape", [900]), "gives rows of shape"),
    "deeper": (entry("shape", [3, 3]), "gives rows of shape"),
    "no shape": (entry("shape", []), "sizes must be above 0"),
    "minus": (entry("shape", [-1]), "sizes must be above 0"),
    "huge": (entry("shape", [10**15]), "is larger than any row"),
    "overflowing": (entry("shape", [2**40, 2**40]), "is larger than any row"),
    "classes": (entry("classes", ["u"]), "names 1 classes of 2"),
    "categories": (entry("categories", 10**12), "is larger than any row"),
    "model option": (entry("model", {"bias": False}), "has another number of parameters"),
    "model name": (entry("model", {"name": "mlp"}), "unknown option 'name'"),
    "model hash": (entry("model", {"file_hash": "0" * 16}), "unknown option 'file_hash'"),
    "task name": (entry("task", {"name": "regression"}), "unknown option 'name'"),
    "text": (entry("shape", "abc"), "damaged"),
}


def changed(change: Change) -> None:
    learned = json.loads(FILE.read_bytes())
    change(learned)
    FILE.write_text(json.dumps(learned))


def refused(says: str) -> None:
    for words in ("predict 1 t.csv", "export 1 --format safetensors"):
        err = error_of(*words.split(" "))
        assert err.count("\n") == 1
        assert "run" in err
        assert says in err, err


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_what_training_fitted_is_refused(name: str) -> None:
    changed(CHANGES[name])
    refused("differs from the checkpoint's")


@pytest.mark.usefixtures("earlier_run")
@pytest.mark.parametrize("name", WRONG)
def test_parts_that_do_not_fit_are_refused_without_a_checksum(name: str) -> None:
    change, says = WRONG[name]
    changed(change)
    refused(says)


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("what", ["link", "pipe", "folder"])
def test_a_device_or_a_pipe_is_not_read(what: str) -> None:
    """A link to `/dev/zero` was read for ever."""
    [checkpoint] = Path("runs/1").glob("round-*.safetensors")
    for path in (FILE, checkpoint):
        before = path.read_bytes()
        path.unlink()
        {"link": lambda path: path.symlink_to("/dev/zero"), "pipe": os.mkfifo, "folder": Path.mkdir}[what](path)
        refused("it is no regular file")
        path.rmdir() if what == "folder" else path.unlink()
        path.write_bytes(before)


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(("old", "new"), [("bias = true", "bias = false"), ('dtype = "float32"', 'dtype = "float64"')])
def test_a_change_of_the_stored_model_is_refused(old: str, new: str) -> None:
    with closing(sqlite3.connect("runs/fedskew.db")) as db, db:
        text = db.execute("SELECT experiment FROM runs").fetchone()[0]
        assert old in text
        db.execute("UPDATE runs SET experiment=?", (text.replace(old, new),))
    refused("differs from the checkpoint's")
