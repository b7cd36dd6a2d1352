"""A site's ``NAME.columns.toml`` maps its names, units and words, and mistakes in it are refused in one line."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fedskew.core.errors import BadInput
from fedskew.data.datasets.table import TableData
from fedskew.diagnosis.diagnose import rehearse, sites_of_files
from fedskew.diagnosis.subject import DiagnosisOptions, Source
from tests.commands import line_of
from tests.tables import fitted_to, survey


def write_sites(folder: Path, mapping: str) -> list[Path]:
    """Write the files of two hospitals. The second has other names, units and words."""
    frame = pd.DataFrame(
        {"chol": [200.0, 240.0] * 10, "sex": ["male", "female"] * 10, "ca": [0, 1] * 10, "ill": [0, 1] * 10}
    )
    frame.to_csv(folder / "bern.csv", index=False)
    other = pd.DataFrame({"cholesterol": frame.chol / 40, "sex": [1, 0] * 10, "ill": ["no", "yes"] * 10})
    other.to_csv(folder / "genf.csv", index=False)
    (folder / "genf.columns.toml").write_text(mapping, encoding="utf-8")
    return [folder / "bern.csv", folder / "genf.csv"]


MAPPING = """
absent = ["ca"]
[rename]
cholesterol = "chol"
[units]
chol = 40
[words.sex]
0 = "female"
1 = "male"
[words.ill]
no = "0"
yes = "1"
"""


def test_a_site_maps_its_columns_in_a_file_beside_its_table(tmp_path):
    found = survey(write_sites(tmp_path, MAPPING), "ill")
    frame = found.table.to_pandas()
    assert found.classes == ("0", "1")
    assert found.counts.tolist() == [[10, 10], [10, 10]]
    assert frame.chol.tolist() == [200, 240] * 20
    assert frame.sex.tolist() == ["male", "female"] * 20
    assert frame.ca.isna().tolist() == [False] * 20 + [True] * 20


@pytest.mark.parametrize("separator", [",", ";"])
def test_a_word_that_is_mapped_to_nothing_is_a_missing_number(tmp_path, separator):
    frame = pd.DataFrame({"chol": [200.5, 240.0] * 10, "ill": [0, 1] * 10})
    for name, cells in (("bern", frame), ("genf", frame.assign(chol=["200.5", "unknown"] * 10))):
        text = cells.to_csv(index=False, sep=separator)
        (tmp_path / f"{name}.csv").write_text(text.replace(".", ",") if separator == ";" else text)
    (tmp_path / "genf.columns.toml").write_bytes(b'\xef\xbb\xbf[words.chol]\nunknown = ""\n')
    found = survey([tmp_path], "ill").table["chol"]
    assert str(found.type) == "double"
    assert found.to_pylist() == [200.5, 240] * 10 + [200.5, None] * 10


def test_spaces_around_words_do_not_count(tmp_path):
    cells = {"bern": ["healthy", "ill"], "genf": [" Healthy ", "ill "]}
    for name, (well, ill) in cells.items():
        (tmp_path / f"{name}.csv").write_text(f"x,sex,y\n1, male,{well}\n2,male ,{ill}\n3, ,{well}\n4,,{ill}\n")
    (tmp_path / "genf.columns.toml").write_text('[words.y]\n"Healthy " = " healthy"')
    found = survey([tmp_path], "y")
    assert found.classes == ("healthy", "ill")
    assert found.table["sex"].to_pylist() == ["male", "male", None, None] * 2
    encode = fitted_to(found.table)
    frame = pa.table({"x": [1], "sex": [" male"]})
    assert encode(frame)[0, -1] == 1


def test_a_word_to_map_that_is_in_no_cell_is_noted_beside_others(tmp_path):
    found = survey(write_sites(tmp_path, MAPPING + 'mybe = "1"'), "ill")
    assert any("genf.columns.toml: [words.ill]: no cell of genf.csv is 'mybe'" in note for note in found.notes)


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ("[rename]\ncolesterol = 'chol'", "rename: no column 'colesterol'; did you mean 'cholesterol'?"),
        ("[rename]\ncholesterol = 'sex'", "column ['sex'] would be there twice"),
        ("[units]\nchol = 40", "no column 'chol'; did you mean 'cholesterol'?"),
        ("[units]\nsex = 40", "units: column 'sex' holds string, not numbers"),
        ("[units]\nsex = 0", "units: 'sex' must have a finite factor above 0, got 0"),
        ("[units]\nsex = inf", "got inf"),
        ("[units]\nsex = true", "Expected `float | object`, got `bool`"),
        ("units = 3", "Expected `object`, got `int` - at `$.units`; write absent, [rename], [units]"),
        ("scale = 3", "Object contains unknown field `scale`; write absent"),
        ("[units", ""),
        ("[rename] cholesterol = 'chol'", "each entry on a line of its own below its table"),
        ("[rename]\nGröße = 'chol'", 'in quotes: "Größe" = "size"'),
        ("absent = ['sex']", "absent: genf.csv has a column 'sex'; leave it out of absent"),
        ("absent = 'sex'", "Expected `array`, got `str`"),
        ("[words]\nsex = 1", "Expected `object`, got `int`"),
        ("[words.ill]\nye = '1'", "[words.ill]: no cell of genf.csv is 'ye'; did you mean 'yes'?"),
        (
            "[units.hospital.suoth]\ncholesterol = 18",
            "[units.hospital]: no cell of genf.csv is 'suoth'; did you mean 'south'?",
        ),
        ("[units.clinic.south]\ncholesterol = 18", "no column 'clinic'"),
        ("[units.hospital.south]\nchol = 18", "no column 'chol'; did you mean 'cholesterol'?"),
        ("[units.hospital.south]\ncholesterol = 0", "units: 'cholesterol' must have a finite factor above 0, got 0"),
        ("[units.hospital.south]\nsex = 2", "units: column 'sex' holds string, not numbers"),
        (
            '[dates]\nday = "%d/%m/%Y"',
            "dates: column 'day' holds '2021-01-01', which is no date as in '%d/%m/%Y'; correct the cell",
        ),
        (
            '[dates]\nday = "day/month"',
            "dates: 'day' needs a format such as %d/%m/%Y or %Y-%m-%d %H:%M, got 'day/month'",
        ),
        ('[dates]\nday = "%Y-%m-%d%z"', "needs a format such as"),
        ('[dates]\ndy = "%Y-%m-%d"', "no column 'dy'; did you mean 'day'?"),
        ("[dates]\nday = 3", "Expected `str`, got `int`"),
    ],
)
def test_wrong_mapping_is_refused_in_one_line(tmp_path, mapping, words):
    rows = [
        f"2021-01-01,{i},{['north', 'south'][i % 2]},{'fm'[i // 2 % 2]},{['no', 'yes'][i % 3 // 2]}" for i in range(20)
    ]
    (tmp_path / "genf.csv").write_text("\n".join(["day,cholesterol,hospital,sex,ill", *rows]))
    (tmp_path / "genf.columns.toml").write_text(mapping, encoding="utf-8")
    with pytest.raises(BadInput, match=rf"^[^\n]*/genf\.columns\.toml: [^\n]*{re.escape(words)}[^\n]*$"):
        survey([tmp_path / "genf.csv"], "ill", "hospital")


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


def test_the_note_is_none_of_the_routine_ones(tmp_path):
    out = line_of("diagnose", three(tmp_path, "z", WORDS), "--label", "y")
    assert "note: b.csv: column 'z' holds words, such as 'high'" in out


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
    notes = rehearse(sites, Source("t"))["notes"]
    assert any("b: column 'z' holds words, such as '01/03/2013'" in note for note in notes)


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


def test_clients_of_one_file_with_classes_in_two_languages_are_noted(tmp_path):
    sites = np.repeat(["a", "b", "c"], 20)
    classes = ["yes", "no"] * 10 + ["ja", "nein"] * 20
    frame = pd.DataFrame({"x": np.arange(60) * 1.5, "site": sites, "y": classes})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    says = "a: column 'y' holds 'no', 'yes', but at other sites 'ja', 'nein'; if they mean the same, map each word"
    assert any(note.startswith(says) for note in survey([tmp_path / "rows.csv"], "y", "site").notes)
    frame["y"] = ["yes", "no"] * 30
    frame.to_csv(tmp_path / "rows.csv", index=False)
    assert not any("map each word" in note for note in survey([tmp_path / "rows.csv"], "y", "site").notes)
