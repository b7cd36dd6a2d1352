"""The user's files: every format reads the same, nothing is dropped in silence, and bad input is one line."""

import gzip
import json
import struct

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from fedskew.core.errors import BadInput
from fedskew.data.tables import files
from tests.tables import fitted_to, frame, read, refused, survey, write

KINDS = ["t.csv", "t.csv.gz", "t.tsv", "t.jsonl", "t.jsonl.gz", "t.ndjson", "t.parquet", "t.feather", "t.arrow"]


@pytest.mark.parametrize("name", KINDS)
def test_every_format_reads_the_same(tmp_path, name):
    table = frame()
    found = read(write(table, tmp_path / name))
    assert found.classes == ("maybe", "no", "yes")
    assert found.clients == ("anna", "ben", "cleo", "dan", "eve")
    assert np.array_equal(found.counts, pd.crosstab(table["who"], table["label"]).to_numpy())
    assert [found.classes[c] for c in found.y] == table["label"].tolist()
    assert [found.clients[k] for k in found.client] == table["who"].tolist()
    assert found.table["age"].to_pylist() == table["age"].tolist()
    assert found.notes == ()


@pytest.mark.parametrize("kind", [pa.string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string_view())], ids=str)
def test_stream_of_record_batches_is_read(tmp_path, kind):
    """Polars writes views of texts."""
    table = pa.Table.from_pandas(frame(), preserve_index=False)
    codes = table["who"].combine_chunks().dictionary_encode()
    views = pa.DictionaryArray.from_arrays(codes.indices, codes.dictionary.cast(pa.string_view()))
    table = table.set_column(
        table.column_names.index("who"), "who", views if pa.types.is_dictionary(kind) else table["who"].cast(kind)
    )
    with pa.OSFile(str(tmp_path / "t.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    found = read(tmp_path / "t.arrow")
    assert (found.counts.sum(), found.clients) == (400, ("anna", "ben", "cleo", "dan", "eve"))


@pytest.mark.parametrize("name", ["b.csv", "b.parquet", "b.feather"])
def test_a_column_without_a_cell_at_a_site_is_no_column_of_numbers(tmp_path, name):
    """pandas gives it the type of numbers: the days of the other sites became 30 words."""
    days = pd.DataFrame({"day": pd.date_range("2021-01-01", periods=30), "label": ["p", "q"] * 15})
    sites = [write(days, tmp_path / "a.csv"), write(days.assign(day=np.nan), tmp_path / name)]
    found = survey(sites, "label")
    assert pa.types.is_timestamp(found.table.schema.field("day").type)
    assert found.notes == ()


def test_a_category_with_as_many_words_as_clients_is_read(tmp_path):
    table = frame().astype({"who": "category"}).assign(home=lambda rows: rows["who"])
    [note] = read(write(table, tmp_path / "t.parquet")).notes
    assert note.startswith("column 'home'")


def test_without_client_column_each_file_is_a_client(tmp_path):
    table = frame()
    for who, part in table.groupby("who"):
        write(part.drop(columns="who"), tmp_path / f"{who}.csv")
    (tmp_path / "notes.txt").write_text("not data")
    whole = survey([tmp_path], "label")
    assert whole.clients == ("anna", "ben", "cleo", "dan", "eve")
    assert np.array_equal(whole.counts, pd.crosstab(table["who"], table["label"]).to_numpy())
    assert survey([tmp_path / "anna.csv", tmp_path / "ben.csv"], "label").clients == ("anna", "ben")


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet", "t.arrow"])
def test_files_are_read_in_small_parts(tmp_path, monkeypatch, name):
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


# rows and labels


def test_rows_without_a_value_that_is_needed_are_dropped_and_counted(tmp_path):
    table = frame().astype({"label": object, "who": object})
    table.loc[:4, "label"] = [None] * 4 + ["?"]
    table.loc[5:7, "who"] = None
    found = read(write(table, tmp_path / "t.csv"))
    assert found.counts.sum() == 392 == len(found.y)
    assert found.classes == ("maybe", "no", "yes")
    assert found.notes == ("5 of 400 rows dropped: no value in 'label'", "3 of 400 rows dropped: no value in 'who'")
    cells = {"event": [None, *[1, 0] * 199, 1], "person": [*[f"p{at}" for at in range(399)], None]}
    path = write(frame().assign(**cells), tmp_path / "u.csv")
    found = survey([path], "height", "who", event="event", person="person", numeric=True)
    assert found.y.shape == (398, 2)
    assert found.notes == ("1 of 400 rows dropped: no value in 'event'", "1 of 400 rows dropped: no value in 'person'")


def test_numeric_labels_are_classes_in_order_and_nan_is_missing(tmp_path):
    table = frame().assign(label=np.r_[np.nan, np.arange(399) % 11])
    found = read(write(table, tmp_path / "t.csv"))
    assert found.classes == tuple(str(c) for c in range(11))
    assert found.notes == ("1 of 400 rows dropped: no value in 'label'",)


def test_labels_may_have_any_size_but_are_no_lists(tmp_path):
    path = tmp_path / "t.parquet"
    lists = pa.table({"age": np.arange(100), "who": ["anna", "ben"] * 50, "label": [["no"]] * 100})
    pyarrow.parquet.write_table(lists, path)
    refused(path, "t.parquet: column 'label' holds list<", "give words")
    for large, name in ((np.inf, "inf"), (1e20, "1e+20")):
        write(frame().assign(label=np.where(np.arange(400) % 2, large, 1.0)), path)
        assert read(path).classes == ("1", name)


def test_fair_sample_has_few_rows_of_a_large_client_and_counts_all(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BLOCK", 4000)
    path = write(frame(5000).assign(who=np.where(np.arange(5000) < 30, "rare", "common")), tmp_path / "t.csv")
    calls: list[tuple[float, int]] = []
    found = read(path, most=200, on_progress=lambda *call: calls.append(call))
    assert found.counts.sum(1).tolist() == [4970, 30]
    assert np.bincount(found.client).tolist() == [170, 30]
    assert "5000 rows; inputs of 200 random rows, at most 170" in found.notes[0]
    assert [fraction for fraction, _ in calls] == sorted(fraction for fraction, _ in calls)
    assert calls[-1] == (1.0, 5000)


def test_random_sample_keeps_the_clients_shares(tmp_path):
    path = write(frame(4000).assign(who=np.where(np.arange(4000) % 10 == 0, "rare", "common")), tmp_path / "t.csv")
    found = read(path, most=1000, fair=False)
    assert len(found.y) == 1000
    # hypergeometric: 100 expected, with standard deviation 8.2
    assert abs(np.bincount(found.client)[1] - 100) < 33


# CSV


def test_labels_and_clients_stay_text_as_written(tmp_path, monkeypatch):
    """The columns have a leading zero, a number of twenty digits, and a word in only the last row."""
    monkeypatch.setattr(files, "BLOCK", 1000)
    ids = np.array(["01", "1", "02", "12345678901234567890"], dtype=object)[np.arange(3000) % 4]
    ids[-1] = "V04"
    table = frame(3000).rename(columns={"who": " who "}).assign(label=np.array(["0", "1.0", "1"])[np.arange(3000) % 3])
    found = read(write(table.assign(**{" who ": ids}), tmp_path / "t.csv"))
    assert found.clients == ("01", "1", "02", "12345678901234567890", "V04")
    assert found.counts.sum(1).tolist() == [750, 750, 750, 749, 1]
    assert found.classes == ("0", "1")


def test_column_may_change_its_type(tmp_path, monkeypatch):
    """The column has whole numbers, then fractions, then words, each in separate blocks."""
    monkeypatch.setattr(files, "BLOCK", 1000)
    table = frame(900)
    table["age"] = [str(i) for i in range(300)] + [f"{i}.5" for i in range(300)] + ["old"] * 50 + ["7"] * 250
    found = read(write(table, tmp_path / "t.csv"))
    assert found.counts.sum() == 900
    assert [float(age) for age in found.table["age"].to_pylist()[:600:150]] == [0, 150, 0.5, 150.5]
    encode = fitted_to(found.table)
    assert encode.notes == ("column 'age': 50 missing or not numbers, set to the mean and marked",)
    x = encode(found.table)
    assert x.shape == (900, 2 + 1 + 3)
    assert np.array_equal(np.flatnonzero(x[:, 1]), np.arange(600, 650))
    assert not x[600:650, 0].any()


def test_cells_become_numbers_truth_values_and_times(tmp_path):
    cells = {
        "whole": (" 5", "-3"),
        "real": ("1e3", "2"),
        "large": ("12345678901234567890", "1"),
        "flag": ("true", "False"),
        "day": ("2020-01-31", ""),
        "time": ("2020-01-31T10:00:00", "2020-01-31 10:00:00.25"),
        "zone": ("2020-01-31T10:00:00+02:00", "2020-01-31T10:00:00Z"),
        "word": ("5", "five"),
        "empty": ("", "NA"),
    }
    rows = [",".join(cell[i] for cell in cells.values()) + f",c{i},l{i}" for i in range(2)]
    (tmp_path / "t.csv").write_text("\n".join([",".join([*cells, "who", "label"]), *rows]))
    schema = read(tmp_path / "t.csv").table.schema
    time = "timestamp[us]"
    expected = ["int64", "double", "double", "bool", time, time, "timestamp[us, tz=UTC]", "string", "null"]
    assert [str(kind) for kind in schema.types] == expected


def test_targets_may_have_decimal_commas_as_inputs_do(tmp_path):
    path = tmp_path / "t.csv"
    frame().to_csv(path, index=False, sep=";", decimal=",")
    found = survey([path], "height", "who", numeric=True)
    assert found.y.tolist() == pytest.approx(frame()["height"].tolist())
    path.write_text("size;time;event;who\n1,5;2,5;1;anna\n2;3,5;0;ben\n")
    assert survey([path], "time", "who", event="event", numeric=True).y.tolist() == [[2.5, 1], [3.5, 0]]
    path.write_text("size;y;who\n1;1,5;anna\n2;many;ben\n")
    refused(path, "column 'y' is the target and holds words, such as 'many'", label="y", numeric=True)


def test_lines_with_too_many_cells_are_counted(tmp_path):
    path = write(frame(20), tmp_path / "t.csv")
    path.write_text(path.read_text() + "1,2,3\n")
    assert read(path).notes == ("1 line dropped: too few or too many cells",)


def test_malformed_line_that_is_not_utf8_prints_nothing(tmp_path, capfd):
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,who,label\n1,x,u\n" + b"\xff,1,2,3,4\n" + b"2,y,v\n")
    refused(path, "t.csv: cannot be read as csv: line 3 is not UTF-8")
    assert capfd.readouterr().err == ""


# JSON lines


def test_json_lines_may_lack_keys_and_mix_whole_numbers_with_fractions(tmp_path, monkeypatch):
    """The file also has a block without a key, blank lines, a line longer than a block, and no newline at its end."""
    monkeypatch.setattr(files, "BLOCK", 1000)
    table = frame(300).astype({"age": object})
    table["age"] = [*range(150), *(i + 0.5 for i in range(150))]
    lacking = {0, 50, *range(101, 150), 100, 150, 200, 250}
    rows = [
        {k: v for k, v in row.items() if k != "height" or i not in lacking}
        for i, row in enumerate(table.to_dict(orient="records"))
    ]
    lines = [json.dumps(row) for row in rows]
    lines[10] = lines[10].replace(", ", "," + " " * 5000, 1)
    path = tmp_path / "t.jsonl"
    path.write_text("\n" * 5000 + "\n\n".join(lines))
    found = read(path)
    assert found.counts.sum() == 300
    assert found.table["age"].to_pylist()[149:202:26] == [149, 25.5, 51.5]
    assert {i for i, height in enumerate(found.table["height"].to_pylist()) if height is None} == lacking
    mixed = [row | ({"age": "old"} if i in (100, 102, 104) else {}) for i, row in enumerate(rows)]
    path.write_text("\n".join(map(json.dumps, mixed)))
    with pytest.raises(BadInput, match=r"JSON lines: JSON parse error: Column\(/age\) changed .* in row 10[1-5]; each"):
        read(path)
    path.write_text("\n".join([*lines[1:40], json.dumps(rows[41] | {"new": 1})]))
    refused(path, "t.jsonl: the key ['new'] is missing in the first lines")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"label": ', "each line must be one object"),
        ('{"label": 1} {', "each line must be one object"),
        ('{"label": "' + "[" * 100 + '", "x": ]}', "after row 0: Expecting value"),
        ('{"x": ' + "[" * 61 + "]" * 61 + "}", "more than 60 nested objects or lists"),
        ('{"x": ' + "[" * 100_000 + "]" * 100_000 + "}", "more than 60 nested objects or lists"),
    ],
)
def test_bad_json_lines_give_one_line_errors(tmp_path, line, words):
    path = write(frame(20), tmp_path / "t.jsonl")
    path.write_text(path.read_text() + line + "\n")
    refused(path, "t.jsonl: cannot be read as JSON lines: ", words)


def test_brackets_in_json_text_do_not_count_as_nesting(tmp_path):
    path = write(frame(20).assign(colour="[{" * 100), tmp_path / "t.jsonl")
    assert read(path).counts.sum() == 20


# Parquet and Arrow


def test_column_may_be_times_in_one_file_and_fractions_in_another(tmp_path):
    write(frame().assign(age=1_600_000_000_123_456_789), tmp_path / "a.parquet")
    write(frame().assign(age=0.5), tmp_path / "b.parquet")
    found = read(tmp_path).table["age"].to_pylist()
    assert found[0] == pytest.approx(1.6e18)
    assert found[-1] == 0.5


def test_parquet_text_that_is_not_utf8_is_refused(tmp_path):
    who = pa.array([b"\xff", b"a"], pa.binary()).view(pa.string())
    pa.parquet.write_table(pa.table({"who": who, "label": [0, 1]}), tmp_path / "t.parquet")
    refused(tmp_path / "t.parquet", "t.parquet: cannot be read as parquet: ", "UTF8")


def test_index_of_pandas_is_not_a_column(tmp_path):
    frame().sample(frac=1, random_state=0).to_parquet(tmp_path / "t.parquet")
    assert "__index_level_0__" in pyarrow.parquet.read_schema(tmp_path / "t.parquet").names
    assert read(tmp_path / "t.parquet").table.column_names == ["age", "height", "colour"]


def test_damaged_arrow_file_is_refused(tmp_path):
    """Offsets of text outside the file would end the process."""
    path, table = tmp_path / "t.arrow", pa.table({"a": [1.0, 2.0], "who": ["anna", "bob"], "label": ["u", "v"]})
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    assert read(path).clients == ("anna", "bob")
    data, offsets = path.read_bytes(), struct.pack("<3i", 0, 4, 7)
    assert offsets in data
    path.write_bytes(data.replace(offsets, struct.pack("<3i", 0, 4, -7)))
    refused(path, "t.arrow: cannot be read as arrow")


# bad input


def test_more_clients_than_can_be_compared_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("fedskew.data.tables.survey.MOST_CELLS", 60)
    path = write(frame().assign(who=np.arange(400)), tmp_path / "t.csv")
    refused(path, "400 or more clients in 'who', and 3 classes", most=300)
    assert len(read(path).clients) == 400


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("no.csv", None, "no.csv: no such file"),
        ("t.xls", b"x", "cannot read this kind of file"),
        ("zip.csv", b"PK\x03\x04\0\0a,label\n", "zip.csv: cannot be read as csv: it is not text"),
        (
            "late.csv",
            b"a,label,who\n" + b"1,e,b\n" * 200 + b"1,\xe9,b\n",
            "late.csv: cannot be read as csv: line 202 is",
        ),
        ("twice.csv", b"a,a,who,label\n1,2,x,y\n", "two columns are called 'a'"),
        (
            "cut.csv.gz",
            gzip.compress(b"a,who,label\n1,x,y\n" * 200, mtime=0)[:-12],
            "cut.csv.gz: cannot be read as csv",
        ),
        ("blank.csv", b"a,who,label\n1,x,\n", "no row has both a label"),
    ],
)
def test_bad_files_give_one_line_errors(tmp_path, monkeypatch, name, content, words):
    monkeypatch.setattr(files, "BLOCK", 1000)
    if content is not None:
        (tmp_path / name).write_bytes(content)
    refused(tmp_path / name, words)


def test_bad_columns_give_one_line_errors(tmp_path):
    path = write(frame(), tmp_path / "t.csv")
    refused(path, "no column 'lable'", "did you mean 'label'", label="lable")
    refused(path, "no column 'whom'", "did you mean 'who'", client="whom")
    refused(path, "--client", "one file a client", client="")
    (tmp_path / "folder").mkdir()
    refused(tmp_path / "folder", ".parquet, .pq", "file in this folder")
    other = write(frame().rename(columns={"age": "years"}), tmp_path / "u.csv")
    with pytest.raises(BadInput, match=r"u\.csv: its columns differ .* age, years"):
        survey([path, other], "label", "who")
    write(frame(3000).assign(label=np.arange(3000)), path)
    refused(path, "more than 1000 values", "bins")
    write(frame().assign(label=np.random.default_rng(0).normal(size=400)), path)
    refused(path, "400 different values in 400 rows", "bins")


def rows_with(changes: dict[int, str]) -> str:
    """A file of 30 rows, some of them replaced."""
    rows = [changes.get(i, f"{i},h{i % 3},good,{i % 2}") for i in range(30)]
    return "\n".join(["a,who,note,label", *rows]) + "\n"


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("end", ["\n", ""])
@pytest.mark.parametrize(
    ("row", "place", "line"),
    [
        ('30,1.7,blue,anna,"no', 10, 12),
        ('30,1.7,blue,anna,"no', 19, 21),
        ('30,"1.7,blue,anna,no', 15, 17),
        ('"30,1.7,blue,anna,no', 0, 2),
    ],
)
def test_quote_that_is_never_closed_is_refused_with_its_line(tmp_path, row, place, line, end, zipped):
    path = write(frame(20), tmp_path / "t.csv")
    lines = path.read_text().splitlines()
    lines[1 + place] = row
    text = ("\n".join(lines) + end).encode()
    path = tmp_path / ("t.csv.gz" if zipped else "t.csv")
    path.write_bytes(gzip.compress(text) if zipped else text)
    refused(path, f"line {line}: a quote opens that is never closed")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({10: '10,h1,"good,0', 13: '13,h1",good,1,2'}, ("closes 3 lines later", "of 6 cells instead of 4")),
        ({10: '10,h1,"good,0', 20: '20,h2,good",0'}, ("closes 10 lines later", "column 'note'")),
        ({10: '10,"h1,good,0', 20: '20,h2",good,0'}, ("closes 10 lines later", "in column 'who'")),
        ({10: '10,h1,"good,0', 20: '20,h2,"good",0'}, ("does not close before the next one",)),
        ({10: '10,"h1,0', **{i: f"{i},h1,{'x' * 300_000},0" for i in range(11, 30)}}, ("does not close before",)),
    ],
)
def test_quote_that_closes_in_another_row_is_refused_with_its_line(tmp_path, changes, words):
    path = tmp_path / "t.csv"
    path.write_text(rows_with(changes))
    refused(path, "line 12: a quote opens", *words)


def test_quoted_texts_may_span_lines(tmp_path):
    """With quotes and commas; in the column of texts a text may even look like rows."""
    poem = 'first, line\nsecond ""quoted"", line\nthird'
    path = tmp_path / "t.csv"
    path.write_text(rows_with({i: f'{i},h{i % 3},"{poem} {i}",{i % 2}' for i in range(30)}))
    found = read(path)
    assert (found.counts.sum(), found.notes) == (30, ())
    assert found.table["note"][7].as_py() == poem.replace('""', '"') + " 7"
    path.write_text(rows_with({3: '3,h0,"' + "1,2,3,4\n" * 150 + '",1'}))
    found = read(path, text="note")
    assert (found.counts.sum(), found.notes) == (30, ("t.csv: lines 5 to 155 are one row with a quoted text",))


def test_a_parquet_file_of_one_row_group_is_read_with_little_memory_for_each_column(tmp_path):
    """A column of the row group has 4.8 MB."""
    numbers = np.random.default_rng(0).standard_normal(600_000)
    path, columns = tmp_path / "t.parquet", 8
    pa.parquet.write_table(
        pa.table({f"x{at}": numbers for at in range(columns)}), path, row_group_size=600_000, use_dictionary=False
    )
    before, most = pa.total_allocated_bytes(), 0
    for part, _ in files.Reading([path]).parts(path):
        most = max(most, pa.total_allocated_bytes() - before - part.nbytes)
    assert most < columns * 3_000_000
