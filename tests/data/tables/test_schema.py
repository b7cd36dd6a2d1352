"""Columns of any kind as numbers."""

import re

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fedskew.core.errors import BadInput
from fedskew.data.datasets.heart import CSV
from fedskew.data.datasets.table import TableData
from fedskew.data.preprocessing import TEXT_WIDTH, Number, Tabular, Texts
from fedskew.data.tables.columns import strings
from fedskew.data.tables.guard import shared, summary
from fedskew.data.tables.schema import merged
from fedskew.data.tables.summaries import Summary
from tests.tables import fitted_to, survey


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
    encode = fitted_to(table)
    x = encode(table)
    assert x.shape == (n, 1 + 1 + 3 + 2 + TEXT_WIDTH)
    assert np.isfinite(x).all()
    assert x[:, :5].std(0) == pytest.approx(np.ones(5), rel=1e-4)
    for k in (2, 3, 4):
        # equal steps; an hour more or less when the clocks change
        assert np.diff(x[:, k]) == pytest.approx(np.full(n - 1, np.sqrt(12 / (n**2 - 1))), rel=0.06)
    left_out = {note.split("'")[1] for note in encode.notes if "left out" in note}
    assert left_out == {"id", "row", "same", "empty", "list"}
    assert any("'remark': text, 100 different values" in note for note in encode.notes)


def test_missing_words_are_zeros_and_counted():
    encode = fitted_to(pa.table({"colour": ["red", "blue", None] * 5}))
    assert encode.notes == ("column 'colour': 5 values missing, all zeros",)
    assert encode(pa.table({"colour": [None, "red", "green"]})).tolist() == [[0, 0], [0, 1], [0, 0]]


@pytest.mark.parametrize(
    ("rows", "notes"), [((), []), ((3,), ["column 'amount': 1 missing, not numbers or too large, set to the mean"])]
)
def test_numbers_missing_in_other_rows_only_are_counted(rows, notes):
    """The preprocessing was fitted to rows without such gaps, so it has no column that marks them."""
    table = pa.table({"amount": [float(i) for i in range(20)], "colour": ["red", "blue"] * 10})
    encode = fitted_to(table)
    other = pa.table({"amount": [None if i in rows else float(i) for i in range(20)], "colour": [None] * 20})
    assert encode.notes == ()
    assert encode.gaps(other) == notes
    assert encode(other)[3, 0] == (0 if rows else encode(table)[3, 0])
    assert fitted_to(other).gaps(other) == [], "noted and marked at fitting"


@pytest.mark.parametrize("size", [1.0, 1e-200, 1e200, 1.5e308])
@pytest.mark.filterwarnings("error")
def test_numbers_of_any_size_are_standardised(size):
    """They may be so large that the sum of their squares is infinite."""
    table = pa.table({"a": [size, -size] * 10, "b": [0.0, 1.0] * 10})
    assert fitted_to(table)(table)[:, 0].tolist() == [1.0, -1.0] * 10


@pytest.mark.filterwarnings("error")
def test_number_too_large_for_float32_once_standardised_counts_as_missing():
    encode = fitted_to(pa.table({"a": [1.0, 2.0, 3.0]}))
    other = pa.table({"a": [1e300, 2.0, -1e39, 1e30]})
    assert np.isfinite(encode(other)).all()
    assert encode(other)[:3, 0].tolist() == [0, 0, 0]
    assert encode.gaps(other) == ["column 'a': 2 missing, not numbers or too large, set to the mean"]


def test_whole_numbers_beyond_64_bits_are_words() -> None:
    assert strings(pd.Series([1e19, 2.0, np.nan])).tolist() == ["1e+19", "2.0", ""]
    assert strings(pd.Series([2.0**53, 2.0])).tolist() == ["9007199254740992", "2"]


HOSPITALS = ("bern", "genf", "sion")


def patients(n: int, rng: np.random.Generator) -> pa.Table:
    """Every kind of column, with gaps."""
    gaps = rng.random(n) < 0.1
    names = rng.choice(["heart", "lung", "knee", "left", "right", "pain", "acute"], (n, 3))
    return pa.table(
        {
            "age": rng.integers(20, 90, n),
            "chol": np.where(gaps, np.nan, rng.normal(240, 40, n)),
            "lactate": rng.lognormal(0, 3, n),
            "sex": rng.choice(["female", "male"], n),
            "smokes": pa.array(rng.choice(["yes", "no"], n).tolist(), mask=rng.random(n) < 0.2),
            "weight": [f"{w:.1f}" if w > 50 else "n/a" for w in rng.normal(75, 12, n)],
            "seen": pa.array(pd.date_range("2020-01-01", periods=n, freq="7h").to_numpy()),
            "remark": [" ".join(row) + f" {at % 60}" for at, row in enumerate(names)],
        }
    )


def sent(sites: dict[str, pa.Table]) -> dict[str, Summary]:
    """Return the summaries as the server receives them."""
    return {
        name: msgspec.msgpack.decode(msgspec.msgpack.encode(summary(table)), type=Summary)
        for name, table in sites.items()
    }


def same(one: Tabular | Texts, other: Tabular | Texts) -> bool:
    """Whether means and scales are equal to 1e-12 of a column's scale, and all else to the last bit."""
    if isinstance(one, Texts) or isinstance(other, Texts):
        return one == other
    for left, right in zip(one.columns, other.columns, strict=True):
        if isinstance(left, Number) and isinstance(right, Number):
            error = max(abs(left.mean - right.mean), abs(left.scale - right.scale)) / right.scale
            left = msgspec.structs.replace(left, mean=right.mean, scale=right.scale)
        else:
            error = 0.0
        if left != right or error > 1e-12:
            return False
    return one.target == other.target


def split(table: pa.Table, site: np.ndarray) -> dict[str, pa.Table]:
    return {name: table.filter(site == at) for at, name in enumerate(HOSPITALS)}


@pytest.mark.parametrize("seed", range(3))
def test_merged_preprocessing_equals_the_pooled_one(seed):
    rng = np.random.default_rng(seed)
    table = patients(400, rng)
    pooled = fitted_to(table)
    sites = split(table, rng.choice(3, 400, p=[0.85, 0.1, 0.05]))
    found = merged(sent(sites))
    assert same(found.preprocessing, pooled.preprocessing)
    assert [part.name for part in found.preprocessing.columns] == table.column_names
    for own in sites.values():
        assert np.allclose(found(own), pooled(own), rtol=0, atol=1e-11)


def test_column_that_differs_only_between_sites_is_used():
    """Each single site would leave it out, because there it is constant."""
    sites = {name: pa.table({"machine": [name] * 5, "dose": [float(at)] * 5}) for at, name in enumerate(HOSPITALS)}
    assert merged(sent(sites))(sites["genf"])[0].tolist() == [0, 1, 0, 0]


def test_words_of_all_sites_together_may_be_too_many_for_categories():
    sites = {name: pa.table({"ward": [f"{name} {at % 20}" for at in range(60)]}) for name in HOSPITALS}
    pooled = fitted_to(pa.concat_tables(sites.values()))
    assert merged(sent(sites)).preprocessing == pooled.preprocessing
    assert merged(sent(sites)).notes[0].startswith("column 'ward': text, 60 different values")


def test_column_without_values_at_a_site_counts_as_missing_there():
    sites = {"bern": pa.table({"a": [1.0, 2.0], "b": ["x", "y"]}), "genf": pa.table({"a": pa.nulls(3), "b": ["x"] * 3})}
    found = merged(sent(sites))
    assert "column 'a': 3 missing or not numbers, set to the mean and marked" in found.notes
    assert found.preprocessing.columns[0].mean == 1.5


def visits(n: int, seed: int) -> pd.DataFrame:
    """Rows with a word, a largest number and a gap that few people have, and texts that few have."""
    rng = np.random.default_rng(seed)
    frame = patients(n, rng).to_pandas()
    frame["job"] = ["bishop", "bishop", *rng.choice(["nurse", "cook"], n - 2)]
    frame["income"] = [1e7, *rng.normal(5000, 900, n - 1)]
    frame["dose"] = [np.nan, *rng.integers(1, 4, n - 1)]
    frame["room"] = [f"{at % 45}" for at in range(n)]
    frame["code"] = ["secret", *map(str, range(1, n))]
    return frame.assign(ill=rng.integers(0, 2, n), hospital=rng.choice(HOSPITALS, n))


@pytest.mark.parametrize("fewest", [2, 5])
def test_no_word_of_few_rows_no_extreme_and_no_small_count_is_in_the_bytes_that_leave(fewest):
    frame = visits(120, 0)
    made, notes = shared(pa.Table.from_pandas(frame), fewest)
    data = msgspec.msgpack.encode(made)
    sent = msgspec.msgpack.decode(data, type=Summary).columns
    for name in frame:
        rare = frame[name].astype(str).value_counts() < fewest
        texts = [word for word in rare.index[rare] if frame[name].dtype == object and not word.isdigit()]
        assert not [word for word in texts if word.encode() in data], name
        held = sent[name]
        counts = [held.valid, held.rows - held.valid, held.numbers.rows, held.valid - held.numbers.rows]
        counts += [*held.words.values(), *held.buckets.values()]
        if name not in ("room", "remark"):
            assert min(count for count in counts if count) >= fewest, name
    for name in ("age", "chol", "lactate", "income"):
        values, ends = frame[name].dropna(), sent[name].numbers
        assert min((values <= ends.low).sum(), (values >= ends.high).sum()) >= fewest
    assert any("column 'dose': words and gaps of fewer than" in note for note in notes)


def test_a_column_of_texts_that_are_all_rare_is_no_error():
    wards = [f"ward{at % 45}" for at in range(60)]
    made = merged({name: shared(pa.table({"ward": wards, "age": range(60)}), 5)[0] for name in HOSPITALS})
    assert made.preprocessing.columns[0].counts == {}


@pytest.mark.parametrize(("seed", "fewest"), [(0, 1), (4, 5)])
def test_a_table_makes_the_preprocessing_of_sites_with_files_of_their_own(tmp_path, seed, fewest):
    """One site marks gaps with a word, so in the table of all rows this column is text."""
    frame = visits(300, seed)
    stages = np.random.default_rng(seed).choice(["0", "1", "2", "7"], 300, p=[0.6, 0.3, 0.09, 0.01])
    gone = (frame["hospital"] == "bern") & (np.arange(300) % 11 == 0)
    frame["stage"] = np.where(gone, "odd", stages)
    frame.to_csv(tmp_path / "all.csv", index=False)
    sent = {}
    for name, own in frame.groupby("hospital"):
        own.drop(columns="hospital").to_csv(tmp_path / f"{name}.csv", index=False)
        sent[name] = shared(survey([tmp_path / f"{name}.csv"], "ill", most=1000, fair=False).table, fewest)[0]
    assert {made.columns["stage"].type for made in sent.values()} == {"text", "number"}
    options = {"label": "ill", "client": "hospital", "test": str(tmp_path / "all.csv")}
    data = TableData(path=str(tmp_path / "all.csv"), fewest=fewest, **options).load()
    of_sites = merged(sent, "ill").preprocessing
    assert same(data.preprocessing, of_sites)
    assert data.preprocessing == of_sites or fewest == 1, "the simulation pools all rows if nothing is hidden"
    bishops = frame[frame["job"] == "bishop"]["hospital"].value_counts().max()
    assert ("job = bishop" in data.columns) == (bishops >= fewest)
    jobs = [at for at, name in enumerate(data.columns) if name.startswith("job = ")]
    assert (data.x[0, jobs].sum() == 0) == (bishops < fewest), "a rare word is unknown in training"


def test_a_table_without_clients_hides_nothing_and_says_so(tmp_path):
    path = tmp_path / "visits.csv"
    visits(60, 1).to_csv(path, index=False)
    with pytest.raises(BadInput, match="fewest=5 is about the rows of each client; give client=COLUMN"):
        TableData(path=str(path), label="ill", fewest=5).load()


BASE = pa.table({"chol": np.linspace(150, 300, 40), "sex": ["Male", "Female"] * 20, "pain": ["typical", "none"] * 20})


def sites_with(**changed: object) -> dict[str, Summary]:
    """Return three equal sites, but the last one has other columns."""
    held = {name: BASE[name] for name in BASE.column_names} | changed
    last = pa.table({name: values for name, values in held.items() if values is not None})
    return sent({"bern": BASE, "genf": BASE, "sion": last})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"chol": None},
            "sion: no column 'chol', which other sites have; in NAME.columns.toml write [rename]",
        ),
        ({"chol": None, "cholesterol": BASE["chol"]}, "did you mean 'cholesterol'?"),
        ({"chol": ["high", "low"] * 20}, "sion: column 'chol' holds words, such as 'high', but at other sites numbers"),
        ({"sex": [0, 1] * 20}, "sion: column 'sex' holds numbers, but at other sites words, such as 'Female'"),
        ({"chol": pa.array(pd.date_range("2020", periods=40).to_numpy())}, "holds times, but at other sites numbers"),
        ({"sex": [["a"]] * 40}, "sion: column 'sex' holds list<"),
    ],
)
def test_column_that_a_site_lacks_or_has_in_another_type_is_refused(changed, words):
    with pytest.raises(BadInput, match=re.escape(words)):
        merged(sites_with(**changed))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"sex": ["male", "female"] * 20},
            "sion: column 'sex' holds 'female', 'male', but at other sites 'Female', 'Male'; if they mean the same, write "
            "[words.sex]",
        ),
        ({"sex": ["M", "F"] * 20}, '[words.sex] and on the next lines F = "Female" and M = "Male"'),
        ({"pain": ["typcial", "none"] * 20}, '[words.pain] and on the next line typcial = "typical"'),
        ({"chol": np.linspace(150, 300, 40) / 38.67}, "[units] and on the next line chol = 38.67"),
        ({"chol": np.linspace(150, 300, 40) * 1000}, "[units] and on the next line chol = 0.001"),
    ],
)
def test_other_spelling_or_unit_is_noted_with_what_to_write(changed, words):
    notes = merged(sites_with(**changed)).notes
    assert any(words in note for note in notes), notes


def test_codes_get_no_note_on_units_and_a_planted_unit_of_heart_does():
    """restecg of Switzerland is 0.56 times as large as elsewhere: it is a code, 0, 1 or 2."""
    rows = pd.read_csv(CSV).drop(columns="num")
    for factor, words in ((1, []), (2.54, ["Switzerland: column 'trestbps' is 2.5"])):
        rows.loc[rows["hospital"] == "Switzerland", "trestbps"] *= factor
        held = {
            name: summary(pa.Table.from_pandas(own.drop(columns="hospital"), preserve_index=False))
            for name, own in rows.groupby("hospital")
        }
        notes = [note for note in merged(held).notes if "[units]" in note]
        assert [word in note for word, note in zip(words, notes, strict=True)] == [True] * len(words)


@pytest.mark.parametrize("sites", [3, 4])
def test_one_site_in_fahrenheit_makes_no_other_site_odd(sites):
    """Mean and deviation of all others together are about 2.2 times as large as of a site in °C, as if these were pounds."""
    rng = np.random.default_rng(0)
    celsius = [rng.normal(13.5, 11.4, 2000) for _ in range(sites)]
    celsius[0] = celsius[0] * 1.8 + 32
    held = {f"site {k}": pa.table({"temperature": values}) for k, values in enumerate(celsius)}
    assert [note for note in merged(sent(held)).notes if "[units]" in note] == []


def test_sites_that_agree_get_no_notes():
    rng = np.random.default_rng(0)
    for _ in range(5):
        sites = sent({name: patients(int(rng.integers(30, 200)), rng) for name in HOSPITALS})
        assert [note for note in merged(sites).notes if "columns.toml" in note] == []


def test_the_usual_spelling_inside_a_site_is_to_stay():
    notes = merged(sites_with(sex=["Male", *["male"] * 30, *["Female"] * 9])).notes
    assert any(
        'if both mean the same, in NAME.columns.toml write [words.sex] and on the next line Male = "male"' in note
        for note in notes
    )
