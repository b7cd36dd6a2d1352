"""Excel files: a sheet is read as a CSV file of the same cells."""

import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedskew as fs
from fedskew.core.errors import BadInput
from fedskew.data.datasets.table import TableData
from tests.tables import survey

pytest.importorskip("openpyxl", reason="needs openpyxl (pip install '.[excel]' in the clone)")


def visits(rows: int = 40) -> pd.DataFrame:
    """Numbers with gaps, whole numbers, words, days, numbers with words among them, and a label."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": np.where(rng.random(rows) < 0.2, np.nan, rng.normal(50, 9, rows).round(2)),
            "visits": rng.choice([1, 2, 7], rows),
            "colour": rng.choice(["red", "None", "NA"], rows),
            "day": pd.date_range("2021-01-01", periods=rows),
            "dose": ["unknown", *map(str, range(5, rows + 4))],
            "ward": rng.choice(["01", "02"], rows),
            "ill": rng.choice(["no", "yes"], rows),
        }
    )


def write(folder: Path, **sheets: pd.DataFrame) -> Path:
    with pd.ExcelWriter(folder / "visits.xlsx") as book:
        for name, frame in sheets.items():
            frame.to_excel(book, sheet_name=name, index=False)
    return folder / "visits.xlsx"


def test_a_sheet_gives_the_rows_of_a_csv_file(tmp_path):
    visits().to_csv(tmp_path / "visits.csv", index=False)
    datasets = [
        TableData(path=str(path), label="ill", client="ward").load()
        for path in (write(tmp_path, Sheet1=visits()), tmp_path / "visits.csv")
    ]
    assert datasets[0].fingerprint() == datasets[1].fingerprint()
    assert (datasets[0].columns, datasets[0].group_names) == (datasets[1].columns, ("01", "02"))


def test_cells_that_are_numbers_and_words_and_rows_without_cells_are_read(tmp_path):
    frame = visits()
    frame["dose"] = ["unknown", *range(5, 44)]
    frame.loc[len(frame)] = [None] * 7
    table = survey([write(tmp_path, Sheet1=frame)], "ill", "ward").table
    assert table["dose"].to_pylist() == [None, *range(5, 44)]


def test_two_columns_of_one_name_are_refused_as_in_a_csv_file(tmp_path):
    path = write(tmp_path, Sheet1=visits().rename(columns={"dose": "ill"}))
    with pytest.raises(BadInput, match=r"two columns are called 'ill'; the first line must give each its own name"):
        survey([path], "ill", "ward")


def test_the_sheet_of_several_is_named_in_the_toml_file(tmp_path):
    path = write(tmp_path, Notes=visits().head(3), Visits=visits())
    with pytest.raises(
        BadInput, match=r"its sheets are 'Notes', 'Visits'; in visits.columns.toml write sheet = \"Notes\""
    ):
        survey([path], "ill", "ward")
    (tmp_path / "visits.columns.toml").write_text('sheet = "Visits"')
    assert len(survey([path], "ill", "ward").y) == 40
    assert fs.diagnose(path, label="ill", client="ward", progress=False)["rows"] == 40
    (tmp_path / "visits.columns.toml").write_text('sheet = "Vsits"')
    with pytest.raises(BadInput, match="its sheets are 'Notes', 'Visits'"):
        survey([path], "ill", "ward")
    visits().to_csv(tmp_path / "visits.csv", index=False)
    with pytest.raises(BadInput, match=r"visits.columns.toml: sheet is for Excel files; leave it out"):
        survey([tmp_path / "visits.csv"], "ill", "ward")


def test_predict_answers_the_rows_of_a_sheet(tmp_path):
    path = write(tmp_path, Sheet1=visits())
    runs = fs.run(dataset=f"table:path={path},label=ill,client=ward", rounds=1, runs=tmp_path / "runs", progress=False)
    model = fs.load_model(runs)
    visits().to_csv(tmp_path / "new.csv", index=False)
    pd.testing.assert_frame_equal(model.predict(path), model.predict(tmp_path / "new.csv"))
    [(rows, columns)] = model.blocks(path)
    assert len(rows) == 40
    assert columns is not None
    assert [*columns] == [*visits()]


def test_other_files_and_a_missing_package_are_one_line(tmp_path, monkeypatch):
    bad = tmp_path / "bad.xlsx"
    bad.write_text("age,ill\n")
    with pytest.raises(BadInput, match=r"bad.xlsx: cannot be read as Excel: File is not a zip file"):
        survey([bad], "ill", fair=False)
    with zipfile.ZipFile(bad, "w") as file:
        file.writestr("other.txt", "x")
    with pytest.raises(BadInput, match=r"^[^\n]*bad.xlsx: cannot be read as Excel: [^\n]*$"):
        survey([bad], "ill", fair=False)
    path = write(tmp_path, Sheet1=visits())
    monkeypatch.setattr("fedskew.data.tables.files.LARGEST", 1000)
    with pytest.raises(BadInput, match="more than 1,000 bytes when unpacked; save the sheet as CSV"):
        survey([path], "ill", "ward")
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(BadInput, match=r"need openpyxl; pip install '\.\[excel\]' in the clone, or save as CSV"):
        survey([path], "ill", "ward")
