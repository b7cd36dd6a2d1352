"""Names of runs as papers write them."""

from pathlib import Path

import pytest

from fedskew.algorithms import ALGORITHMS
from fedskew.core.text import METHODS, SERVERS, SKEWS
from fedskew.experiment.combinations import COMBINATIONS
from fedskew.report.experiments import comparison_title, name_of, names, titled
from fedskew.skew import SKEWS as SKEW_CLASSES
from fedskew.slots import SERVER_OPTIMISERS
from fedskew.store.runs import RunStore
from tests.report import add


def test_every_method_skew_and_server_has_a_title() -> None:
    assert list(METHODS) == [*ALGORITHMS, *COMBINATIONS]
    assert list(SKEWS) == list(SKEW_CLASSES)
    assert list(SERVERS) == list(SERVER_OPTIMISERS)


def test_titles_differ() -> None:
    for table in (METHODS, SERVERS, SKEWS):
        assert len(set(table.values())) == len(table)


@pytest.mark.parametrize(
    ("raw", "shown", "latex"),
    [
        ("fedavg", "FedAvg", "FedAvg"),
        ("fedprox:mu=0.1", "FedProx mu = 0.1", r"FedProx ($\mu = 0.1$)"),
        ("QFedAvg:q=1", "q-FedAvg q = 1", "q-FedAvg ($q = 1$)"),
        (
            "fedadam:lr=0.001,beta1=0.9",
            "FedAdam lr = 0.001, beta1 = 0.9",
            r"FedAdam ($\mathrm{lr} = 0.001$, $\beta_{1} = 0.9$)",
        ),
        (
            "fedprox:mu=0.1,step=implicit",
            "FedProx mu = 0.1, step = implicit",
            r"FedProx ($\mu = 0.1$, $\mathrm{step}$ = implicit)",
        ),
        ("fedprox:mu=1e-09", "FedProx mu = 1e-09", r"FedProx ($\mu = 1 \cdot 10^{-9}$)"),
        ("./some/mine.py::Mine:rate=2", "Mine rate = 2", r"Mine ($\mathrm{rate} = 2$)"),
        ("my 50 % run_1: first", "my 50 % run_1: first", r"my 50 \% run\_1: first"),
        ("fednova:tau_eff=steps", "FedNova tau_eff = steps", r"FedNova ($\tau_{\mathrm{eff}}$ = steps)"),
    ],
)
def test_names_as_papers_write_them(raw: str, shown: str, latex: str) -> None:
    name = name_of(raw)
    assert (str(name), name.latex) == (shown, latex)


def test_a_server_optimiser_is_named_once() -> None:
    adam = {"server": {"name": "adam", "lr": 0.1}}
    assert str(name_of("scaffold", adam)) == "SCAFFOLD + Adam server"
    assert str(name_of("fedadam", adam)) == "FedAdam"
    assert str(name_of("my own name", adam)) == "my own name"


def test_different_runs_have_different_names(tmp_path: Path) -> None:
    empty = RunStore(tmp_path)
    runs = [("fedavg", 0.1), ("fedavg", 0.2), ("fedprox:mu=0.1", 0.1), ("FedProx:mu=0.1", 0.1), ("scaffold", 0.1)]
    for name, lr in runs:
        add(empty, name, 0, [0.1, 0.5], lr=lr)
    once = titled(empty.runs())
    assert [record.name for record in once] == [
        "FedAvg, solver.lr = 0.1",
        "FedAvg, solver.lr = 0.2",
        "fedprox:mu=0.1",
        "FedProx:mu=0.1",
        "SCAFFOLD",
    ]
    assert titled(once) == once
    assert names(empty.runs())[0].latex == r"FedAvg ($\mathrm{solver.lr} = 0.1$)"


def test_classes_of_one_name_say_their_files(tmp_path: Path) -> None:
    empty = RunStore(tmp_path)
    for spec in ("./new/mine.py::Mine", "./old/mine.py::Mine", "./old/other.py::Only:mu=2"):
        add(empty, spec, 0, [0.1, 0.5])
    found = [record.name for record in titled(empty.runs())]
    assert found == ["Mine (new/mine.py)", "Mine (old/mine.py)", "Only mu = 2"]


def test_title_of_a_comparison(tmp_path: Path) -> None:
    empty = RunStore(tmp_path)
    comparison = empty.add_comparison("fedavg vs fedprox:mu=0.1")
    add(empty, "fedavg", 0, [0.1, 0.5], comparison=comparison)
    assert comparison_title(empty, empty.runs()) == "FedAvg vs FedProx mu = 0.1"
    add(empty, "scaffold", 0, [0.1, 0.5])
    assert comparison_title(empty, empty.runs()) == "FedAvg and SCAFFOLD"
