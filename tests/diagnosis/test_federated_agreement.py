"""One diagnosis: rows in one place and sites that do not pool their rows have the same numbers."""

import numpy as np
import pytest

from fedskew.diagnosis.diagnose import diagnosis, faces_of, rehearse, sites_of_files, sites_of_rows
from fedskew.diagnosis.subject import DiagnosisOptions, from_experiment, from_files
from fedskew.experiment.config import Experiment
from tests.federated import frame
from tests.planted import label_skewed
from tests.real import real_data

pytestmark = pytest.mark.usefixtures("few_tables")


@pytest.mark.parametrize("columns", [{"label": "ill"}, {"target": "pulse"}, {"target": "visits"}])
@pytest.mark.parametrize("listed", ["differences", "every fact"])
def test_rows_in_one_place_and_sites_give_the_same_numbers_and_columns(tmp_path, monkeypatch, columns, listed):
    """Four fifths of the visits are 0, so that eight tenths are one. In a list of every fact, no word or number is wrong unseen."""
    if listed == "every fact":
        for name, value in {"SMALL": 0.0, "LEVEL": 1e9, "MOST": 1000, "MOST_OF_CLIENT": 1000}.items():
            monkeypatch.setattr(f"fedskew.measure.heterogeneity.columns.{name}", value)
    table = tmp_path / "patients.csv"
    frame().to_csv(table, index=False)
    options = DiagnosisOptions(paths=[table], client="hospital", federated=True, fewest=1, **columns)
    pooled, found = diagnosis(from_files(options)), rehearse(*sites_of_files(options))
    for values in (pooled, found):  # a site cannot see that another one has the same row
        values["columns"] = [part for part in values["columns"] if part["column"] != "rows"]
        values["by_client"] = [[part for part in parts if part["column"] != "rows"] for parts in values["by_client"]]
    assert {column["column"] for column in pooled["columns"]} >= {"pulse", "smokes"} - {columns.get("target")}
    equal = "target target_in_words classes label_counts sizes client_names measured_rows dominant repairs"
    equal += " explained_by_labels" if listed == "differences" else ""
    assert {name: found[name] for name in equal.split()} == {name: pooled[name] for name in equal.split()}
    for one, other in zip(found["faces"], pooled["faces"], strict=True):
        for name in ("value", "each", "low", "high", "chance", "p"):
            assert one[name] == pytest.approx(other[name], abs=1e-12, nan_ok=True), (one["face"], name)
    assert np.array(found["holdings"]["rows"]) == pytest.approx(np.array(pooled["holdings"]["rows"]), abs=1e-12)
    by_client = [[line for lines in made["by_client"] for line in lines] for made in (found, pooled)]
    assert [len(lines) for lines in found["by_client"]] == [len(lines) for lines in pooled["by_client"]]
    for one, other in zip(*by_client, strict=True):
        assert one == {
            **other,
            "effect": pytest.approx(other["effect"], rel=1e-12),
            "p": pytest.approx(other["p"], rel=1e-9),
        }
    for one, other in zip(found["columns"], pooled["columns"], strict=True):
        assert one["text"] == other["text"]
        assert one["each"] == pytest.approx(other["each"], abs=1e-12)
        assert one["p"] == pytest.approx(other["p"], rel=1e-9)
    assert found["measures"]["label"] == pytest.approx(pooled["measures"]["label"], nan_ok=True)


@pytest.mark.parametrize("dataset", ["heart", "digits", pytest.param("uci-har", marks=pytest.mark.slow)])
def test_a_named_data_set_has_the_same_numbers_in_one_place_and_at_sites(dataset):
    if dataset == "uci-har":
        real_data()
    subject = from_experiment(Experiment(dataset=dataset, skew="iid" if dataset == "digits" else "natural"), dataset)
    found, pooled = rehearse(*sites_of_rows(subject, 1)), diagnosis(subject)
    for one, other in zip(found["faces"], pooled["faces"], strict=True):
        assert one["value"] == pytest.approx(other["value"], abs=1e-12), one["face"]
    assert [column["text"] for column in found["columns"]] == [column["text"] for column in pooled["columns"]]
    assert found["explained_by_labels"] == pooled["explained_by_labels"]
    assert found["label_counts"] == pooled["label_counts"]
    assert found["notes"] == ["diagnosed without pooling rows", *pooled["notes"]]
    assert found["column_notes"] == pooled["column_notes"]


@pytest.mark.parametrize("fewest", [1, 5])
def test_sites_name_columns_that_follow_the_labels_as_rows_in_one_place_do(fewest):
    """Words, gaps, deviations and means, and an offset at one site."""
    made = label_skewed(0, 3.0)
    pooled, found = diagnosis(made), rehearse(*sites_of_rows(made, fewest))
    assert found["columns"][0]["column"] == pooled["columns"][0]["column"] == "c0"
    assert len(pooled["explained_by_labels"]) >= 3
    assert {column["column"] for column in found["columns"]} == {column["column"] for column in pooled["columns"]}
    if fewest == 1:
        assert found["explained_by_labels"] == pooled["explained_by_labels"]


REAL = {
    "heart": {"label": 0.185, "feature": 0.479, "quantity": 0.149, "concept": 0.067},
    "uci-har": {"label": 0.048, "feature": 0.508, "quantity": 0.043, "concept": 0.064},
    "uci-har:form=features": {"label": 0.048, "feature": 0.536, "quantity": 0.043, "concept": 0.040},
    "adult": {"label": 0.047, "feature": 0.509, "quantity": 0.586, "concept": 0.019},
    "parkinsons": {"label": 0.692, "feature": 0.741, "quantity": 0.043, "concept": 0.656},
    "beijing-air": {"label": 0.037, "feature": 0.262, "quantity": 0.003, "concept": 0.062},
}
"""Values from rows instead of sums, with kinds of inputs that are clusters of the rows themselves."""


@pytest.mark.parametrize("dataset", [pytest.param(name, marks=[pytest.mark.slow] * (name != "heart")) for name in REAL])
def test_faces_of_real_data_are_close_to_the_ones_of_rows(dataset):
    if dataset != "heart":
        real_data()
    found = faces_of(from_experiment(Experiment(dataset=dataset, skew="natural"), dataset))
    values = {face.name: face.value for face in found.faces}
    print(dataset, {name: round(value, 3) for name, value in values.items()})
    assert values == pytest.approx(REAL[dataset], abs=0.05)
    assert found.dominant == ("quantity" if dataset == "adult" else "feature")
