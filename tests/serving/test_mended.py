"""Lines of ``NAME.columns.toml`` for a site's rows hold for its new rows, too, in whatever file they come."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedskew as fs
from fedskew.api.runs import Runs
from fedskew.cli.main import main
from fedskew.core.errors import BadInput
from fedskew.serving.predict import PREDICTION, load

QUICK = {
    "rounds": 2,
    "epochs": 1,
    "engine": "sequential",
    "training__threads": 1,
    "progress": False,
    "model": "softmax",
}
CLINICS = ("01", "02")
"""The second clinic writes the dose in grams and the sex as letters."""
CHOSEN = ["prediction", "probability_ill", "probability_well"]


def visits(rows: int, seed: int) -> pd.DataFrame:
    """Visits of both clinics with agreed units and words."""
    rng = np.random.default_rng(seed)
    dose, clinic = rng.normal(500, 90, rows).round(), rng.integers(0, 2, rows)
    sex = np.where(rng.random(rows) < 0.5, "male", "female")
    ill = np.where(dose + 60 * (sex == "male") + rng.normal(0, 40, rows) > 530, "ill", "well")
    return pd.DataFrame({"clinic": np.array(CLINICS)[clinic], "dose": dose, "sex": sex, "ill": ill})


def as_written(agreed: pd.DataFrame) -> pd.DataFrame:
    """The same visits as the clinics write them."""
    odd = agreed.clinic.eq("02")
    dose = agreed.dose.where(~odd, agreed.dose / 1000)
    return agreed.assign(dose=dose, sex=agreed.sex.where(~odd, agreed.sex.str[0]))


def trained(folder: Path, one_file: bool) -> Runs:
    """A run on visits as written, with the lines that mend them: by rows of one file, or for the file of the clinic."""
    folder.mkdir()
    rows, words = as_written(visits(200, 0)), '[words.sex]\nm = "male"\nf = "female"\n'
    if one_file:
        rows.to_csv(folder / "visits.csv", index=False)
        (folder / "visits.columns.toml").write_text(f"{words}[units.clinic.02]\ndose = 1000\n")
    else:
        for name, part in rows.groupby("clinic"):
            part.drop(columns="clinic").to_csv(folder / f"{name}.csv", index=False)
        (folder / "02.columns.toml").write_text(f"{words}[units]\ndose = 1000\n")
    data = f"table:path={folder / 'visits.csv'},client=clinic" if one_file else f"table:path={folder}"
    return fs.run(dataset=f"{data},label=ill", skew="natural", runs=folder / "runs", **QUICK)


@pytest.fixture(scope="module")
def one_file(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return trained(tmp_path_factory.mktemp("mended") / "one", one_file=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return trained(tmp_path_factory.mktemp("mended") / "several", one_file=False)


def answers(runs: Runs, rows: object) -> tuple[pd.DataFrame, list[str]]:
    """The answers, and the lines about cells that were changed or not."""
    lines: list[str] = []
    found = load(runs.store, 1, warn=lines.append).predict(rows, warn=lines.append)
    return found[CHOSEN], lines


def agreed_answers(runs: Runs, rows: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """The answers for agreed cells, from a file with a TOML file of its own, which changes nothing."""
    rows.to_csv(folder / "agreed.csv", index=False)
    (folder / "agreed.columns.toml").write_text("")
    return answers(runs, folder / "agreed.csv")[0]


def csv(rows: pd.DataFrame, folder: Path) -> Path:
    rows.to_csv(folder / "new.csv", index=False)
    return folder / "new.csv"


def frame(rows: pd.DataFrame, folder: Path) -> pd.DataFrame:
    return rows.set_index(np.arange(7, 7 + len(rows)))


@pytest.mark.parametrize("form", [csv, frame])
@pytest.mark.parametrize("drop", [[], ["ill"]], ids=["with the label", "without it"])
def test_new_rows_of_a_site_are_mended_as_its_rows_for_training(
    one_file: Runs, tmp_path: Path, form: Callable[[pd.DataFrame, Path], object], drop: list[str]
) -> None:
    agreed = visits(60, 1).drop(columns=drop)
    found, lines = answers(one_file, form(as_written(agreed), tmp_path))
    pd.testing.assert_frame_equal(found.reset_index(drop=True), agreed_answers(one_file, agreed, tmp_path), rtol=1e-6)
    assert lines[0].endswith(": changed as visits was for training: units of dose where clinic is 02; words sex")


def test_metrics_and_monitoring_are_of_mended_rows(one_file: Runs, tmp_path: Path, capsys) -> None:
    rows, model = csv(as_written(visits(300, 1)), tmp_path), load(one_file.store, 1, warn=lambda _: None)
    assert main(["predict", str(rows), "--runs", str(one_file.store.folder), "--output", str(tmp_path / "a.csv")]) == 0
    accuracy = (model.predict(rows, warn=lambda _: None)[PREDICTION] == visits(300, 1).ill).mean()
    err = capsys.readouterr().err
    assert f"accuracy {accuracy:.6g}" in err
    assert err.count("changed as visits") == 1
    assert pd.read_csv(tmp_path / "a.csv").dose.equals(as_written(visits(300, 1)).dose)  # as the file has them
    assert model.monitor(rows).set_index("column").stability_index["dose"] < 0.2


def test_rows_without_the_column_of_the_site_are_named(one_file: Runs, tmp_path: Path) -> None:
    rows = as_written(visits(20, 1)).drop(columns="clinic")
    lines = answers(one_file, csv(rows, tmp_path))[1]
    assert lines[0] == (
        "new.csv: changed as visits was for training: words sex; no column 'clinic', so these cells stay as they are: units "
        "of dose where clinic is 02"
    )


def test_rows_of_an_unknown_site_are_named(one_file: Runs, tmp_path: Path) -> None:
    rows = visits(20, 1).assign(clinic=["01", "09"] * 10)
    lines = answers(one_file, csv(rows, tmp_path))[1]
    assert lines[1].startswith("10 rows of 20: of a client without training rows (column clinic): its units and words")


def test_a_file_of_the_same_name_is_mended_and_another_one_is_named(files: Runs, tmp_path: Path) -> None:
    agreed = visits(60, 1).query("clinic == '02'").drop(columns="clinic")
    expected = agreed_answers(files, agreed, tmp_path)
    rows = as_written(agreed.assign(clinic="02")).drop(columns="clinic")
    rows.to_csv(tmp_path / "02.csv", index=False)
    found, lines = answers(files, tmp_path / "02.csv")
    pd.testing.assert_frame_equal(found, expected, rtol=1e-6)
    assert lines[0] == "02.csv: changed as 02 was for training: units of dose; words sex"
    agreed.to_csv(tmp_path / "01.csv", index=False)
    assert not [line for line in answers(files, tmp_path / "01.csv")[1] if "training:" in line or "changed" in line]
    lines = answers(files, csv(rows, tmp_path))[1]
    assert lines[0] == (
        "new.csv: read as it is, but in training the cells of 02 (units of dose; words sex) were changed; for rows of such a "
        "site write its lines into the new.columns.toml of these rows"
    )


def test_test_rows_in_another_file_are_mended(tmp_path: Path) -> None:
    trained(tmp_path / "one", one_file=True)
    test = csv(as_written(visits(80, 1)), tmp_path)
    data = f"table:path={tmp_path}/one/visits.csv,client=clinic,label=ill"
    runs = fs.run(dataset=f"{data},test={test}", skew="natural", runs=tmp_path / "runs", **QUICK)
    agreed = visits(80, 1)
    agreed.to_csv(tmp_path / "agreed.csv", index=False)
    (tmp_path / "agreed.columns.toml").write_text("")
    same = fs.run(dataset=f"{data},test={tmp_path / 'agreed.csv'}", skew="natural", runs=tmp_path / "same", **QUICK)
    scores = [found.measurements().query("split == 'test'").value for found in (runs, same)]
    np.testing.assert_allclose(*scores, rtol=1e-5)
    assert "new.csv: changed as visits was for training" in runs.records[0].facts["data"]["notes"]


@pytest.mark.parametrize("form", [csv, frame])
def test_a_cell_that_is_no_number_leaves_the_other_rows_mended(
    one_file: Runs, tmp_path: Path, form: Callable[[pd.DataFrame, Path], object]
) -> None:
    agreed = visits(60, 1)
    rows = as_written(agreed).astype({"dose": object})
    rows.loc[[0, 30], "dose"] = "much"
    found, lines = answers(one_file, form(rows.astype({"dose": str}), tmp_path))
    others = agreed.index.difference([0, 30])
    expected = agreed_answers(one_file, agreed, tmp_path)
    pd.testing.assert_frame_equal(found.reset_index(drop=True).loc[others], expected.loc[others], rtol=1e-6)
    assert any(line.startswith("2 rows of 60: dose not a number, such as 'much'") for line in lines)


def test_cells_that_cannot_be_mended_are_refused_in_one_line(one_file: Runs, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"^these rows: units: column 'dose' holds \w+, not numbers; correct its cells"):
        answers(one_file, as_written(visits(20, 1)).assign(dose="much"))


def test_an_export_says_that_it_takes_mended_rows(files: Runs, tmp_path: Path) -> None:
    lines: list[str] = []
    folder = fs.export(files, tmp_path / "model", warn=lines.append)
    agreed = "rows must have the agreed units and words; for training NAME.columns.toml changed 02 (units of dose; words sex)"
    assert lines == [f"{folder}: {agreed}"]
    assert f"Take care: {agreed}." in (folder / "README.md").read_text()
    csv(visits(5, 1).drop(columns=["clinic", "ill"]), tmp_path)
    words = [sys.executable, folder / "predict.py", tmp_path / "new.csv"]
    found = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0
    assert found.stderr == f"{agreed}\n"


def test_words_that_were_truth_values_or_numbers_in_their_file_are_known(tmp_path: Path) -> None:
    """A file with True and False alone, or with 007, beside files with yes and no: training had true, false and 7."""
    (tmp_path / "sites").mkdir()
    rng, of_sites = np.random.default_rng(0), {"a": ("True", "False"), "b": ("yes", "no"), "c": ("007", "12")}
    for site, words in of_sites.items():
        at = rng.integers(0, 2, 40)
        frame = pd.DataFrame({"x": rng.normal(size=40), "s": np.array(words)[at], "y": np.array(["ill", "well"])[at]})
        frame.to_csv(tmp_path / "sites" / f"{site}.csv", index=False)
    options = {"model": "softmax", "lr": 1.0, "rounds": 10, "progress": False, "runs": tmp_path / "runs"}
    model = fs.load_model(fs.run(dataset=f"table:{tmp_path / 'sites'},label=y", **options))
    assert model.preprocessing.columns[1].known == ("007", "12", "False", "True", "no", "yes")
    for site in of_sites:
        found = model.predict(path := tmp_path / "sites" / f"{site}.csv", warn=lambda line: None)
        assert not found["outside"].str.contains("unknown").any(), site
        assert model.evaluate(path)["accuracy"] == 1
    typed = pd.read_csv(tmp_path / "sites" / "a.csv")
    assert typed["s"].dtype == bool
    assert model.evaluate(typed)["accuracy"] == 1


def test_boolean_labels_and_clients_of_a_typed_file_equal_the_values_of_new_rows(tmp_path: Path) -> None:
    """Parquet and data frames hold truth values: the classes were true and false, and new rows had True and False."""
    rng = np.random.default_rng(0)
    x, private = rng.normal(size=(80, 2)), rng.random(80) < 0.5
    frame = pd.DataFrame({"p": x[:, 0], "q": x[:, 1], "private": private, "y": x[:, 0] > 0})
    frame.to_parquet(tmp_path / "rows.parquet")
    options = {"model": "softmax", "rounds": 1, "progress": False, "runs": tmp_path / "runs", "algorithm": "ditto"}
    runs = fs.run(dataset=f"table:{tmp_path / 'rows.parquet'},label=y,client=private", **options)
    model, lines = fs.load_model(runs), list[str]()
    assert set(model.predict(frame, warn=lines.append)["prediction"]) <= {"False", "True"}
    assert not any("site" in line for line in lines)
    assert model.evaluate(frame) == model.evaluate(tmp_path / "rows.parquet")
