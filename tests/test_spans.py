"""Spans exclude each other, add up, and cost nothing while nobody asks."""

from __future__ import annotations

import json

import pytest

from fedskew.cli.main import main
from fedskew.core import spans
from fedskew.core.spans import REST, profiled, span
from fedskew.store.runs import RunStore


@pytest.fixture
def clock(monkeypatch):
    """A clock that is moved by hand."""
    now = [100.0]
    monkeypatch.setattr(spans.time, "perf_counter", lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += seconds

    return wait


def test_each_moment_belongs_to_the_innermost_span(clock):
    with profiled({"training": 1.0}) as seconds:
        clock(0.5)
        with span("training"):
            clock(2)
            with span("batching"):
                clock(3)
            clock(4)
        with span("training"):
            clock(8)
    assert seconds == {REST: 0.5, "training": 1 + 2 + 4 + 8, "batching": 3}


def test_an_error_closes_its_spans(clock):
    def fail():
        with span("training"):
            clock(1)
            raise ValueError

    with profiled({}) as seconds:
        with pytest.raises(ValueError):
            fail()
        clock(2)
    assert seconds == {REST: 2, "training": 1}


def test_without_a_question_a_span_is_nothing():
    assert span("training") is span("store")


def test_a_run_tells_where_its_time_goes(tmp_path, capsys):
    command = ["run", "--rounds", "2", "--engine", "sequential", "--runs", str(tmp_path), "--profile"]
    assert main(command) == 0
    told = capsys.readouterr().out
    record = RunStore(tmp_path).run(1)
    assert {"local training", "evaluation", "aggregation", "measures", "planning the round", "store"} <= set(
        record.facts["profile"]
    )
    assert all(part in told for part in record.facts["profile"])
    assert "Where the time went" in (tmp_path / "1.html").read_text()
    rounds = RunStore(tmp_path).measurements([1]).query("name == 'seconds'")["value"].sum()
    assert sum(record.facts["profile"].values()) > rounds


def test_a_run_that_was_not_asked_tells_nothing(tmp_path, capsys):
    assert main(["run", "--rounds", "1", "--engine", "sequential", "--runs", str(tmp_path), "--json"]) == 0
    assert "profile" not in RunStore(tmp_path).run(1).facts
    assert json.loads(capsys.readouterr().out)
    assert "Where the time went" not in (tmp_path / "1.html").read_text()
