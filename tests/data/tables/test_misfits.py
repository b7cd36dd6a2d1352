"""A column of numbers or times that holds words in one file is named, with the file, one of its cells and what to write."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedskew.cli.main import main
from fedskew.core.errors import BadInput
from fedskew.data.datasets.table import TableData
from fedskew.diagnosis.rehearsal import rehearse, sites_of_files
from fedskew.diagnosis.subject import DiagnosisOptions, Source
from tests.tables import survey

DAYS = pd.DatetimeIndex([f"2013-{month:02}-{day:02}" for month in range(3, 8) for day in range(1, 13)][:56])


def three(folder: Path, name: str, cells: dict[str, list[str]]) -> Path:
    """Write the files of three sites. The column ``name`` has ``cells`` in the files named there, and numbers in others."""
    rng = np.random.default_rng(0)
    for site in ("a", "b", "c"):
        frame = pd.DataFrame({"x": rng.normal(size=56), name: rng.normal(140, 5, 56).round(1), "y": ["no", "yes"] * 28})
        frame.assign(**({name: cells[site]} if site in cells else {})).to_csv(folder / f"{site}.csv", index=False)
    return folder


DATES = {site: [*DAYS.strftime("%d/%m/%Y" if site == "b" else "%Y-%m-%d")] for site in ("a", "b", "c")}
WORDS = {"b": ["high", "140"] * 28}


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (DATES, "b.csv: column 'z' holds words, such as '01/03/2013', but at other sites times; write dates as 2020"),
        (
            WORDS,
            "b.csv: column 'z' holds words, such as 'high', but at other sites numbers; in NAME.columns.toml "
            'write [words.z] and on the next line high = ""',
        ),
        ({"b": ["140"] * 55 + ["unknown"]}, ""),
        ({"a": ["low"] * 56, "b": ["high"] * 56}, ""),
    ],
)
def test_a_file_with_words_where_others_have_numbers_is_noted(tmp_path, cells, words):
    for notes in (
        survey([three(tmp_path, "z", cells)], "y").notes,
        [TableData(path=str(tmp_path), label="y").load().notes],
    ):
        assert any("but at other sites" in note for note in notes) == bool(words)
        assert any(words in note for note in notes) or not words


def test_the_note_is_none_of_the_routine_ones(tmp_path, capsys):
    assert main(["diagnose", str(three(tmp_path, "z", WORDS)), "--label", "y"]) == 0
    assert "note: b.csv: column 'z' holds words, such as 'high'" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("cells", [WORDS, DATES])
def test_a_rehearsal_shows_the_cell_that_the_server_does_not_see(tmp_path, cells):
    sites, _ = sites_of_files(DiagnosisOptions(paths=[three(tmp_path, "z", cells)], label="y"))
    with pytest.raises(
        BadInput, match=r"b: column 'z' holds words, such as '(high|\d\d/\d\d/2013)', but at other sites"
    ):
        rehearse(sites, Source("t"))


def test_a_rehearsal_notes_words_that_are_all_hidden(tmp_path):
    cells = {site: [*map(str, days[:28])] * 2 for site, days in DATES.items()}
    sites, _ = sites_of_files(DiagnosisOptions(paths=[three(tmp_path, "z", cells)], label="y"))
    assert any(
        "b: column 'z' holds words, such as '01/03/2013'" in note for note in rehearse(sites, Source("t"))["notes"]
    )


def test_two_sites_name_the_one_with_words(tmp_path):
    three(tmp_path, "z", {"a": WORDS["b"]})
    (tmp_path / "c.csv").unlink()
    sites, _ = sites_of_files(DiagnosisOptions(paths=[tmp_path], label="y", federated=True, fewest=1))
    with pytest.raises(BadInput, match="a: column 'z' holds words"):
        rehearse(sites, Source("t"))


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        (
            ("ill", "Ill", "well"),
            "c: column 'y' holds 'Ill', but at other sites 'ill'; if both mean the same, write [words.y]",
        ),
        (("<=50K", "<=50K.", ">50K"), '[words.y] and on the next line "<=50K." = "<=50K"'),
        (("1.5", "15", "1"), ""),
        (("<=50K", ">50K", ">50K"), ""),
    ],
)
def test_another_spelling_of_a_class_is_noted(tmp_path, classes, words):
    first, last, other = classes
    for site, own in (("a", first), ("b", first), ("c", last)):
        frame = pd.DataFrame({"x": np.arange(40) * 1.5, "y": [own, other] * 20})
        frame.to_csv(tmp_path / f"{site}.csv", index=False)
    found = [
        *(
            survey([tmp_path], "y").notes,
            rehearse(*sites_of_files(DiagnosisOptions(paths=[tmp_path], label="y")))["notes"],
        ),
        [TableData(path=str(tmp_path), label="y").load().notes],
    ]
    for notes in found:
        assert any("if both mean the same" in note for note in notes) == bool(words)
        assert any(words in note for note in notes) or not words
