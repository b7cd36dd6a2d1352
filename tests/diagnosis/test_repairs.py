"""What a diagnosis says first: columns in another unit or spelling, and the lines that mend them when they are pasted."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedskew as fs
from fedskew.data.tables.schema import alike
from fedskew.report.diagnosis import page
from tests.commands import output_of
from tests.tables import survey

pytestmark = pytest.mark.usefixtures("few_tables")

SITES = ("north", "east", "south", "west")
GLUCOSE = 18.02


def visits(seed: int = 0) -> pd.DataFrame:
    """Four equal sites."""
    rng = np.random.default_rng(seed)
    site = np.repeat(SITES, 150)
    return pd.DataFrame(
        {
            "glucose": rng.normal(110, 20, 600),
            "weight": rng.normal(70, 12, 600),
            "sex": rng.choice(["female", "male"], 600),
            "hospital": site,
            "ill": rng.choice(["no", "yes"], 600),
        }
    )


def planted(frame: pd.DataFrame) -> pd.DataFrame:
    """South has glucose in mmol/l and weight in pounds; north and west have other words of sex."""
    south, other = frame.hospital == "south", frame.hospital.isin(["north", "west"])
    return frame.assign(
        glucose=frame.glucose.where(~south, frame.glucose / GLUCOSE),
        weight=frame.weight.where(~south, frame.weight * 2.205),
        sex=frame.sex.where(~other, frame.sex.map({"female": "F", "male": "M"})),
    )


def write(frame: pd.DataFrame, folder: Path, one_file: bool) -> tuple[Path, dict[str, str]]:
    """Write a file a client, or one file; return its path and the options that name the columns."""
    if one_file:
        frame.to_csv(folder / "visits.csv", index=False)
        return folder / "visits.csv", {"label": "ill", "client": "hospital"}
    for site, rows in frame.groupby("hospital"):
        rows.drop(columns="hospital").to_csv(folder / f"{site}.csv", index=False)
    return folder, {"label": "ill"}


SENTENCES = [
    "north's column sex holds 'F', 'M', but at other sites 'female', 'male'.",
    "south's column glucose may be in another unit (mmol/l and mg/dl of glucose): multiply it by 18.02.",
    "south's column weight may be in another unit (kg and lb): divide it by 2.205.",
    "west's column sex holds 'F', 'M', but at other sites 'female', 'male'.",
]
WORDS = '[words.sex]\nF = "female"\nM = "male"\n'
BLOCKS = {
    False: {
        "north.columns.toml": WORDS,
        "west.columns.toml": WORDS,
        "south.columns.toml": "[units]\nglucose = 18.02\nweight = 0.453515\n",
    },
    True: {"visits.columns.toml": f"[units.hospital.south]\nglucose = 18.02\nweight = 0.453515\n\n{WORDS}"},
}


@pytest.mark.parametrize("federated", [False, True])
@pytest.mark.parametrize("one_file", [False, True])
def test_pasted_lines_mend_what_the_diagnosis_names_first(tmp_path, one_file, federated):
    path, columns = write(planted(visits()), tmp_path, one_file)
    before = fs.diagnose(path, **columns, federated=federated, progress=False)
    assert sorted(before["repairs"]) == SENTENCES
    blocks = {block["file"]: block["lines"] for block in before["paste"]}
    assert {name: sorted(lines.split()) for name, lines in blocks.items()} == {
        name: sorted(lines.split()) for name, lines in BLOCKS[one_file].items()
    }
    assert {face["face"]: face["verdict"] != "by chance" for face in before["faces"]}["feature"]
    for file, lines in blocks.items():
        (tmp_path / file).write_text(lines)
    after = fs.diagnose(path, **columns, federated=federated, progress=False)
    assert (after["repairs"], after["paste"], after["columns"]) == ([], [], [])
    assert after["dominant"] is None


@pytest.mark.parametrize("one_file", [False, True])
def test_pasted_lines_give_the_rows_of_sites_that_agree(tmp_path, one_file):
    folders = [tmp_path / "planted", tmp_path / "agreed"]
    tables = []
    for folder, frame in zip(folders, (planted(visits()), visits()), strict=True):
        folder.mkdir()
        path, columns = write(frame, folder, one_file)
        for block in fs.diagnose(path, **columns, progress=False)["paste"]:
            (folder / block["file"]).write_text(block["lines"])
        tables.append(survey([path], **columns).table.to_pandas())
    pd.testing.assert_frame_equal(*tables, rtol=1e-5)


def test_the_repairs_come_first_in_the_terminal_and_on_the_page(tmp_path):
    path, columns = write(planted(visits()), tmp_path, one_file=True)
    out = output_of("diagnose", path, "--label", "ill", "--client", "hospital")
    assert out.index("First mend the data") < out.index("\n[units.hospital.south]\n") < out.index("face")
    html = page(fs.diagnose(path, **columns, progress=False))
    assert html.index('id="mend"') < html.index('id="faces"')
    assert "[units.hospital.south]\nglucose = 18.02" in html
    assert "If so, write in <code>visits.columns.toml</code>" in html


def test_nothing_to_mend_prints_and_shows_nothing(tmp_path):
    path, columns = write(visits(), tmp_path, one_file=True)
    assert "First mend" not in output_of("diagnose", path, "--label", "ill", "--client", "hospital")
    assert 'id="mend"' not in page(fs.diagnose(path, **columns, progress=False))


def test_no_lines_are_written_where_no_file_maps_one_client_alone(tmp_path):
    path, _ = write(planted(visits()), tmp_path, one_file=True)
    (tmp_path / "map.csv").write_text("value,client\n" + "".join(f"{site},{site}\n" for site in SITES))
    grouped = fs.diagnose(path, label="ill", client_from=f"hospital:{tmp_path}/map.csv", progress=False)
    assert sorted(grouped["repairs"]) == SENTENCES
    assert grouped["paste"] == []


def test_another_spelling_of_the_classes_is_mended_too(tmp_path):
    frame = visits()
    path, columns = write(
        frame.assign(ill=frame.ill.where(frame.hospital != "east", frame.ill.str.title())), tmp_path, False
    )
    [block] = fs.diagnose(path, **columns, progress=False)["paste"]
    assert block == {"file": "east.columns.toml", "lines": '[words.ill]\nNo = "no"\nYes = "yes"\n'}
    (tmp_path / block["file"]).write_text(block["lines"])
    assert fs.diagnose(path, **columns, progress=False)["classes"] == ["no", "yes"]


@pytest.mark.parametrize("one_file", [False, True])
def test_words_that_no_other_site_has_are_mended_beside_other_spellings(tmp_path, one_file):
    frame = visits()
    north, east = {"female": "F", "male": "M"}, {"female": "weiblich", "male": "mann"}
    words = frame.hospital.map({"north": north, "east": east})
    frame["sex"] = [
        names[word] if isinstance(names, dict) else word for names, word in zip(words, frame.sex, strict=True)
    ]
    path, columns = write(frame, tmp_path, one_file)
    diagnosis = fs.diagnose(path, **columns, progress=False)
    assert sorted(diagnosis["repairs"]) == [
        "east's column sex holds 'mann', 'weiblich', but at other sites 'female', 'male'; if they mean the same, map "
        'each word: in NAME.columns.toml write [words.sex] and on the next line mann = "WORD".',
        "north's column sex holds 'F', 'M', but at other sites 'female', 'male'.",
    ]
    assert [block["lines"] for block in diagnosis["paste"]] == [WORDS]


def test_two_sites_with_wards_of_their_own_need_no_mending(tmp_path):
    frame = visits()[lambda rows: rows.hospital.isin(["north", "south"])]
    frame["sex"] = frame.sex.where(frame.hospital == "north", frame.sex.map({"female": "oak", "male": "elm"}))
    path, columns = write(frame, tmp_path, True)
    assert fs.diagnose(path, **columns, progress=False)["repairs"] == []


def test_differences_of_classes_have_the_name_of_their_column(tmp_path):
    rows = pd.DataFrame({"site": np.repeat(["a", "b"], 200), "label": np.tile([1.5, 2.5, 3.5, 4.5], 100)})
    rows["ill"] = np.where(np.arange(400) % 10 < np.where(rows.site == "a", 2, 8), "yes", "no")
    rows.to_csv(tmp_path / "rows.csv", index=False)
    diagnosis = fs.diagnose(tmp_path / "rows.csv", label="ill", client="site", progress=False)
    assert [column["text"] for column in diagnosis["columns"]] == ["ill is no in 80 % of a's rows, elsewhere in 20 %"]


@pytest.mark.parametrize(("factor", "repairs"), [(1.609, 0), (18.02, 1)])
def test_a_site_that_sells_half_as_much_is_in_no_other_unit(tmp_path, factor, repairs):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"shop": np.repeat(["a", "b", "c", "d"], 200), "price": rng.normal(5, 1, 800)})
    frame["sold"] = rng.normal(100, 10, 800) / np.where(frame["shop"] == "c", factor, 1)
    frame.to_csv(tmp_path / "shops.csv", index=False)
    diagnosis = fs.diagnose(tmp_path / "shops.csv", target="sold", client="shop", progress=False)
    assert len(diagnosis["repairs"]) == repairs
    assert diagnosis["columns"][0]["text"].startswith("sold is "), "the target has its own name"
    column = fs.diagnose(tmp_path / "shops.csv", target="price", client="shop", progress=False)
    assert len(column["repairs"]) == 1, "an input is suspected at once"


@pytest.mark.parametrize("federated", [False, True])
@pytest.mark.parametrize(
    ("levels", "deviation"),
    [((290, 560, 640, 850), lambda level: 75), ((270, 480, 590, 850), lambda level: 0.12 * level)],
)
def test_a_small_shop_among_shops_of_many_sizes_is_in_no_other_unit(tmp_path, levels, deviation, federated):
    """Either all shops vary alike from week to week, or a shop varies as much more as it sells more."""
    rng, level = np.random.default_rng(0), np.repeat(levels, 200)
    frame = pd.DataFrame({"shop": np.repeat([*"abcd"], 200), "sold": rng.normal(100, 10, 800)})
    frame["last_week"] = rng.normal(level, deviation(level))
    frame.to_csv(tmp_path / "shops.csv", index=False)
    options = {"target": "sold", "client": "shop", "federated": federated, "progress": False}
    diagnosis = fs.diagnose(tmp_path / "shops.csv", **options)
    assert "unit" not in diagnosis["columns"][0]["text"]
    assert diagnosis["repairs"] == [note for note in diagnosis["notes"] if "[units]" in note] == []


@pytest.mark.parametrize("federated", [False, True])
def test_targets_in_another_unit_are_mended_under_their_own_name(tmp_path, federated):
    path, _ = write(planted(visits()), tmp_path, one_file=True)
    options = {"target": "glucose", "client": "hospital", "drop": ["weight", "sex", "ill"], "federated": federated}
    frame = planted(visits()).assign(noise=np.random.default_rng(1).normal(size=600))
    frame.to_csv(path, index=False)
    [block] = fs.diagnose(path, **options, progress=False)["paste"]
    assert block["lines"] == "[units.hospital.south]\nglucose = 18.02\n"
    (tmp_path / block["file"]).write_text(block["lines"])
    assert fs.diagnose(path, **options, progress=False)["repairs"] == []


@pytest.mark.parametrize(
    ("words", "pairs"),
    [
        ({"a": ["F", "M"], "b": ["female", "male"]}, {"a": {"F": "female", "M": "male"}}),
        ({"a": ["Male"], "b": ["male"]}, {"a": {"Male": "male"}}),
        ({"a": ["ill"], "b": ["ill"], "c": ["illness"]}, {"c": {"illness": "ill"}}),
        ({"a": ["yes", "y"], "b": ["yes"], "c": ["y"]}, {}),
        ({"a": ["type 1"], "b": ["type 2"]}, {}),
        ({"a": ["north"], "b": ["south"]}, {}),
        ({"a": ["1"], "b": ["10"]}, {}),
        ({"a": ["no"], "b": ["no"], "c": ["N"], "d": ["nein"]}, {"c": {"N": "no"}}),
    ],
)
def test_words_that_no_site_has_both_of_may_be_two_spellings(words, pairs):
    assert alike(words) == pairs
