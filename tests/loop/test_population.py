"""Large populations: no loop over all clients, and the same partitions as in a loop."""

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedskew.api.functions import run
from fedskew.data.dataset import Dataset
from fedskew.experiment.config import Experiment
from fedskew.loop.plan import Local, SeededPlanner

ROOT = Path(__file__).parents[2]


def data_of(clients: int) -> Dataset:
    """Four rows a client."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 4 * clients)
    x = rng.standard_normal((len(y), 2), dtype=np.float32)
    return Dataset(x=x, y=y, x_test=x[:9], y_test=y[:9], classes=tuple("abc"))


def calls(action: Callable[[], object]) -> int:
    """The number of Python functions that it calls."""
    counted = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return counted


@pytest.mark.parametrize("skew", ["iid", "label-sorted", "label-dirichlet-balanced"])
def test_a_run_has_no_loop_over_the_population(skew, tmp_path):
    """With five times the clients and the same cohort, the number of calls hardly changes."""

    def made(clients: int) -> int:
        experiment = Experiment(
            algorithm="scaffold",
            skew=skew,
            clients={"number": clients},
            selection={"name": "uniform", "clients": 5},
            training={"rounds": 2, "states": "disk"},
            evaluation={"max_clients": 5},
            engine="stacked",
        )
        data = data_of(clients)
        return calls(lambda: run(experiment, data=data, runs=tmp_path / str(clients)))

    made(1000)  # imports, traces; up to this number, clients are stored one by one
    small, large = made(1000), made(5000)
    assert large - small < 700


@pytest.mark.parametrize("size", [3, "all"])
def test_batch_sizes_of_all_clients_equal_each_clients(size):
    sizes = np.asarray([1, 2, 3, 4, 500])
    local = Local(batch_size=size)
    planner = SeededPlanner(local, 0)
    expected = [planner.train(0, k, np.arange(n)).mask.sum(1).max() for k, n in enumerate(sizes.tolist())]
    assert planner.batch_sizes(sizes).tolist() == expected
    mixed = SeededPlanner(local, 0, by_client=(Local(batch_size=2), local, local, Local(batch_size="all"), local))
    expected = [mixed.train(0, k, np.arange(n)).mask.sum(1).max() for k, n in enumerate(sizes.tolist())]
    assert mixed.batch_sizes(sizes).tolist() == expected


@pytest.fixture
def growth(monkeypatch):
    """The command that measures growth."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("growth")


def test_the_page_of_large_runs_shows_the_stored_measurements(growth):
    text, found = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("how-to/large.md", "growth.json"))
    assert f"{growth.BEGIN}\n{growth.page(json.loads(found))}\n{growth.END}" in text, "run benchmarks/growth.py --write"


@pytest.mark.slow
def test_each_point_of_growth_is_measured_in_its_own_process(growth, monkeypatch, tmp_path):
    """One small point per curve. The page and both pictures are written, and the rest of the page stays."""
    tiny = {"clients": 20, "cohort": 4, "rounds": 3, "engine": "stacked"}
    monkeypatch.setattr(growth, "CURVES", {"cohort": ("cohort", tiny, (4,)), "million": ("clients", tiny, (20,))})
    monkeypatch.setattr(growth, "DOCS", tmp_path)
    (tmp_path / "how-to").mkdir()
    (tmp_path / "how-to" / "large.md").write_text(f"before\n{growth.BEGIN}old\n{growth.END}\nafter\n")
    monkeypatch.setattr("sys.argv", ["growth.py", "cohort", "million"])
    growth.main()
    points = json.loads((tmp_path / "growth.json").read_text())["points"]
    assert points["million"][0]["value"] == 20
    assert points["cohort"][0]["round"] > 0
    assert points["cohort"][0]["peak"] > points["cohort"][0]["data"] > 0
    text = (tmp_path / "how-to" / "large.md").read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "| cohort 4 |" in text
    assert "| 20 | 3 |" in text
    assert "old" not in text
    assert {p.name for p in tmp_path.glob("*.svg")} == {"growth.svg", "population.svg"}
