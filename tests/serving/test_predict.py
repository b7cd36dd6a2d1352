"""A run's model on files of new rows: the stored test metrics to the last digit, warnings, and one-line errors."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import fedskew as fs
from fedskew.api.runs import Runs
from fedskew.cli.main import main
from fedskew.core.errors import BadInput
from fedskew.data.dataset import Dataset
from fedskew.data.datasets.images import Digits, carried
from fedskew.data.texts import cut
from fedskew.execution.learned import FILE
from fedskew.serving.predict import OUTSIDE, PREDICTION
from tests.commands import error_of
from tests.data.test_preprocessing import visits
from tests.real import real_data

QUICK = {"rounds": 2, "epochs": 1, "engine": "sequential", "progress": False}


def trained_on(folder: Path, target: str = "label=ill", leave_out: str = "", **keywords: object) -> Runs:
    for part, rows in (("train", 90), ("test", 40)):
        path = visits(folder / f"{part}.csv", rows, rows)
        pd.read_csv(path).drop(columns=leave_out or []).to_csv(path, index=False)
    data = f"table:path={folder / 'train.csv'},test={folder / 'test.csv'},{target}"
    return fs.run(dataset=data, skew="iid", clients=2, runs=folder / "runs", **{**QUICK, **keywords})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Runs]:
    folder = tmp_path_factory.mktemp("predict")
    return folder, trained_on(folder)


def stored(runs: Runs, name: str) -> float:
    frame = runs.measurements()
    found = frame[(frame.split == "test") & (frame.name == name)]
    return float(found.value.iloc[-1])


def assert_metrics_are_stored(runs: Runs, rows: Path) -> dict[str, float]:
    """Check that the run's model has the stored metrics on these rows; return them."""
    measured = fs.load_model(runs).evaluate(rows)
    assert len(measured) > 1
    assert measured == {name: stored(runs, name) for name in measured}
    return measured


def test_predictions_of_the_test_file_give_the_stored_accuracy(made: tuple[Path, Runs]) -> None:
    folder, runs = made
    answers = runs.predict(folder / "test.csv")
    truth = pd.read_csv(folder / "test.csv")["ill"]
    assert float((answers[PREDICTION] == truth).mean()) == stored(runs, "accuracy")
    assert answers.columns.tolist() == [PREDICTION, "probability_no", "probability_yes", OUTSIDE]
    assert answers[["probability_no", "probability_yes"]].sum(axis=1).to_numpy() == pytest.approx(np.ones(40), abs=1e-6)
    model = fs.load_model(1, runs=folder / "runs")
    assert {"loss", "accuracy"} <= set(assert_metrics_are_stored(runs, folder / "test.csv"))
    frame = pd.read_csv(folder / "test.csv", index_col=False).set_index(np.arange(100, 140))
    assert model.predict(frame).equals(answers.set_index(frame.index))


def test_a_regression_predicts_in_the_unit_of_the_target(tmp_path: Path) -> None:
    runs = trained_on(tmp_path, "target=age", task="regression")
    answers = runs.predict(tmp_path / "test.csv")
    off = answers[PREDICTION] - pd.read_csv(tmp_path / "test.csv")["age"]
    assert float(np.sqrt((off**2).mean())) == pytest.approx(stored(runs, "rmse"), rel=1e-6)
    assert fs.load_model(1, runs=tmp_path / "runs").evaluate(tmp_path / "test.csv")["rmse"] == stored(runs, "rmse")


def scans(folder: Path, target: str) -> tuple[Path, Runs]:
    """Return a table with two labels and a survival time, and a run that learns the target from the first 60 rows."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 3))
    table = pd.DataFrame(x, columns=["a", "b", "c"]).assign(
        sick=(x[:, 0] > 0).astype(int),
        old=(x[:, 1] > 0).astype(int),
        days=np.exp(x[:, 0] + rng.normal(size=90)),
        died=np.arange(90) % 2,
    )
    outside = ["days", "died"] if target.startswith("labels") else ["sick", "old"]
    for name, part in {"train": table[:60], "test": table[60:]}.items():
        part.drop(columns=outside).to_csv(folder / f"{name}.csv", index=False)
    data = f"table:path={folder / 'train.csv'},test={folder / 'test.csv'},{target}"
    runs = fs.run(dataset=data, model="softmax", skew="iid", clients=2, runs=folder / "runs", **QUICK)
    return folder / "test.csv", runs


def test_survival_times_give_the_stored_metrics(tmp_path: Path) -> None:
    rows, runs = scans(tmp_path, "time=days,event=died")
    assert "c_index" in assert_metrics_are_stored(runs, rows)


def test_labels_are_answered_by_name_and_probability_and_give_the_stored_metrics(tmp_path: Path) -> None:
    rows, runs = scans(tmp_path, "labels=sick|old")
    assert {"f1_micro", "auc"} <= set(assert_metrics_are_stored(runs, rows))
    answers = runs.predict(rows)
    assert answers.columns.tolist() == [PREDICTION, "probability_sick", "probability_old", OUTSIDE]
    yes = answers[["probability_sick", "probability_old"]].to_numpy() >= 0.5
    wanted = ["|".join(name for name, own in zip(("sick", "old"), row, strict=True) if own) for row in yes]
    assert answers[PREDICTION].tolist() == wanted
    assert {"sick", "sick|old"} & set(wanted)
    wrong = pd.read_csv(rows).assign(old=2)
    with pytest.raises(BadInput, match=r"evaluate: column sick, old must be 0 or 1, found 0\.\.2"):
        fs.load_model(1, runs=tmp_path / "runs").evaluate(wrong)


def sequences(folder: Path) -> tuple[np.ndarray, Runs]:
    """Return rows in which a, b and c follow each other in a circle, and a run that learns this."""
    x = np.array([[0, 1, 2, 0], [1, 2, 0, -1], [2, 0, -1, -1]] * 20)
    y = np.where(x >= 0, (x + 1) % 3, -1)
    data = Dataset(x=x, y=y, x_test=x[:3], y_test=y[:3], classes=("a", "b", "c"))
    settings = {**QUICK, "model": "transformer:width=8,layers=1", "clients": 2, "lr": 0.5, "epochs": 9}
    return x[:3], fs.run(data=data, runs=folder, **settings)


def test_a_sequence_is_answered_with_the_symbol_after_its_last_one(tmp_path: Path) -> None:
    x, runs = sequences(tmp_path)
    answers = runs.predict(x)
    assert answers[PREDICTION].tolist() == ["b", "b", "b"]
    assert answers[["probability_a", "probability_b", "probability_c"]].sum(axis=1).tolist() == pytest.approx([1] * 3)
    with pytest.warns(
        UserWarning, match="has no model.onnx: it predicts at each place of a row, but predict.py predicts once a row"
    ):
        fs.export(runs)


@pytest.mark.slow
def test_onnx_answers_at_each_place_of_a_sequence(tmp_path: Path) -> None:
    x, runs = sequences(tmp_path)
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(fs.export(runs, tmp_path / "symbols.onnx", format="onnx")))
    [outputs] = session.run(None, {"x": x})
    assert outputs.argmax(2)[x >= 0].tolist() == ((x + 1) % 3)[x >= 0].tolist()


def test_texts_use_the_vocabulary_of_the_run(tmp_path: Path) -> None:
    runs = trained_on(tmp_path, "label=ill,text=note", model="text-cnn:filters=4,embedding=4", held_out=0.3)
    answers = runs.predict(tmp_path / "test.csv")
    truth = pd.read_csv(tmp_path / "test.csv")["ill"]
    assert float((answers[PREDICTION] == truth).mean()) == stored(runs, "accuracy")
    with pytest.warns(UserWarning, match="no word of note is known"):
        assert runs.predict({"note": ["zzz", "good"]})[OUTSIDE].tolist() == ["no word of note is known", ""]


MESSY = ["good\nand long", 'she said "good, good"', "12.0", "   ", " bad news ", "null", "-", "bad good bad bad"]
"""Texts as people write them: line breaks, quotes, numbers, nothing at all, spaces, words that mean a missing value."""


@pytest.mark.parametrize("target", ["label=ill", "target=age", "time=age,event=died"])
def test_messy_texts_give_the_stored_metrics_for_each_kind_of_target(target: str, tmp_path: Path) -> None:
    for part, rows in (("train", 90), ("test", 40)):
        frame = pd.read_csv(visits(tmp_path / f"{part}.csv", rows, rows)).assign(died=np.arange(rows) % 2)
        frame.loc[: len(MESSY) - 1, "note"] = MESSY
        frame.loc[9:10, target.partition("=")[2].partition(",")[0]] = None
        frame.to_csv(tmp_path / f"{part}.csv", index=False)
    data = f"table:path={tmp_path / 'train.csv'},test={tmp_path / 'test.csv'},{target},text=note"
    model = "text-cnn:filters=4,embedding=4"
    runs = fs.run(dataset=data, model=model, skew="iid", clients=2, runs=tmp_path / "runs", **QUICK)
    assert_metrics_are_stored(runs, tmp_path / "test.csv")
    assert len(runs.predict(tmp_path / "test.csv")) == 40


@pytest.mark.parametrize(
    ("name", "column", "target"),
    [("ag-news:train_rows=60,test_rows=40", "text", "topic"), ("bitext-support:labelled=2", "instruction", "intent")],
)
def test_named_texts_are_predicted_from_a_table_of_their_texts(
    name: str, column: str, target: str, tmp_path: Path
) -> None:
    real_data()
    data = fs.load(name)
    assert data.texts is not None
    frame = pd.DataFrame({column: data.texts[1], target: np.array(data.classes)[data.y_test]})
    frame.to_csv(tmp_path / "test.csv", index=False)
    settings = {**QUICK, "skew": "iid", "clients": 2, "rounds": 1}
    runs = fs.run(dataset=name, model="text-cnn:filters=4,embedding=4", runs=tmp_path / "runs", **settings)
    measured = assert_metrics_are_stored(runs, tmp_path / "test.csv")
    assert (runs.predict(tmp_path / "test.csv")[PREDICTION] == frame[target]).mean() == measured["accuracy"]


def plays(folder: Path, options: str = "") -> tuple[pd.DataFrame, Runs]:
    """Two texts with line breaks, and a run that learns their next symbols; the last fifth of each text, which it is tested on."""
    rng, words = np.random.default_rng(0), ["to", "be", "or\n", " not", '"be,']
    texts = {name: " ".join(rng.choice(words, 200)) for name in ("anna", "bert")}
    (folder / "plays").mkdir()
    for name, text in texts.items():
        (folder / "plays" / f"{name}.txt").write_text(text)
    settings = {**QUICK, "skew": "natural", "model": "symbol-lstm:embedding=4,hidden=8"}
    runs = fs.run(dataset=f"text:path={folder / 'plays'},length=20{options}", runs=folder / "runs", **settings)
    return pd.DataFrame({"text": [cut(text, 0.2)[1] for text in texts.values()]}), runs


@pytest.mark.parametrize("options", ["", ",pieces=260"])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_texts_of_symbols_are_predicted_and_give_the_stored_metrics(options: str, kind: str, tmp_path: Path) -> None:
    if options:
        pytest.importorskip("tokenizers")
    frame, runs = plays(tmp_path, options)
    path = tmp_path / f"test.{kind}"
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    model = fs.load_model(runs)
    assert {"accuracy", "perplexity"} < {*assert_metrics_are_stored(runs, path)}
    answers = model.predict(path)
    assert answers[PREDICTION].isin(model.trained.learned.classes).all()
    assert answers.equals(model.predict({"text": [text[-60:] for text in frame["text"]]})) or options


def test_a_text_file_is_one_text_and_unknown_characters_are_named(tmp_path: Path, capsys) -> None:
    frame, runs = plays(tmp_path)
    (tmp_path / "new.txt").write_text(frame["text"][0])
    assert runs.predict(tmp_path / "new.txt").equals(runs.predict(frame[:1]))
    with pytest.warns(UserWarning, match="1 row of 2: text has unknown characters, which are left out, such as 'é'"):
        answers = runs.predict({"text": ["to bé", "to b"]})
    assert answers[PREDICTION][0] == answers[PREDICTION][1]
    pd.DataFrame({"text": ["to bé", ""]}).to_csv(tmp_path / "new.csv", index=False)
    command = ["predict", "1", str(tmp_path / "new.csv"), "--runs", str(tmp_path / "runs")]
    assert main([*command, "--output", str(tmp_path / "out.csv")]) == 0
    err = capsys.readouterr().err
    assert "no metrics: evaluate: column 'text' holds 'é', which no text of run 1 had" in err
    assert "text is empty" in err


def test_a_class_that_no_training_row_had_leaves_out_the_metrics(
    made: tuple[Path, Runs], tmp_path: Path, capsys
) -> None:
    frame = pd.read_csv(made[0] / "test.csv")
    frame.loc[3, "ill"] = "perhaps"
    frame.to_csv(tmp_path / "new.csv", index=False)
    command = ["predict", "1", str(tmp_path / "new.csv"), "--runs", str(made[0] / "runs")]
    assert main([*command, "--output", str(tmp_path / "out.csv")]) == 0
    assert "no metrics: evaluate: column 'ill' holds 'perhaps', which is no class of run 1" in capsys.readouterr().err
    assert len(pd.read_csv(tmp_path / "out.csv")) == len(frame)


def test_images_are_scaled_as_in_training(tmp_path: Path) -> None:
    runs = fs.run(dataset="digits", runs=tmp_path, **QUICK)
    pixels, labels = carried()
    data = Digits().load()
    places = [np.flatnonzero((data.x_test == row).all(1))[:1] for row in (pixels / 16).astype(np.float32)]
    test = np.array([len(at) > 0 for at in places])
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    with pytest.raises(BadInput, match=r"the model reads arrays, a .npy or the array x of a .npz, .*: not such a file"):
        runs.predict(tmp_path / "rows.csv")
    with pytest.raises(BadInput, match="No such file"):
        runs.predict(tmp_path / "missing.npy")
    np.savez(tmp_path / "rows.npz", rows=pixels[test])
    with pytest.raises(BadInput, match="it has no array x"):
        runs.predict(tmp_path / "rows.npz")
    np.savez(tmp_path / "rows.npz", x=pixels[test])
    answers = runs.predict(tmp_path / "rows.npz")
    assert float((answers[PREDICTION].astype(int) == labels[test]).mean()) == stored(runs, "accuracy")
    with pytest.raises(BadInput, match=r"^predict: rows have shape \(8,\), but run 1 needs \(64,\)$"):
        runs.predict(np.zeros((3, 8)))


def test_own_arrays_need_no_data_to_predict(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    data = Dataset(x=x, y=y, x_test=x, y_test=y, classes=("a", "b"), columns=("p", "q", "r"))
    fs.run(data=data, skew="iid", clients=2, runs=tmp_path, **QUICK)
    answers = fs.load_model("latest", runs=tmp_path).predict(dict(zip("pqr", x.T, strict=True)))
    expected = fs.open(tmp_path)[1]
    assert float((answers[PREDICTION] == np.array(["a", "b"])[y]).mean()) == stored(expected, "accuracy")


def test_a_cell_that_is_no_number_is_named_where_training_rows_had_gaps(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"age": rng.normal(50, 9, 60), "ill": rng.choice(["no", "yes"], 60)})
    rows.loc[::9, "age"] = np.nan
    rows.to_csv(tmp_path / "rows.csv", index=False)
    runs = fs.run(dataset=f"table:path={tmp_path}/rows.csv,label=ill", skew="iid", clients=2, runs=tmp_path, **QUICK)
    with pytest.warns(UserWarning, match="1 row of 4: age not a number, such as '50,5'"):
        assert runs.predict({"age": ["50,5", "n/a", None, "50"]})[OUTSIDE].tolist() == ["age not a number", "", "", ""]


def test_an_odd_cell_leaves_the_truth_values_of_other_rows(tmp_path: Path) -> None:
    """With a single "yes" in the column, true and false of all rows counted as missing."""
    pd.DataFrame({"smoker": [True, False] * 30, "ill": ["no", "yes", "yes"] * 20}).to_csv(
        tmp_path / "rows.csv", index=False
    )
    runs = fs.run(dataset=f"table:path={tmp_path}/rows.csv,label=ill", skew="iid", clients=2, runs=tmp_path, **QUICK)
    (tmp_path / "new.csv").write_text("smoker\ntrue\nFalse\nyes\n1\n")
    with pytest.warns(UserWarning, match="1 row of 4: smoker not a number, such as 'yes'"):
        odd = runs.predict(tmp_path / "new.csv")["probability_no"]
    assert odd[[0, 1, 3]].tolist() == runs.predict({"smoker": [1, 0, 1]})["probability_no"].tolist()


def test_missing_columns_give_one_line_errors(made: tuple[Path, Runs]) -> None:
    folder, runs = made
    frame = pd.read_csv(folder / "test.csv").drop(columns=["age", "seen"])
    with pytest.raises(BadInput, match=r"^predict: the rows lack the columns age, seen, which the model of run 1"):
        runs.predict(frame)
    frame = pd.read_csv(folder / "test.csv").rename(columns={"age": "AGE"})
    with pytest.raises(BadInput, match=r"trained with; did you mean 'AGE'\?"):
        runs.predict(frame)


@pytest.mark.first
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_predict_writes_the_rows_with_their_answers(made: tuple[Path, Runs], tmp_path: Path, kind: str, capsys) -> None:
    folder, runs = made
    new, out = tmp_path / f"new.{kind}", tmp_path / f"out.{kind}"
    frame = pd.read_csv(folder / "test.csv")
    frame.to_csv(new, index=False) if kind == "csv" else frame.to_parquet(new)
    assert main(["predict", "1", str(new), "--runs", str(folder / "runs"), "--output", str(out)]) == 0
    told = capsys.readouterr()
    assert told.out == f"wrote {out}: 40 rows with the answers of run 1\n"
    assert f"accuracy {stored(runs, 'accuracy'):.6g}" in told.err
    written = pd.read_csv(out) if kind == "csv" else pd.read_parquet(out)
    assert written.columns.tolist()[:7] == frame.columns.tolist()
    assert written[PREDICTION].tolist() == runs.predict(frame)[PREDICTION].tolist()
    assert "has a column 'prediction' already; rename it" in error_of("predict", "1", out, "--runs", folder / "runs")


def test_numbers_on_the_training_file_say_so(made: tuple[Path, Runs], capsys) -> None:
    folder, _ = made
    for file, said in (("train", True), ("test", False)):
        assert main(["predict", "1", str(folder / f"{file}.csv"), "--runs", str(folder / "runs")]) == 0
        err = capsys.readouterr().err
        assert "against column 'ill'" in err
        assert ("the model was trained on rows of this file" in err) == said


def test_numbers_that_cannot_be_too_good_are_not_called_so(made, tmp_path, monkeypatch, capsys) -> None:
    folder, runs = made
    rows = pd.read_csv(folder / "train.csv")
    rows[runs.predict(rows)[PREDICTION] != rows["ill"]].to_csv(tmp_path / "wrong.csv", index=False)
    monkeypatch.setattr("fedskew.cli.models.trained_on", lambda record, path: True)
    assert main(["predict", "1", str(tmp_path / "wrong.csv"), "--runs", str(folder / "runs")]) == 0
    err = capsys.readouterr().err
    assert "accuracy 0" in err
    assert "too good" not in err


def test_a_model_takes_rows_of_any_floating_point_type(made: tuple[Path, Runs]) -> None:
    runs = made[1]
    rows = torch.tensor(fs.load(f"table:path={made[0] / 'train.csv'},label=ill").x_test, dtype=torch.float64)
    assert torch.equal(runs.model()(rows), runs.model()(rows.float()))


def test_runs_without_the_file_load_their_data(made: tuple[Path, Runs]) -> None:
    folder, runs = made
    path = runs.store.run_folder(1) / FILE
    before = runs.predict(folder / "test.csv")
    text = path.read_text()
    path.unlink()
    try:
        assert runs.predict(folder / "test.csv").equals(before)
        path.write_text(text.replace('"type":"words"', '"type":"later"'))
        with pytest.raises(BadInput, match="damaged or of another version"):
            runs.predict(folder / "test.csv")
    finally:
        path.write_text(text)


def test_personal_models_are_named_by_their_client(tmp_path: Path) -> None:
    runs = trained_on(tmp_path, algorithm="ditto")
    each = [runs.predict(tmp_path / "test.csv", client=name) for name in ("0", 1)]
    assert not each[0].equals(each[1])
    with pytest.raises(BadInput, match=r"^run 1: there is no client 'Rome'; they are 0, 1$"):
        runs.predict(tmp_path / "test.csv", client="Rome")


@pytest.mark.parametrize("zone", ["+01:00", "mixed"])
def test_times_with_an_offset_are_read_in_utc(made: tuple[Path, Runs], tmp_path: Path, zone: str) -> None:
    """The instant counts, in a CSV with and without cells that are no times, as texts, and as times with a zone."""
    folder, _ = made
    frame = pd.read_csv(folder / "test.csv").head(3)
    offsets = ["+01:00", "+02:00" if zone == "mixed" else "+01:00", "+01:00"]
    local = ["2020-01-01 10:00:00", "2020-01-02 11:00:00", "2020-01-03 23:30:00"]
    texts = [time + offset for time, offset in zip(local, offsets, strict=True)]
    utc = pd.to_datetime(pd.Series(texts), utc=True)
    model = fs.load_model(1, runs=folder / "runs")
    expected = model.inputs(frame.assign(seen=utc.dt.tz_localize(None)))
    given = [texts, utc.dt.tz_convert("Asia/Tokyo"), [pd.Timestamp(text).to_pydatetime() for text in texts]]
    for seen in given:
        assert torch.equal(model.inputs(frame.assign(seen=seen)), expected)
    frame.assign(seen=texts).to_csv(tmp_path / "all.csv", index=False)
    assert torch.equal(model.inputs(model.read(tmp_path / "all.csv")), expected)
    frame.assign(seen=[*texts[:2], "later"]).to_csv(tmp_path / "odd.csv", index=False)
    assert torch.equal(model.inputs(model.read(tmp_path / "odd.csv"))[:2], expected[:2])


def test_cells_that_no_training_row_had_are_named(made: tuple[Path, Runs]) -> None:
    folder, runs = made
    frame = pd.read_csv(folder / "test.csv").head(5)
    frame.loc[[1, 3], "ward"] = ["Z", "Y"]
    ages = frame.assign(age=["63 years", None, " ", "inf", "1e300"], seen=["later", *frame["seen"][1:]])
    with pytest.warns(UserWarning, match="no training row was like that") as caught:
        answers = runs.predict(ages)
    assert [str(warning.message).partition(";")[0] for warning in caught] == [
        "1 row of 5: age outside 27.3 to 76.51",
        "2 rows of 5: age missing",
        "2 rows of 5: age not a number, such as '63 years'",
        "2 rows of 5: ward unknown, such as 'Z'",
        "1 row of 5: seen not a time, such as 'later'",
    ]
    assert answers[OUTSIDE].tolist() == [
        "age not a number; seen not a time",
        "age missing; ward unknown",
        "age missing",
        "age not a number; ward unknown",
        "age outside 27.3 to 76.51",
    ]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"age": 63, "ward": "A"}, "give a list of values for each column, all of one length"),
        ({"age": [63, 41], "ward": ["A"]}, "give a list of values for each column, all of one length"),
        (pd.DataFrame([[63, 63, "A"]], columns=["age", "age", "ward"]), "two columns are called 'age'"),
        (pa.table([[63], [63], ["A"]], names=["age", "age", "ward"]), "two columns are called 'age'"),
    ],
)
def test_rows_of_the_wrong_shape_give_one_line_errors(made: tuple[Path, Runs], rows: object, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        made[1].predict(rows)
