"""Tags, names and removal of stored runs."""

from pathlib import Path

import pytest

from fedskew.core.errors import BadInput
from fedskew.store import edit
from fedskew.store.lock import held
from fedskew.store.runs import RunStore
from tests.report import add


@pytest.fixture
def made(tmp_path: Path) -> RunStore:
    """Return a store with runs 1 and 2 of comparison c1, and run 3."""
    store = RunStore(tmp_path / "runs")
    comparison = store.add_comparison("fedavg vs scaffold")
    for name in ("fedavg", "scaffold"):
        add(store, name, 0, [0.1, 0.5], comparison=comparison)
    add(store, "fedavg", 1, [0.1, 0.6])
    for run in (1, 2, 3):
        store.run_folder(run).mkdir()
        (store.run_folder(run) / "experiment.toml").write_text("")
    (store.folder / "c1.html").write_text("")
    return store


def tags(store: RunStore) -> list[list[str]]:
    return [record.facts.get("tags", []) for record in store.runs()]


def test_a_tag_stands_for_its_runs(made: RunStore) -> None:
    edit.tag(made, made.select(["c1"]), ["final", "paper"])
    edit.tag(made, made.select(["2-3"]), ["final"])
    assert tags(made) == [["final", "paper"], ["paper", "final"], ["final"]]
    assert [record.id for record in made.select(["paper"])] == [1, 2]
    edit.tag(made, made.select(["2"]), ["final"], remove=True)
    assert [record.id for record in made.select(["final"])] == [1, 3]
    with pytest.raises(BadInput, match=r"'papers' is not a run: .* a tag, or latest"):
        made.select(["papers"])


@pytest.mark.parametrize("word", ["c2", "latest", "7", "3-5", "", "a b", "-x"])
def test_a_tag_is_not_taken_for_a_run(made: RunStore, word: str) -> None:
    with pytest.raises(BadInput, match="cannot be a tag"):
        edit.tag(made, made.select(["1"]), [word])
    assert tags(made) == [[], [], []]


def test_runs_and_comparisons_have_names(made: RunStore) -> None:
    edit.rename(made, "c1", "Two methods")
    edit.rename(made, "3", "again")
    assert made.query("SELECT title FROM comparisons") == [("Two methods",)]
    assert [record.name for record in made.runs()] == ["fedavg", "scaffold", "again"]
    with pytest.raises(BadInput, match="'1-2' means 2 runs"):
        edit.rename(made, "1-2", "x")
    with pytest.raises(BadInput, match="there is no comparison c7"):
        edit.rename(made, "c7", "x")


def test_a_removed_run_leaves_nothing(made: RunStore) -> None:
    made.set_partition(1, [(0, "0", "7", 30)])
    edit.remove(made, made.select(["1"]))
    assert [record.id for record in made.runs()] == [2, 3]
    assert made.query("SELECT DISTINCT run FROM measurements ORDER BY run") == [(2,), (3,)]
    assert made.query("SELECT count(*) FROM partitions") == [(0,)]
    assert not made.run_folder(1).exists()
    assert (made.folder / "c1.html").exists(), "the comparison has another run"
    edit.remove(made, made.select(["2"]))
    assert made.query("SELECT count(*) FROM comparisons") == [(0,)]
    assert sorted(path.name for path in made.folder.iterdir() if "." not in path.name or path.suffix == ".html") == [
        "3"
    ]


def test_a_run_that_is_carried_out_is_not_removed_or_renamed(made: RunStore) -> None:
    with held(made, 1):
        for change in (lambda: edit.remove(made, made.runs()), lambda: edit.rename(made, "1", "x")):
            with pytest.raises(BadInput, match=r"run 1: process .* is executing it"):
                change()
    assert [record.name for record in made.runs()] == ["fedavg", "scaffold", "fedavg"]
