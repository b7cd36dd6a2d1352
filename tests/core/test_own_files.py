"""Files of the user's: none is replaced unasked, none can fill the memory, and code in one cannot end the program."""

import csv
import textwrap
from pathlib import Path

import numpy as np
import pytest

from fedskew.api.functions import run
from fedskew.cli.main import main
from fedskew.core.errors import BadInput, FedskewError
from fedskew.core.files import bounded
from fedskew.report.files import csv as as_csv
from fedskew.skew.exported import FromFolder
from fedskew.store.runs import RunStore
from tests.commands import error_of
from tests.flower_nodes import small
from tests.tables import survey

SKEW = ["skew", "--clients", "3", "--skew", "iid"]


@pytest.mark.parametrize("name", ["README.md", "partition.npz", "partition.json", "rows.npz"])
def test_an_export_replaces_no_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    assert f"already holds {name}" in error_of(*SKEW, "--export", tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "mine")]


def test_names_that_a_spreadsheet_would_compute_are_text(tmp_path: Path) -> None:
    import pandas as pd

    names = ["=HYPERLINK(1)", "+1", "-x", "@sum", "\tx", "anna", "1-2", ""]
    text = as_csv(pd.DataFrame({"client": names, "value": [-1.5] * len(names)}))
    rows = list(csv.reader(text.splitlines()))[1:]
    assert [row[0] for row in rows] == ["'=HYPERLINK(1)", "'+1", "'-x", "'@sum", "'\tx", "anna", "1-2", ""]
    assert {row[1] for row in rows} == {"-1.5"}


def test_two_files_of_one_name_are_not_one_client(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,label\n1,u\n2,v\n")
    (tmp_path / "a.tsv").write_text("x\tlabel\n1\tu\n2\tv\n")
    with pytest.raises(BadInput, match=r"a\.csv and .*a\.tsv would be one client, 'a'; rename one of them"):
        survey([tmp_path], "label")
    (tmp_path / "a.tsv").rename(tmp_path / "b.tsv")
    assert len(survey([tmp_path], "label").counts) == 2


def test_an_array_is_not_unpacked_beyond_its_expected_size(tmp_path: Path) -> None:
    """A file of a megabyte can contain a gigabyte of zeros. This test uses less, and counts the unpacked bytes."""
    np.savez_compressed(tmp_path / "z.npz", zeros=np.zeros(1 << 20, dtype=np.uint8))
    with np.load(tmp_path / "z.npz", allow_pickle=False) as file:
        assert bounded(file, "zeros", 1 << 20).nbytes == 1 << 20
        with pytest.raises(ValueError, match="zeros unpacks to 1,048,704 bytes, expected at most 1,000"):
            bounded(file, "zeros", 1000)
        with pytest.raises(KeyError):
            bounded(file, "none", 1000)


def test_a_partition_that_unpacks_to_more_than_its_rows_is_refused(tmp_path: Path) -> None:
    assert main([*SKEW, "--export", str(tmp_path / "p"), "--json"]) == 0
    with np.load(tmp_path / "p" / "partition.npz", allow_pickle=False) as file:
        arrays = dict(file)
    np.savez_compressed(tmp_path / "p" / "partition.npz", **{**arrays, "indices": np.zeros(1 << 20, dtype=np.int64)})
    with pytest.raises(BadInput, match="indices unpacks to 8,388,736 bytes, expected at most"):
        FromFolder(path=str(tmp_path / "p")).read(1437)


LEAVING = """
    from dataclasses import dataclass
    import sys
    import fedskew
    {first}

    @dataclass(frozen=True, kw_only=True)
    class Mine(fedskew.Algorithm):
        def server_init(self, server):
            sys.exit(0)
"""


def test_user_code_cannot_exit_with_code_zero(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(textwrap.dedent(LEAVING.format(first="sys.exit(0)")))
    words = ["run", "--algorithm", f"{path}::Mine", "--runs", str(tmp_path / "runs"), "--rounds", "1"]
    assert "mine.py, line 5: SystemExit: 0" in error_of(*words)
    path.write_text(textwrap.dedent(LEAVING.format(first="")))
    assert "ended the program with sys.exit(0)" in error_of(*words, code=1)


def test_a_run_whose_method_ends_the_program_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(*_: object) -> None:
        raise SystemExit(0)

    monkeypatch.setattr("fedskew.execution.run.play", leave)
    with pytest.raises(FedskewError, match=r"run 1: code that it calls ended the program, sys\.exit\(0\)"):
        run(small(rounds=1), runs=tmp_path)
    assert RunStore(tmp_path).run(1).status == "failed"
