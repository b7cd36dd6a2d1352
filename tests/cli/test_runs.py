"""`list`, `tag`, `rename` and `rm`."""

import io
import json
from pathlib import Path

import pytest

from fedskew.cli.main import main
from fedskew.store.runs import RunStore
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


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(list(words)) == 0
    return capsys.readouterr().out


def test_list_has_date_data_method_accuracy_status_and_tags(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["tag", "2", "final", "--runs", str(folder)]) == 0
    assert main(["rename", "c1", "Which one?", "--runs", str(folder)]) == 0
    monkeypatch.setenv("COLUMNS", "100")
    out = printed(capsys, "list", "--runs", str(folder)).splitlines()
    year = RunStore(folder).run(1).created[:4]
    assert " ".join(out[0].split()) == "run in method data seed accuracy % status date tags"
    assert " ".join(out[2].split()).startswith(f"2 c1 FedProx mu = 0.1 digits 0 81.2 finished {year}-")
    assert out[2].endswith("final")
    assert " ".join(out[3].split()).startswith(f"3 SCAFFOLD 7 10.0 interrupted 0/2 {year}-")
    assert out[4] == "c1: Which one?"
    monkeypatch.setenv("COLUMNS", "60")
    narrow = printed(capsys, "list", "--runs", str(folder)).splitlines()
    assert "data" not in narrow[0]
    assert any("FedProx mu = 0.1" in line for line in narrow)
    rows = json.loads(printed(capsys, "list", "--json", "--runs", str(folder)))
    assert [row["accuracy"] for row in rows] == [0.8123, 0.8123, 0.1]
    assert rows[1]["facts"]["tags"] == ["final"]


def test_a_renamed_comparison_has_its_name_as_title(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rename", "c1", "Which one?", "--runs", str(folder)]) == 0
    assert printed(capsys, "show", "c1", "--runs", str(folder)).splitlines()[0] == "Which one?"


def test_rm_asks_first(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["rm", "1", "--runs", str(folder)]) == 2
    assert "would remove 1 run (1)" in capsys.readouterr().err
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
