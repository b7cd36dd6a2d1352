"""Stray quotes in CSV files: a quote that is not closed would turn many rows into one cell."""

import gzip

import pytest

from tests.tables import frame, read, refused, write


def rows_with(changes: dict[int, str]) -> str:
    """A file of 30 rows, some of them replaced."""
    rows = [changes.get(i, f"{i},h{i % 3},good,{i % 2}") for i in range(30)]
    return "\n".join(["a,who,note,label", *rows]) + "\n"


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
