"""Data of one's own from files: every kind reads the same, nothing is dropped in silence, bad input is one line."""

from __future__ import annotations

import dataclasses
import gzip
import json
import re
import struct

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from fedskew.cli.main import main
from fedskew.core.errors import BadInput
from fedskew.data import columns, files
from fedskew.data.datasets.table import Table
from fedskew.data.tables import survey
from fedskew.experiment.build import assemble
from fedskew.experiment.config import Experiment
from fedskew.experiment.deal import client_data
from fedskew.experiment.diagnose import from_files
from fedskew.experiment.results import run


def frame(n=400, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    return pd.DataFrame(
        {
            "age": (y * 10 + rng.integers(20, 40, n)).astype(int),
            "height": rng.normal(1.7, 0.1, n),
            "colour": np.array(["red", "green", "blue"])[rng.integers(0, 3, n)],
            "who": np.array(["anna", "ben", "cleo", "dan", "eve"])[rng.integers(0, 5, n)],
            "label": np.array(["no", "maybe", "yes"])[y],
        }
    )


def write(table, path):
    if path.name.endswith((".csv", ".csv.gz")):
        table.to_csv(path, index=False)
    elif path.suffix == ".tsv":
        table.to_csv(path, index=False, sep="\t")
    elif ".jsonl" in path.name or path.suffix == ".ndjson":
        table.to_json(path, orient="records", lines=True, date_format="iso")
    elif path.suffix == ".parquet":
        table.to_parquet(path, index=False)
    else:
        pyarrow.feather.write_feather(pa.Table.from_pandas(table, preserve_index=False), str(path))
    return path


def records(table):
    return table.to_dict(orient="records")


def refused(*words, **options):
    """The one line of the error."""
    with pytest.raises(BadInput) as error:
        survey(**options)
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    "name", ["t.csv", "t.csv.gz", "t.tsv", "t.jsonl", "t.jsonl.gz", "t.ndjson", "t.parquet", "t.feather", "t.arrow"]
)
def test_every_kind_of_file_reads_the_same(tmp_path, name):
    table = frame()
    found = survey([write(table, tmp_path / name)], "label", "who")
    assert found.classes == ("maybe", "no", "yes")
    assert found.clients == ("anna", "ben", "cleo", "dan", "eve")
    assert np.array_equal(found.counts, pd.crosstab(table["who"], table["label"]).to_numpy())
    assert [found.classes[c] for c in found.y] == table["label"].tolist()
    assert [found.clients[k] for k in found.client] == table["who"].tolist()
    assert found.table["age"].to_pylist() == table["age"].tolist()
    assert found.notes == ()


def test_a_stream_of_record_batches_is_an_arrow_file_too(tmp_path):
    table = pa.Table.from_pandas(frame(), preserve_index=False)
    with pa.OSFile(str(tmp_path / "t.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    assert survey([tmp_path / "t.arrow"], "label", "who").counts.sum() == 400


def test_a_folder_with_one_file_a_client_and_many_files(tmp_path):
    table = frame()
    for who, part in table.groupby("who"):
        write(part.drop(columns="who"), tmp_path / f"{who}.csv")
    (tmp_path / "notes.txt").write_text("not data")
    whole = survey([tmp_path], "label")
    assert whole.clients == ("anna", "ben", "cleo", "dan", "eve")
    assert np.array_equal(whole.counts, pd.crosstab(table["who"], table["label"]).to_numpy())
    two = survey([tmp_path / "anna.csv", tmp_path / "ben.csv"], "label")
    assert two.clients == ("anna", "ben")


def test_rows_without_label_or_client_are_dropped_and_counted(tmp_path):
    table = frame().astype({"label": object, "who": object})
    table.loc[:4, "label"] = None
    table.loc[5:7, "who"] = None
    found = survey([write(table, tmp_path / "t.csv")], "label", "who")
    assert found.counts.sum() == 392 == len(found.y)
    assert found.notes == (
        "5 of 400 rows dropped: no value in 'label'",
        "3 of 400 rows dropped: no value in 'who'",
    )


def test_labels_that_are_numbers_are_classes_in_order_and_nan_is_none(tmp_path):
    table = frame().assign(label=np.r_[np.nan, np.arange(399) % 11])
    found = survey([write(table, tmp_path / "t.csv")], "label", "who")
    assert found.classes == tuple(str(c) for c in range(11))
    assert found.notes == ("1 of 400 rows dropped: no value in 'label'",)


def test_names_are_text_wherever_the_column_ceases_to_look_like_numbers(tmp_path, monkeypatch):
    """A leading zero, a number of twenty digits, a word at the end: names stay what they are in the file."""
    monkeypatch.setattr(files, "BLOCK", 1000)
    ids = np.array(["01", "1", "02", "12345678901234567890"], dtype=object)[np.arange(3000) % 4]
    ids[-1] = "V04"
    table = frame(3000).rename(columns={"who": " who "}).assign(label=np.array(["0", "1.0", "1"])[np.arange(3000) % 3])
    found = survey([write(table.assign(**{" who ": ids}), tmp_path / "t.csv")], "label", "who")
    assert found.clients == ("01", "1", "02", "12345678901234567890", "V04")
    assert found.counts.sum(1).tolist() == [750, 750, 750, 749, 1]
    assert found.classes == ("0", "1")


def test_lines_with_too_many_cells_are_counted(tmp_path):
    path = write(frame(20), tmp_path / "t.csv")
    path.write_text(path.read_text() + "1,2,3\n")
    assert survey([path], "label", "who").notes == ("1 line dropped: too few or too many cells",)


def test_lines_of_json_may_lack_keys_and_change_their_types(tmp_path, monkeypatch):
    """Whole numbers, then fractions; a key that a whole block lacks, blank lines, a long one, and a last one without an end."""
    monkeypatch.setattr(files, "BLOCK", 1000)
    table = frame(300).astype({"age": object})
    table["age"] = [*range(150), *(i + 0.5 for i in range(150))]
    lines = [
        json.dumps({k: v for k, v in row.items() if k != "height" or (i % 50 and not 100 < i < 150)})
        for i, row in enumerate(records(table))
    ]
    lines[10] = lines[10].replace(", ", "," + " " * 5000, 1)  # longer than a block
    path = tmp_path / "t.jsonl"
    path.write_text("\n" * 5000 + "\n\n".join(lines))
    found = survey([path], "label", "who")
    assert found.counts.sum() == 300
    assert found.table["age"].to_pylist()[149:202:26] == [149, 25.5, 51.5]
    assert [i for i, height in enumerate(found.table["height"].to_pylist()) if height is None] == [
        0,
        50,
        *range(100, 151),
        200,
        250,
    ]
    odd = [json.loads(line) | ({"age": "old"} if i in (100, 102, 104) else {}) for i, line in enumerate(lines)]
    path.write_text("\n".join(map(json.dumps, odd)))
    with pytest.raises(
        BadInput, match=r"JSON lines: JSON parse error: Column\(/age\) changed from .* in row 10[1-5]; each"
    ):
        survey([path], "label", "who")
    later = tmp_path / "later.jsonl"
    later.write_text("\n".join([*lines[1:40], json.dumps(json.loads(lines[41]) | {"new": 1})]))
    refused("later.jsonl: the key ['new'] is missing in the first lines", paths=[later], label="label", client="who")


@pytest.mark.parametrize("line", ['{"label": ', '["label", 1]', '{"label": [}', '{"label": 1} {'])
def test_lines_that_are_no_json_objects(tmp_path, line):
    path = write(frame(20), tmp_path / "t.jsonl")
    path.write_text(path.read_text() + line + "\n")
    refused(
        "t.jsonl: cannot be read as JSON lines: ",
        "each line must be one object",
        paths=[path],
        label="label",
        client="who",
    )


def test_labels_without_words_and_numbers_of_any_size(tmp_path):
    path = tmp_path / "t.parquet"
    lists = pa.table({"age": np.arange(100), "who": ["anna", "ben"] * 50, "label": [["no"]] * 100})
    pyarrow.parquet.write_table(lists, path)
    refused("t.parquet: column 'label' holds list<", "give words", paths=[path], label="label", client="who")
    for large, name in ((np.inf, "inf"), (1e20, "1e+20")):
        write(frame().assign(label=np.where(np.arange(400) % 2, large, 1.0)), path)
        assert survey([path], "label", "who").classes == ("1", name)


def test_moments_of_time_in_one_file_may_be_fractions_in_another(tmp_path):
    write(frame().assign(age=1_600_000_000_123_456_789), tmp_path / "a.parquet")
    write(frame().assign(age=0.5), tmp_path / "b.parquet")
    found = survey([tmp_path], "label", "who").table["age"].to_pylist()
    assert found[0] == pytest.approx(1.6e18)
    assert found[-1] == 0.5


def test_a_column_that_changes_its_type_midway(tmp_path, monkeypatch):
    """Whole numbers, then fractions, then words, each in blocks of their own: nothing is lost or read twice."""
    monkeypatch.setattr(files, "BLOCK", 1000)
    table = frame(3000)
    table["age"] = [str(i) for i in range(1000)] + [f"{i}.5" for i in range(1000)] + ["old"] * 50 + ["7"] * 950
    found = survey([write(table, tmp_path / "t.csv")], "label", "who")
    assert found.counts.sum() == 3000
    ages = found.table["age"].to_pylist()
    assert [float(a) for a in ages[:2000:500]] == [0, 500, 0.5, 500.5]
    encode = columns.fit(found.table, "t.csv")
    assert encode.notes == ("column 'age': 50 missing or not numbers, set to the mean and marked",)
    x = encode(found.table)
    assert x.shape == (3000, 2 + 1 + 3)
    assert np.array_equal(np.flatnonzero(x[:, 1]), np.arange(2000, 2050))
    assert not x[2000:2050, 0].any()


def test_columns_of_every_type():
    n = 100
    rng = np.random.default_rng(0)
    words = np.array(["alpha", "beta", "gamma", "delta"])
    table = pa.table(
        {
            "number": rng.normal(5, 2, n),
            "flag": rng.random(n) < 0.5,
            "time": pa.array(pd.date_range("2020-01-01", periods=n).to_numpy()),
            "day": pa.array(pd.date_range("2020-01-01", periods=n).date),
            "zoned": pa.array(pd.date_range("2020-01-01", periods=n, tz="Europe/Zurich")),
            "colour": np.array(["red", "blue"])[rng.integers(0, 2, n)],
            "remark": [" ".join(rng.choice(words, 4)) + f" {i}" for i in range(n)],
            "id": [f"x{i}" for i in range(n)],
            "row": np.arange(n),
            "same": np.ones(n),
            "empty": pa.nulls(n),
            "list": [[1, 2]] * n,
        }
    )
    encode = columns.fit(table, "t")
    x = encode(table)
    assert x.shape == (n, 1 + 1 + 3 + 2 + columns.TEXT_WIDTH)
    assert np.isfinite(x).all()
    assert x[:, :5].std(0) == pytest.approx(np.ones(5), rel=1e-4)
    for k in (2, 3, 4):
        # equal steps; an hour more or less where the clocks change
        assert np.diff(x[:, k]) == pytest.approx(np.full(n - 1, np.sqrt(12 / (n**2 - 1))), rel=0.06)
    left_out = {note.split("'")[1] for note in encode.notes if "left out" in note}
    assert left_out == {"id", "row", "same", "empty", "list"}
    assert any("'remark': text, 100 different values" in note for note in encode.notes)


def test_the_sample_is_fair_and_the_counts_are_of_all_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BLOCK", 4000)
    table = frame(5000)
    table["who"] = np.where(np.arange(5000) < 30, "rare", "common")
    heard = []
    found = survey([write(table, tmp_path / "t.csv")], "label", "who", most=200, on_progress=lambda *a: heard.append(a))
    assert found.counts.sum(1).tolist() == [4970, 30]
    assert np.bincount(found.client).tolist() == [170, 30]
    assert "5000 rows; inputs of 200 random rows, at most 170" in found.notes[0]
    assert [share for share, _ in heard] == sorted(share for share, _ in heard)
    assert heard[-1] == (1.0, 5000)


def test_semicolons_with_decimal_commas_and_spaces_around_names(tmp_path):
    table = frame()
    table.rename(columns={"age": " age "}).to_csv(tmp_path / "t.csv", index=False, sep=";", decimal=",")
    found = survey([tmp_path / "t.csv"], "label", "who")
    assert found.table["height"].to_pylist() == pytest.approx(table["height"].tolist())
    assert found.table["age"].to_pylist() == table["age"].tolist()


def test_text_of_a_parquet_file_that_is_no_utf_8_is_refused(tmp_path):
    text = pa.array([b"\xff", b"a"], pa.binary()).view(pa.string())
    pa.parquet.write_table(pa.table({"text": text, "y": [0, 1]}), tmp_path / "t.parquet")
    with pytest.raises(BadInput, match=r"t.parquet: cannot be read as parquet: .*UTF8"):
        Table(path=str(tmp_path / "t.parquet"), label="y", test_share=0.5).load()


def test_the_row_names_of_pandas_are_no_column(tmp_path):
    table = frame().sample(frac=1, random_state=0)
    table.to_parquet(tmp_path / "t.parquet")
    assert "__index_level_0__" in pyarrow.parquet.read_schema(tmp_path / "t.parquet").names
    assert survey([tmp_path / "t.parquet"], "label", "who").table.column_names == ["age", "height", "colour"]


def test_a_quote_that_closes_lines_later_is_refused_with_its_line(tmp_path):
    path = write(frame(20), tmp_path / "t.csv")
    lines = path.read_text().splitlines()
    # the quote reaches from line 12 to the comma of line 15: a row of four lines with too few cells
    lines[12], lines[15] = '30,1.7,"red,anna,no', '30,1.7,blue",anna,no,maybe'
    path.write_text("\n".join(lines) + "\n")
    refused(
        "line 13: a quote opens that closes 3 lines later",
        "of 6 cells instead of 5",
        paths=[path],
        label="label",
        client="who",
    )
    lines[12] = lines[15] = "30,1.7,blue,anna,no"
    lines[2] = '30,1.7,"red,anna,no'
    path.write_text("\n".join(lines) + "\n")
    refused("line 3: a quote opens that is never closed", paths=[path], label="label", client="who")


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("end", ["\n", ""])
@pytest.mark.parametrize(
    ("row", "place", "line"),
    [
        ('30,1.7,blue,"anna,no', 10, 12),
        ('30,1.7,blue,anna,"no', 10, 12),
        ('30,1.7,blue,anna,"no', 19, 21),
        ('30,"1.7,blue,anna,no', 15, 17),
        ('"30,1.7,blue,anna,no', 0, 2),
    ],
)
def test_a_stray_quote_is_refused_with_its_line(tmp_path, row, place, line, end, zipped):
    """The cell that it makes reaches to the end of the file: 300 rows were one client's name."""
    path = write(frame(20), tmp_path / "t.csv")
    lines = path.read_text().splitlines()
    lines[1 + place] = row
    text = ("\n".join(lines) + end).encode()
    if zipped:
        path = tmp_path / "t.csv.gz"
        path.write_bytes(gzip.compress(text))
    else:
        path.write_bytes(text)
    refused(f"line {line}: a quote opens that is never closed", paths=[path], label="label", client="who")


def test_rows_between_two_stray_quotes_are_not_a_text(tmp_path):
    rows = [f"{i},h{i % 3},good,{i % 2}" for i in range(30)]
    rows[10], rows[20] = '10,h1,"good,0', '20,h2,good",0'
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["a,who,note,label", *rows]) + "\n")
    refused(
        "line 12: a quote opens that closes 10 lines later", "column 'note'", paths=[path], label="label", client="who"
    )
    rows[10], rows[20] = '10,"h1,good,0', '20,h2",good,0'
    path.write_text("\n".join(["a,who,note,label", *rows]) + "\n")
    refused("line 12: a quote opens", "in column 'who'", paths=[path], label="label", client="who")
    rows[10], rows[20] = '10,h1,"good,0', '20,h2,"good",0'
    path.write_text("\n".join(["a,who,note,label", *rows]) + "\n")
    refused("line 12: a quote opens that does not close before the next one", paths=[path], label="label", client="who")


def test_quoted_texts_of_several_lines_are_read(tmp_path):
    """Quotes and commas in them too; in the column of texts a text may even look like rows."""
    poem = 'first, line\nsecond ""quoted"", line\nthird'
    rows = [f'{i},h{i % 3},"{poem} {i}",{i % 2}' for i in range(30)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["a,who,note,label", *rows]) + "\n")
    found = survey([path], "label", "who")
    assert (found.counts.sum(), found.notes) == (30, ())
    assert found.table["note"][7].as_py() == poem.replace('""', '"') + " 7"
    rows[3] = '3,h0,"' + "1,2,3,4\n" * 150 + '",1'
    path.write_text("\n".join(["a,who,note,label", *rows]) + "\n")
    found = survey([path], "label", "who", text="note")
    assert (found.counts.sum(), found.notes) == (30, ("t.csv: lines 11 to 161 are one row with a quoted text",))


def test_an_open_quote_of_more_than_a_block_is_named(tmp_path):
    rows = [f"{i},h{i % 3},{'x' * 90},{i % 2}" for i in range(60_000)]
    rows[10] = '10,"h1,good,0'
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["a,who,note,label", *rows]) + "\n")
    refused("line 12: a quote opens", paths=[path], label="label", client="who")


def test_missing_words_are_counted(tmp_path):
    table = frame().astype({"colour": object})
    table.loc[:6, "colour"] = None
    encode = columns.fit(survey([write(table, tmp_path / "t.csv")], "label", "who").table, "t.csv")
    assert encode.notes == ("column 'colour': 7 values missing, all zeros",)


@pytest.mark.parametrize(
    ("rows", "told"), [((), ()), ((3,), ("column 'amount': 1 missing, not numbers or too large, set to the mean",))]
)
def test_numbers_missing_in_other_rows_only_are_told(tmp_path, rows, told):
    """The model was fitted to no such rows, so that no column marks them."""
    table = pa.table({"amount": [float(i) for i in range(20)], "colour": ["red", "blue"] * 10})
    encode = columns.fit(table, "t.csv")
    other = pa.table({"amount": [None if i in rows else float(i) for i in range(20)], "colour": [None] * 20})
    assert encode.notes == ()
    assert encode.gaps(other) == list(told)
    assert encode(other)[3, 0] == (0 if rows else encode(table)[3, 0])
    marked = columns.fit(other, "t.csv")
    assert marked.gaps(other) == [], "told and marked by what was fitted"


@pytest.mark.parametrize("size", [1.0, 1e-200, 1e200, 1.5e308])
@pytest.mark.filterwarnings("error")
def test_numbers_of_any_size_are_standardised(size):
    """Of the squares of large ones the sum would be infinite, and the column 0."""
    table = pa.table({"a": [size, -size] * 10, "b": [0.0, 1.0] * 10})
    made = columns.fit(table, "t.csv")(table)
    assert made[:, 0].tolist() == [1.0, -1.0] * 10


@pytest.mark.filterwarnings("error")
def test_a_number_too_large_for_float32_once_standardised_counts_as_missing():
    encode = columns.fit(pa.table({"a": [1.0, 2.0, 3.0]}), "t.csv")
    other = pa.table({"a": [1e300, 2.0, -1e39, 1e30]})
    assert np.isfinite(encode(other)).all()
    assert encode(other)[:3, 0].tolist() == [0, 0, 0]
    assert encode.gaps(other) == ["column 'a': 2 missing, not numbers or too large, set to the mean"]


def test_a_malformed_line_that_is_no_text_is_refused_in_one_line(tmp_path, capfd):
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,who,label\n1,x,u\n" + b"\xff,1,2,3,4\n" + b"2,y,v\n")
    refused("t.csv: cannot be read as csv: line 3 is not UTF-8", paths=[path], label="label", client="who")
    assert capfd.readouterr().err == ""


def test_a_damaged_arrow_file_is_refused(tmp_path):
    """Its bytes are taken as they are: places of words that lie outside of them must be found before they are followed."""
    path, table = tmp_path / "t.arrow", pa.table({"a": [1.0, 2.0], "who": ["anna", "bob"], "label": ["u", "v"]})
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    assert survey([path], "label", "who").clients == ("anna", "bob")
    data, places = path.read_bytes(), struct.pack("<3i", 0, 4, 7)
    assert places in data
    path.write_bytes(data.replace(places, struct.pack("<3i", 0, 4, -7)))
    refused("t.arrow: cannot be read as arrow", paths=[path], label="label", client="who")


# texts


def reviews(path, rows=120, **changes):
    """Reviews of three shops, good and bad; a tenth of them without a word."""
    rng = np.random.default_rng(0)
    good = rng.random(rows) < 0.5
    said = np.where(good, "great works again", "poor broke at once")
    table = pd.DataFrame(
        {
            "shop": [f"shop {i % 3}" for i in range(rows)],
            "stars": np.where(good, "good", "bad"),
            "review": [" " if i % 10 == 9 else f"{text} {i}" for i, text in enumerate(said)],
            "price": rng.normal(size=rows),
        }
    )
    return write(table.assign(**changes), path)


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.jsonl"])
def test_a_column_of_texts_is_the_rows(tmp_path, name):
    path = reviews(tmp_path / name)
    data = Table(path=str(path), label="stars", client="shop", text="review", length=3).load()
    assert (data.classes, data.group_names, data.shape) == (("bad", "good"), ("shop 0", "shop 1", "shop 2"), (3,))
    assert data.notes == "12 of 120 rows dropped: no value in 'review'"
    assert len(data.y) == 108 - 3 * 7
    assert len(data.y_test) == 3 * 7
    for texts, x, y in ((data.texts[0], data.x, data.y), (data.texts[1], data.x_test, data.y_test)):
        assert [text.split()[0] for text in texts] == ["great" if label else "poor" for label in y]
        assert len({tuple(row) for row in x}) == 2
    few = Table(path=str(path), label="stars", text="review", vocabulary=4).load()
    assert set(few.x.ravel()) == {0, 1, 2, 3}


def test_a_model_of_words_learns_from_ones_own_texts(tmp_path):
    path = reviews(tmp_path / "t.csv")
    experiment = Experiment(
        dataset=f"table:path={path},label=stars,client=shop,text=review,length=8",
        skew="natural",
        training={"rounds": 5},
    )
    assert type(experiment.model).__name__ == "TextCnn"
    assert Experiment(dataset=f"table:path={path},label=stars", skew="iid").model == Experiment().model
    table = run(experiment, folder=tmp_path / "runs").table()
    assert table["accuracy"].tolist() == [1.0]


def test_a_model_of_measurements_does_not_take_words(tmp_path):
    path = reviews(tmp_path / "t.csv")
    words = Experiment(dataset=f"table:path={path},label=stars,text=review", skew="iid", model="mlp:hidden=[8]")
    with pytest.raises(BadInput, match=r"^model mlp:hidden=\[8\]: would take the numbers of t.csv's words .* text-cnn"):
        assemble(words, words.dataset.load())


def test_texts_of_a_test_file(tmp_path):
    """It needs no other columns; what only it has stays in it."""
    train, test = reviews(tmp_path / "t.csv"), tmp_path / "test.csv"
    test.write_text("review,stars\ngreat,good\n,good\nodd,strange\n")
    data = Table(path=str(train), label="stars", text="review", test=str(test)).load()
    assert data.texts[1] == ("great", "odd")
    assert [data.classes[c] for c in data.y_test] == ["good", "strange"]
    assert "1 classes with 1 rows are in the test set only: strange; test: 1 of 3 rows dropped" in data.notes


def test_columns_of_texts_that_are_none(tmp_path):
    path = reviews(tmp_path / "t.csv")
    with pytest.raises(BadInput, match="no column 'reviw'; did you mean 'review'"):
        Table(path=str(path), label="stars", text="reviw").load()
    with pytest.raises(BadInput, match="column 'stars' cannot be both the text and the label"):
        Table(path=str(path), label="stars", text="stars")
    with pytest.raises(BadInput, match="length must be at least 1"):
        Table(path=str(path), label="stars", text="review", length=0)
    empty = reviews(tmp_path / "empty.csv", review=" ")
    refused(
        "no row has both a label ('stars') and a client, and 'review'",
        paths=[empty],
        label="stars",
        text="review",
        fair=False,
    )


# files larger than memory


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet", "t.arrow"])
def test_no_part_of_a_file_is_large(tmp_path, monkeypatch, name):
    monkeypatch.setattr(files, "BLOCK", 4000)
    monkeypatch.setattr(files, "ROWS", 100)
    path = write(frame(2000), tmp_path / name)
    if name == "t.arrow":
        table = pa.Table.from_pandas(frame(2000), preserve_index=False)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table.combine_chunks(), max_chunksize=2000)
    sizes = [len(part) for _, part in files.Reading([path]).tables()]
    assert sum(sizes) == 2000
    assert max(sizes) <= 200


def test_a_table_that_does_not_fit_is_refused_and_says_how_many_rows_do(tmp_path, monkeypatch):
    monkeypatch.setattr("fedskew.data.tables.MOST_BYTES", 30_000)
    monkeypatch.setattr("fedskew.experiment.diagnose.MOST_BYTES", 30_000)
    monkeypatch.setattr(files, "BLOCK", 4000)
    path = write(frame(5000), tmp_path / "t.csv")
    with pytest.raises(BadInput, match=r"loaded into memory; take some of them, rows=[1-9]00, chosen at random"):
        Table(path=str(path), label="label", client="who").load()
    data = Table(path=str(path), label="label", client="who", rows=500).load()
    assert len(data.y) + len(data.y_test) == 500
    assert "500 of 5000 rows taken at random" in data.notes
    # the same five clients, with about a fifth each: the sample is of rows, not of clients
    assert np.bincount(data.groups).min() > 50
    subject = from_files([path], "label", "who")
    advised = re.search(r",rows=([1-9]00) ", subject.arguments)
    assert advised
    assert int(advised[1]) * 5000 >= subject.counts.sum() * 400


def test_a_sample_of_rows_keeps_the_clients_shares(tmp_path):
    table = frame(4000)
    table["who"] = np.where(np.arange(4000) % 10 == 0, "rare", "common")
    found = survey([write(table, tmp_path / "t.csv")], "label", "who", most=1000, fair=False)
    assert len(found.y) == 1000
    # hypergeometric: 100 expected, with standard deviation 8.2
    assert abs(np.bincount(found.client)[1] - 100) < 33


def test_more_clients_than_can_be_compared_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("fedskew.data.tables.MOST_CELLS", 60)
    path = write(frame().assign(who=np.arange(400)), tmp_path / "t.csv")
    refused("400 or more clients in 'who', and 3 classes", paths=[path], label="label", client="who", most=300)
    assert len(survey([path], "label", "who").clients) == 400


@pytest.mark.parametrize("name", ["no.csv", "t.xlsx", "folder"])
def test_files_that_are_not_there(tmp_path, name):
    if name == "folder":
        (tmp_path / name).mkdir()
    elif name == "t.xlsx":
        (tmp_path / name).write_text("x")
    refused(name, paths=[tmp_path / name], label="label", client="who")


def test_bad_input_is_one_clear_line(tmp_path, monkeypatch):
    path = write(frame(), tmp_path / "t.csv")
    refused("no column 'lable'", "did you mean 'label'", paths=[path], label="lable", client="who")
    refused("no column 'whom'", "did you mean 'who'", paths=[path], label="label", client="whom")
    refused("--client", "one file a client", paths=[path], label="label")
    (tmp_path / "empty.csv").write_text("")
    refused("empty.csv: no rows", paths=[tmp_path / "empty.csv"], label="label", client="who")
    (tmp_path / "head.csv").write_text("a,label,who\n")
    refused("head.csv: no rows", paths=[tmp_path / "head.csv"], label="label", client="who")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 not really")
    refused("cannot be read as parquet", paths=[tmp_path / "broken.parquet"], label="label", client="who")
    (tmp_path / "latin.csv").write_bytes("a,label,who\n1,é,b\n".encode("latin-1"))
    (tmp_path / "zip.csv").write_bytes(b"PK\x03\x04\0\0a,label\n")
    refused("zip.csv: cannot be read as csv: it is not text", paths=[tmp_path / "zip.csv"], label="label", client="who")
    refused(
        "latin.csv: cannot be read as csv: line 2 is not UTF-8",
        paths=[tmp_path / "latin.csv"],
        label="label",
        client="who",
    )
    late = "a,label,who\n" + "1,e,b\n" * 200 + "1,é,b\n"
    (tmp_path / "late.csv").write_bytes(late.encode("latin-1"))
    with monkeypatch.context() as patched:
        patched.setattr(files, "BLOCK", 1000)
        refused("late.csv: cannot be read as csv: line 202 is", paths=[tmp_path / "late.csv"], label="a", client="who")
    other = write(frame().rename(columns={"age": "years"}), tmp_path / "u.csv")
    refused("u.csv: its columns differ", "age, years", paths=[path, other], label="label", client="who")
    many = write(frame(3000).assign(label=np.arange(3000)), tmp_path / "m.csv")
    refused("more than 1000 values", "bins", paths=[many], label="label", client="who")
    real = write(frame().assign(label=np.random.default_rng(0).normal(size=400)), tmp_path / "r.csv")
    refused("400 different values in 400 rows", "bins", paths=[real], label="label", client="who")
    (tmp_path / "twice.csv").write_text("a,a,who,label\n1,2,x,y\n")
    refused("two columns are called 'a'", paths=[tmp_path / "twice.csv"], label="label", client="who")
    (tmp_path / "cut.csv.gz").write_bytes(write(frame(), tmp_path / "t.csv.gz").read_bytes()[:-50])
    refused("cannot be read as csv", paths=[tmp_path / "cut.csv.gz"], label="label", client="who")
    nobody = write(frame(9).assign(label=np.nan), tmp_path / "n.csv")
    refused("no row has both a label", paths=[nobody], label="label", client="who")


# as a data set


def test_a_table_is_a_data_set_with_a_test_share_of_each_client(tmp_path):
    table = frame()
    data = Table(path=str(write(table, tmp_path / "t.csv")), label="label", client="who").load()
    sizes = table["who"].value_counts().sort_index().to_numpy()
    assert np.array_equal(np.bincount(data.groups), sizes - sizes // 5)
    assert len(data.y_test) == (sizes // 5).sum()
    assert data.classes == ("maybe", "no", "yes")
    assert data.x.shape[1] == data.x_test.shape[1] == 5
    experiment = Experiment(skew="natural", clients={"held_out": 0.1})
    assert client_data(experiment, data).partition.names == ("anna", "ben", "cleo", "dan", "eve")
    rare = dataclasses.replace(data, groups=np.where(data.groups == 1, 3, data.groups))
    assert client_data(experiment, rare).partition.names == ("anna", "cleo", "dan", "eve")
    with pytest.raises(BadInput, match="not below 4, the number of their names"):
        dataclasses.replace(data, group_names=data.group_names[:4])


def test_a_test_file_may_hold_classes_that_no_client_knows(tmp_path):
    train, test = frame(), frame(60, seed=1).astype({"label": object})
    test.loc[:3, "label"] = "never seen"
    data = Table(
        path=str(write(train, tmp_path / "t.csv")),
        label="label",
        client="who",
        test=str(write(test.drop(columns="who"), tmp_path / "u.csv")),
    ).load()
    assert data.classes == ("maybe", "no", "yes", "never seen")
    assert np.bincount(data.y_test, minlength=4)[3] == 4
    assert len(data.y) == 400
    assert "1 classes with 4 rows are in the test set only: never seen" in data.notes


def test_one_class_or_one_column_for_both_is_refused_and_one_client_is_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(frame().assign(label="no"), tmp_path / "t.csv")
    with pytest.raises(BadInput, match="all rows have the label 'no'"):
        Table(path="t.csv", label="label", client="who").load()
    write(frame().assign(who="anna"), tmp_path / "t.csv")
    alone = client_data(Experiment(skew="natural"), Table(path="t.csv", label="label", client="who").load())
    assert alone.partition.names == ("anna",)
    with pytest.raises(BadInput, match="'who' cannot be both the label and the client"):
        Table(path="t.csv", label="who", client="who")
    with pytest.raises(BadInput, match="'who' cannot be both the label and the client"):
        from_files([tmp_path / "t.csv"], "who", "who")


def test_own_data_runs_like_a_built_in_data_set(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    table = frame().astype({"label": object})
    table.loc[:4, "label"] = None
    write(table, tmp_path / "t.csv")
    arguments = ["--dataset", "table:path=t.csv,label=label,client=who", "--skew", "natural", "--rounds", "2", "--json"]
    assert main(["run", *arguments, "--engine", "stacked"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["methods"][0]["finished"] == 1
    assert "data: 5 of 400 rows dropped: no value in 'label'" in " ".join(told.err.split())
