"""`list`, `tag`, `rename` and `rm`."""

import io
import json
from pathlib import Path

import pytest

from fedskew.cli.main import main
from fedskew.store.runs import RunStore
from fedskew.studies.runner import unfinished
from tests.commands import error_of, output_of
from tests.report import add


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = RunStore(tmp_path / "runs")
    comparison = store.add_comparison("fedavg vs fedprox:mu=0.1")
    for name in ("fedavg", "fedprox:mu=0.1"):
        run = add(store, name, 0, [0.1, 0.5, 0.8123], comparison=comparison)
        store.add_facts(run, {"data": {"name": "digits"}})
    add(store, "scaffold", 7, [0.1], status="interrupted", rounds=2)
    return store.folder


def test_list_has_date_data_method_accuracy_status_and_tags(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["tag", "2", "final", "--runs", str(folder)]) == 0
    assert main(["rename", "c1", "Which one?", "--runs", str(folder)]) == 0
    monkeypatch.setenv("COLUMNS", "100")
    out = output_of("list", "--runs", folder).splitlines()
    year = RunStore(folder).run(1).created[:4]
    assert " ".join(out[0].split()) == "run in method data seed accuracy % status date tags"
    assert " ".join(out[2].split()).startswith(f"2 c1 FedProx mu = 0.1 digits 0 81.2 finished {year}-")
    assert out[2].endswith("final")
    assert " ".join(out[3].split()).startswith(f"3 SCAFFOLD 7 10.0 interrupted 0/2 {year}-")
    assert out[4] == "c1: Which one?"
    monkeypatch.setenv("COLUMNS", "60")
    narrow = output_of("list", "--runs", folder).splitlines()
    assert "data" not in narrow[0]
    assert any("FedProx mu = 0.1" in line for line in narrow)
    rows = json.loads(output_of("list", "--json", "--runs", folder))
    assert [row["accuracy"] for row in rows] == [0.8123, 0.8123, 0.1]
    assert rows[1]["facts"]["tags"] == ["final"]


def test_rm_asks_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "would remove 1 run (1)" in error_of("rm", "1", "--runs", folder)
    assert main(["rm", "--runs", str(folder)]) == 2
    for answer, left in (("n\n", [1, 2, 3]), ("y\n", [3])):
        typed = io.StringIO(answer)
        monkeypatch.setattr(typed, "isatty", lambda: True)
        monkeypatch.setattr("sys.stdin", typed)
        assert main(["rm", "c1", "--runs", str(folder)]) == 0
        assert [record.id for record in RunStore(folder).runs()] == left
    assert main(["rm", "3", "--yes", "--runs", str(folder)]) == 0
    assert RunStore(folder).runs() == []


def test_rm_makes_no_store(tmp_path: Path) -> None:
    assert main(["rm", "1", "--yes", "--runs", str(tmp_path / "none")]) == 2
    assert not (tmp_path / "none").exists()


def test_list_names_the_measure_of_each_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    store = RunStore(tmp_path / "runs")
    text = '[dataset]\nname = "table"\npath = "a/visits.csv"\nlabel = "y"\n'
    table = add(store, "fedavg", 0, [0.1, 0.5], experiment=text)
    store.add_facts(table, {"data": {"name": "own data"}, "primary": "accuracy"})
    trial = add(store, "fedavg @ lr=0.1", 1000, [0.1, 0.5])
    store.write_round(trial, 2, [(None, "clients", "accuracy_mean", 0.625), (None, "test", "accuracy", 0.875)])
    store.add_facts(trial, {"tuning": {"method": "fedavg", "setting": {"solver.lr": 0.1}, "by": "clients"}})
    out = output_of("list", "--runs", store.folder)
    assert "visits.csv" in out
    assert "own data" not in out
    assert "validation 62.5" in out
    assert "87.5" not in out
    numbers = json.loads(output_of("list", "--json", "--runs", store.folder))
    assert [row.get("accuracy") for row in numbers] == [0.5, None]
    assert numbers[1]["validation_accuracy"] == 0.625
    number = add(store, "fedavg", 0, [0.1])
    store.write_round(number, 1, [(None, "test", "r2", 0.25)])
    store.add_facts(number, {"primary": "r2"})
    out = output_of("list", "--runs", store.folder)
    assert "accuracy 50.0\xa0%" in out
    assert "R2 0.25" in out.replace("\xa0", " ") or "R² 0.25" in out


def test_resume_without_a_name_takes_what_was_interrupted(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    add(store, "fedavg", 0, [0.1, 0.5])
    assert [r.id for r in unfinished(store)] == [1]
    comparison = store.add_comparison("fedavg vs scaffold")
    for name, status in (("fedavg", "finished"), ("scaffold", "interrupted")):
        add(store, name, 0, [0.1], status=status, comparison=comparison)
    add(store, "fedavg", 0, [0.1, 0.5])
    assert [r.id for r in unfinished(store)] == [2, 3]
    add(store, "moon", 0, [0.1], status="interrupted")
    assert [r.id for r in unfinished(store)] == [5]
