"""Opening a store: one that cannot be used or read is one line; one that is only read is not changed."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fedskew.core.errors import BadInput
from fedskew.store.runs import RunStore
from tests.commands import error_of, output_of
from tests.store import ROUND, add, refused

UNUSABLE = {
    "a file in the place of the folder": lambda folder: folder.write_text("not a folder"),
    "a file in the place of its parent": lambda folder: folder.parent.write_text("not a folder"),
    "a file that is no store": lambda folder: written(folder).write_bytes(b"something else entirely " * 500),
    "a folder in the place of the file": lambda folder: written(folder).mkdir(),
}


def written(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder / "fedskew.db"


@pytest.mark.parametrize("spoil", UNUSABLE.values(), ids=UNUSABLE)
def test_a_folder_that_cannot_hold_a_store_gives_a_one_line_error(tmp_path, spoil):
    folder = tmp_path / "parent" / "runs"
    if "parent" not in spoil.__code__.co_names:
        folder.parent.mkdir()
    spoil(folder)
    with refused(BadInput, str(folder)):
        RunStore(folder)


def test_a_store_of_another_version(store):
    store.db.execute("PRAGMA user_version=99")
    with refused(BadInput, str(store.folder), "99"):
        RunStore(store.folder)


def test_a_store_whose_tables_are_not_readable_gives_a_one_line_error(tmp_path):
    """SQLite's own message has several lines: it contains the whole statement."""
    store = RunStore(tmp_path)
    store.close()
    (place,) = (path for path in tmp_path.iterdir() if path.read_bytes()[:6] == b"SQLite")
    whole = place.read_bytes()
    assert whole.count(b"status TEXT NOT NULL") >= 1
    place.write_bytes(whole.replace(b"status TEXT NOT NULL", b'status TEXT NOT "ULL'))
    with pytest.raises(BadInput, match="malformed database schema"):
        RunStore(tmp_path)


def test_run_numbers_of_a_deleted_store_are_not_used_again(tmp_path):
    """The folders and pages of the earlier runs are not overwritten."""
    (tmp_path / "7").mkdir()
    (tmp_path / "c3.html").write_text("a page")
    store = RunStore(tmp_path)
    assert (store.add_comparison("a vs b"), store.add_comparison("c vs d")) == (4, 5)
    assert [add(store), add(store)] == [8, 9]


def test_one_damaged_record_leaves_the_others_to_be_read(store):
    """The hostile requests have more kinds of damage."""
    first, second = add(store), add(store, "scaffold")
    store.db.execute("UPDATE runs SET facts='[]' WHERE id=?", (first,))
    out = output_of("list", "runs", "--runs", store.folder)
    assert "damaged" in out
    assert "SCAFFOLD" in out
    assert store.run(second).name == "scaffold"
    err = error_of("show", "1", "--runs", store.folder, code=1)
    assert err.startswith("fedskew: run 1: its record in the store is damaged: ")


AS_UNPRIVILEGED_USER = """
import os, sys
import pandas.core.indexes.base  # what reading needs: another user may not find it
from fedskew.store.runs import RunStore
if os.getuid() == 0:
    os.setuid(65534)
store = RunStore(sys.argv[1], read_only=True)
print([record.name for record in store.select(["latest"])], len(store.measurements([1])))
"""


@pytest.mark.parametrize("writer", ["has ended", "goes on"])
def test_a_store_that_may_not_be_written_can_be_read(writer):
    """If this user could write any file, the test opens the store as another user."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        store = RunStore(folder)
        store.write_round(add(store, "scaffold"), 1, ROUND)
        if writer == "has ended":
            store.close()
        for path in (*folder.iterdir(), folder):
            path.chmod(0o555 if path.is_dir() else 0o444)
        before = sorted(path.name for path in folder.iterdir())
        done = subprocess.run(
            [sys.executable, "-c", AS_UNPRIVILEGED_USER, str(folder)], capture_output=True, text=True, timeout=100
        )
        assert done.stdout == "['scaffold'] 3\n", done.stderr
        assert sorted(path.name for path in folder.iterdir()) == before
        store.close()
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_a_store_that_is_only_read_is_not_made(tmp_path):
    assert "no runs yet" in output_of("list", "runs", "--runs", tmp_path / "none")
    assert not (tmp_path / "none").exists()
