"""Every verb decides alike what a column of a messy file is, from the whole file, and says it in one line."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import fedskew
from fedskew.core.errors import BadInput
from fedskew.data.datasets.table import TableData
from fedskew.data.preprocessing import Tabular
from fedskew.data.tables.columns import cells_for
from fedskew.data.tables.guard import shared
from fedskew.data.tables.mapping import CellTally, decide
from fedskew.data.tables.schema import merged
from fedskew.diagnosis.diagnose import sites_of_files
from fedskew.diagnosis.subject import DiagnosisOptions, from_files
from fedskew.execution.learned import Learned
from fedskew.serving.predict import TrainedModel
from tests.commands import output_of
from tests.tables import survey

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


def decisions(path: Path, case: int = 0) -> dict[str, dict[str, str]]:
    """What verbs make of the columns of a file, by the name of the verb: nodes, a run, and two that ``case`` chooses."""
    folder, options = path.parent / "sites", {"path": str(path), "label": "y", "client": "site"}
    nodes = {site: TableData(path=str(folder / f"{site}.csv"), label="y") for site in "ab"}
    sent = {site: shared(table.surveyed().table, 1)[0] for site, table in nodes.items()}
    more = [
        ("sample", TableData(**options, rows=ROWS - 10)),
        ("guarded", TableData(**options, fewest=2)),
        ("test", TableData(**options, test=str(path))),
        ("folder", TableData(path=str(folder), label="y")),
    ]
    tables = {"run": TableData(**options), **dict(more[case % 2 :: 2])}
    return {
        "nodes": kinds(merged(sent).preprocessing),
        **{name: kinds(t.load().preprocessing) for name, t in tables.items()},
    }


def lines(path: Path, words: str) -> dict[str, bool]:
    """Whether each verb says these words of the column z."""
    sites, facts = sites_of_files(DiagnosisOptions(paths=[path], label="y", client="site", federated=True, fewest=1))
    merged_notes = merged({site: shared(made.table, 1)[0] for site, made in sites.items()}).notes
    rows = from_files(DiagnosisOptions(paths=[path], label="y", client="site"))
    said = {
        "run": TableData(path=str(path), label="y", client="site").load().notes,
        "diagnose": "; ".join((*rows.source.notes, *rows.source.column_notes)),
        "diagnose without pooling": "; ".join((*facts.notes, *merged_notes)),
    }
    return {verb: words in notes and "'z'" in notes for verb, notes in said.items()}


NUMBERED = {
    "ascending": [str(i) for i in range(1, ROWS + 1)],
    "descending": [str(i) for i in range(ROWS, 0, -1)],
    "steps": [str(10 * i) for i in range(ROWS)],
    "leading zeros": [f"{i:05d}" for i in range(ROWS)],
    "dropped rows": [str(i) for i in range(ROWS + 15) if i % 5],
}
RNG = np.random.default_rng(5)
NUMBERS = RNG.normal(5000, 900, ROWS).round(2)
DAYS = pd.date_range("2019-01-07", periods=ROWS, freq="13D12h")
SECONDS = RNG.integers(0, 86400 // 60, ROWS) * 60
CLOCKS = pd.to_datetime(SECONDS, unit="s")
GERMAN = str.maketrans(",.", ".,")

SPELT: dict[str, tuple[list[str], list[float] | np.ndarray, str]] = {
    **{name: (cells, [], "left out, it numbers the rows; if it is a quantity") for name, cells in NUMBERED.items()},
    "plain": ([str(v) for v in NUMBERS], NUMBERS, ""),
    "?": (["?" if i % 3 else str(v) for i, v in enumerate(NUMBERS)], NUMBERS[::3], " missing or not numbers"),
    "-": (["-" if i % 3 else str(v) for i, v in enumerate(NUMBERS)], NUMBERS[::3], " missing or not numbers"),
    "words": (
        [str(v) if i % 20 else "old" for i, v in enumerate(NUMBERS)],
        NUMBERS[np.arange(ROWS) % 20 > 0],
        "'old' is no number, so it is a missing value",
    ),
    "limits": (
        [str(v) if i % 20 else "<10" for i, v in enumerate(NUMBERS)],
        NUMBERS[np.arange(ROWS) % 20 > 0],
        "'<10' is no number, so it is a missing value",
    ),
    "dollars": ([f"${v}" for v in NUMBERS], NUMBERS, f"'${NUMBERS[0]}' is read as {NUMBERS[0]}"),
    "euros": ([f"{v:.2f} €" for v in NUMBERS], NUMBERS, "is read as"),
    "negative": ([f"-${v}" for v in NUMBERS], -NUMBERS, "is read as -"),
    "percent": ([f"{v / 100:.4f}%" for v in NUMBERS], NUMBERS / 100, "is read as"),
    "thousands": ([f"{v:,.0f}" for v in NUMBERS], NUMBERS.round(), "is read as"),
    "apostrophes": ([f"{v:,.2f}".replace(",", "'") for v in NUMBERS], NUMBERS, "is read as"),
    "decimal commas": ([f"{v:.2f}".replace(".", ",") for v in NUMBERS], NUMBERS, "is read as"),
    "German": ([f"{v:,.2f}".translate(GERMAN) for v in NUMBERS], NUMBERS, "is read as"),
    "31.12.2021": ([*DAYS.strftime("%d.%m.%Y")], DAYS.normalize(), "'07.01.2019' is read as 2019-01-07; if it is not"),
    "12/31/2021": ([*DAYS.strftime("%m/%d/%Y")], DAYS.normalize(), "'01/07/2019' is read as 2019-01-07; if it is not"),
    "31/12/2021": ([*DAYS.strftime("%d/%m/%Y")], DAYS.normalize(), "'07/01/2019' is read as 2019-01-07; if it is not"),
    "31-12-15": ([*DAYS.strftime("%d-%m-%y")], DAYS.normalize(), "'07-01-19' is read as 2019-01-07; if it is not"),
    "31 Dec 2021": ([*DAYS.strftime("%d %b %Y")], DAYS.normalize(), "is read as 2019-01-07"),
    "12/31/2021 1:08 PM": ([*DAYS.strftime("%m/%d/%Y %I:%M %p")], DAYS, "is read as 2019-01-07"),
    "2021-12-31": ([*DAYS.strftime("%Y-%m-%d")], DAYS.normalize(), ""),
    "2021-12-31T13:08:00": ([*DAYS.strftime("%Y-%m-%dT%H:%M:%S")], DAYS, ""),
    "13:08:00": ([*CLOCKS.strftime("%H:%M:%S")], SECONDS, "seconds of the day"),
    "1:08 PM": ([*CLOCKS.strftime("%I:%M %p")], SECONDS, "seconds of the day"),
}
"""Cells of a column by the name of a case; the numbers or times that they mean, of known cells; and the line that says so."""

TEXTS = {
    "days or months": (
        [f"{1 + i % 12:02}/{1 + i * 5 % 12:02}/2021" for i in range(ROWS)],
        "'02/06/2021' may be 2021-06-02 or 2021-02-06; in NAME.columns.toml write [dates] and on the next line "
        'z = "%d/%m/%Y", or [dates] and on the next line z = "%m/%d/%Y"',
    ),
    "units": ([f"{v} kg" for v in NUMBERS], f"such as '{NUMBERS[0]} kg'; write all numbers as 1200.5"),
    "dates in two spellings": (
        [day.strftime("%d/%m/%Y" if i % 7 else "%Y-%m-%d") for i, day in enumerate(DAYS)],
        "such as '2019-01-07' and '",
    ),
    "bands": ([["20-29", "30-39", "40-49"][i % 3] for i in range(ROWS)], ""),
    "intervals": ([["(0, 10]", "(10, 20]"][i % 2] for i in range(ROWS)], ""),
    "versions": ([f"1.{i % 5}.{i % 7}" for i in range(ROWS)], ""),
    "ids": ([f"P{i:03}" for i in range(ROWS)], "left out, every value is a different single word"),
}


@pytest.mark.parametrize("case", SPELT)
def test_every_verb_reads_the_same_numbers_and_times(tmp_path, case):
    cells, truth, line = SPELT[case]
    path = write(tmp_path, frame_of({"z": cells}))
    kind = {} if not len(truth) else {"z": "time" if isinstance(truth, pd.DatetimeIndex) else "number"}
    found = decisions(path, [*SPELT].index(case))
    assert all(columns == {**kind, "x": "number"} for columns in found.values()), found
    assert {*lines(path, line or "z").values()} == {bool(line)}
    if not len(truth):
        return
    data = TableData(path=str(path), label="y", client="site").load()
    assert isinstance(data.preprocessing, Tabular)
    part = data.preprocessing.columns[0]
    seconds = pd.Series(truth).astype("datetime64[us]").astype(int) / 1e6 if part.time else np.asarray(truth, float)
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    learned = Learned(preprocessing=data.preprocessing, shape=data.shape, classes=(), categories=0, task={}, model={})
    model = TrainedModel(1, SimpleNamespace(learned=learned, kind=SimpleNamespace(target="number")), lambda: data)
    for rows in (model.frame(frame), model.frame(path), model.frame(one_row(path))):
        found = cells_for(part, rows["z"])
        known = found[~np.isnan(found)]
        assert len(known) == 0 or known[:1] == pytest.approx(seconds[:1])
        assert len(rows) == 1 or sorted(set(known.round(4))) == pytest.approx(sorted({*np.round(seconds, 4)}))


def test_a_file_with_decimal_points_keeps_them_where_another_had_commas(tmp_path):
    """New rows with 1.234 were read as 1234, and so were all rows of such a site where sites agree on a preprocessing."""
    for name, sign in (("a", ","), ("b", ".")):
        rows = frame_of({"z": [f"{i * 0.125 + 0.25:.3f}" for i in range(ROWS)]}).drop(columns="site")
        rows[["x", "z"]] = rows[["x", "z"]].map(lambda cell, sign=sign: cell.replace(".", sign))
        rows.to_csv(tmp_path / f"{name}.csv", index=False, sep=";")
    agreed = TableData(path=str(tmp_path), label="y").load().preprocessing
    a, b = (TableData(path=str(tmp_path / f"{name}.csv"), label="y").load(preprocessing=agreed) for name in "ab")
    assert np.array_equal(a.x, b.x)
    assert np.abs(b.x).max() < 4


def test_a_file_that_writes_points_in_one_column_writes_them_in_all():
    """1.234 fits both signs. Training had commas in both columns."""
    tallies = {"x": CellTally(), "z": CellTally()}
    tallies["x"].add(pa.chunked_array([["1.234"]]))
    tallies["z"].add(pa.chunked_array([["0.5"]]))
    assert decide(tallies, False, {"x": ",", "z": ","}) == {"x": "", "z": ""}
    assert decide({"x": tallies["x"]}, False, {"x": ","}) == {"x": ","}


def test_a_word_among_numbers_leaves_the_others_as_they_are(tmp_path):
    """With a single word in the column, 1,234 was read as 1.234 and then as 1234."""
    cells = [f"{i * 0.125:.3f}".replace(".", ",") if i % 20 else "old" for i in range(ROWS)]
    data = TableData(path=str(write(tmp_path, frame_of({"z": cells}), ";")), label="y").load()
    assert isinstance(data.preprocessing, Tabular)
    part = data.preprocessing.columns[0]
    assert np.nanmax(part.decode(data.x[:, : part.width].astype(float))) < 9


def one_row(path: Path) -> Path:
    """A file of the first row, which alone may be ambiguous."""
    new = path.with_name("one.csv")
    new.write_text("\n".join(path.read_text().splitlines()[:2]) + "\n")
    return new


@pytest.mark.parametrize(("cells", "line"), TEXTS.values(), ids=TEXTS)
def test_texts_that_look_like_numbers_or_times_are_noted(tmp_path, cells, line):
    path = write(tmp_path, frame_of({"z": cells}))
    found = {verb: kinds.get("z", "left out") for verb, kinds in decisions(path).items() if verb != "guarded"}
    assert len({*found.values()}) == 1, found
    assert {*found.values()} <= {"words", "text", "left out"}
    assert {*lines(path, line or "look like").values()} == {bool(line)}


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
def test_the_index_that_pandas_writes_is_no_input_in_any_order(tmp_path, name):
    path = write(tmp_path, frame_of({name: [str(i) for i in np.random.default_rng(1).permutation(ROWS)]}))
    assert all(found == {"x": "number"} for found in decisions(path).values())


def test_files_of_a_folder_that_are_each_numbered_from_0(tmp_path):
    frame = frame_of({"z": [str(i // 2) for i in range(ROWS)]})
    write(tmp_path, frame)
    assert kinds(TableData(path=str(tmp_path / "sites"), label="y").load().preprocessing) == {"x": "number"}


def test_a_column_with_a_unit_is_an_input(tmp_path):
    path = write(tmp_path, frame_of({"z": NUMBERED["steps"]}))
    (tmp_path / "t.columns.toml").write_text("[units]\nz = 1\n")
    data = TableData(path=str(path), label="y", client="site").load()
    assert kinds(data.preprocessing) == {"z": "number", "x": "number"}


def test_whole_numbers_that_are_all_different_are_noted(tmp_path):
    ids = np.random.default_rng(2).permutation(ROWS) * 7 + 100
    path = write(tmp_path, frame_of({"z": [str(i) for i in ids]}))
    assert all(lines(path, "each row has another whole number").values())
    ages = write(tmp_path / "ages", frame_of({"z": [str(20 + i % 50) for i in ids]}))
    assert not any(lines(ages, "each row has another whole number").values())


FORMATS: dict[str, tuple[str, str]] = {
    "delimiters in quotes": ('"size (a;b;c;d)",site,y\n', ","),
    "delimiters in a name": ("size a;b,site,y\n", ","),
    "as many of another": ("size,kg;site;y\n", ";"),
    "bars": ("size|site|y\n", "|"),
    "spaces": ("size site y\n", " "),
    "a line with the delimiter": ("sep=;\nsize;site;y\n", ";"),
    "a quoted line with the delimiter": ('"sep=|"\nsize|site|y\n', "|"),
    "tabs": ("size\tsite\ty\n", "\t"),
}


@pytest.mark.parametrize(("head", "delimiter"), FORMATS.values(), ids=FORMATS)
def test_the_delimiter_is_the_one_that_fits_the_first_lines(tmp_path, head, delimiter):
    rows = [delimiter.join([f"{i * 1.5:.1f}", "ab"[i % 2], ["no", "yes"][i // 2 % 2]]) for i in range(30)]
    (tmp_path / "t.csv").write_text(head + "\n".join(rows) + "\n")
    found = survey([tmp_path / "t.csv"], "y", "site")
    assert (len(found.table.column_names), found.counts.sum(), found.notes) == (1, 30, ())


def test_a_missing_column_names_the_delimiter_and_the_first_line(tmp_path):
    (tmp_path / "t.csv").write_text("5.1;3.5;a\n4.9;3.0;b\n")
    words = 'ITS-NAME = "y"; its first line, 5.1, 3.5, a, was taken as the names of columns, separated by semicolons'
    with pytest.raises(BadInput, match=words):
        survey([tmp_path / "t.csv"], "y", "a")


def test_a_first_line_of_numbers_is_noted(tmp_path):
    rows = [f"{i * 1.5},{i % 7},{i % 2}" for i in range(30)]
    (tmp_path / "t.csv").write_text("\n".join(["5.1,3.5,1.4", *rows]))
    assert "t.csv: its first line, 5.1, 3.5, 1.4, was taken as the names of columns; is it a row?" in (
        TableData(path=str(tmp_path / "t.csv"), label="1.4").load().notes
    )
    (tmp_path / "t.csv").write_text("\n".join(["2019,2020,2021", *rows]))
    assert "first line" not in TableData(path=str(tmp_path / "t.csv"), label="2021").load().notes


def test_a_semicolon_file_has_the_decimal_sign_of_its_other_columns(tmp_path):
    cases = [("1.25", "1,200", 3200), ("1,25", "1,200", 3.2), ("1,25", "1.200", 3200), ("7", "1,200", 3.2)]
    for other, cell, value in cases:
        rows = [f"{cell if i % 2 else cell.replace('1', '3', 1)};{other};{'ab'[i // 2 % 2]};{i % 2}" for i in range(40)]
        (tmp_path / "t.csv").write_text("\n".join(["z;x;site;y", *rows]))
        found = survey([tmp_path / "t.csv"], "y", "site")
        assert max(found.table["z"].to_pylist()) == pytest.approx(value)
        assert any(f"column 'z': '3{cell[1:]}' is read as" in note for note in found.notes), found.notes


def test_other_spellings_of_classes_clients_and_words_inside_one_file_are_noted(tmp_path):
    rows = [
        f"{i % 9},{['red', 'Red', 'blue'][i % 3]},{['H0', 'h0'][i // 3 % 2]},{['ill', 'Ill', 'well'][i % 3]}"
        for i in range(60)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["x,colour,site,y", *rows]))
    notes = TableData(path=str(tmp_path / "t.csv"), label="y", client="site").load().notes
    for name, words in (("y", "'Ill' and 'ill'"), ("site", "'H0' and 'h0'"), ("colour", "'Red' and 'red'")):
        assert f"column '{name}' holds {words}; if both mean the same" in notes


def sites(folder: Path, **classes: str) -> Path:
    for site, words in classes.items():
        rows = [f"{i * 1.5},{words.split()[i % 2]}" for i in range(40)]
        (folder / f"{site}.csv").write_text("\n".join(["x,y", *rows]))
    return folder


def test_sites_without_a_common_class_are_noted(tmp_path):
    line = "c: column 'y' holds 'No', 'Yes', but at other sites '+1', '-1'; if they mean the same"
    assert any(line in note for note in survey([sites(tmp_path, a="-1 +1", b="-1 +1", c="No Yes")], "y").notes)
    assert not any("mean the same" in note for note in survey([sites(tmp_path, a="0 1", b="2 3", c="4 5")], "y").notes)


def test_a_column_that_a_file_lacks_names_absent_and_rename(tmp_path):
    sites(tmp_path, a="0 1", b="0 1")
    (tmp_path / "b.csv").write_text("x,outcome\n1.5,0\n2.5,1\n")
    words = r'in b.columns.toml write \[rename\] and on the next line outcome = "y"; or absent = \["y"\] if it has none'
    with pytest.raises(BadInput, match=words):
        survey([tmp_path], "y")
    (tmp_path / "b.csv").write_text("x,y,ca\n1.5,0,1\n2.5,1,2\n")
    with pytest.raises(BadInput, match=r'in a.columns.toml write absent = \["ca"\] if it has none'):
        survey([tmp_path], "y")


def test_a_column_that_is_absent_twice_is_one_column(tmp_path):
    (sites(tmp_path, a="0 1") / "a.columns.toml").write_text('absent = ["q", "q"]')
    assert survey([tmp_path / "a.csv"], "y", "x").table.column_names == ["q"]


def test_a_model_with_inputs_of_the_names_of_answers_predicts(tmp_path):
    noise = np.random.default_rng(0).normal(size=(60, 2))
    rows = [f"{a:.3f},{b:.3f},{'ab'[i % 2]},{i // 2 % 2}" for i, (a, b) in enumerate(noise)]
    (tmp_path / "t.csv").write_text("\n".join(["prediction,outside,site,y", *rows]))
    data = f"table:path={tmp_path}/t.csv,label=y,client=site"
    fedskew.run(dataset=data, skew="natural", rounds=1, runs=tmp_path / "runs")
    head = output_of("predict", "1", tmp_path / "t.csv", "--runs", tmp_path / "runs").splitlines()[0].split(",")
    assert head[:5] == ["prediction", "outside", "site", "y", "prediction_of_run_1"]
    assert head[-1] == "outside_of_run_1"


def test_one_file_under_two_names_is_named(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"x": rng.normal(size=90), "y": rng.integers(0, 2, 90), "site": np.repeat(["a", "b", "c"], 30)}
    )
    copied = pd.concat([frame, frame[:30].assign(site="d")])
    few = frame.assign(x=rng.integers(0, 4, 90))  # equal rows by chance
    for name, rows, says in (("copied", copied, True), ("frame", frame, False), ("few", few, False)):
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
        data = TableData(path=str(tmp_path / f"{name}.csv"), label="y", client="site").load()
        assert ("30 of 30 rows of a are also rows of d: test rows of one are then training rows" in data.notes) == says
        assert ("are also rows of" in data.notes) == says


def test_test_rows_that_are_training_rows_are_noted(tmp_path):
    """The same file as test=FILE, or each row twice in one file: the test rows were trained on without a word."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=60), "site": ["a", "b"] * 30, "y": rng.choice(["ill", "well"], 60)})
    first, second, twice = (tmp_path / f"{name}.csv" for name in ("first", "second", "twice"))
    frame[:40].to_csv(first, index=False)
    frame[30:].to_csv(second, index=False)
    pd.concat([frame, frame]).to_csv(twice, index=False)
    says = "test rows are also training rows, with the same target: results are too good; give each row once"
    table = {"label": "y", "client": "site"}
    assert f"10 of 30 {says}" in TableData(path=str(first), test=str(second), **table).load().notes
    assert says in TableData(path=str(twice), **table).load().notes
    assert says not in TableData(path=str(twice), whole=True, **table).load().notes, "of a final model they all train"
    assert says not in TableData(path=str(first), **table).load().notes
    frame[:40].assign(y=frame["y"][:40].map({"ill": "well", "well": "ill"})).to_csv(second, index=False)
    assert says not in TableData(path=str(first), test=str(second), **table).load().notes, "another target"
    frame = frame.assign(x=rng.integers(0, 3, 60))
    frame.to_csv(first, index=False)
    assert says not in TableData(path=str(first), **table).load().notes, "rows of few values are equal by chance"
    texts = [f"word{at} of a text" for at in range(60)]
    frame.assign(x=texts).to_csv(first, index=False)
    assert f"60 of 60 {says}" in TableData(path=str(first), test=str(first), text="x", **table).load().notes


def test_a_code_is_one_word_at_every_site_and_in_every_part_of_a_file(tmp_path, monkeypatch):
    """01 was 1 in a file, or a block of a large file, that held numbers only, and stayed 01 elsewhere."""
    cells = {"a": ["01", "02"], "b": ["01", "A3"], "c": ["02", "B4"]}
    for site, codes in cells.items():
        rows = [f"{i * 1.5},{codes[i % 2]},{i % 2}" for i in range(40)]
        (tmp_path / f"{site}.csv").write_text("\n".join(["x,code,y", *rows]))
    assert set(survey([tmp_path], "y").table["code"].to_pylist()) == {"01", "02", "A3", "B4"}
    (tmp_path / "a.csv").write_text(
        "\n".join(["x,code,site,y", *(f"{i},{f'0{i % 7}' if i < 90 else 'A'},s,{i % 2}" for i in range(99))])
    )
    monkeypatch.setattr("fedskew.data.tables.files.BLOCK", 256)
    found = survey([tmp_path / "a.csv"], "y", "site").table["code"]
    assert found.type == "string"
    assert set(found.to_pylist()) == {*(f"0{i}" for i in range(7)), "A"}


TIMES = pd.DatetimeIndex([f"2021-{month:02}-{day:02} 13:00" for month in range(1, 5) for day in range(3, 13)])


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        (["true", "false"] * 20, ["1", "0"] * 20, ""),
        (
            [*TIMES.strftime("%Y-%m-%dT%H:%MZ")],
            [*TIMES.astype(str)],
            "times with a zone in some files, without in others",
        ),
        (
            [*TIMES.strftime("%Y%m%d")],
            [*TIMES.strftime("%Y-%m-%d")],
            "a.csv: column 'v' holds numbers, but at other sites times; write dates as 2020-01-31, or in NAME.columns.toml "
            '[dates] and on the next line v = "%Y%m%d"; until then they count as words',
        ),
    ],
)
def test_truth_values_and_times_of_other_types_at_a_site_are_joined_or_noted(tmp_path, a, b, says):
    """A column was words without a note if sites had true beside 1, times with a zone beside others, or 20210304."""
    for site, cells in zip("abc", (a, b, b), strict=True):
        rows = [f"{i * 1.5},{cell},{i % 2}" for i, cell in enumerate(cells)]
        (tmp_path / f"{site}.csv").write_text("\n".join(["x,v,y", *rows]))
    data = TableData(path=str(tmp_path), label="y").load()
    assert says in data.notes
    if says.startswith("a.csv"):
        (tmp_path / "a.columns.toml").write_text('[dates]\nv = "%Y%m%d"\n')
        data = TableData(path=str(tmp_path), label="y").load()
    assert data.columns == ("x", "v")


def test_one_column_in_files_of_two_formats_is_one_kind(tmp_path):
    """Times of Parquet count in nanoseconds, and of CSV in microseconds: together they were words."""
    frame = pd.DataFrame({"day": TIMES, "y": ["no", "yes"] * 20})
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_csv(tmp_path / "b.csv", index=False)
    assert TableData(path=str(tmp_path), label="y").load().columns == ("day",)


def test_a_clock_spelt_in_another_way_than_in_training_is_read(tmp_path):
    """It was no number for the model."""
    for name, form in (("old", "%H:%M"), ("new", "%I:%M %p")):
        frame_of({"z": [*CLOCKS.strftime(form)]}).to_csv(tmp_path / f"{name}.csv", index=False)
    trained = TableData(path=str(tmp_path / "old.csv"), label="y").load().preprocessing
    found = survey([tmp_path / "new.csv"], "y", "site", preprocessing=trained)
    assert any("column 'z': '10:40 PM' is read as 81600 seconds of the day" in note for note in found.notes)
    assert found.table["z"].to_pylist() == SECONDS.tolist()


def test_a_test_file_with_other_words_or_units_is_noted(tmp_path):
    """M and F where training had m and f, or metres for kilometres: only the test accuracy fell, and nothing said why."""
    frame = frame_of({"sex": ["m", "f"] * (ROWS // 2), "z": [str(7 + i % 9) for i in range(ROWS)]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    for cells, says in (
        ({"sex": frame["sex"].str.upper()}, f"column 'sex': {ROWS} of {ROWS} rows unknown, such as 'M'"),
        ({"z": frame["z"].astype(int) * 1000}, f"column 'z': {ROWS} of {ROWS} rows outside 7 to 15"),
        ({"z": frame["z"].where(frame.index > 3, "99")}, ""),
    ):
        frame.assign(**cells).to_csv(tmp_path / "b.csv", index=False)
        notes = TableData(path=str(tmp_path / "a.csv"), label="y", test=str(tmp_path / "b.csv")).load().notes
        assert says in notes
        assert ("no training row was like that" in notes) == bool(says)
