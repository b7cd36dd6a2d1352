"""The diagnosis without pooling: what leaves a site, and that it agrees with the diagnosis of pooled rows."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import fedskew as fs
from fedskew.cli.main import main
from fedskew.core.errors import BadInput
from fedskew.experiment.config import Experiment
from fedskew.experiment.diagnose import diagnosis, from_experiment, from_files
from fedskew.experiment.federated import Facts, federated
from fedskew.experiment.federated_site import Site
from fedskew.experiment.questions import LEAVES, Answer, Array, Question
from fedskew.experiment.rehearsal import by_bytes, rehearse, sites_of_files, sites_of_subject
from fedskew.experiment.subject import Subject
from fedskew.measure.heterogeneity.columns import differences
from fedskew.measure.heterogeneity.diagnose import diagnose
from tests.data.test_real import real_data
from tests.planted import FACES

HOSPITALS = ("bern", "genf", "sion")


def frame(n: int = 400, seed: int = 0) -> pd.DataFrame:
    """Patients of three hospitals, with whole numbers, words, gaps, an offset in one hospital and a rare word in another."""
    rng = np.random.default_rng(seed)
    hospital = rng.choice(3, n, p=[0.5, 0.3, 0.2])
    age = rng.integers(20, 90, n)
    made = pd.DataFrame(
        {
            "hospital": np.array(HOSPITALS)[hospital],
            "age": age,
            "pulse": rng.integers(50, 120, n) + 25 * (hospital == 1),
            "visits": np.where(rng.random(n) < 0.8, 0, rng.integers(1, 9, n)),
            "sex": rng.choice(["female", "male"], n),
            "smokes": np.where(rng.random(n) < 0.1 + 0.4 * (hospital == 2), None, rng.choice(["yes", "no"], n)),
            "ill": np.where(age + rng.normal(0, 20, n) > 60, "ill", "well"),
        }
    )
    made.loc[rng.random(n) < 0.05, "age"] = np.nan
    return made


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("federated") / "patients.csv"
    frame().to_csv(path, index=False)
    return path


def leaves(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Every value that is no table or list, with its path."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if parts is None:
        yield path, value
    for key, part in parts or ():
        yield from leaves(part, (*path, str(key)))


class Recorder:
    """Sites whose answers are recorded as bytes."""

    def __init__(self, sites: dict[str, Site]) -> None:
        self.sites, self.sent = sites, list[bytes]()

    def ask(self, questions: dict[str, Question]) -> dict[str, Answer]:
        found = {}
        for name, question in questions.items():
            self.sent.append(self.sites[name].reply(msgspec.msgpack.encode(question)))
            found[name] = msgspec.msgpack.decode(self.sent[-1], type=Answer)
        return found


def named_leaf(step: str, path: tuple[str, ...]) -> tuple[str, str]:
    """The line of `LEAVES` that a value of an answer belongs to."""
    if path[0] == "numbers":
        return step, path[1]
    if path[:2] == ("summary", "columns"):
        rest = path[3:]
        return step, ".".join(rest[:2]) if rest[0] == "numbers" else rest[0]
    return step, path[0]


def recorded(sites: dict[str, Site]) -> tuple[Recorder, list[tuple[str, str]]]:
    made = Recorder(sites)
    federated(list(sites), made.ask, Facts("recorded"))
    found = []
    for data in made.sent:
        answer = msgspec.msgpack.decode(data)
        assert "refused" not in answer
        step = answer.pop("step")
        found += [named_leaf(step, path) for path, _ in leaves(answer) if path]
    return made, found


def wide_sites(fewest: int) -> dict[str, Site]:
    """More inputs than directions, a text and a time, so that every step is asked."""
    rng = np.random.default_rng(0)
    texts = [f"{a} {b}" for a, b in rng.choice([f"word{i}" for i in range(30)], (90, 2))]
    day = pd.date_range("2020-01-01", periods=90).to_numpy()
    y = rng.choice(["a", "b"], 90)
    table = pa.table({f"x{at}": rng.standard_normal(90) for at in range(20)} | {"text": texts, "word": y, "day": day})
    # the first rows occur twice
    rows = pa.array([0, 1, 2, 3, *range(4, 90), 0, 1, 2, 3])
    return {name: Site(table.take(rows), y[rows.to_numpy()], fewest) for name in HOSPITALS}


def test_every_number_that_leaves_a_site_is_in_the_list_and_no_other_leaves():
    _, sent = recorded(wide_sites(2))
    listed = {(leaf.step, leaf.name) for leaf in LEAVES}
    assert set(sent) <= listed, "a number leaves a site that its owner is not told of"
    assert listed <= set(sent), "the list names a number that does not leave"


def test_records_have_no_further_fields():
    """What `LEAVES` says of the first answer are the fields of its records."""
    answer = set(Answer.__struct_fields__) - {"step", "refused", "summary", "numbers"}
    column = next(iter(wide_sites(2)["bern"].answer(Question(step="columns")).summary.columns.values()))
    names = {*answer, *column.__struct_fields__} - {"numbers"}
    names |= {f"numbers.{field}" for field in column.numbers.__struct_fields__}
    assert names == {leaf.name for leaf in LEAVES if leaf.step == "columns"}


def test_no_count_that_leaves_is_of_few_rows(table):
    sites, _ = sites_of_files([table], "ill", "hospital", 5)
    sent = recorded(sites)[0].sent
    counts = []
    for data in sent:
        answer = msgspec.msgpack.decode(data, type=Answer)
        counts += [*answer.classes.values(), answer.copies]
        for column in answer.summary.columns.values() if answer.summary else ():
            gaps = column.rows - column.valid
            counts += [column.rows, column.valid, gaps, column.numbers.rows, *column.words.values()]
        for name in ("histograms", "rows by class", "beyond thresholds", "rows by kind"):
            if name in answer.numbers:
                counts += np.frombuffer(answer.numbers[name].data).astype(int).tolist()
    assert len(counts) > 1000
    assert min(count for count in counts if count) >= 5


def test_the_ends_of_a_range_are_those_of_enough_rows():
    site = Site(pa.table({"a": np.arange(40.0)}), np.array(["x", "y"] * 20), 4)
    held = site.answer(Question(step="columns")).summary.columns["a"].numbers
    assert (held.low, held.high) == (3, 36)


def test_rows_of_rare_classes_stay_out_and_the_site_is_told():
    y = np.array(["x"] * 30 + ["y"] * 30 + ["z"] * 9)
    site = Site(pa.table({"a": np.arange(69.0)}), y, 5)
    assert site.answer(Question(step="columns")).classes == {"x": 30, "y": 30, "z": 9}
    assert site.notes == ["9 rows count by class only: their classes have fewer than 10 rows"]


def test_rare_words_and_gaps_are_hidden():
    words = pa.array(["red"] * 20 + ["blue"] * 18 + ["pink"] * 2)
    ages = pa.array([None, *range(1, 40)], type=pa.int64())
    site = Site(pa.table({"word": words, "age": ages}), np.array(["x", "y"] * 20), 5)
    summary = site.answer(Question(step="columns")).summary.columns
    assert summary["word"].words == {"red": 22, "blue": 18}
    assert summary["age"].numbers.rows == 40


# agreement with pooled rows


def test_labels_sizes_and_columns_equal_those_of_pooled_rows(table):
    pooled = diagnosis(from_files([table], "ill", "hospital"))
    found = rehearse(*sites_of_files([table], "ill", "hospital", 1))
    assert found["label_counts"] == pooled["label_counts"]
    for at in (0, 2):
        assert found["faces"][at]["each"] == pytest.approx(pooled["faces"][at]["each"], abs=1e-12)
        assert found["faces"][at]["value"] == pytest.approx(pooled["faces"][at]["value"], abs=1e-12)
    assert {column["column"] for column in pooled["columns"]} >= {"pulse", "smokes"}
    assert [c["text"] for c in found["columns"]] == [c["text"] for c in pooled["columns"]]
    for one, other in zip(found["columns"], pooled["columns"], strict=True):
        assert one["each"] == pytest.approx(other["each"], abs=1e-12)
        assert one["p"] == pytest.approx(other["p"], rel=1e-9)
    assert found["measures"]["label"] == pytest.approx(pooled["measures"]["label"], nan_ok=True)
    assert [one["face"] for one in found["faces"]] == [one["face"] for one in pooled["faces"]]


def subject_of(dataset: str, skew: str = "natural", seed: int = 0) -> Subject:
    experiment = Experiment(dataset=dataset, skew=skew, clients={"number": 10, "partition_seed": seed})
    return from_experiment(experiment, dataset)


@pytest.mark.parametrize("dataset", ["heart", "uci-har", "uci-har:form=features", "adult"])
@pytest.mark.slow
def test_feature_and_concept_are_close_to_those_of_pooled_rows(dataset):
    """The kinds of inputs and the rows of reference differ."""
    if dataset != "heart":
        real_data()
    subject = subject_of(dataset)
    pooled = diagnosis(subject)
    found = rehearse(*sites_of_subject(subject, 1))
    print(
        dataset,
        [
            (a["face"], round(a["value"], 3), round(b["value"], 3))
            for a, b in zip(pooled["faces"], found["faces"], strict=True)
        ],
    )
    for one, other in zip(found["faces"], pooled["faces"], strict=True):
        tolerance = 1e-12 if one["face"] in ("label", "quantity") else 0.05
        assert one["value"] == pytest.approx(other["value"], abs=tolerance)
    assert found["dominant"] == pooled["dominant"]


def test_columns_of_fractions_agree_to_the_width_of_their_bins():
    subject = subject_of("heart")
    pooled = diagnose(subject.x, subject.y, subject.client, permutations=1)
    found = rehearse(*sites_of_subject(subject, 1))
    for at, name in enumerate(("label", "feature", "quantity", "concept")):
        tolerance = 1e-12 if name in ("label", "quantity") else 0.05
        assert found["faces"][at]["value"] == pytest.approx(pooled.face(name).value, abs=tolerance)
    facts = [(name, "mean", "", subject.x[:, at].astype(float)) for at, name in enumerate(subject.inputs)]
    facts += [("label", "share", name, (subject.y == at).astype(float)) for at, name in enumerate(subject.classes)]
    expected = differences(facts, subject.client, subject.clients)
    for one, other in zip(found["columns"], expected, strict=True):
        assert (one["column"], one["client"], one["kind"]) == (other.column, other.client, other.kind)
        assert one["effect"] == pytest.approx(other.effect, abs=0.02)
        assert (one["here"], one["elsewhere"]) == pytest.approx((other.here, other.elsewhere), abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("skew", FACES)
def test_a_planted_face_dominates_in_nineteen_of_twenty_seeds(skew):
    found = [rehearse(*sites_of_subject(subject_of("digits", skew, seed)), seed)["dominant"] for seed in range(20)]
    assert found.count(FACES[skew]) >= 19, found


@pytest.mark.slow
@pytest.mark.parametrize("fewest", [1, 5])
def test_iid_sites_are_called_skewed_in_at_most_five_of_a_hundred(fewest):
    """100 seeds; 9 or fewer with probability 0.97 if the level is exact."""
    called = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        y, site = rng.integers(0, 3, 600), rng.integers(0, 6, 600)
        x = rng.standard_normal((600, 8)) + 1.5 * np.eye(8)[y]
        sites = {
            str(k): Site(pa.table({str(i): x[site == k, i] for i in range(8)}), y[site == k].astype(str), fewest)
            for k in range(6)
        }
        called += [rehearse(sites, Facts("iid"), seed)["dominant"]]
    assert sum(map(bool, called)) <= 9, called


# sites that do not fit, and wrong answers


def test_each_file_is_read_by_its_own_site_and_misfits_are_told_before_anything_is_measured(tmp_path):
    for name, rows in frame().groupby("hospital"):
        made = rows.drop(columns="hospital")
        made["age"] = made["age"] * 12 if name == "sion" else made["age"]
        made = made.rename(columns={"pulse": "puls"}) if name == "genf" else made
        made.to_csv(tmp_path / f"{name}.csv", index=False)
    with pytest.raises(BadInput, match=r"genf: no column 'pulse', which other sites have; did you mean 'puls'\?"):
        rehearse(*sites_of_files([tmp_path], "ill"))
    (tmp_path / "genf.columns.toml").write_text("[rename]\npuls = 'pulse'")
    notes = rehearse(*sites_of_files([tmp_path], "ill"))["notes"]
    assert any("sion: column 'age'" in note and "[units] age = 0.08333" in note for note in notes), notes
    (tmp_path / "sion.columns.toml").write_text("[units]\nage = 0.0833333")
    found = rehearse(*sites_of_files([tmp_path], "ill"))
    assert not any("columns.toml" in note for note in found["notes"])
    assert found["client_names"] == list(HOSPITALS)


def test_one_site_or_one_class_is_refused():
    sites = wide_sites(2)
    with pytest.raises(BadInput, match="only one site"):
        rehearse({"bern": sites["bern"]}, Facts("one"))
    same = {name: Site(pa.table({"a": np.arange(30.0)}), np.array(["x"] * 30)) for name in HOSPITALS}
    with pytest.raises(BadInput, match="all rows have the same label"):
        rehearse(same, Facts("one class"))
    few = {**sites, "sion": Site(sites["sion"].table, sites["sion"].y, 60)}
    with pytest.raises(BadInput, match="sion: no class has 120 rows"):
        rehearse(few, Facts("few rows"))


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (Array((3,), b"\0" * 24), "genf: sum has shape (3,), not"),
        (Array((2**40,), b""), "genf: sum has 0 bytes, not its shape"),
        (Array((-1, 3), b"\0" * 24), "genf: sum has shape (1, 3), not"),
        (Array((1,), np.array([np.nan]).tobytes()), "genf: sum holds values that are not finite"),
        (None, "genf: sum has shape None, not"),
    ],
)
def test_wrong_answer_is_refused_with_the_site(array, words):
    sites = wide_sites(2)
    honest = by_bytes(sites)

    def ask(questions):
        answers = dict(honest(questions))
        if answers["genf"].step == "scale":
            numbers = {**answers["genf"].numbers, "sum": array}
            answers["genf"] = msgspec.structs.replace(
                answers["genf"], numbers={name: held for name, held in numbers.items() if held is not None}
            )
        return answers

    with pytest.raises(BadInput) as error:
        federated(list(sites), ask, Facts("wrong"))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_site_answers_nonsense_with_a_refusal_of_one_line():
    site = wide_sites(2)["bern"]
    questions = (
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"step": "rows"}),
        msgspec.msgpack.encode(Question(step="faces")),
        msgspec.msgpack.encode(Question(step="moments", numbers={"mean": Array((2,), b"1")})),
    )
    for data in questions:
        answer = msgspec.msgpack.decode(site.reply(data), type=Answer)
        assert answer.refused, data
        assert "\n" not in answer.refused
        assert not answer.numbers


# the command, and Python


def test_the_command_and_python_give_the_same(table, capsys):
    found = fs.diagnose(str(table), label="ill", client="hospital", federated=True, fewest=3, progress=False)
    assert (
        main(
            ["diagnose", str(table), "--label", "ill", "--client", "hospital", "--federated", "--fewest", "3", "--json"]
        )
        == 0
    )
    printed = msgspec.json.decode(capsys.readouterr().out)
    for one, other in zip(printed["faces"], found["faces"], strict=True):
        assert one["each"] == other["each"]
        assert one["p"] == other["p"]
    assert "no count that leaves a site is of fewer than 3 rows" in printed["notes"][0]


def test_the_list_names_every_number(capsys):
    assert main(["diagnose", "--list", "--json"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out) == [leaf._asdict() for leaf in LEAVES]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--target", "age", "--federated"], "name the column of classes by --label"),
        (["--label", "ill", "--fewest", "3"], "--fewest needs --federated"),
        (["--label", "ill", "--federated", "--fewest", "0"], "fewest must be at least 1"),
    ],
)
def test_wrong_options_are_refused(table, capsys, options, words):
    assert main(["diagnose", str(table), "--client", "hospital", *options]) == 2
    assert words in capsys.readouterr().err
