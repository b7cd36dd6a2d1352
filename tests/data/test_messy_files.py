"""Every verb decides alike what a column of a messy file is, from the whole file, and says it in one line."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedskew
from fedskew.data.datasets.table import Table
from fedskew.data.guard import shared
from fedskew.data.preprocessing import Tabular
from fedskew.data.schema import merged
from fedskew.experiment.diagnose import from_files
from fedskew.experiment.rehearsal import rehearse, sites_of_files

ROWS = 60


def frame_of(cells: dict[str, list[str]]) -> pd.DataFrame:
    """The columns ``cells``, a noise column x, two sites and a label y."""
    noise = np.random.default_rng(0).normal(size=ROWS).round(3).astype(str)
    y = np.repeat(["no", "yes"], ROWS // 2)
    return pd.DataFrame({**cells, "x": noise, "site": ["a", "b"] * (ROWS // 2), "y": y})


def write(folder: Path, frame: pd.DataFrame, delimiter: str = ",") -> Path:
    """Write a file of all rows, and a folder of a file for each site; return the file."""
    (folder / "sites").mkdir(parents=True)
    for site, rows in frame.groupby("site"):
        rows.drop(columns="site").to_csv(folder / "sites" / f"{site}.csv", index=False, sep=delimiter)
    frame.to_csv(folder / "t.csv", index=False, sep=delimiter)
    return folder / "t.csv"


def kinds(known: object) -> dict[str, str]:
    """The kind of each used column."""
    assert isinstance(known, Tabular)
    names = {part.name: type(part).__name__.lower() for part in known.columns}
    return names | {part.name: "time" for part in known.columns if getattr(part, "time", False)}


def decisions(path: Path) -> dict[str, dict[str, str]]:
    """What each verb makes of the columns of a file, by the name of the verb."""
    folder, options = path.parent / "sites", {"path": str(path), "label": "y", "client": "site"}
    nodes = {site: Table(path=str(folder / f"{site}.csv"), label="y") for site in "ab"}
    sent = {site: shared(table.surveyed(table.path).table, 1)[0] for site, table in nodes.items()}
    tables = {
        "run": Table(**options),
        "folds": Table(**options, fold="2/5"),
        "sample": Table(**options, rows=ROWS - 10),
        "test": Table(**options, test=str(path)),
        "guarded": Table(**options, fewest=2),
        "folder": Table(path=str(folder), label="y"),
    }
    return {
        "nodes": kinds(merged(sent).preprocessing),
        **{name: kinds(t.load().preprocessing) for name, t in tables.items()},
    }


def lines(path: Path, words: str) -> dict[str, bool]:
    """Whether each verb says these words of the column z."""
    rehearsed = rehearse(*sites_of_files([path], "y", "site", fewest=1))
    said = {
        "run": Table(path=str(path), label="y", client="site").load().notes.split("; "),
        "diagnose": [*(subject := from_files([path], "y", "site")).notes, *subject.column_notes],
        "diagnose without pooling": [*rehearsed["notes"], *rehearsed["column_notes"]],
    }
    return {verb: any(words in note and "'z'" in note for note in notes) for verb, notes in said.items()}


NUMBERED = {
    "ascending": [str(i) for i in range(1, ROWS + 1)],
    "descending": [str(i) for i in range(ROWS, 0, -1)],
    "steps": [str(10 * i) for i in range(ROWS)],
    "leading zeros": [f"{i:05d}" for i in range(ROWS)],
    "a dropped row": [str(i) for i in range(ROWS + 1) if i != 40],
    "dropped rows": [str(i) for i in range(ROWS + 15) if i % 5],
}


@pytest.mark.parametrize("cells", NUMBERED.values(), ids=NUMBERED)
def test_numbers_of_rows_are_no_input_whichever_rows_are_taken_out(tmp_path, cells):
    path = write(tmp_path, frame_of({"z": cells}))
    assert all(found == {"x": "number"} for found in decisions(path).values())
    assert all(lines(path, "left out, it numbers the rows, from ").values()), lines(path, "left out")


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
def test_the_index_that_pandas_writes_is_no_input_in_any_order(tmp_path, name):
    path = write(tmp_path, frame_of({name: [str(i) for i in np.random.default_rng(1).permutation(ROWS)]}))
    assert all(found == {"x": "number"} for found in decisions(path).values())


def test_files_of_a_folder_that_are_each_numbered_from_0(tmp_path):
    frame = frame_of({"z": [str(i // 2) for i in range(ROWS)]})
    write(tmp_path, frame)
    assert kinds(Table(path=str(tmp_path / "sites"), label="y").load().preprocessing) == {"x": "number"}


def test_a_column_with_a_unit_is_an_input(tmp_path):
    path = write(tmp_path, frame_of({"z": NUMBERED["steps"]}))
    (tmp_path / "t.columns.toml").write_text("[units]\nz = 1\n")
    data = Table(path=str(path), label="y", client="site").load()
    assert kinds(data.preprocessing) == {"z": "number", "x": "number"}


def test_whole_numbers_that_are_all_different_are_noted(tmp_path):
    ids = np.random.default_rng(2).permutation(ROWS) * 7 + 100
    path = write(tmp_path, frame_of({"z": [str(i) for i in ids]}))
    assert all(lines(path, "each row has another whole number").values())
    ages = write(tmp_path / "ages", frame_of({"z": [str(20 + i % 50) for i in ids]}))
    assert not any(lines(ages, "each row has another whole number").values())


def test_a_model_does_not_learn_the_numbers_of_rows(tmp_path):
    """The label follows the order of the rows, and x is noise."""
    noise = np.random.default_rng(3).normal(size=200)
    rows = [f"{row + 1},{noise[row]:.3f},{'ab'[row % 2]},{int(row >= 100)}" for row in range(200)]
    (tmp_path / "t.csv").write_text("\n".join(["row,x,site,y", *rows]))
    runs = fedskew.run(
        dataset=f"table:path={tmp_path}/t.csv,label=y,client=site", skew="natural", rounds=20, runs=tmp_path / "runs"
    )
    assert 0.3 < runs.table()["accuracy"].item() < 0.7
