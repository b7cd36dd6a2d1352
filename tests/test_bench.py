"""The benchmark: its sides do the same work, its ratio is the one it claims, its table and page say what was measured."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from fedskew.cli.main import main
from fedskew.experiment import bench
from fedskew.experiment.bench import WORKLOADS, measure, ratio
from fedskew.report.performance import draw, markdown, rows

SMALL = [dataclasses.replace(work, clients=3, rows=20, batch=8, epochs=2) for work in (WORKLOADS[0], WORKLOADS[3])]


@pytest.mark.slow
@pytest.mark.parametrize("work", SMALL, ids=lambda work: work.name)
def test_all_sides_make_the_same_model(work):
    before = torch.get_num_threads()
    found = measure(work, repeats=2, processes=2)
    several = {"plain, 2 processes", "fedskew, 2 processes"}
    assert several | {"plain", "fedskew"} <= set(found["seconds"])
    assert ("plain, channels last" in found["seconds"]) == (len(work.shape) == 3)
    assert all(len(taken) == 2 for taken in found["seconds"].values())
    assert found["largest_difference"] < 1e-6
    assert torch.get_num_threads() == before


def test_a_side_that_does_other_work_shows(monkeypatch):
    plain = bench.plain
    monkeypatch.setattr(bench, "plain", lambda *arguments: plain(*arguments) + 0.01)
    assert measure(SMALL[0], repeats=1, processes=1)["largest_difference"] > 0.009


RESULT = {
    "torch": "2.9",
    "cores": 2,
    "processes": 2,
    "works": [
        {
            "work": "a model",
            "engine": "stacked",
            "seconds": {"plain": [3.0, 1.0, 2.0], "plain, 2 processes": [1.0, 1.0, 9.0], "fedskew": [0.5, 0.25, 0.1]},
            "ratio": 4.0,
            "wanted": 8.0,
            "largest_difference": 1e-7,
        }
    ],
}


def test_the_ratio_is_that_of_the_medians_of_the_best():
    assert ratio(RESULT["works"][0]["seconds"]) == 1.0 / 0.25


def test_the_table_has_the_fastest_first():
    assert rows(RESULT["works"]) == [
        ("a model", "fedskew", "250.0", "1.00"),
        ("", "plain, 2 processes", "1000.0", "4.00"),
        ("", "plain", "2000.0", "8.00"),
    ]


def test_the_page_and_the_picture():
    text = markdown(RESULT)
    assert "fedskew bench --repeats 3 --processes 2" in text
    assert "4.00 times as fast as the best plain loop, wanted 8" in text
    assert [label.get_text() for label in draw(RESULT["works"]).axes[0].get_yticklabels()] == [
        "plain",
        "plain, 2 processes",
        "fedskew",
    ]


def test_the_verb(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("fedskew.cli.bench.WORKLOADS", SMALL[:1])
    picture = tmp_path / "bench.svg"
    assert main(["bench", "--repeats", "1", "--processes", "1", "--json", "--output", str(picture)]) == 0
    assert set(json.loads(capsys.readouterr().out)["works"][0]["seconds"]) == {"plain", "fedskew"}
    assert picture.read_text().startswith("<?xml")
    assert main(["bench", "--only", "nothing of this name"]) == 2
