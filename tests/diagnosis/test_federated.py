"""The diagnosis without pooling: what leaves a site, and that it agrees with the diagnosis of pooled rows."""

from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fedskew.core.errors import BadInput
from fedskew.data.tables.guard import guarded, summary
from fedskew.data.tables.schema import merged
from fedskew.diagnosis.diagnose import rehearse, sites_of_files
from fedskew.diagnosis.questions import LEAVES, Answer, PackedArray, Question, arrays, numbers_of
from fedskew.diagnosis.server import Inquiry
from fedskew.diagnosis.site import AnsweringSite
from fedskew.diagnosis.subject import DiagnosisOptions, Source
from tests.commands import error_of, output_of
from tests.federated import HOSPITALS, Recorder, frame, lying, number_sites, recorded, wide_sites

pytestmark = pytest.mark.usefixtures("few_tables")


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("federated") / "patients.csv"
    frame().to_csv(path, index=False)
    return path


@pytest.mark.first
def test_every_number_that_leaves_a_site_is_in_the_list_and_no_other_leaves():
    _, sent = recorded(wide_sites(2))
    sent += recorded(number_sites(2))[1]
    # the sums for a harmonisation: tests/flower/test_harmonise.py
    listed = {(leaf.step, leaf.name) for leaf in LEAVES if leaf.step != "harmonise"}
    assert set(sent) <= listed, "a number leaves a site that is not on the owner's list"
    assert listed <= set(sent), "the list names a number that does not leave"


def test_records_have_no_further_fields():
    """The fields of the first answer's records are the ones in `LEAVES`."""
    answer = set(Answer.__struct_fields__) - {"step", "refused", "summary", "numbers"}
    column = next(iter(wide_sites(2)["bern"].answer(Question(step="columns")).summary.columns.values()))
    names = {*answer, *column.__struct_fields__} - {"numbers"}
    names |= {f"numbers.{field}" for field in column.numbers.__struct_fields__}
    assert names == {leaf.name for leaf in LEAVES if leaf.step == "columns"}


@pytest.mark.parametrize("columns", [{"label": "ill"}, {"target": "pulse"}])
def test_no_count_that_leaves_is_of_few_rows(table, columns):
    sites, _ = sites_of_files(DiagnosisOptions(paths=[table], client="hospital", **columns))
    sent = recorded(sites)[0].sent
    counts = []
    for data in sent:
        answer = msgspec.msgpack.decode(data, type=Answer)
        counts += [*answer.classes.values(), answer.copies]
        for column in answer.summary.columns.values() if answer.summary else ():
            gaps = column.rows - column.valid
            counts += [column.rows, column.valid, gaps, column.numbers.rows, *column.words.values()]
        for name in ("histogram", "histograms", "rows by class", "beyond thresholds", "rows by kind"):
            if name in answer.numbers:
                counts += np.frombuffer(answer.numbers[name].data).astype(int).tolist()
    assert len(counts) > 1000
    assert min(count for count in counts if count) >= 5


@pytest.mark.parametrize(("known", "ends"), [(5, (2, 2)), (8, (3.5, 3.5)), (9, (4, 4)), (10, (4, 5))])
def test_a_column_with_few_numbers_has_a_range_of_fewest_rows_or_its_mean(known, ends):
    """heart's Switzerland has 5 values of ca, which ended the diagnosis."""
    values = [float(at) if at < known else None for at in range(40)]
    held = summary(pa.table({"ca": pa.array(values)}), 5).columns["ca"].numbers
    assert (held.low, held.high) == ends


def test_a_column_without_a_value_has_none_to_count():
    """Else such a site would make a column of numbers look like words where another site has a single word."""
    held = summary(pa.table({"chol": pa.nulls(50)}), 5).columns["chol"]
    assert (held.rows, held.valid) == (50, 0)


def test_a_gap_in_codes_becomes_a_code():
    codes = np.repeat([0.0, 1.0, np.nan], [10, 9, 1])
    dates = pd.Series(pd.date_range("2026-01-01", periods=20)).mask(np.arange(20) == 3)
    found, _ = guarded(
        pa.table(
            {
                "codes": pa.array(codes, from_pandas=True),
                "half": pa.array(codes + 0.5, from_pandas=True),
                "dates": dates,
            }
        ),
        5,
    )
    assert found["codes"].to_pylist()[-1] == 0
    assert found["half"].to_pylist()[-1] == pytest.approx(9 / 19 + 0.5)
    assert found["dates"].null_count == 0


def test_rows_of_rare_classes_stay_out_and_the_site_gets_a_note():
    y = np.array(["x"] * 30 + ["y"] * 30 + ["z"] * 9)
    site = AnsweringSite(pa.table({"a": np.arange(69.0)}), y, 5)
    assert site.answer(Question(step="columns")).classes == {"x": 30, "y": 30, "z": 9}
    assert site.guarded_table.num_rows == 69, "nine rows are enough for sums of all rows"
    assert site.notes == ["9 rows of rare classes or targets are in no sum by class"]


@pytest.mark.parametrize("rare", [["z"], ["z", "z", "w", "w"], ["z"] * 3 + ["w"] * 2, ["z"] * 9])
def test_sums_of_all_rows_less_sums_by_class_are_about_no_row_or_enough(rare):
    rng = np.random.default_rng(0)
    y = np.array(["x"] * 60 + ["y"] * 40 + rare)
    tables = [pa.table({"age": rng.normal(60, 9, n), "sex": rng.choice(["f", "m"], n)}) for n in (len(y), 100)]
    made = Recorder({"one": AnsweringSite(tables[0], y, 5), "two": AnsweringSite(tables[1], y[:100], 5)})
    Inquiry(("one", "two"), made.ask).result(Source("rare"))
    answers = {a.step: a for a in (msgspec.msgpack.decode(data, type=Answer) for data in made.sent[::2])}
    rows = answers["columns"].summary.columns["age"].rows
    rows -= numbers_of("", answers["moments"].numbers)["rows by class"].sum()
    assert rows == 0 or rows >= 5
    assert rows == (len(rare) if len(rare) >= 5 else 0)
    by_class = (numbers_of("", answers[step].numbers)["rows by class"] for step in ("moments", "classes"))
    assert [part.sum() for part in by_class] == [answers["columns"].summary.columns["age"].rows - rows] * 2
    counts = answers["columns"].classes
    assert all(number >= 5 for number in counts.values())


def test_sums_by_class_are_of_columns_and_distances_of_rows_of_common_classes():
    y, values = np.array(["z"] * 9 + ["x"] * 30 + ["y"] * 30), np.arange(69.0)
    site = AnsweringSite(pa.table({"a": values}), y, 5)
    known = merged({"bern": site.answer(Question(step="columns")).summary}).preprocessing
    centres = np.array([[40.0, 0], [30, 0], [10, 0]])
    asked = Question(step="classes", preprocessing=known, classes=("x", "y"), numbers=arrays({"centres": centres}))
    found = numbers_of("bern", site.answer(asked).numbers)
    assert found["rows by class"].tolist() == [30, 30]
    by_hand = [[(part - 30).sum(), (np.abs(part - 40) - 10).sum()] for part in (values[9:39], values[39:])]
    assert found["columns by class"][:, 0].T.tolist() == by_hand


def test_the_server_need_not_know_classes_of_few_rows():
    y = np.array(["x"] * 30 + ["y"] * 30 + ["z"] * 2)
    site = AnsweringSite(pa.table({"a": np.arange(62.0)}), y, 5)
    known = merged({"bern": site.answer(Question(step="columns")).summary}).preprocessing
    asked = Question(step="moments", preprocessing=known, classes=("x", "y"))
    rows = numbers_of("bern", site.answer(asked).numbers)["rows by class"]
    assert rows.sum(0).tolist() == [30, 30]
    with pytest.raises(BadInput, match="the server does not know all classes"):
        site.answer(msgspec.structs.replace(asked, classes=("x", "w")))


def test_rare_words_and_gaps_are_hidden():
    words = pa.array(["red"] * 20 + ["blue"] * 18 + ["pink"] * 2)
    ages = pa.array([None, *range(1, 40)], type=pa.int64())
    site = AnsweringSite(pa.table({"word": words, "age": ages}), np.array(["x", "y"] * 20), 5)
    summary = site.answer(Question(step="columns")).summary.columns
    assert summary["word"].words == {"red": 22, "blue": 18}
    assert summary["age"].numbers.rows == 40


@pytest.mark.parametrize(("step", "most"), [("products", 5792), ("moments", 49)])
def test_a_server_that_asks_for_too_many_products_is_refused(step, most):
    """Their number grows with the square of the inputs, and a hostile server may name a column many times."""
    site = AnsweringSite(pa.table({"a": np.arange(40.0)}), np.array(["x", "y"] * 20), 1)
    known = merged({"one": site.answer(Question(step="columns")).summary}).preprocessing
    many = msgspec.structs.replace(known, columns=known.columns * (most + 1))
    asked = msgspec.msgpack.encode(Question(step=step, preprocessing=many, classes=("x", "y")))
    refused = msgspec.msgpack.decode(site.reply(asked), type=Answer).refused
    assert refused == f"the server asks for products of {most + 1:,} inputs; at most {most:,} leave a site"


@pytest.mark.parametrize(("codes", "noted"), [((0, 1, 2), []), ((0.5, 1.5, 2.5), ["code"])])
def test_codes_are_in_no_other_unit(codes, noted):
    """Two sites whose numbers are a factor of two apart."""
    rng = np.random.default_rng(0)
    sites = {}
    for name, factor in (("bern", 1), ("genf", 2)):
        values = rng.choice(codes, 600) * factor
        sites[name] = AnsweringSite(
            pa.table({"code": values, "age": rng.normal(60, 9, 600)}), rng.choice(["a", "b"], 600)
        )
    found = rehearse(sites, Source("codes"))
    assert found["columns"][0]["column"] == "code"
    assert [one["column"] for one in found["columns"] if "times as large" in one["text"]] == noted


# sites that do not fit, and wrong answers


def test_each_file_is_read_by_its_own_site_and_misfits_are_told_before_anything_is_measured(tmp_path):
    for name, rows in frame().groupby("hospital"):
        made = rows.drop(columns="hospital")
        made["age"] = made["age"] * 12 if name == "sion" else made["age"]
        made = made.rename(columns={"pulse": "puls"}) if name == "genf" else made
        made.to_csv(tmp_path / f"{name}.csv", index=False)
    with pytest.raises(BadInput, match=r"genf: no column 'pulse', which other sites have; did you mean 'puls'\?"):
        rehearse(*sites_of_files(DiagnosisOptions(paths=[tmp_path], label="ill")))
    (tmp_path / "genf.columns.toml").write_text("[rename]\npuls = 'pulse'")
    notes = rehearse(*sites_of_files(DiagnosisOptions(paths=[tmp_path], label="ill")))["notes"]
    assert any(
        "sion: column 'age'" in note and "[units] and on the next line age = 0.08333" in note for note in notes
    ), notes
    (tmp_path / "sion.columns.toml").write_text("[units]\nage = 0.0833333")
    found = rehearse(*sites_of_files(DiagnosisOptions(paths=[tmp_path], label="ill")))
    assert not any("columns.toml" in note for note in found["notes"])
    assert found["client_names"] == list(HOSPITALS)


def test_one_site_or_one_class_is_refused():
    sites = wide_sites(2)
    with pytest.raises(BadInput, match="only one site"):
        rehearse({"bern": sites["bern"]}, Source("one"))
    same = {name: AnsweringSite(pa.table({"a": np.arange(30.0)}), np.array(["x"] * 30)) for name in HOSPITALS}
    with pytest.raises(BadInput, match="all rows have the same label"):
        rehearse(same, Source("one class"))
    few = {**sites, "sion": AnsweringSite(sites["sion"].table, sites["sion"].y, 60)}
    with pytest.raises(
        BadInput, match=r"sion: no class has 120 rows, twice --fewest 60; .* --fewest 1, or leave the site out"
    ):
        rehearse(few, Source("few rows"))


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (PackedArray((3,), b"\0" * 24), "genf: sum has shape (3,), not"),
        (PackedArray((2**40,), b""), "genf: sum has 0 bytes, not its shape"),
        (PackedArray((-1, 3), b"\0" * 24), "genf: sum has shape (1, 3), not"),
        (PackedArray((1,), np.array([np.nan]).tobytes()), "genf: sum holds values that are not finite"),
        (None, "genf: sum has shape None, not"),
    ],
)
def test_wrong_answer_is_refused_with_the_site(array, words):
    def change(answer):
        numbers = {**answer.numbers, "sum": array}
        return msgspec.structs.replace(answer, numbers={name: held for name, held in numbers.items() if held})

    sites = wide_sites(2)
    with pytest.raises(BadInput) as error:
        Inquiry(tuple(sites), lying(sites, "scale", change)).result(Source("wrong"))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_site_answers_nonsense_with_a_refusal_of_one_line():
    site = wide_sites(2)["bern"]
    questions = (
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"step": "rows"}),
        msgspec.msgpack.encode(Question(step="faces")),
        msgspec.msgpack.encode(Question(step="moments", numbers={"mean": PackedArray((2,), b"1")})),
    )
    for data in questions:
        answer = msgspec.msgpack.decode(site.reply(data), type=Answer)
        assert answer.refused, data
        assert "\n" not in answer.refused
        assert not answer.numbers


# the command, and Python


def test_the_command_says_how_few_rows_a_count_has(table):
    words = ["--label", "ill", "--client", "hospital", "--federated", "--fewest", "3", "--json"]
    notes = msgspec.json.decode(output_of("diagnose", table, *words))["notes"]
    assert "no count that leaves a site is of fewer than 3 rows" in notes[0]


def test_the_list_names_every_number():
    assert msgspec.json.decode(output_of("diagnose", "--list", "--json")) == [leaf._asdict() for leaf in LEAVES]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["--label", "ill", "--fewest", "3"],
            "fewest has an effect only with federated; add federated, or leave out fewest",
        ),
        (["--label", "ill", "--federated", "--fewest", "0"], "fewest must be at least 1"),
    ],
)
def test_wrong_options_are_refused(table, options, words):
    assert words in error_of("diagnose", table, "--client", "hospital", *options)
