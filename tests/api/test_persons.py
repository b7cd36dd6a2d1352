"""Runs on tables whose persons have several rows: stored units, tuning, resume, predict, diagnoses and nodes."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import fedskew as fs
from fedskew.cli.main import main
from fedskew.data.datasets.table import TableData
from fedskew.diagnosis.diagnose import sites_of_files
from fedskew.diagnosis.subject import DiagnosisOptions
from fedskew.experiment.config import Experiment
from fedskew.flower.tables import check_table, summary_of
from fedskew.loop.evaluate import GROUPS, pooled_by_row
from fedskew.store import test_rows
from tests.commands import error_of, output_of
from tests.data.test_persons import PERSONS, VISITS, write_visits
from tests.tables import survey

FAST = {"model": "softmax", "rounds": 2, "skew": "natural", "progress": False}


def source(path: Path, options: str = "person=patient") -> str:
    return f"table:path={path},label=ill,client=hospital,{options}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_visits(tmp_path / "visits.csv")


def test_a_run_stores_one_value_for_each_tested_person(path: Path, tmp_path: Path) -> None:
    runs = fs.compare(["fedavg", "fedprox"], dataset=source(path), seeds=2, runs=tmp_path / "runs", **FAST)
    for run, found in test_rows.read(runs.store, [record.id for record in runs.records]).items():
        record = runs.store.run(run)
        assert found.units is not None
        assert len(found.values) == len(found.units) == PERSONS / 5
        assert record.facts["data"]["test_rows"] == PERSONS / 5 * VISITS
        measured = runs.measurements().query("run == @run and split == 'test' and name == 'accuracy'")["value"].iloc[-1]
        assert found.values.mean() == pytest.approx(measured, abs=1e-6)


@pytest.mark.parametrize(("units", "groups"), [(None, 200), (np.arange(300) // 5, 60), (np.arange(300) // 1.5, 200)])
def test_groups_of_rows_never_split_a_person(units: np.ndarray | None, groups: int) -> None:
    def pooled(outputs: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
        return {"recall": float((outputs[y == 1].argmax(-1) == 1).double().mean())}

    outputs, y = torch.randn(300, 2, generator=torch.Generator().manual_seed(0)), torch.arange(300) % 2
    ids = None if units is None else units.astype(np.int64)
    task = SimpleNamespace(kind=None, pooled=pooled)
    values, names = pooled_by_row(task, "recall", outputs, y, ids)  # type: ignore[arg-type]
    assert len(values) == groups
    assert (names is None) == (ids is None)
    group = (np.arange(300) if ids is None else ids) % (GROUPS if groups == GROUPS else 10**6)
    whole, without = (pooled(outputs[rows], y[rows])["recall"] for rows in (group >= 0, group != 3))
    assert values[3] == pytest.approx(groups * whole - (groups - 1) * without)


def test_resume_and_predict_with_persons(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ["--runs", str(tmp_path / "runs")]
    command = ["--dataset", source(path), "--skew", "natural", "--model", "softmax", *folder]
    assert main(["run", *command, "--rounds", "2"]) == 0
    assert "person=patient" in "".join(capsys.readouterr().err.split())
    new = tmp_path / "new.csv"
    new.write_text("hospital,x,sex,birth\na,3.5,f,1950\n")
    assert main(["predict", "1", str(new), "--json", *folder]) == 0
    assert main(["tune", *command, "--rounds", "1", "--grid", "solver.lr=0.01,0.1"]) == 0
    wrong = ["--dataset", source(path).replace("=patient", "=pateint"), "--skew", "natural"]
    for verb in ("run", "skew"):
        assert "no column 'pateint'; did you mean 'patient'?" in " ".join(error_of(verb, *wrong).split())


def test_a_diagnosis_counts_each_person_once_at_a_client(path: Path) -> None:
    command = ["diagnose", str(path), "--label", "ill", "--client", "hospital"]
    found = json.loads(output_of(*command, "--person", "patient", "--json"))
    assert sum(found["sizes"]) == PERSONS
    assert (
        f"differences count each person once, by the first row: {PERSONS * (VISITS - 1)} later rows not used for them"
        in found["notes"]
    )
    assert ",person=patient" in found["advice"]["command"]
    notes = json.loads(output_of(*command, "--json"))["notes"]
    assert [note for note in notes if "--person patient" in note]
    data = fs.load(source(path))
    assert data.persons is not None
    assert sum(fs.diagnose(dataset=data, progress=False)["sizes"]) == len(np.unique(data.persons[0]))
    assert "'hospital' cannot be both the client and the person" in error_of(*command, "--person", "hospital")


def test_fewest_is_about_persons(path: Path) -> None:
    """A person with many rows changes one count by one."""
    sites, _ = sites_of_files(DiagnosisOptions(paths=[path], label="ill", client="hospital", person="patient"))
    assert sum(len(site.y) for site in sites.values()) == PERSONS
    path.write_text(path.read_text() + "p900,a,1.5,f,1950,no\n" * 50)
    after, _ = sites_of_files(DiagnosisOptions(paths=[path], label="ill", client="hospital", person="patient"))
    assert len(after["a"].y) == len(sites["a"].y) + 1
    found = fs.diagnose(path, label="ill", client="hospital", person="patient", federated=True, progress=False)
    assert sum(found["sizes"]) == PERSONS + 1
    table = TableData(path=str(path), label="ill", person="patient")
    check_table(table)
    experiment = Experiment(dataset=source(path))
    assert summary_of(table, experiment, 5)[0] == PERSONS + 1
    assert summary_of(table, experiment, 1)[0] == PERSONS * VISITS + 50


def test_rows_without_persons_are_all_read(path: Path) -> None:
    assert survey([path], "ill", "hospital").person is None
    assert len(survey([path], "ill", "hospital", once=True).y) == PERSONS * VISITS
