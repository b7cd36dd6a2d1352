"""``watch``: what it says of a store with known numbers, piped, redrawn and as JSON."""

import io
import json
from collections.abc import Iterator

import pytest
from rich.console import Console

import fedskew as fs
from fedskew.cli import watch
from fedskew.cli.main import main
from fedskew.store.lock import held
from fedskew.store.runs import RunStore
from tests.commands import line_of, output_of


@pytest.fixture
def store(tmp_path) -> Iterator[RunStore]:
    """Run 1 has ended. This process carries out run 2, which is after round 3 of 5, at 2 s a round, and was tested in round 2."""
    made = RunStore(tmp_path)
    for name, rounds in (("fedavg", 2), ("scaffold", 5)):
        made.add_run(name=name, experiment="", experiment_hash="", seed=7, partition_seed=7, rounds=rounds)
    for run, last in ((1, 2), (2, 3)):
        for round_ in range(1, last + 1):
            rows = [(None, "round", "seconds", 2.0), (None, "round", "drift", 0.5 * round_)]
            tested = [(None, "test", "accuracy", 0.25 * round_), (None, "clients", "accuracy_worst", 0.1)]
            made.write_round(run, round_, [*rows, *(tested if round_ < 3 else []), (0, "round", "drift", 9.0)])
    made.update(1, status="finished")
    made.update(2, status="running")
    made.add_facts(2, {"warnings": [{"kind": "diverging", "line": "divergence grows"}]})
    with held(made, 2):
        yield made


def test_json_has_newest_numbers_and_seconds_left(store) -> None:
    first, second = json.loads(output_of("watch", "1-2", "--runs", store.folder, "--json"))
    assert (first["status"], first["round"], first["seconds_left"]) == ("finished", 2, 0.0)
    assert (second["accuracy"], second["worst_client"], second["drift"]) == (0.5, 0.1, 1.5)
    assert (second["round"], second["rounds"], second["seconds_a_round"], second["seconds_left"]) == (3, 5, 2.0, 4.0)
    assert second["warnings"] == ["divergence grows"]


def test_watch_prints_once_into_a_pipe(store) -> None:
    out = output_of("watch", "1-2", "--runs", store.folder)
    assert "\x1b" not in out
    assert out.count("SCAFFOLD") == 2  # its line, and its warning
    assert "3/5" in out
    assert "50.0" in out
    assert "1 of 2 runs have ended, about 4 s of training left" in out
    assert "warning: diverging in 1 of 1 run of SCAFFOLD: run 2, divergence grows" in out


def test_planned_runs_are_estimated_at_the_pace_of_the_others(store) -> None:
    for _ in range(2):
        store.add_run(name="fedprox", experiment="", experiment_hash="", seed=7, partition_seed=7, rounds=5)
    assert "about 24 s of training left" in output_of("watch", "1-4", "--runs", store.folder)


def test_a_run_without_a_round_has_no_numbers(tmp_path) -> None:
    store = RunStore(tmp_path)
    store.add_run(name="fedavg", experiment="", experiment_hash="", seed=0, partition_seed=0, rounds=3)
    assert "0/3" in (out := output_of("watch", "--runs", tmp_path))
    assert "–" in out
    assert "0 of 1 runs have ended\n" in out


def test_watch_follows_on_a_terminal_until_all_runs_ended(store, monkeypatch) -> None:
    screen, slept = io.StringIO(), []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        round_ = 3 + len(slept)
        store.write_round(2, round_, [(None, "test", "accuracy", 0.9)])
        store.update(2, status="finished" if round_ == 5 else "running")

    monkeypatch.setattr(watch.time, "sleep", sleep)
    monkeypatch.setattr(watch, "Console", lambda **_: Console(file=screen, force_terminal=True, width=120))
    assert main(["watch", "1-2", "--every", "0.5", "--runs", str(store.folder)]) == 0
    assert slept == [0.5, 0.5]
    assert "4/5" in screen.getvalue()
    assert "2 of 2 runs have ended" in screen.getvalue()


def test_a_silent_run_is_named(store) -> None:
    with store.transaction():
        store.db.execute("UPDATE runs SET updated='2020-01-01T00:00:00+00:00' WHERE id=2")
    ended, silent = watch.watched_runs(store, ["1-2"])
    assert watch.state(silent).startswith("running, silent for")
    assert watch.state(ended) == "finished"


@pytest.mark.parametrize("status", ["running", "planned"])
def test_watch_ends_with_a_line_after_a_run_lost_its_process(store, monkeypatch, status: str) -> None:
    """A killed process leaves its status as it was; runs that it planned are not begun."""
    screen, slept = io.StringIO(), []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        assert len(slept) < 3, "it never ends"
        store.update(2, status=status)
        monkeypatch.setattr(watch, "owner", lambda *_: "")
        store.db.execute("UPDATE runs SET updated='2020-01-01T00:00:00+00:00'")

    monkeypatch.setattr(watch.time, "sleep", sleep)
    monkeypatch.setattr(watch, "Console", lambda **_: Console(file=screen, force_terminal=True, width=120))
    assert main(["watch", "1-2", "--runs", str(store.folder)]) == 0
    assert "no process is working on run 2; `fedskew resume 2` continues" in screen.getvalue()
    assert ("its process is gone" in screen.getvalue()) == (status == "running")


def test_a_lost_run_between_sites_is_continued_by_flower(store, monkeypatch) -> None:
    store.add_facts(2, {"flower": {}})
    monkeypatch.setattr(watch, "owner", lambda *_: "")
    assert "on run 2; `flwr run APP --run-config resume=2` continues" in line_of("watch", "2", "--runs", store.folder)


def test_runs_that_were_planned_just_now_are_waited_for(tmp_path, monkeypatch) -> None:
    store = RunStore(tmp_path)
    store.add_run(name="fedavg", experiment="", experiment_hash="", seed=0, partition_seed=0, rounds=3)
    assert watch.going_on(watch.watched_runs(store, []))
    monkeypatch.setattr(watch, "PATIENCE", -1.0)
    assert not watch.going_on(watch.watched_runs(store, []))


def test_report_watch_writes_a_page_that_reloads_until_the_runs_end(store, tmp_path, monkeypatch) -> None:
    """While a run continues the page reloads itself; the last page does not."""
    pages: list[str] = []
    file = tmp_path / "page.html"

    def sleep(seconds: float) -> None:
        pages.append(file.read_text(encoding="utf-8"))
        store.update(2, status="finished")

    monkeypatch.setattr(watch.time, "sleep", sleep)
    assert main(["report", "1-2", "--watch", "--output", str(file), "--runs", str(store.folder)]) == 0
    assert len(pages) == 1
    assert "<body data-live>" in pages[0]
    assert '<progress max="7" value="5" aria-label="rounds done"></progress> 5 of 7 rounds; ' in pages[0]
    assert "; 1 of 2 runs have ended, about 4 s of training left</p>" in pages[0]
    assert "<progress" not in file.read_text(encoding="utf-8")
    assert "<body>" in file.read_text(encoding="utf-8")


def test_no_number_of_an_untrained_server_model_is_shown(tmp_path) -> None:
    """Clients that train alone share nothing: ``watch`` and progress showed the accuracy of the model before training."""
    seen: list[str] = []
    options = {"rounds": 1, "clients": 3, "runs": tmp_path, "engine": "sequential", "progress": False}
    fs.run(algorithm="local-only", listener=lambda progress: seen.extend(progress.values), **options)
    assert seen == ["drift"]
    [row] = json.loads(output_of("watch", "1", "--runs", tmp_path, "--json"))
    assert (row["accuracy"], row["worst_client"]) == (None, None)
    assert row["drift"] == 0
