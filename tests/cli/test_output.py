"""The table of methods on a terminal."""

import math
from pathlib import Path

import pytest

from fedskew.cli.output import print_summary
from fedskew.report.answer import answer
from fedskew.report.experiments import titled
from fedskew.report.series import PLAIN, Layout, Results
from fedskew.store.runs import RunStore
from tests.report import add

ALONE = '[sharing]\nname = "personal"\nhead = 1\nlayers = ["*"]\n'

METHODS = (
    "fedavg",
    "fedprox:mu=0.1",
    "fedprox:mu=0.001,step=implicit",
    "scaffold:server_lr=0.5",
    "fedadam:lr=0.1,beta1=0.9",
    "qfedavg:q=0.1",
    "dp-fedavg:clip=0.5,noise=2.5",
    "per-fedavg:alpha=0.01",
)


@pytest.fixture
def eight(tmp_path: Path) -> RunStore:
    """Return runs of eight methods with options and three seeds. The first method's intervals leave the possible range."""
    store = RunStore(tmp_path)
    for at, method in enumerate(METHODS):
        for seed in range(3):
            add(store, method, seed, [0.1, (0.8 if at else 0.3 + 0.3 * seed) + (at + seed * at % 3) / 50])
    return store


def lines(store: RunStore, capsys: pytest.CaptureFixture[str], layout: Layout = PLAIN) -> list[str]:
    capsys.readouterr()
    print_summary(Results(store, store.runs(), layout=layout))
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("columns", [60, 80, 100, 120, 300])
def test_no_name_or_number_is_broken(
    eight: RunStore, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    out = lines(eight, capsys)
    start = next(i for i, line in enumerate(out) if line.startswith("FedAvg "))
    names = [record.name for record in titled(eight.runs())[::3]]
    assert all(line.startswith(name) for line, name in zip(out[start:], names, strict=False))
    assert out[start + 8].startswith("test accuracy after the last round")
    assert all(len(line) <= columns for line in out)
    hidden = " ".join(out).partition("not shown, lines are too short: ")[2]
    assert ("verdict" in hidden, "drift" in hidden, "megabytes" in hidden) == {
        60: (True, True, True),
        80: (False, True, True),
        100: (False, True, True),
        120: (False, False, True),
        300: (False, False, False),
    }[columns]


def test_columns_that_are_asked_for_stay(
    eight: RunStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    out = lines(eight, capsys, Layout(columns=("accuracy", "worst_client", "drift", "seeds")))
    assert [line.split()[-2:] for line in out if line.startswith(("FedAvg", "SCAFFOLD"))] == [["0.00", "3"]] * 2
    assert all(word in " ".join(out) for word in ("accuracy", "worst", "drift", "seeds"))
    assert "hidden" not in " ".join(out)


def test_one_pooled_client_is_no_worst_client(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = RunStore(tmp_path)
    add(store, "fedavg", 0, [0.1, 0.5])
    experiment = '[skew]\nname = "pooled"\n'
    add(store, "centralised", 0, [0.1, 0.9], clients=(0.97,), experiment=experiment)
    table = Results(store, store.runs()).summary
    assert table["worst_client"].tolist() == [0.5, pytest.approx(float("nan"), nan_ok=True)]
    out = "\n".join(lines(store, capsys))
    assert "97.0" not in out
    assert "Centralised: one client holds all rows, so there is no worst client" in out


def test_a_model_that_was_never_trained_is_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = RunStore(tmp_path)
    for seed in range(3):
        add(store, "fedavg", seed, [0.1, 0.5 + 0.01 * seed])
        add(store, "local-only", seed, [0.1, 0.1], experiment=ALONE)
    out = lines(store, capsys)
    row = next(line for line in out if line.startswith("Local only")).removeprefix("Local only").split()
    assert row[:4] == ["–", "–", "75.0", "±"]  # accuracy, worst client, personal
    assert "lower" not in " ".join(out)
    expected = "Local only: clients share no model, so the server has no trained model to measure"
    assert expected in " ".join(" ".join(out).split())
    table = Results(store, store.runs()).summary
    assert table["verdict"].tolist() == ["", ""]
    assert math.isnan(table["p"][1])


def test_a_run_without_a_trained_model_on_the_server_says_so(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    add(store, "local-only", 0, [0.1, 0.1], experiment=ALONE)
    assert answer(Results(store, store.runs())) == "No method has a test accuracy, so they cannot be compared by it."


def test_an_interval_that_excludes_0_explains_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = RunStore(tmp_path)
    for seed, (one, two) in enumerate([(0.02, 0.0), (0.03, 0.0), (0.0, 0.01), (0.04, 0.0)]):
        for name, more in {"fedavg": 0.0, "scaffold": one, "fedprox": two}.items():
            add(store, name, seed, [0.1, 0.5 + more])
    table = Results(store, store.runs()).summary
    assert table["verdict"].tolist() == ["", "undecided", "undecided"]
    assert table["difference"][1] < table["difference_half"][1]
    assert "by Holm" not in " ".join(lines(store, capsys))
    for seed in range(4):
        add(store, "moon", seed, [0.1, 0.5 + (0.02, 0.03, 0.01, 0.04)[seed]])
    table = Results(store, store.runs()).summary
    assert table["difference"][3] > table["difference_half"][3]
    assert table["verdict"][3] == "undecided"
    expected = "MOON: undecided although the interval excludes 0, by Holm's correction for 3 comparisons"
    assert expected in " ".join(" ".join(lines(store, capsys)).split())


def test_zeros_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = RunStore(tmp_path)
    for name in ("fedavg", "local-only"):
        run = add(store, name, 0, [0.1, 0.5])
        store.write_round(run, 1, [(None, "test", "accuracy", 0.5), (None, "round", "drift", 2.0 * (name == "fedavg"))])
    rows = [line.split() for line in lines(store, capsys) if line.startswith(("FedAvg", "Local only"))]
    assert [row[-1] for row in rows[:1]] == ["2.00"]
    assert "–" in rows[1]
    store.write_round(1, 1, [(None, "test", "accuracy", 0.5), (None, "round", "drift", 0.0)])
    assert "drift" not in lines(store, capsys)[0]
