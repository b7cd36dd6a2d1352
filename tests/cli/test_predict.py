"""`fedskew predict` on files as people have them: the file's own cells stay, and mistakes are one line."""

import io
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedskew.api.runs import Runs
from fedskew.cli.main import main
from fedskew.core.errors import BadInput
from fedskew.data.tables import files
from fedskew.data.tables.files import Reading
from tests.disk import largest_file
from tests.serving.test_predict import trained_on

CELLS = ("007", "12345678901234567890", "NA", "null", "true", "2020-01-01 10:00", " 1.50 ", "1e3", "", '"a,b"')
"""Cells of columns that the model does not read."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Runs]:
    folder = tmp_path_factory.mktemp("predict")
    return folder, trained_on(folder, leave_out="note")


def predicted(folder: Path, rows: Path, *words: str) -> int:
    return main(["predict", "1", str(rows), "--runs", str(folder / "runs"), *words])


def test_cells_of_a_csv_stay_as_they_are_written(made: tuple[Path, Runs], tmp_path: Path, capsys) -> None:
    folder, _ = made
    head, *rows = (folder / "test.csv").read_text().splitlines()
    names = [f"own{at}" for at in range(len(CELLS))]
    given = [",".join([head, *names]), *(",".join([row, *CELLS]) for row in rows[:3])]
    (tmp_path / "new.csv").write_text("\n".join(given))
    (tmp_path / "new.columns.toml").write_text('[rename]\nown0 = "patient"\n')
    assert predicted(folder, tmp_path / "new.csv") == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line[: len(own)] for line, own in zip(printed, given, strict=True)] == given
    assert predicted(folder, tmp_path / "new.csv", "--output", str(tmp_path / "out.parquet")) == 0
    written = pd.read_parquet(tmp_path / "out.parquet")
    assert written[names].iloc[2].tolist() == [*CELLS[:-1], "a,b"]


def test_values_of_a_parquet_file_keep_their_types(made: tuple[Path, Runs], tmp_path: Path) -> None:
    folder, _ = made
    table = pa.Table.from_pandas(pd.read_csv(folder / "test.csv").head(3), preserve_index=False)
    own = {
        "id": pa.array([9007199254740993, None, 1]),
        "day": pa.array([18000, None, 1], pa.date32()),
        "yes": pa.array([True, None, False]),
        "tags": pa.array([["a"], [], None]),
    }
    for name, cells in own.items():
        table = table.append_column(name, cells)
    pq.write_table(table, tmp_path / "new.parquet")
    assert predicted(folder, tmp_path / "new.parquet", "--output", str(tmp_path / "out.parquet")) == 0
    written = pq.read_table(tmp_path / "out.parquet")
    assert written.select(table.column_names).replace_schema_metadata().equals(table.replace_schema_metadata())
    assert predicted(folder, tmp_path / "new.parquet", "--output", str(tmp_path / "out.csv")) == 0
    csv = pd.read_csv(tmp_path / "out.csv", dtype=str, keep_default_na=False)
    assert csv[["id", "day", "yes"]].to_numpy().tolist() == [
        ["9007199254740993", "2019-04-14", "True"],
        ["", "", ""],
        ["1", "1970-01-02", "False"],
    ]


def test_one_file_is_answered_and_never_overwritten(made: tuple[Path, Runs], tmp_path: Path, capsys) -> None:
    folder, runs = made
    text = (folder / "test.csv").read_text()
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(text)
    assert predicted(folder, tmp_path) == 2
    assert capsys.readouterr().err == f"fedskew: predict {tmp_path}: it is a folder; give one file\n"
    with pytest.raises(BadInput, match="it is a folder; give one file"):
        runs.predict(tmp_path)
    (tmp_path / "link.csv").symlink_to(tmp_path / "a.csv")
    assert predicted(folder, tmp_path / "a.csv", "--output", str(tmp_path / "link.csv")) == 2
    assert "it is the file of the rows; give another name" in capsys.readouterr().err
    assert (tmp_path / "a.csv").read_text() == text


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_answers_that_do_not_fit_on_the_disk_leave_the_earlier_ones(
    made: tuple[Path, Runs], tmp_path: Path, kind: str, capsys
) -> None:
    out = tmp_path / f"out.{kind}"
    out.write_text("earlier answers")
    with largest_file(1000):
        assert predicted(made[0], made[0] / "test.csv", "--output", str(out)) == 1
    assert f"predict {out}: cannot be written: " in capsys.readouterr().err
    assert out.read_text() == "earlier answers"
    assert [*tmp_path.iterdir()] == [out]


def test_texts_of_many_lines_stay_as_they_are_written(tmp_path: Path) -> None:
    text = 'one\n\ntwo "2"\nthree\nfour\nfive\n'
    pd.DataFrame({"text": [text, "NA"]}).to_csv(tmp_path / "new.csv", index=False)
    [(_, part)] = Reading([tmp_path / "new.csv"], raw=True).tables()
    assert part["text"].to_pylist() == [text, "NA"]


@pytest.mark.parametrize("output", ["new.csv.answers.csv", "answers.parquet", ""])
def test_a_long_file_is_answered_in_parts(
    output: str,
    made: tuple[Path, Runs],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The answers equal the answers of the whole file at once, and lines on unseen values count the rows of all parts."""
    folder, _ = made
    rows = pd.concat([pd.read_csv(folder / "test.csv", dtype=str)] * 40)
    rows.to_csv(tmp_path / "new.csv", index=False)
    words = ["predict", "1", str(tmp_path / "new.csv"), "--runs", str(folder / "runs")]
    answers, said = [], []
    for block in (1 << 30, 4096):
        monkeypatch.setattr(files, "BLOCK", block)
        place = tmp_path / f"{block}-{output}"
        assert main([*words, *(["--output", str(place)] if output else [])]) == 0
        out, err = capsys.readouterr()
        table = (
            pd.read_parquet(place) if output.endswith("parquet") else pd.read_csv(place if output else io.StringIO(out))
        )
        assert len(table) == len(rows)
        answers.append(table)
        said.append(err)
    pd.testing.assert_frame_equal(*answers, rtol=1e-5)
    assert said[0] == said[1]
